"""A seeded load on a service that suffers: publishers, changers and readers check all they are told.

Several spaces have publishers of one name that count the same sequences; events come as JSON and as Arrow,
a few at a time and ten thousand; streams and pulls read. What anybody is answered goes into the ledger, and
what a subscription is given is checked against it on arrival: the right event, of the right space, in order,
at one place only, matched by the filter that stood, and not acked before. `Load.finish` waits for the rest.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import httpx
import msgspec
import pyarrow as pa
from ledger import Event, Fault, Key, Ledger, hold
from pipeline_support import TYPED, random_event, random_filter, typed_event
from service_support import ARROW, LINES, Api, RunningService, cloud_event, until
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect
from wire import Wire

from fieldfare.client.event_stream import EventStreamParser
from fieldfare.model import Position

PACE_S = 0.01
RETRY_S = 0.05
SMALL_EVENTS_MAX = 8
LARGE_EVENTS = 10_000
DELIVERED_S = 150.0
BEFORE_ALL = Position(0, -1, 0)
SWALLOWED_S = 60.0
"""What a broken connection has swallowed comes again within this time."""
SPOKEN = "cloudevents.json"
PRODUCER = "p"
"""The name of every space's publisher."""

COLUMNS = [pa.field(name, pa.string()) for name in ("specversion", "id", "source", "type")]
SMALL = pa.schema([*COLUMNS, pa.field("data", pa.struct([*TYPED.field("data").type, ("n", pa.int64())]))])
LARGE = pa.schema([*COLUMNS, pa.field("data", pa.struct({"n": pa.int64(), "bulk": pa.int64()}))])

FILTERS = {
    "streamed": "data.x >= 2",
    "pulled": "data.word LIKE 'a%' OR data.y < 3",
    "sparse": "data.bulk < 3 OR data.x = 5",
}
"""What stands in every space, and is read all the time."""
CHANGED = "changed"
"""What stands in every space under filters that change, and is read all the time too."""

MAY_REFUSE = {(429, "overloaded"), (503, "disk-full"), (503, "storage"), (503, "stopping")}
"""The answers that say that something cannot be done now."""


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


class Publisher(Actor):
    """Publishes numbered events; what was not acknowledged is sent again with the same sequence."""

    def __init__(self, load: Load, place: int, space: str, seed: str) -> None:
        super().__init__(load, space, seed)
        self._number = place * 10**9
        self._sequence = 0

    def act(self) -> None:
        until(self._has_room, why="(subscribers keep up)")
        events, content, headers = self._draw()
        headers |= {"fieldfare-producer": PRODUCER, "fieldfare-sequence": str(self._sequence)}
        self.ledger.sending(self.space, events)
        answer, tries = self.call("POST", "/events", content=content, headers=headers)
        assert answer.status_code == 200, answer.text
        document = answer.json()
        if document["duplicate"]:
            assert tries > 1, f"{self.space}: sequence {self._sequence} was taken for a repeat: {document}"
        assert document["count"] == len(events), document
        place = document["offset"], document["stamp"]
        self.ledger.acknowledge(self.space, *place, events, len(content))
        self._sequence += 1
        self.stopping.wait(self.load.pace_s)

    def _has_room(self) -> bool:
        return (
            self.stopping.is_set()
            or self.paused.is_set()
            or self.load.behind_bytes() < self.load.behind_max_bytes
        )

    def _draw(self) -> tuple[list[Event], bytes, dict[str, str]]:
        chance = self.random.random()
        if chance < self.load.large_share:
            data = [{"bulk": self.random.randrange(1000)} for _ in range(LARGE_EVENTS)]
            events, schema = self._numbered(data), LARGE
        elif chance < 0.4:
            events, schema = self._numbered(self._small(typed=True)), SMALL
        else:
            events, schema = self._numbered(self._small(typed=False)), None
        if schema is None:
            return events, "".join(json.dumps(event) + "\n" for event in events).encode(), dict(LINES)
        if schema is LARGE and self.random.random() < 0.5:
            return events, msgspec.json.Encoder().encode_lines(events), dict(LINES)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_pylist(events, schema))
        return events, sink.getvalue().to_pybytes(), dict(ARROW)

    def _small(self, *, typed: bool) -> Iterator[dict[str, Any]]:
        for _ in range(self.random.randrange(1, SMALL_EVENTS_MAX)):
            if typed:
                nothing = {"x": None, "y": None, "word": None, "flag": None}
                yield typed_event(self.random).get("data") or nothing
            else:
                yield random_event(self.random)["data"]

    def _numbered(self, data: Iterable[dict[str, Any]]) -> list[Event]:
        events = []
        for each in data:
            self._number += 1
            events.append(cloud_event(str(self._number), each | {"n": self._number}))
        return events


