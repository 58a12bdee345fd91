"""Those who use the service: they ask, retry what breaks off, and write into the history what they hear."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from fieldfare.model import Position, positions_of

from .history import Event, History, Reading, Record, hold
from .machine import Machine
from .steps import Loop

FILTERS = (
    "data.x >= 2",
    "data.x = 1 OR data.k = 'b'",
    "data.x < 2",
    "data.k = 'a'",
    "data.x >= 0",
    "data.x > 9",
)
JSON = ((b"content-type", b"application/json"),)
RETRY_S = 0.15
STREAMS = 0.4
"""Share of reads that open a stream; the others are pulls."""
LONGEST_S = 600.0
"""Whatever takes longer is stuck."""


class CutOff(Exception):
    """The gateway has ended before it answered."""


class Gone(Exception):
    """There is no such thing any more."""


@dataclass
class Answer:
    status: int
    document: Any


class Stream:
    """An open stream of messages.

    Attributes
    ----------
    status
        That of the answer; 0 until it has begun.
    cut
        Is done when the stream has ended, and fails with CutOff if the gateway has.
    hang_up
        Ends the stream.
    """

    hang_up: Callable[[], None]

    def __init__(self, loop: Loop) -> None:
        self.status = 0
        self.cut: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._text = b""
        self._heard = asyncio.Event()

    def hear(self, message: Any) -> None:
        """Take a part of the answer; None after the last one."""
        if message is None:
            if not self.cut.done():
                self.cut.set_result(None)
        elif message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self._text += message["body"]
        self._heard.set()

    async def parts(self, until_s: float) -> AsyncIterator[dict[str, str]]:
        """Yield the fields of each part until then, or until the stream ends."""
        while True:
            whole, end, rest = self._text.partition(b"\n\n")
            if end:
                self._text = rest
                yield dict(line.split(": ", 1) for line in whole.decode().split("\n") if line[0] != ":")
                continue
            left_s = until_s - self._loop.time()
            if left_s <= 0 or self.cut.done():
                return
            self._heard.clear()
            heard = self._loop.create_task(self._heard.wait())
            await asyncio.wait((heard, self.cut), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            heard.cancel()


class Line:
    """How people reach the gateway."""

    def __init__(self, machine: Machine, loop: Loop) -> None:
        self.machine = machine
        self.loop = loop
        self._pending: dict[asyncio.Future[Any], None] = {}
        machine.on_end.append(self._cut)

    def _cut(self) -> None:
        pending, self._pending = self._pending, {}
        for future in pending:
            if not future.done():
                future.set_exception(CutOff())

    def _forget(self, done: asyncio.Future[Any]) -> None:
        self._pending.pop(done, None)
        if not done.cancelled():
            done.exception()  # marks it as retrieved: the waiting task may have ended

    async def ask(self, method: str, path: str, body: bytes = b"", headers: tuple[Any, ...] = ()) -> Answer:
        """One request; CutOff when the gateway ends before it is answered, or there is none."""
        said: list[Any] = []
        future: asyncio.Future[Answer] = self.loop.create_future()

        def hear(message: Any) -> None:
            if message is not None:
                said.append(message)
            elif not future.done():
                text = b"".join(message.get("body", b"") for message in said[1:])
                future.set_result(Answer(said[0]["status"], json.loads(text) if text else None))

        await self._begin(method, path, body, headers, hear, future)
        return await future

    async def open_stream(self, path: str, query: str) -> Stream:
        """A stream of messages; CutOff when there is no gateway."""
        stream = Stream(self.loop)
        stream.hang_up = await self._begin("GET", path, b"", JSON, stream.hear, stream.cut, query.encode())
        return stream

    async def _begin(
        self,
        method: str,
        path: str,
        body: bytes,
        headers: tuple[Any, ...],
        hear: Callable[[Any], None],
        cut: asyncio.Future[Any],
        query: bytes = b"",
    ) -> Callable[[], None]:
        """Begin a request; return a function that hangs up.

        `hear` is called with each message of the answer, and with None after the last one; `cut` fails with
        CutOff if the gateway ends before it is done.
        """
        app, loop = self.machine.app, self.machine.loop
        if app is None or loop is None:
            await asyncio.sleep(RETRY_S)
            raise CutOff
        self._pending[cut] = None
        cut.add_done_callback(self._forget)
        bodies = [body]
        gone = asyncio.Event()

        async def receive() -> dict[str, Any]:
            if bodies:
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if not gone.is_set():
                self.loop.call_soon(hear, message)

        async def serve() -> None:
            scope = {
                "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
                "scheme": "http", "path": path, "raw_path": path.encode(), "root_path": "",
                "query_string": query, "headers": [(b"host", b"localhost"), *(headers or JSON)],
                "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
            }  # fmt: skip
            await app(scope, receive, send)
            self.loop.call_soon(hear, None)

        loop.call_soon(lambda: loop.create_task(serve()))
        return lambda: loop.call_soon(gone.set) and None

    async def sure(self, method: str, path: str, document: Any = None, **more: Any) -> Answer:
        """Ask until there is an answer; Gone when it is that there is no such thing."""
        body = more.pop("body", b"") if document is None else json.dumps(document).encode()
        while True:
            try:
                answer = await self.ask(method, path, body, **more)
            except CutOff:
                pass
            else:
                if answer.status == 404:
                    raise Gone(path)
                if answer.status < 429:
                    return answer
                hold(
                    answer.status in (429, 503),
                    f"wrong: {method} {path} was answered {answer.status} {answer.document}",
                )
            await asyncio.sleep(RETRY_S)


class Space:
    """A space, as those see it who are in it."""

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.path = f"/v1/spaces/{name}"
        self.key = f"{name}#{count}"


class People:
    """All of them.

    Attributes
    ----------
    publishing
        How many publishers have not come to their end.
    """

    def __init__(self, line: Line, history: History, random: Random) -> None:
        self.line = line
        self.history = history
        self.random = random
        self.publishing = 0
        self.is_draining = False
        self._numbers = 0

    def now_s(self) -> float:
        return self.line.loop.time()

    def begin(self, work: Any) -> asyncio.Task[Any]:
        """Let somebody act."""
        return self.line.loop.create_task(work)

    async def publish(self, space: Space, producer: str, records: int) -> None:
        """Publish some records, one after the other or some at the same time, each behind the one before."""
        self.publishing += 1
        random = self.random
        under_way: list[asyncio.Task[None]] = []
        most = random.choice((1, 2, 3))
        places: dict[int, Position] = {}
        try:
            for sequence in range(records):
                events = [self._event(space) for _ in range(random.choice((1, 1, 2, 3)))]
                under_way.append(self.begin(self._append(space, producer, sequence, events, places)))
                while len(under_way) >= most:
                    await under_way.pop(0)
                await asyncio.sleep(random.choice((0.0, 0.0, 0.02, 0.2)))
            await asyncio.gather(*under_way)
        except Gone:
            await asyncio.gather(*under_way, return_exceptions=True)
        finally:
            self.publishing -= 1

    async def _append(
        self, space: Space, producer: str, sequence: int, events: list[Event], places: dict[int, Position]
    ) -> None:
        """Send one until it is in the log; one that came too early again and again."""
        body = "".join(json.dumps(event) + "\n" for event in events).encode()
        headers: tuple[Any, ...] = ((b"content-type", b"application/x-ndjson"),)
        headers += ((b"fieldfare-producer", producer.encode()),)
        headers += ((b"fieldfare-sequence", str(sequence).encode()),)
        headers += ((b"fieldfare-follows", str(sequence - 1).encode()),)
        asked_s = self.now_s()
        while True:
            answer = await self.line.sure("POST", space.path + "/events", body=body, headers=headers)
            if answer.status == 200:
                break
            is_early = answer.status == 409 and answer.document["type"].endswith(":out-of-order")
            hold(is_early, f"wrong: publishing was answered {answer.document}")
            hold(answer.document["newest"] < sequence - 1, f"wrong: {answer.document}")
            await asyncio.sleep(RETRY_S)
        found = answer.document
        record = Record(space.key, events, found["stamp"], asked_s, self.now_s())
        self.history.publish(found["partition"], found["offset"], record)
        at = places[sequence] = Position(found["partition"], found["offset"], 0)
        for other, there in places.items():
            hold((other < sequence) == (there < at) or other == sequence, f"wrong: {other} is at {there}")

    def _event(self, space: Space) -> dict[str, Any]:
        self._numbers += 1
        event = {
            "specversion": "1.0",
            "id": str(self._numbers),
            "source": "/s",
            "type": "t",
            "data": {"x": self.random.randrange(4), "k": self.random.choice("abc")},
        }
        self.history.events[event["id"]] = space.key, event
        return event

    async def own(self, space: Space, id: str, *, shared: bool) -> None:
        """Have a subscription: read it, and change it now and then."""
        random = self.random
        others: list[asyncio.Task[None]] = []
        try:
            while True:
                reading = await self._subscribe(space, id, shared)
                others = [self.begin(self._read_along(space, reading))] if shared else []
                await self._live(space, reading)
                if not self.is_draining and random.random() < 0.7:
                    await self.line.sure("DELETE", f"{space.path}/subscriptions/{id}")
                    self.history.readings.remove(reading)
                    for other in others:
                        await other
                    continue
                await self._finish(space, reading)
                return
        except Gone:
            self.history.readings = [
                each for each in self.history.readings if (each.space, each.id) != (space.key, id)
            ]
        finally:
            for other in others:
                await other

    async def _subscribe(self, space: Space, id: str, shared: bool) -> Reading:
        random = self.random
        text = random.choice(FILTERS)
        delivery: dict[str, Any] = {}
        if random.random() < 0.35:
            delivery["order_by"] = "data.k"
        if random.random() < 0.3:
            delivery["max_attempts"] = random.choice((1, 2, 3))
        if random.random() < 0.2:
            delivery["max_in_flight"] = random.choice((1, 3))
        if random.random() < 0.2:
            delivery["retry_delays_s"] = [0.2, 0.8]
        document: dict[str, Any] = {"filter": text, "delivery": delivery}
        if random.random() < 0.4:
            document["start"] = "earliest"
        path = f"{space.path}/subscriptions/{id}"
        while True:
            asked_s = self.now_s()
            answer = await self.line.sure("PUT", path, document)
            if answer.status in (200, 201):
                break
            # One that was being deleted when the line was cut off: it is gone, or it is there.
            await self._delete(path)
        found = answer.document
        start = {at.partition: at for at in positions_of(found["start"])} if "start" in found else None
        reading = Reading(
            space.key,
            id,
            [(found["revision"], text)],
            start,
            delivery.get("order_by"),
            delivery.get("max_attempts"),
            not shared,
        )
        reading.lives = self.line.machine.crashes
        self.history.change(space.key, found["revision"], asked_s, self.now_s())
        self.history.readings.append(reading)
        return reading

    async def _delete(self, path: str) -> None:
        try:
            await self.line.sure("DELETE", path)
        except Gone:
            pass

    async def _live(self, space: Space, reading: Reading) -> None:
        """Read for a while, with all that one may do besides."""
        random = self.random
        for _ in range(random.randrange(2, 9)):
            lot = random.random()
            if lot < 0.68:
                await self._read(space, reading)
            elif lot < 0.76:
                await self._replace(space, reading)
            elif lot < 0.81 and reading.is_alone:
                await self._seek(space, reading)
            elif lot < 0.85 and reading.max_attempts is not None and reading.is_alone:
                await self._retry(space, reading)
            else:
                await asyncio.sleep(random.choice((0.05, 0.3, 1.0)))

    async def _read_along(self, space: Space, reading: Reading) -> None:
        """Another one who reads the same subscription."""
        try:
            while not self.is_draining:
                await self._read(space, reading)
        except Gone:
            pass

    async def _read(self, space: Space, reading: Reading) -> None:
        """Read for a while, on a stream or by pulls."""
        read = self._stream if self.random.random() < STREAMS else self._pull
        await read(reading, f"{space.path}/subscriptions/{reading.id}")

    async def _stream(self, reading: Reading, path: str) -> None:
        """Open a stream for a while, and say of each message what became of it."""
        random, line = self.random, self.line
        lease_s = random.choice((1.5, 4.0))
        until_s = self.now_s() + random.choice((0.1, 1.0, 3.0))
        asked_s, lives = self.now_s(), line.machine.crashes
        query = f"window={random.choice((1, 3, 20))}&ack_deadline_s={lease_s}"
        heard: list[Position] = []
        try:
            stream = await line.open_stream(path + "/stream", query)
        except CutOff:
            return
        try:
            async for part in stream.parts(until_s):
                hold(part.get("event") in (None, "deleted"), f"wrong: {path} was told {part}")
                if "id" not in part:
                    continue
                reading.hears_of(lives)
                at, event = Position.parse(part["id"]), json.loads(part["data"])
                self._hear(reading, at, event, int(part.get("attempt", 1)), asked_s, lease_s)
                heard.append(at)
                await self._settle(path, reading, [at])
        finally:
            reading.free(heard)
            stream.hang_up()
        try:
            await stream.cut  # what was sent and not heard is given back by then
        except CutOff:
            return
        if stream.status == 404:
            raise Gone
        hold(stream.status in (200, 429, 503), f"wrong: a stream was answered {stream.status}")

    def _hear(
        self, reading: Reading, at: Position, event: Event, attempt: int, asked_s: float, lease_s: float
    ) -> None:
        self.history.heard(reading, event["id"])
        sent = self.history.events[event["id"]][1]
        hold(sent == event, f"wrong: {event} was sent as {sent}")
        reading.hear(at, event["id"], attempt, asked_s, self.now_s(), lease_s)

    async def _pull(self, reading: Reading, path: str) -> None:
        """Pull some messages, and say of each what became of it."""
        random, line = self.random, self.line
        lease_s = random.choice((0.3, 1.5, 4.0))
        asked_s, lives = self.now_s(), line.machine.crashes
        body = {
            "max": random.choice((1, 3, 20)),
            "wait_s": random.choice((0.0, 0.4, 1.0)),
            "ack_deadline_s": lease_s,
        }
        try:
            answer = await line.ask("POST", path + "/pull", json.dumps(body).encode())
        except CutOff:
            return
        if answer.status == 404:
            raise Gone
        if answer.status != 200:
            hold(answer.status in (429, 503), f"wrong: a pull was answered {answer.status} {answer.document}")
            return
        reading.hears_of(lives)
        places = []
        for message in answer.document["messages"]:
            at = Position.parse(message["position"])
            self._hear(reading, at, message["event"], message["attempt"], asked_s, lease_s)
            places.append(at)
        await self._settle(path, reading, places)

    async def _settle(self, path: str, reading: Reading, places: list[Position]) -> None:
        random = self.random
        if random.random() < 0.2:
            random.shuffle(places)
        failed = [at for at in places if not self.is_draining and random.random() < 0.15]
        good = [at for at in places if at not in failed]
        if random.random() < 0.1:
            await asyncio.sleep(random.choice((0.1, 0.5)))
        if good and (self.is_draining or random.random() < 0.93):
            reading.settle(good)
            await self.line.sure("POST", path + "/ack", {"positions": [str(at) for at in good]})
            reading.confirm(good, self.now_s())
        lot = random.random()
        named = {"positions": [str(at) for at in failed]}
        if failed and lot < 0.5:
            with reading.freed(failed, self.now_s):
                await self.line.sure("POST", path + "/nack", named | random.choice(({}, {"delay_s": 0.5})))
        elif failed and lot < 0.6:
            reading.is_plain = False
            reading.free(failed)
            await self.line.sure("POST", path + "/terminate", named)

    async def _replace(self, space: Space, reading: Reading) -> None:
        text = self.random.choice(FILTERS)
        path = f"{space.path}/subscriptions/{reading.id}"
        asked_s = self.now_s()
        answer = await self.line.sure("PUT", path, {"filter": text})
        hold(answer.status in (200, 201), f"wrong: a filter was answered {answer.document}")
        hold(answer.status == 200, f"lost: {path} was there no more")
        revision = answer.document["revision"]
        if revision != reading.versions[-1][0]:
            reading.versions.append((revision, text))
            self.history.change(space.key, revision, asked_s, self.now_s())

    async def _seek(self, space: Space, reading: Reading) -> None:
        to = self.random.choice(("earliest", "latest", *map(str, list(reading.given)[:2])))
        path = f"{space.path}/subscriptions/{reading.id}/seek"
        answer = await self.line.sure("POST", path, {"to": to})
        hold(answer.status == 200, f"wrong: a seek was answered {answer.document}")
        named = None if to in ("earliest", "latest") else Position.parse(to).partition
        cursor = {at.partition: at for at in positions_of(answer.document["cursor"])}
        reading.sought({n: at for n, at in cursor.items() if named in (None, n)})

    async def _letters(self, space: Space, reading: Reading) -> set[Position]:
        path = f"{space.path}/subscriptions/{reading.id}/dead-letters"
        answer = await self.line.sure("GET", path)
        listed = [Position.parse(letter["position"]) for letter in answer.document["dead_letters"]]
        hold(len(listed) == len(set(listed)), f"doubled: {path} lists a letter twice")
        return set(listed)

    async def _retry(self, space: Space, reading: Reading) -> None:
        reading.dead = await self._letters(space, reading)
        path = f"{space.path}/subscriptions/{reading.id}/dead-letters/retry"
        reading.retried()
        await self.line.sure("POST", path, {})

    async def _finish(self, space: Space, reading: Reading) -> None:
        """Read all that is owed, once nobody publishes any more."""
        while not self.is_draining or self.publishing:
            await self._read(space, reading)
        until_s = self.now_s() + LONGEST_S
        while self.history.left(reading) and self.now_s() < until_s:
            await self._read(space, reading)
            reading.dead = await self._letters(space, reading)
        await self._read(space, reading)

    async def end_space(self, space: Space, others: list[asyncio.Task[Any]]) -> None:
        """Delete a space after a while; on return nobody is in it any more."""
        await asyncio.sleep(self.random.choice((1.0, 4.0, 9.0)))
        await self._delete(space.path)
        await asyncio.wait(others)

    async def make_space(self, name: str) -> None:
        """Create a space that is not there."""
        answer = await self.line.sure("POST", "/v1/spaces", {"name": name})
        hold(answer.status in (201, 409), f"wrong: a space was answered {answer.document}")
