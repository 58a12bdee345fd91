"""Delivered bytes of a space's readers: not more than its rate, each message once, with every transport.

The clock of the rate stands still until a test says that time has passed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from gateway_support import SUBSCRIPTIONS, Running, event, run, running, until_async
from receiver_support import LOOPBACK, Receiver, pushed, receiving
from test_space_quotas import refused, set_quotas

from fieldfare.gateway.delivery import rate_limiter
from fieldfare.gateway.transports import pull

RATE = 1_000
COUNT = 40
PAD = "x" * 800
BEYOND_BYTES = 2_000
"""Bytes that readers take at most when only a little of the quota is left."""
FILTER = "data.x = 1"
SMALL, LARGE = 100, 20
LARGE_BYTES = 200_000
LARGE_RATE = 100_000


class Clock:
    """The rate's clock; what waits for it looks again when time has passed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = self.began_s = 1_000.0
        monkeypatch.setattr(rate_limiter, "time", SimpleNamespace(monotonic=lambda: self.now_s))

    def passes(self, r: Running, seconds: float) -> None:
        self.now_s += seconds
        for space in list(r.gateway.deliveries.turns._timers):
            r.gateway.deliveries.turns.release(space)

    @property
    def may_have_come(self) -> float:
        """Maximum bytes, in addition to what was taken before the quota was used up."""
        return RATE * (self.now_s - self.began_s + 1)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(pull, "HELD_S", 0.01)
    return Clock(monkeypatch)


class Reader:
    """The messages that a reader received."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.size_bytes = 0

    def came(self, ids: list[str], size_bytes: int) -> None:
        self.ids += ids
        self.size_bytes += size_bytes


class Asked(Reader):
    """A stream or a WebSocket, without a network between."""

    def __init__(self, r: Running, path: str, query: str = "") -> None:
        super().__init__()
        self.said: list[dict[str, Any]] = []
        self.beats = 0
        self._leaves: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        is_socket = path.endswith("websocket")
        self._first = "websocket.connect" if is_socket else "http.request"
        self._last = "websocket.disconnect" if is_socket else "http.disconnect"
        scope = {
            "type": "websocket" if is_socket else "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(b"host", b"localhost")],
            "subprotocols": [],
            "scheme": "ws" if is_socket else "http",
            "server": ("localhost", 80),
            "client": ("127.0.0.1", 1),
            "http_version": "1.1",
            "extensions": {},
        }
        app = r.client._transport.app  # type: ignore[attr-defined]
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._first:
            kind, self._first = self._first, ""
            return {"type": kind, "body": b"", "more_body": False}
        await asyncio.shield(self._leaves)
        return {"type": self._last, "code": 1000}

    async def _send(self, message: Any) -> None:
        self.said.append(dict(message))
        text = (message.get("text") or "").encode() or message.get("body", b"")
        if message["type"] == "websocket.send":
            self.came([json.loads(text)["id"]], len(text))
        elif message["type"] == "http.response.body":
            self.came([json.loads(each)["id"] for each in re.findall(rb"^data: (\{.+\})$", text, re.M)], 0)
            self.size_bytes += len(text) if b"data: " in text else 0
            self.beats += text == b":\n\n"

    async def leave(self) -> None:
        if not self._leaves.done():
            self._leaves.set_result(None)
        await self.task


class Puller(Reader):
    """Pulls and acks, alternately."""

    def __init__(self, r: Running, id: str = "a") -> None:
        super().__init__()
        self._r, self._id = r, id
        self.task = asyncio.ensure_future(self._pull())

    async def _pull(self) -> None:
        while True:
            answer = await self._r.client.post(
                f"{SUBSCRIPTIONS}/{self._id}/pull", json={"wait_s": 30, "max": 10}
            )
            assert answer.status_code == 200, answer.text
            messages = answer.json()["messages"]
            size_bytes = len(answer.content) - len(b'{"messages":[]}')
            self.came([each["event"]["id"] for each in messages], size_bytes)
            await self._r.ack(self._id, *(each["position"] for each in messages))

    async def leave(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


class Pushed(Reader):
    """An address that messages are sent to."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    @property
    def ids(self) -> list[str]:  # type: ignore[override]
        return self._receiver.ids

    @property
    def size_bytes(self) -> int:  # type: ignore[override]
        return sum(len(got.body) for got in list(self._receiver.got))

    async def leave(self) -> None:
        pass


