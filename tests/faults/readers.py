"""Who reads from a service that suffers, each in its way, and checks every message: see `load`."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import TYPE_CHECKING, Any

import httpx
from ledger import Event, Fault, Key, hold
from service_support import Api, until
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from fieldfare.client.event_stream import EventStreamParser
from fieldfare.model import Position

if TYPE_CHECKING:
    from load import Load

RETRY_S = 0.05
BEFORE_ALL = Position(0, -1, 0)
SWALLOWED_S = 60.0
"""What a broken connection has swallowed comes again within this time."""
SPOKEN = "cloudevents.json"
CHANGED = "changed"
"""What stands in every space under filters that change, and is read all the time too."""
REPLAY_BYTES = 300_000
"""About so far back goes who begins in the past: retention must not overtake him."""
REPLAY_S = 300.0
REPLAY_FILTER = "data.word LIKE 'a%' OR data.bulk < 2"


class Stopped(Exception):
    """The actor was told to stop while it waited for an answer."""


class Actor:
    """Somebody who uses the service from a thread of their own until told to stop."""

    def __init__(self, load: Load, space: str, seed: str) -> None:
        self.load = load
        self.ledger = load.ledger
        self.space = space
        self.random = Random(seed)
        self.api = Api(load.url)
        self.stopping = threading.Event()
        self.paused = threading.Event()
        self.error: BaseException | None = None
        self._at_rest = threading.Event()
        self._thread = threading.Thread(target=self._act, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def pause(self) -> None:
        """Do nothing any more until told to go on; what was begun is finished on return."""
        self._at_rest.clear()
        self.paused.set()
        until(lambda: self.error is not None or self._at_rest.is_set(), why=f"({self} comes to rest)")
        self.check()

    def stop(self) -> None:
        self.stopping.set()
        self._thread.join(90)
        assert not self._thread.is_alive(), f"{self} did not end"
        self.check()

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def _act(self) -> None:
        try:
            while not self.stopping.is_set():
                if self.paused.is_set():
                    self.end_begun()
                    self._at_rest.set()
                    self.stopping.wait(RETRY_S)
                else:
                    self._at_rest.clear()
                    self.act()
        except Stopped:
            pass
        except BaseException as error:
            self.error = error

    def act(self) -> None:
        """One thing to do."""
        raise NotImplementedError

    def end_begun(self) -> None:
        """Wait for what was begun and goes on beside `act`."""

    def broken_off(self) -> None:
        """An answer did not come, or not to its end."""

    def call(self, method: str, path: str, **arguments: Any) -> tuple[httpx.Response, int]:
        """An answer, and after how many tries: after a broken connection and "not now" it is tried again."""
        tries = 0
        while True:
            tries += 1
            self.load.calls += 1
            try:
                answer = self.api.http.request(method, f"/v1/spaces/{self.space}{path}", **arguments)
            except httpx.TransportError:
                self.broken_off()
            else:
                if answer.status_code < 429:
                    return answer, tries
                self.load.refused(answer)
            if self.stopping.wait(RETRY_S):
                raise Stopped


class Reader(Actor):
    """Receives and acks; checks every message."""

    def __init__(self, load: Load, key: Key, seed: str) -> None:
        super().__init__(load, key[0], seed)
        self.key = key
        self.path = f"/subscriptions/{key[1]}"
        self.given: dict[Position, int] = {}
        self.confirmed: dict[Position, int] = {}
        self.repeated = 0
        self._numbers: set[int] = set()
        self._newest = BEFORE_ALL
        self.has_all = True
        """Whether nothing older than what came can still come."""
        self._broken_off: list[tuple[float, Position]] = []

    def broken_off(self) -> None:
        """What a stream or an answer that broke off has swallowed may come after younger messages.

        For who is back at once is given more before the service has noticed. Until then nobody can say that
        all up to some message came: such an ack would settle what was swallowed. While the service is struck
        again and again, it comes when that is over.
        """
        now_s = time.monotonic()
        peace_s = self.load.in_peace_s
        recent = [each for each in self._broken_off if now_s - max(each[0], peace_s) < SWALLOWED_S]
        others = [each for each in recent or self._broken_off[-1:] if each[1] != self._newest]
        self._broken_off = [*others, (now_s, self._newest)]
        self.has_all = False

    def caught_up(self) -> None:
        """All that is owed was acked, and nothing else comes now: from here on order is strict again."""
        self.has_all = True
        self._broken_off.clear()

    def take(self, messages: list[tuple[Position, Event]]) -> None:
        """Check messages that came, and ack them until that is answered."""
        for position, event in messages:
            self.check_message(position, event)
        self.settle([position for position, _ in messages])

    def settle(self, positions: list[Position]) -> None:
        """Ack what was given until that is answered."""
        texts = [str(position) for position in positions]
        all_up_to = self.random.random() < 0.3 and self.has_all
        body = {"up_to": texts[-1]} if all_up_to else {"positions": texts}
        answer, _ = self.call("POST", f"{self.path}/ack", json=body)
        assert answer.status_code == 200, answer.text
        self.settled(positions)

    def settled(self, positions: list[Position]) -> None:
        """It was answered."""
        self.confirmed.update((position, self.given[position]) for position in positions)
        self.ledger.confirm(self.key, positions)

    def check_message(self, position: Position, event: Event) -> None:
        where = f"{self.key} at {position}"
        number = event["data"]["n"]
        space, sent = self.ledger.events.get(number, ("nobody", None))
        hold(space == self.space, "foreign", f"{where}: an event of {space}")
        hold(event == sent, "wrong", f"{where}: {event}, but sent was {sent}")
        hold(position not in self.confirmed, "doubled", f"{where} came again after its ack was answered")
        if position in self.given:
            self.repeated += 1
            hold(self.given[position] == number, "wrong", f"{where}: another event than the first time")
            return
        hold(number not in self._numbers, "doubled", f"{where}: event {number} came at another place before")
        newest = min([self._newest, *(at for _, at in self._broken_off)])
        hold(position > newest, "wrong", f"{where} came after {self._newest}, {self._broken_off}")
        self._newest = max(self._newest, position)
        self._numbers.add(number)
        self.given[position] = number
        record = self.ledger.records.get(position.offset)
        if record is not None:
            there = record[1][position.index]["data"]["n"]
            hold(there == number, "wrong", f"{where}: its place is another's")
        if self.key[1] != CHANGED:
            hold(self.ledger.matches(self.key, event), "wrong", f"{where}: {event} does not match")

    def rewind(self, end: int) -> None:
        """Go back to a log that ends there."""
        self.confirmed = {at: n for at, n in self.confirmed.items() if at.offset < end}
        self.given = {at: n for at, n in self.given.items() if at.offset < end}
        self._numbers = set(self.given.values())
        self._newest = max(self.given, default=BEFORE_ALL)
        self._broken_off.clear()


class Streamer(Reader):
    """Reads a stream of server-sent events; now and then it breaks off and comes back."""

    def act(self) -> None:
        path = f"/v1/spaces/{self.space}{self.path}/stream"
        chunks_left = self.random.randrange(20, 200)
        try:
            with self.api.http.stream("GET", path, params={"ack_deadline_s": 600}) as response:
                if response.status_code != 200:
                    response.read()
                    self.load.refused(response)
                    self.stopping.wait(RETRY_S)
                    return
                parser = EventStreamParser()
                for chunk in response.iter_raw():
                    messages = [
                        (Position.parse(frame.id.decode()), json.loads(frame.data))
                        for frame in parser.feed(chunk)
                    ]
                    if messages:
                        self.take(messages)
                        chunks_left -= 1
                    if self.stopping.is_set() or self.paused.is_set() or chunks_left <= 0:
                        return
        except httpx.TransportError:
            self.stopping.wait(RETRY_S)
        finally:
            self.broken_off()


class Puller(Reader):
    """Pulls some messages at a time."""

    def act(self) -> None:
        body = {"max": self.random.choice([1, 20, 500]), "wait_s": 1, "ack_deadline_s": 5}
        answer, _ = self.call("POST", f"{self.path}/pull", json=body)
        assert answer.status_code == 200, answer.text
        messages = [(Position.parse(each["position"]), each["event"]) for each in answer.json()["messages"]]
        if messages:
            self.take(messages)


class Conversant(Reader):
    """Reads a WebSocket, and acks on it; what is refused there, or not answered, is acked with a request."""

    def act(self) -> None:
        url = f"{self.load.url}/v1/spaces/{self.space}{self.path}/websocket?ack_deadline_s=600"
        frames_left = self.random.randrange(20, 400)
        unanswered: dict[str, list[Position]] = {}
        try:
            with connect(
                url.replace("http", "ws", 1), subprotocols=[SPOKEN], open_timeout=60, close_timeout=1
            ) as socket:
                while frames_left > 0 and not (self.stopping.is_set() or self.paused.is_set()):
                    with suppress(TimeoutError):
                        self._hear(json.loads(socket.recv(timeout=1)), socket, unanswered)
                        frames_left -= 1
        except InvalidStatus as refusal:
            problem = json.loads(refusal.response.body or b"{}")
            self.load.refused_as(refusal.response.status_code, problem.get("type", ""), f"{problem}")
        except (OSError, EOFError, WebSocketException):
            self.stopping.wait(RETRY_S)
        finally:
            self.broken_off()
            for positions in unanswered.values():
                self.settle(positions)

    def _hear(self, event: Event, socket: ClientConnection, unanswered: dict[str, list[Position]]) -> None:
        if "fieldfareposition" in event:
            position = Position.parse(event.pop("fieldfareposition"))
            del event["fieldfareattempt"]
            self.check_message(position, event)
            id = str(position)
            unanswered[id] = [position]
            said = {"specversion": "1.0", "id": id, "source": "/reader", "type": "fieldfare.ack"}
            socket.send(json.dumps(said | {"data": {"positions": [id]}}))
        elif event["type"] == "fieldfare.done":
            self.settled(unanswered.pop(event["data"]["said"]))
        else:
            assert event["type"] == "fieldfare.problem", event
            self.load.refused_as(event["data"]["status"], event["data"]["type"], str(event))
            self.settle(unanswered.pop(event["data"]["said"]))


class Called(Reader):
    """Is sent messages by HTTP; what it accepts may come again, for nobody tells it what was saved."""

    def __init__(self, load: Load, key: Key, seed: str) -> None:
        super().__init__(load, key, seed)
        called = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_OPTIONS(self) -> None:
                self.send_response(200)
                self.send_header("WebHook-Allowed-Origin", "*")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def do_POST(self) -> None:
                events = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(called.answer(events))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        self._accepting = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        # A gateway that was killed breaks off in the middle of a request.
        self._server.handle_error = lambda request, address: None  # type: ignore[method-assign]
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()
        push = {"url": f"http://127.0.0.1:{self._server.server_port}/", "mode": "batch", "batch_max": 50}
        self.settings = {"push": push, "retry_delays_s": [0.1, 1]}

    def act(self) -> None:
        self.stopping.wait(RETRY_S)

    def answer(self, events: list[Event]) -> int:
        """Accept a request's messages, or now and then none of them."""
        with self._accepting:
            if self.paused.is_set() or self.random.random() < 0.05:
                return 503 if self.random.random() < 0.5 else 500
            try:
                positions = [self._check(event) for event in events]
            except BaseException as error:
                self.error = error
                return 500
            self.settled(positions)
            return 204

    def _check(self, event: Event) -> Position:
        position = Position.parse(event.pop("fieldfareposition"))
        del event["fieldfareattempt"]
        if position in self.confirmed:
            self.repeated += 1
            number = event["data"]["n"]
            hold(
                self.given[position] == number,
                "wrong",
                f"{self.key} at {position}: another event than before",
            )
        else:
            self._newest = BEFORE_ALL  # what failed comes later than younger ones
            self.check_message(position, event)
        return position

    def stop(self) -> None:
        super().stop()
        self._server.shutdown()
        self._server.server_close()


