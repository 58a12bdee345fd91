"""Waiting for the messages of one delivery, and fair scheduling of the waiters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from fieldfare.delivery.delivery import Delivery, Session
from fieldfare.gateway.admission.quotas import RETRY_MAX_S
from fieldfare.gateway.delivery.rate_limiter import AT_ONCE, DeliveryRateLimiter
from fieldfare.gateway.fair_queue import FairQueue

SERVED_S = 0.002
"""Seconds that waiters are served before the event loop runs other callbacks; the rest are served after
them."""

PAUSE_S = 0.005
"""Minimum seconds that a space over its rate limit waits, so that it is not checked for each byte."""

LEFT_MAX = 16
"""Maximum departed waiters kept in a space's queue; when they are more, and over half of it, they are
removed."""

Serve = Callable[[], Coroutine[Any, Any, object]]


class EagerCoroutine:
    """A coroutine that starts immediately, in the caller; if it has to wait, awaiting this object resumes it.

    Waking a task costs more than most of the work that a stream is woken for.
    """

    __slots__ = ("_coroutine", "_waits_for", "is_over")

    def __init__(self, coroutine: Coroutine[Any, Any, object]) -> None:
        self._coroutine = coroutine
        self.is_over = False
        try:
            self._waits_for = coroutine.send(None)
        except StopIteration:
            self.is_over = True

    def __await__(self) -> Generator[Any, Any, None]:
        waits_for, coroutine = self._waits_for, self._coroutine
        try:
            while True:
                try:
                    sent = yield waits_for
                except BaseException as error:
                    waits_for = coroutine.throw(error)
                else:
                    waits_for = coroutine.send(sent)
        except StopIteration:
            pass

    def close(self) -> None:
        """Close the coroutine, which will not be awaited any more."""
        self._coroutine.close()


class Waiter:
    """A client request that waits for messages: a stream, between its messages, or a pull.

    Attributes
    ----------
    session
        The session that receives the messages.
    space
        The space in whose queue it is served.
    serve
        Sends the available messages without waking the waiting task; None where only the task can.
    is_queued
        Whether it is in the scheduler's queue.
    """

    __slots__ = (
        "_begun",
        "_delivery",
        "_future",
        "_gone",
        "_has_begun",
        "_is_closing",
        "_is_looked_for",
        "_look_for",
        "_turns",
        "is_queued",
        "serve",
        "session",
        "space",
    )

    def __init__(
        self,
        delivery: Delivery,
        session: Session,
        space: str,
        gone: asyncio.Future[None],
        look_for: Callable[[Delivery], None],
        is_closing: Callable[[], bool],
        turns: FairScheduler,
    ) -> None:
        self._look_for = look_for
        self._is_closing = is_closing
        self._delivery = delivery
        self.session = session
        self.space = space
        self.serve: Serve | None = None
        self.is_queued = False
        self._turns = turns
        self._gone = gone
        self._future: asyncio.Future[bool] | None = None
        self._begun: EagerCoroutine | None = None
        self._is_looked_for = False
        self._has_begun = False
        """Whether it holds places of the rate limiter."""

    @property
    def _has_turns(self) -> bool:
        """Whether it is served through the scheduler's queue rather than woken directly."""
        return self.serve is not None or self._turns.rate_limiter.bounds(self.space)

    def wake(self, _: object = None) -> None:
        """Wake or queue the waiter: there may be a message, or it is to end."""
        if self._future is not None and not self._future.done():
            if not self._has_turns or self._is_over():
                self._future.set_result(True)
            elif not self.is_queued:
                self._turns.add(self)

    def served(self) -> None:
        """Serve the waiter, whose turn it is, or wake its task."""
        future = self._future
        if future is None or future.done():
            return
        if self.serve is not None and not self._is_over():
            try:
                begun = EagerCoroutine(self.serve())
            except Exception as error:  # raise it in the waiting task
                if not future.done():
                    future.set_exception(error)
                return
            if begun.is_over:
                if self._delivery.has_message(self.session):
                    self.wake()
                return
            self._begun = begun
        elif self._turns.rate_limiter.bounds(self.space):
            # All places: no other waiter may use up the allowance before this one's task runs.
            self._has_begun = True
            self._turns.rate_limiter.reserve(self.space, AT_ONCE)
        if not future.done():
            future.set_result(True)

    async def woken(self, timeout_s: float | None = None) -> bool:
        """Wait for a message and this waiter's turn, for the session to end, or for the client to disconnect.

        Return False after ``timeout_s`` seconds without any of these; waiting again is cheap then.
        """
        delivery = self._delivery
        if self._is_over():
            return True
        has_message = delivery.has_message(self.session)
        if has_message and not self._has_turns:
            await asyncio.sleep(0)  # other tasks run between two messages of a busy subscription
            return True
        loop = asyncio.get_running_loop()
        future = self._future = loop.create_future()
        if not self._is_looked_for:
            self._is_looked_for = True
            self._look_for(delivery)
        if has_message:  # waiters with a backlog share their space's turns
            self.wake()
        timer = None if timeout_s is None else loop.call_later(timeout_s, _give_up, future)
        try:
            woken: bool = await future
            if self._begun is not None:
                await self._begun
        finally:
            if timer is not None:
                timer.cancel()
            if self._begun is not None:
                self._begun.close()
            if self._has_begun:
                self._has_begun = False
                self._turns.rate_limiter.free(self.space, AT_ONCE)
            self._future = self._begun = None
        self._is_looked_for = not woken
        return woken

    def _is_over(self) -> bool:
        return self._is_closing() or self._delivery.deleted or self.session.ended or self._gone.done()