@contextlib.asynccontextmanager
async def reading(r: Running, transport: str) -> AsyncIterator[Any]:
    """A reader of the subscription `a`."""
    with contextlib.ExitStack() as stack:
        reader: Any
        if transport in ("push", "batch"):
            receiver = stack.enter_context(receiving())
            mode = {"mode": "batch", "batch_max": 10} if transport == "batch" else {}
            await pushed(r, receiver.url, push={"requests_max": 1} | mode)
            reader = Pushed(receiver)
        elif transport == "pull":
            reader = Puller(r)
        else:
            path, _, query = transport.partition("?")
            reader = Asked(r, f"{SUBSCRIPTIONS}/a/{path}", query)
        try:
            yield reader
        finally:
            await reader.leave()


def is_held(r: Running, space: str = "default") -> bool:
    """Whether a reader waits until its space may be sent more."""
    return space in r.gateway.deliveries.turns._timers


async def publish(r: Running, count: int, first: int = 0) -> list[str]:
    numbers = range(first, first + count)
    for start in range(first, first + count, 3):
        some = numbers[start - first : start - first + 3]
        await r.publish(*(event(number, {"x": 1, "pad": PAD, "key": number % 3}) for number in some))
    r.pipeline.step()
    return list(map(str, numbers))


TRANSPORTS = ["stream", "stream?ack=auto&window=4", "websocket", "pull", "push", "batch"]


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("comes", ["before", "after"])
def test_no_more_is_sent_than_the_rate_and_each_message_once(tmp_path, clock, transport, comes):
    """For messages that wait when a reader begins, and for messages that come while it reads."""

    async def work() -> None:
        async with running(tmp_path, **LOOPBACK) as r:
            await set_quotas(r, delivered_bytes_per_s=RATE)
            await r.subscribe("a", FILTER)
            wanted = await publish(r, COUNT if comes == "before" else 1)
            beyond_bytes = 10_000 if transport == "batch" else BEYOND_BYTES
            async with reading(r, transport) as reader:
                await until_async(lambda: reader.ids)
                if comes == "after":
                    wanted += await publish(r, COUNT - 1, 1)
                while len(reader.ids) < COUNT:
                    await until_async(lambda: is_held(r) or len(reader.ids) == COUNT)
                    delivery = r.gateway.deliveries.loaded[1]
                    assert delivery.in_flight <= len(reader.ids) + 1, "only what was sent is leased"
                    assert reader.size_bytes <= clock.may_have_come + beyond_bytes
                    clock.passes(r, 0.9)
                assert reader.ids == wanted
                assert reader.size_bytes <= clock.may_have_come + beyond_bytes
                assert reader.size_bytes > 0.8 * RATE * (clock.now_s - clock.began_s)

    run(work)


async def large_behind_small(r: Running) -> None:
    await set_quotas(r, delivered_bytes_per_s=LARGE_RATE)
    await r.subscribe("a", FILTER)
    await r.publish(*(event(number, {"x": 1}) for number in range(SMALL)))
    for number in range(SMALL, SMALL + LARGE):
        await r.publish(event(number, {"x": 1, "pad": "x" * LARGE_BYTES}))
    r.pipeline.step()


@pytest.mark.parametrize("transport", ["stream", "stream?ack=auto", "websocket"])
def test_large_messages_behind_many_small_ones_are_not_all_sent_at_once(tmp_path, clock, transport):
    """The number of messages taken at a time was based on the small ones: the debt of hours would block all
    others."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await large_behind_small(r)
            async with reading(r, transport) as reader:
                while len(reader.ids) < SMALL + LARGE:
                    await until_async(lambda: is_held(r) or len(reader.ids) == SMALL + LARGE)
                    assert (
                        reader.size_bytes <= LARGE_RATE * (clock.now_s - clock.began_s + 1) + 3 * LARGE_BYTES
                    )
                    clock.passes(r, 0.5)
                assert reader.ids == [str(number) for number in range(SMALL + LARGE)]

    run(work)


def test_a_pull_ends_where_messages_become_large(tmp_path, clock):
    async def work() -> None:
        async with running(tmp_path) as r:
            await large_behind_small(r)
            ids: list[str] = []
            while len(ids) < SMALL + LARGE:
                answer = await r.client.post(f"{SUBSCRIPTIONS}/a/pull", json={"wait_s": 0, "max": 1_000})
                assert answer.status_code == 200, answer.text
                assert len(answer.content) <= LARGE_RATE + 3 * LARGE_BYTES
                messages = answer.json()["messages"]
                assert messages
                ids += [each["event"]["id"] for each in messages]
                await r.ack("a", *(each["position"] for each in messages))
                clock.passes(r, 10)
            assert ids == [str(number) for number in range(SMALL + LARGE)]

    run(work)


def test_ordered_by_key_it_is_the_same(tmp_path, clock):
    """Reading the ordering key of a message first does not change the order of messages."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await set_quotas(r, delivered_bytes_per_s=RATE)
            await r.subscribe("a", FILTER)
            await r.client.patch(f"{SUBSCRIPTIONS}/a", json={"delivery": {"order_by": "data.key"}})
            wanted = await publish(r, COUNT)
            async with reading(r, "pull") as reader:
                while len(reader.ids) < COUNT:
                    await until_async(lambda: is_held(r) or len(reader.ids) == COUNT)
                    assert reader.size_bytes <= clock.may_have_come + BEYOND_BYTES
                    clock.passes(r, 0.9)
            assert sorted(reader.ids, key=int) == wanted
            for key in range(3):
                mine = [id for id in reader.ids if int(id) % 3 == key]
                assert mine == sorted(mine, key=int)

    run(work)


