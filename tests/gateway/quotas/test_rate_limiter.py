"""A space that has received its rate waits, with one timer, and others are served meanwhile.

When there is nothing to do, time jumps to the next timer, so tests do not wait.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from fieldfare.delivery.delivery import Delivery, Session
from fieldfare.gateway.admission.quotas import BURST_S, DELIVERED, Quotas
from fieldfare.gateway.delivery import rate_limiter as module
from fieldfare.gateway.delivery import waiter
from fieldfare.gateway.delivery.rate_limiter import AT_ONCE, DeliveryRateLimiter
from fieldfare.gateway.delivery.waiter import LEFT_MAX, FairScheduler, Waiter

RATE = 1_000.0
MESSAGE = b"x" * 300


class Jumping(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    """An event loop on which waiting takes no time."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list:
        assert timeout is not None, "nothing will ever happen"
        self.now_s += timeout
        return super().select(0)  # type: ignore[no-any-return]


@dataclass
class Served:
    """Turns of spaces with limited rates, and the results."""

    loop: asyncio.AbstractEventLoop
    quotas: Quotas = field(default_factory=lambda: Quotas({}))
    bytes_of: Counter[str] = field(default_factory=Counter)
    """By reader."""
    rounds: int = 0
    tasks: list[asyncio.Task[bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rate_limiter = DeliveryRateLimiter(self.quotas)
        self.turns = FairScheduler(self._look, self.rate_limiter)

    def _look(self) -> None:
        self.rounds += 1

    def reader(self, name: str, space: str, backlog: int = 1 << 30, *, is_stream: bool = True) -> Waiter:
        """A reader with a number of messages to get; its task waits."""
        delivery = Delivery(1, [0])
        left = [backlog]
        delivery.has_message = lambda session: left[0] > 0  # type: ignore[method-assign]
        gone: asyncio.Future[None] = self.loop.create_future()
        found = Waiter(delivery, Session(10), space, gone, lambda _: None, lambda: False, self.turns)

        async def take() -> None:
            left[0] -= 1
            await self.rate_limiter.paid(space, parts := [], self.compose(name, parts))

        async def pulls() -> None:
            while left[0]:
                await found.woken()
                await take()

        if is_stream:
            found.serve = take
        self.tasks.append(asyncio.ensure_future(found.woken() if is_stream else pulls()))  # type: ignore[arg-type]
        return found

    async def compose(self, name: str, parts: list[bytes]) -> None:
        parts.append(MESSAGE)
        self.bytes_of[name] += len(MESSAGE)


def served(monkeypatch: pytest.MonkeyPatch, work: Callable[[Served], Awaitable[None]]) -> None:
    """Do something on an event loop whose clock jumps."""
    selector = Jumping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now_s  # type: ignore[method-assign]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=loop.time))
    monkeypatch.setattr(waiter, "SERVED_S", 0.0)  # one a step

    async def all_of_it() -> None:
        found = Served(loop)
        try:
            await work(found)
        finally:
            for task in found.tasks:
                task.cancel()
            await asyncio.gather(*found.tasks, return_exceptions=True)

    with closing(loop):
        loop.run_until_complete(all_of_it())


@contextmanager
def closing(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    try:
        yield
    finally:
        loop.close()


def test_no_more_is_sent_than_the_rate_and_all_readers_of_a_space_have_their_share(monkeypatch):
    """For streams, and for readers that are woken for their turns, such as pulls and webhooks."""

    async def work(s: Served) -> None:
        s.quotas.configure("flood", {DELIVERED: RATE})
        for number in range(5):
            s.reader(f"reader-{number}", "flood", is_stream=number < 3)
        for _ in range(100):
            await asyncio.sleep(1.0)
            assert s.bytes_of.total() <= RATE * (s.loop.time() + BURST_S) + AT_ONCE * len(MESSAGE)
            assert len(s.turns._timers) <= 1
        assert s.bytes_of.total() >= 0.98 * RATE * s.loop.time()
        assert max(s.bytes_of.values()) - min(s.bytes_of.values()) <= 2 * len(MESSAGE)

    served(monkeypatch, work)


def test_a_space_in_debt_keeps_no_other_waiting_and_nothing_is_done_for_it(monkeypatch):
    async def work(s: Served) -> None:
        s.quotas.configure("flood", {DELIVERED: 0.001})
        for number in range(500):
            s.reader(f"reader-{number}", "flood")
        await asyncio.sleep(0.1)
        assert s.bytes_of.total() == len(MESSAGE)
        before = s.rounds
        for _ in range(10):
            reader = s.reader("calm", "calm", 1)
            began_s = s.loop.time()
            while not reader.is_queued:
                await asyncio.sleep(0)
            while reader.is_queued:
                await asyncio.sleep(0)
            assert s.loop.time() == began_s
        assert s.bytes_of["calm"] == 10 * len(MESSAGE)
        assert s.rounds - before <= 10 and len(s.turns._timers) == 1
        await asyncio.sleep(1_000)
        assert s.rounds - before <= 10, "none for the time that passes"

    served(monkeypatch, work)


@pytest.mark.parametrize("change", ["lifted", "raised", "forgotten"])
def test_waiting_readers_resume_when_the_quota_changes(monkeypatch, change):
    async def work(s: Served) -> None:
        s.quotas.configure("a", {DELIVERED: 0.001})
        s.reader("stream", "a", 3)
        s.reader("pull", "a", 3, is_stream=False)
        await asyncio.sleep(1)
        assert s.bytes_of.total() == len(MESSAGE)
        if change == "forgotten":
            s.quotas.forget("a")
        else:
            s.quotas.configure("a", {DELIVERED: RATE} if change == "raised" else {})
        await asyncio.sleep(3)
        assert s.bytes_of == {"stream": 3 * len(MESSAGE), "pull": 3 * len(MESSAGE)}
        assert not s.turns._timers and not s.rate_limiter._begun

    served(monkeypatch, work)


def test_a_quota_set_while_a_reader_waits_is_applied(monkeypatch):
    async def work(s: Served) -> None:
        backlog = [0]
        pull = s.reader("pull", "a", is_stream=False)
        pull._delivery.has_message = lambda session: backlog[0] > 0  # type: ignore[method-assign]
        await asyncio.sleep(0.1)
        s.quotas.configure("a", {DELIVERED: 0.001})
        s.reader("stream", "a")
        await asyncio.sleep(0.1)
        backlog[0], before = 1, s.bytes_of["pull"]
        pull.wake()
        await asyncio.sleep(0.1)
        assert s.bytes_of["pull"] == before

    served(monkeypatch, work)


def test_an_ended_reader_does_not_wait_for_its_space(monkeypatch):
    async def work(s: Served) -> None:
        s.quotas.configure("a", {DELIVERED: 0.001})
        s.reader("first", "a")
        reader = s.reader("second", "a")
        await asyncio.sleep(0.1)
        assert not s.tasks[1].done()
        reader.session.ended = True
        reader.wake()
        await asyncio.wait_for(s.tasks[1], 1)
        assert s.bytes_of["second"] == 0

    served(monkeypatch, work)


def test_readers_that_left_while_waiting_are_forgotten(monkeypatch):
    """Many readers that repeatedly come, wait and leave would fill the memory until the debt is paid."""

    async def work(s: Served) -> None:
        s.quotas.configure("a", {DELIVERED: 0.001})
        stays = s.reader("stays", "a")
        for number in range(1_000):
            reader = s.reader(f"reader-{number}", "a")
            await asyncio.sleep(0.001)
            s.tasks.pop().cancel()
            s.turns.remove(reader)
        assert s.turns._turns.count("a") <= 2 * LEFT_MAX + 2 and stays.is_queued
        s.quotas.configure("a", {})
        await asyncio.sleep(0)
        assert set(s.bytes_of) == {"stays"}
        s.tasks.pop().cancel()
        s.turns.remove(stays)
        await asyncio.sleep(0.1)
        assert not s.turns._left and s.turns._turns.count("a") == 0

    served(monkeypatch, work)


def test_what_is_being_read_from_the_disk_is_no_more_than_a_few_pieces(monkeypatch):
    """Otherwise each of a thousand streams with backlogs would begin before the first was charged."""

    async def work(s: Served) -> None:
        s.quotas.configure("a", {DELIVERED: RATE})
        disk = asyncio.Semaphore(0)
        begun = []

        async def compose(name: str, parts: list[bytes]) -> None:
            begun.append(name)
            await disk.acquire()
            parts.append(MESSAGE)

        s.compose = compose  # type: ignore[method-assign]
        for number in range(20):
            s.reader(f"reader-{number}", "a", 1)
        await asyncio.sleep(1)
        assert len(begun) == AT_ONCE and s.rate_limiter.is_out("a")
        for count in range(1, 4):
            disk.release()
            await asyncio.sleep(0.1)
            assert len(begun) == AT_ONCE + count
        for _ in range(20):
            disk.release()
        await asyncio.sleep(60)
        assert len(begun) == 20 and not s.rate_limiter._begun

    served(monkeypatch, work)


def test_an_unused_turn_goes_to_the_next_reader(monkeypatch):
    """A pull whose client disconnects at the moment of its turn."""

    async def work(s: Served) -> None:
        s.quotas.configure("a", {DELIVERED: RATE})
        reader = s.reader("pull", "a", is_stream=False)
        await asyncio.sleep(0)
        while not s.rate_limiter._begun:
            s.turns._serve()
        s.tasks[0].cancel()
        s.turns.remove(reader)
        s.reader("stream", "a", 1)
        await asyncio.sleep(0.1)
        assert not s.rate_limiter._begun and s.bytes_of == {"stream": len(MESSAGE)}

    served(monkeypatch, work)


def test_one_reader_is_given_no_more_at_once_than_about_a_second_s_ration() -> None:
    quotas = Quotas({DELIVERED: 0})
    quotas.configure("slow", {DELIVERED: 5_000})
    quotas.configure("fast", {DELIVERED: 1e12})
    rate_limiter = DeliveryRateLimiter(quotas)
    assert rate_limiter.piece_bytes("slow") == 5_000
    assert rate_limiter.piece_bytes("fast") == rate_limiter.piece_bytes("any") == module.PIECE_BYTES