class Changer(Actor):
    """Replaces the filter of a subscription that is being read, and many that nobody reads.

    So many at once that every time a snapshot of the index is due.
    """

    def act(self) -> None:
        if self.load.bulk_subscriptions and self.random.random() < 0.02:
            x = self.random.randrange(1000)
            items = [
                {"id": f"b{n}", "filter": f"data.z = {n + x}"} for n in range(self.load.bulk_subscriptions)
            ]
            answer, _ = self.call("POST", "/subscriptions", json={"subscriptions": items})
            assert answer.status_code == 200, answer.text
            assert answer.json()["refused"] == []
        elif self.random.random() < 0.3:
            id = f"o{self.random.randrange(6)}"
            if self.random.random() < 0.5:
                answer, _ = self.call("DELETE", f"/subscriptions/{id}")
                assert answer.status_code in (204, 404), answer.text
            else:
                self.put(id, random_filter(self.random))
        else:
            self.put(CHANGED, f"data.bulk IS NULL AND ({random_filter(self.random)})")
        self.stopping.wait(0.1)

    def put(self, id: str, text: str) -> None:
        answer, _ = self.call("PUT", f"/subscriptions/{id}", json={"filter": text})
        assert answer.status_code in (200, 201), answer.text
        document = answer.json()
        assert document["filter"] == text
        if id == CHANGED:
            self.ledger.promise((self.space, id), text, document["revision"])


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
        all up to some message came: such an ack would settle what was swallowed.
        """
        now_s = time.monotonic()
        recent = [each for each in self._broken_off if now_s - each[0] < SWALLOWED_S]
        self._broken_off = [*(recent or self._broken_off[-1:]), (now_s, self._newest)]
        self.has_all = False

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


@dataclass
class LoadSettings:
    """How much of what is done.

    Attributes
    ----------
    spaces
        The spaces' names.
    large_share
        The share of requests with ten thousand events.
    bulk_subscriptions
        How many subscriptions are replaced at once now and then; 0 for never.
    behind_max_bytes
        Publishers wait while so many bytes of log are before some subscriber: a short retention must not
        overtake who reads all the time.
    """

    spaces: tuple[str, ...] = ("default", "alpha")
    large_share: float = 0.01
    bulk_subscriptions: int = 0
    behind_max_bytes: int = 2 << 20
    pace_s: float = PACE_S


class Load:
    """Everybody who uses the service, and the ledger."""

    def __init__(
        self,
        service: RunningService,
        seed: int,
        settings: LoadSettings | None = None,
        wire: Wire | None = None,
    ) -> None:
        settings = settings or LoadSettings()
        self._wire = wire
        self.calls = 0
        self._connect(service)
        self.ledger = Ledger()
        self.large_share, self.pace_s = settings.large_share, settings.pace_s
        self.bulk_subscriptions = settings.bulk_subscriptions
        self.behind_max_bytes = settings.behind_max_bytes
        self.publishers: list[Publisher] = []
        self.changers: list[Changer] = []
        self.readers: dict[Key, Reader] = {}
        self.uncertain: set[Key] = set()
        """Subscriptions of which only that is known that what comes is an event of their space."""
        api = Api(self.url)
        for place, space in enumerate(settings.spaces):
            if space != "default":
                api.create_space(space)
            for id, text in FILTERS.items():
                answer = api.put(space, id, text)
                self.ledger.promise((space, id), text, answer["revision"])
                self.ledger.watch((space, id))
            self.publishers.append(Publisher(self, place, space, f"{seed}-publisher-{space}"))
            self.changers.append(Changer(self, space, f"{seed}-changer-{space}"))
            self.changers[-1].put(CHANGED, "data.x = 1")
            for kind, id in (
                (Streamer if place % 2 == 0 else Conversant, "streamed"),
                (Puller, "pulled"),
                (Puller, "sparse"),
                (Streamer, CHANGED),
            ):
                self.readers[space, id] = kind(self, (space, id), f"{seed}-{space}-{id}")
        for actor in self.actors:
            actor.start()

    def _connect(self, service: RunningService) -> None:
        self.service, self.url = service, service.url
        if self._wire is not None:
            self._wire.target, self.url = service.url, self._wire.url

    @property
    def actors(self) -> list[Actor]:
        return [*self.publishers, *self.changers, *self.readers.values()]

    def refused(self, answer: httpx.Response) -> None:
        """An answer that is no success must be a problem that says that it can be tried again."""
        kind = ""
        if answer.headers.get("content-type") == "application/problem+json":
            kind = answer.json()["type"]
        self.refused_as(answer.status_code, kind, f"{answer.request.url}: {answer.status_code} {answer.text}")
        assert "retry-after" in answer.headers

    def refused_as(self, status: int, kind: str, what: str) -> None:
        """A refusal, by its status and kind."""
        kind = kind.rpartition(":")[2]
        assert (status, kind) in MAY_REFUSE, what
        with self.ledger.lock:
            self.ledger.refusals[status, kind] += 1

    def behind_bytes(self) -> int:
        """How many bytes of log are before the subscriber that is furthest behind and does not pause."""
        return self.ledger.behind_bytes(
            key for key, reader in self.readers.items() if not reader.paused.is_set()
        )

    def check(self) -> int:
        """How many events are acknowledged; raises what went wrong anywhere."""
        for actor in self.actors:
            actor.check()
        return self.ledger.acknowledged

    def flow(self, events: int, deadline_s: float = 120.0) -> None:
        """Wait until so many more events are acknowledged, and so much of what is owed came through."""
        enough, confirmed = self.check() + events, self._confirmed()
        until(lambda: self.check() >= enough, deadline_s, f"({events} more events are acknowledged)")
        until(lambda: self.check() and self._confirmed() > confirmed, deadline_s, "(matches are delivered)")

    def _confirmed(self) -> int:
        return sum(len(reader.confirmed) for reader in self.readers.values())

    def move(self, service: RunningService) -> None:
        """Go on at another service on the same data."""
        self._connect(service)
        for actor in self.actors:
            actor.api.http.base_url = self.url
        for reader in self.readers.values():
            reader.has_all = True  # Whoever had given something is dead.

    def settle(self) -> None:
        """Let publishers and changers rest, and wait until every reader that does not has what it is owed."""
        for actor in (*self.publishers, *self.changers):
            actor.pause()
        self._wait_delivered()

    def resume(self) -> None:
        """Everybody goes on."""
        for actor in self.actors:
            actor.paused.clear()

    def _wait_delivered(self) -> None:
        for key, reader in self.readers.items():
            if reader.paused.is_set():
                continue
            owed = self.ledger.owed(key) if key not in self.uncertain else {}

            def has_all(reader: Reader = reader, owed: dict[Position, int] = owed) -> bool:
                reader.check()
                return reader.error is not None or owed.keys() <= reader.confirmed.keys()

            try:
                until(has_all, DELIVERED_S)
            except AssertionError:
                reader.check()
                missing = [str(at) for at in sorted(owed.keys() - reader.confirmed.keys())]
                lacks = f"{key} lacks {len(missing)} of {len(owed)}: {missing[:5]}"
                raise Fault("lost", lacks) from None

    def rewind(self, end: int) -> None:
        """Somebody puts back a log that ends there; which filters change from then on is not known."""
        self.ledger.forget_from(end)
        for reader in self.readers.values():
            reader.rewind(end)
        self._forget_changes()

    def forget_acks(self, confirmed: dict[Key, dict[Position, int]]) -> None:
        """Somebody puts back a registry that knows of these acks only, and of filters as they stood then."""
        for key, reader in self.readers.items():
            reader.confirmed = confirmed[key]
        self._forget_changes()

    def _forget_changes(self) -> None:
        for key in self.readers:
            if key[1] == CHANGED:
                self.uncertain.add(key)
                self.ledger.promises.pop(key, None)

    def finish(self) -> None:
        """Stop everybody, once all that is owed has come, and check that nothing else has."""
        self.resume()
        for actor in (*self.publishers, *self.changers):
            actor.stop()
        self._wait_delivered()
        for key, reader in self.readers.items():
            reader.stop()
            if key in self.uncertain:
                continue
            owed = self.ledger.owed(key)
            hold(reader.confirmed == owed, "wrong", f"{key}: {_difference(reader.confirmed, owed)}")
        repeated = sum(reader.repeated for reader in self.readers.values())
        print(
            f"{self.ledger.acknowledged} events in {len(self.ledger.records)} records, {self._confirmed()}"
            f" messages confirmed, {repeated} came again unacked, refused: {dict(self.ledger.refusals)}"
        )

    def abandon(self) -> None:
        """Let everybody go, whatever the state of things."""
        for actor in self.actors:
            actor.stopping.set()


def _difference(found: dict[Position, int], owed: dict[Position, int]) -> str:
    more = sorted(found.keys() - owed.keys())
    return f"{len(owed.keys() - found.keys())} missing, {len(more)} not owed: {[str(at) for at in more[:5]]}"