def test_all_readers_of_a_space_have_their_turns(tmp_path, clock):
    async def work() -> None:
        async with running(tmp_path, **LOOPBACK) as r:
            await set_quotas(r, delivered_bytes_per_s=RATE)
            for id in "bcd":
                await r.subscribe(id, FILTER)
            with receiving() as receiver:
                await pushed(r, receiver.url)
                await publish(r, COUNT)
                readers: list[Any] = [
                    Asked(r, f"{SUBSCRIPTIONS}/b/stream"),
                    Asked(r, f"{SUBSCRIPTIONS}/c/websocket"),
                    Puller(r, "d"),
                    Pushed(receiver),
                ]
                turns = r.gateway.deliveries.turns

                (push,) = r.gateway.pushes._pushes.values()

                def all_wait() -> bool:
                    """A push whose request is under way would lose its turn, and not by the queue."""
                    waiting = turns._turns.count("default") - turns._left.get("default", 0)
                    return is_held(r) and waiting == 4 and not push.under_way

                await until_async(all_wait)
                begun = [len(reader.ids) for reader in readers]

                def given() -> list[int]:
                    return [len(reader.ids) - first for reader, first in zip(readers, begun, strict=True)]

                while min(given()) < 8:
                    came = sum(reader.size_bytes for reader in readers)
                    assert came <= clock.may_have_come + BEYOND_BYTES
                    clock.passes(r, 0.9)
                    await until_async(all_wait)
                    # A push is queued again when its request is answered: a reader that was served together
                    # with it is queued before it then, and sometimes has one turn more.
                    assert max(given()) - min(given()) <= 4, given()
                for reader in readers:
                    assert reader.ids == [str(number) for number in range(len(reader.ids))]
                    await reader.leave()

    run(work)


def test_another_space_is_not_held_and_silent_streams_show_that_they_live(tmp_path, clock):
    async def work() -> None:
        async with running(tmp_path, heartbeat_s=0.02) as r:
            await r.client.post("/v1/spaces", json={"name": "calm"})
            await r.client.put("/v1/spaces/calm/subscriptions/a", json={"filter": FILTER})
            await set_quotas(r, delivered_bytes_per_s=RATE)
            await r.subscribe("a", FILTER)
            await publish(r, COUNT)
            flood = Asked(r, f"{SUBSCRIPTIONS}/a/stream")
            calm = Asked(r, "/v1/spaces/calm/subscriptions/a/stream")
            await until_async(lambda: is_held(r))
            came = len(flood.ids)
            for number in range(5):
                await r.publish(event(number, {"x": 1, "pad": PAD}), space="calm")
                r.pipeline.step()
                await until_async(lambda number=number: len(calm.ids) > number)
            beats = flood.beats
            await until_async(lambda: flood.beats > beats + 1)
            assert len(flood.ids) == came < COUNT and len(r.gateway.deliveries.turns._timers) == 1
            await flood.leave()
            await calm.leave()

    run(work)