class Historian(Actor):
    """Makes subscriptions that begin in the past, and reads each until it has what it is owed by now.

    One that was begun is read to its end before there is rest: it may be what a burst of kills has lost.
    """

    def stop(self) -> None:
        self.pause()
        super().stop()

    def act(self) -> None:
        start = self.ledger.place_before(REPLAY_BYTES)
        if start is None:
            self.stopping.wait(RETRY_S)
            return
        id = f"past-{self.random.randrange(1 << 60)}"
        made = {"filter": REPLAY_FILTER, "start": f"0-{start}-0"}
        answer, _ = self.call("PUT", f"/subscriptions/{id}", json=made)
        assert answer.status_code in (200, 201), answer.text
        owed = self.ledger.owed_since(self.space, start, REPLAY_FILTER)
        given: dict[Position, int] = {}
        asked_s = time.monotonic()
        while not (owed.keys() <= given.keys() or self.stopping.is_set()):
            body = {"max": 500, "wait_s": 1, "ack_deadline_s": 5}
            answer, _ = self.call("POST", f"/subscriptions/{id}/pull", json=body)
            assert answer.status_code == 200, answer.text
            for message in answer.json()["messages"]:
                position, event = Position.parse(message["position"]), message["event"]
                where = f"{self.space}/{id} at {position}"
                space, sent = self.ledger.events.get(event["data"]["n"], ("nobody", None))
                hold(space == self.space, "foreign", f"{where}: an event of {space}")
                hold(
                    event == sent and position.offset >= start, "wrong", f"{where}: {event}, sent was {sent}"
                )
                hold(
                    owed.get(position, event["data"]["n"]) == event["data"]["n"], "wrong", f"{where}: another"
                )
                given[position] = event["data"]["n"]
            missing = sorted(owed.keys() - given.keys())
            if time.monotonic() > max(asked_s, self.load.in_peace_s) + REPLAY_S:
                lacks = f"{self.space}/{id} from {start} lacks {len(missing)} of {len(owed)}: {missing[:3]}"
                raise Fault("lost", lacks)
            positions = [message["position"] for message in answer.json()["messages"]]
            if positions:
                self.call("POST", f"/subscriptions/{id}/ack", json={"positions": positions})
        hold(len(set(given.values())) == len(given), "doubled", f"{self.space}/{id}: an event at two places")
        with self.ledger.lock:
            self.ledger.replays += owed.keys() <= given.keys()
        self.call("DELETE", f"/subscriptions/{id}")
        self.stopping.wait(1.0)
