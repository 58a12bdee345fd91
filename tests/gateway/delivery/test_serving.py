"""Streams are served round robin by space, and their tasks stay asleep if nothing has to be awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from gateway_support import run

from fieldfare.delivery.delivery import Delivery, Session
from fieldfare.gateway.admission.quotas import Quotas
from fieldfare.gateway.delivery import waiter as module
from fieldfare.gateway.delivery.rate_limiter import DeliveryRateLimiter
from fieldfare.gateway.delivery.waiter import FairScheduler, Waiter

Serve = Callable[[], Coroutine[Any, Any, object]]


def turns_of(look_again: Callable[[], object]) -> FairScheduler:
    """Turns of spaces without a rate limit."""
    return FairScheduler(look_again, DeliveryRateLimiter(Quotas({})))


def waiting(turns: FairScheduler, space: str, serve: Serve) -> tuple[Waiter, asyncio.Task[bool]]:
    """A waiter and its task."""
    gone = asyncio.get_running_loop().create_future()
    waiter = Waiter(Delivery(1, [0]), Session(10), space, gone, lambda _: None, lambda: False, turns)
    waiter.serve = serve
    return waiter, asyncio.ensure_future(waiter.woken())


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_stream_is_served_while_its_task_goes_on_waiting():
    async def work() -> None:
        served, looks = [], []
        turns = turns_of(lambda: looks.append(1))

        async def serve() -> None:
            served.append(asyncio.current_task())

        waiter, task = waiting(turns, "a", serve)
        await settled()
        for count in (1, 2):
            waiter.wake()
            waiter.wake()
            await settled()
            assert served == [None] * count, "once for both, and in no task"
            assert len(looks) == count and not task.done()
        task.cancel()

    run(work)


def test_what_has_to_be_waited_for_is_waited_for_by_the_task():
    """A client that does not read delays only its own stream."""

    async def work() -> None:
        turns = turns_of(lambda: None)
        room: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        steps: list[object] = []

        async def serve() -> None:
            steps.append("begun")
            await asyncio.sleep(0)
            steps.append(await room)

        waiter, task = waiting(turns, "a", serve)
        await settled()
        waiter.wake()
        await settled()
        assert steps == ["begun"] and not task.done()
        room.set_result(7)
        assert await task
        assert steps == ["begun", 7]

    run(work)


def test_an_error_is_the_stream_s_own():
    async def work() -> None:
        turns = turns_of(lambda: None)

        async def at_once() -> None:
            raise OSError("a broken record")

        async def later() -> None:
            await asyncio.sleep(0)
            raise OSError("a broken pipe")

        for serve, message in ((at_once, "record"), (later, "pipe")):
            waiter, task = waiting(turns, "a", serve)
            await settled()
            waiter.wake()
            with pytest.raises(OSError, match=message):
                await task

    run(work)


def test_a_stream_that_ends_while_it_is_served_ends_what_was_begun():
    async def work() -> None:
        turns = turns_of(lambda: None)
        ended: list[str] = []

        async def serve() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            except BaseException as error:
                ended.append(type(error).__name__)
                raise

        for steps, how in ((5, "CancelledError"), (0, "GeneratorExit")):
            ended.clear()
            waiter, task = waiting(turns, "a", serve)
            await settled()
            waiter.wake()
            if steps:
                await settled()
            else:
                waiter.served()  # and the task has not heard of it when it is cancelled
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert ended == [how]

    run(work)


def test_a_space_with_very_many_streams_keeps_no_other_waiting(monkeypatch):
    """A flood of one space is served between the streams of others, and in steps."""
    monkeypatch.setattr(module, "SERVED_S", 0.0)  # one a step

    async def work() -> None:
        order: list[str] = []
        turns = turns_of(lambda: order.append("look"))

        def serve_of(space: str) -> Serve:
            async def serve() -> None:
                order.append(space)

            return serve

        all_waiting = [waiting(turns, "flood", serve_of("flood")) for _ in range(50)]
        all_waiting.append(waiting(turns, "calm", serve_of("calm")))
        await settled()
        for waiter, _ in all_waiting:
            waiter.wake()
        await settled()
        assert order[:4] == ["flood", "look", "calm", "look"]
        for _, task in all_waiting:
            task.cancel()

    run(work)


def test_streams_with_backlogs_have_their_space_s_turns_too(monkeypatch):
    """Two hundred streams that returned after a day were each served in every round of the event loop, and
    the one stream of another space once per round.
    """
    monkeypatch.setattr(module, "SERVED_S", 0.0)  # one a step
    backlogs = {"flood": 3, "calm": 3}

    async def work() -> None:
        order: list[str] = []
        turns = turns_of(lambda: order.append("look"))

        def serve_of(space: str) -> Serve:
            async def serve() -> None:
                assert asyncio.current_task() is None
                order.append(space)
                backlogs[space] -= space == "calm"

            return serve

        def has_message(delivery: Delivery, session: Session) -> bool:
            return backlogs["calm" if session is calm_session else "flood"] > 0

        monkeypatch.setattr(Delivery, "has_message", has_message)
        calm_session = None
        tasks = [waiting(turns, "flood", serve_of("flood"))[1] for _ in range(50)]
        calm, task = waiting(turns, "calm", serve_of("calm"))
        calm_session = calm.session
        while backlogs["calm"]:
            await asyncio.sleep(0)
        backlogs["flood"] = 0
        assert order[:10:2] == ["flood", "calm"] * 2 + ["flood"]
        assert set(order[1:10:2]) == {"look"}
        await settled()
        assert not any(each.done() for each in (*tasks, task)), "no task was woken for it"
        for each in (*tasks, task):
            each.cancel()

    run(work)