def test_a_returning_reader_is_charged_again_and_gets_everything(tmp_path, clock):
    """The quota exists for this flood: read the backlog, disconnect, and get it again."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await set_quotas(r, delivered_bytes_per_s=RATE)
            await r.subscribe("a", FILTER)
            wanted = await publish(r, 4)
            size_bytes = 0
            for _ in range(20):
                async with reading(r, "stream") as reader:
                    await until_async(lambda reader=reader: is_held(r) or reader.ids)
                size_bytes += reader.size_bytes
                assert size_bytes <= clock.may_have_come + BEYOND_BYTES
                assert r.gateway.deliveries.turns._turns.count("default") <= 20
                clock.passes(r, 0.5)
            assert size_bytes > 5_000
            async with reading(r, "stream") as reader:
                while len(reader.ids) < 4:
                    await until_async(lambda: is_held(r) or len(reader.ids) == 4)
                    clock.passes(r, 0.9)
                assert reader.ids == wanted

    run(work)


async def in_debt(r: Running) -> None:
    """A space that may be sent nothing more, with messages left in the subscriptions `a` and `b`."""
    await set_quotas(r, delivered_bytes_per_s=RATE)
    await r.subscribe("a", FILTER)
    await r.subscribe("b", FILTER)
    await publish(r, COUNT)
    while (await r.client.post(f"{SUBSCRIPTIONS}/a/pull", json={})).status_code == 200:
        pass


def test_a_pull_that_may_not_wait_is_told_when_to_come_again(tmp_path, clock):
    """An empty answer would mean that there are no messages, and is only sent in that case."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await in_debt(r)
            await r.subscribe("nothing", "data.x = 2")
            assert await r.pull("nothing") == []
            for _ in range(3):
                answer = await r.client.post(f"{SUBSCRIPTIONS}/a/pull", json={})
                told = refused(answer, 429, "delivered_bytes_per_s", RATE)
                assert "maximum rate of delivered bytes" in told["detail"] and "used" not in told
            wait_s = int(answer.headers["retry-after"])
            assert r.gateway.deliveries.loaded[1].in_flight < COUNT
            clock.passes(r, wait_s)
            assert len(await r.pull("a")) > 0
            assert not r.gateway.deliveries.turns.rate_limiter._begun

    run(work)


def lifted(r: Running) -> Any:
    return set_quotas(r)


def other(r: Running) -> Any:
    return set_quotas(r, delivered_bytes_per_s=1e9)


def ended(r: Running) -> Any:
    r.gateway.deliveries.end_sessions()
    return asyncio.sleep(0)


async def gone(r: Running) -> None:
    for id in "ab":
        await r.client.delete(f"{SUBSCRIPTIONS}/{id}")


@pytest.mark.parametrize(("change", "comes"), [(lifted, True), (other, True), (ended, False), (gone, False)])
def test_waiting_readers_are_told_of_changes(tmp_path, clock, change: Callable, comes: bool):
    """The quota is lifted, or another; the gateway stops; the subscription is deleted."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await in_debt(r)
            stream = Asked(r, f"{SUBSCRIPTIONS}/b/stream")
            pull = asyncio.ensure_future(r.client.post(f"{SUBSCRIPTIONS}/a/pull", json={"wait_s": 50}))
            await until_async(
                lambda: sum(map(len, r.gateway.deliveries._waiting.values())) == 2 and is_held(r)
            )
            assert not stream.ids and not pull.done()
            await change(r)
            clock.passes(r, 0.01)
            answer = await pull
            if comes:
                assert answer.json()["messages"]
                await until_async(lambda: len(stream.ids) == COUNT)
            else:
                await stream.task
                assert answer.status_code == (404 if change is gone else 200)
                assert not stream.ids
            await stream.leave()
            assert not r.gateway.deliveries.turns.rate_limiter._begun

    run(work)


def test_a_space_that_is_deleted_while_its_readers_wait_leaves_nothing(tmp_path, clock):
    async def work() -> None:
        async with running(tmp_path, quota_delivered_bytes_per_s=RATE) as r:
            await r.client.post("/v1/spaces", json={"name": "other"})
            path = "/v1/spaces/other/subscriptions/a"
            await r.client.put(path, json={"filter": FILTER})
            await r.publish(*(event(number, {"x": 1, "pad": PAD}) for number in range(COUNT)), space="other")
            r.pipeline.step()
            stream = Asked(r, f"{path}/stream")
            await until_async(lambda: r.gateway.deliveries.turns._timers)
            assert (await r.client.delete("/v1/spaces/other")).status_code == 204
            await stream.task
            turns, quotas = r.gateway.deliveries.turns, r.gateway.quotas
            await until_async(lambda: not turns._timers and not turns._turns)
            await until_async(lambda: not quotas._buckets and set(quotas._bounds) <= {"default"})
            assert not turns._turns._held and not turns._left

    run(work)