class FairScheduler:
    """A fair scheduler of waiters, round robin across spaces: many waiters of one space delay no other.

    A space over its rate limit is held and costs nothing: one timer releases it, however many waiters it has.

    Parameters
    ----------
    look_again
        Called after some waiters were served, which then wait again.
    rate_limiter
        Says which spaces may be sent messages.
    """

    def __init__(self, look_again: Callable[[], None], rate_limiter: DeliveryRateLimiter) -> None:
        self._turns: FairQueue[Waiter] = FairQueue()
        self._look_again = look_again
        self.rate_limiter = rate_limiter
        self._is_scheduled = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._left: dict[str, int] = {}
        """Number of departed waiters in each space's queue."""
        rate_limiter.call_on_more(self.release)

    def add(self, waiter: Waiter) -> None:
        """Queue a waiter: it is served soon, or once its space may be sent messages."""
        waiter.is_queued = True
        self._turns.add(waiter.space, waiter)
        if self._turns:
            self._schedule()

    def remove(self, waiter: Waiter) -> None:
        """Remove a waiter that no longer waits."""
        if waiter.is_queued:
            waiter.is_queued = False
            space = waiter.space
            left = self._left[space] = self._left.get(space, 0) + 1
            if left > LEFT_MAX and 2 * left > self._turns.count(space):
                self._turns.sift(space, lambda each: each.is_queued)
                del self._left[space]

    def is_held(self, space: str) -> bool:
        """Whether a new reader of a space must queue: the space is over its limit, or others wait already."""
        return self.rate_limiter.bounds(space) and (
            self._turns.count(space) > 0 or self.rate_limiter.is_out(space)
        )

    def release(self, space: str) -> None:
        """Release a held space, which may be sent messages or is to be checked again."""
        timer = self._timers.pop(space, None)
        if timer is not None:
            timer.cancel()
        if self._turns.release(space):
            self._schedule()

    def _suspend(self, space: str) -> None:
        self._turns.suspend(space)
        wait_s = self.rate_limiter.wait_s(space)
        if wait_s > 0:
            wait_s = min(max(wait_s, PAUSE_S), RETRY_MAX_S)
            self._timers[space] = asyncio.get_running_loop().call_later(wait_s, self.release, space)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._is_scheduled = False
        until_s = time.monotonic() + SERVED_S
        while self._turns:
            waiter = self._turns.first
            if waiter.is_queued and self.rate_limiter.is_out(waiter.space):
                self._suspend(waiter.space)
                continue
            self._turns.next()
            if not waiter.is_queued:
                self._has_left(waiter.space)
                continue
            waiter.is_queued = False
            waiter.served()
            if time.monotonic() >= until_s:
                break
        if self._turns:
            self._schedule()
        self._look_again()

    def _has_left(self, space: str) -> None:
        self._left[space] -= 1
        if not self._left[space]:
            del self._left[space]


def _give_up(future: asyncio.Future[bool] | None) -> None:
    if future is not None and not future.done():
        future.set_result(False)
