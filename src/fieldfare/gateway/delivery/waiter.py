"""Waiting for the messages of one delivery, and those who are served in turn while they wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from fieldfare.delivery.delivery import Delivery, Session
from fieldfare.gateway.admission.quotas import RETRY_MAX_S
from fieldfare.gateway.delivery.rations import AT_ONCE, Rations
from fieldfare.gateway.turns import Turns

SERVED_S = 0.002
"""After so long others than those who wait for messages have their turn."""

PAUSE_S = 0.005
"""So long at least a space waits that was sent as much as it may be: it is not looked at for each byte."""

LEFT_MAX = 16
"""Those of a space who wait for nothing any more leave its queue when they are more, and half of it."""

Serve = Callable[[], Coroutine[Any, Any, object]]


class Begun:
    """A coroutine that is begun here and now; what it has to wait for, if anything, whoever awaits this does.

    To wake a task costs more than most of what a stream is woken for.
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
        """Nobody awaits it any more."""
        self._coroutine.close()


class Waiter:
    """One who waits for messages: a stream, between those that it sends, or a pull.

    Attributes
    ----------
    session
        Who is to have them.
    space
        Whose turn it is served in.
    serve
        Gives what there is, if that can be done while the task waits; it need not be woken then.
    is_queued
        Whether it is to be served in its turn.
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
        turns: ServingTurns,
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
        self._begun: Begun | None = None
        self._is_looked_for = False
        self._has_begun = False
        """Whether its space's ration counts it among those who are being given messages."""

    @property
    def _has_turns(self) -> bool:
        """Whether it waits for its turn, and not for messages alone."""
        return self.serve is not None or self._turns.rations.bounds(self.space)

    def wake(self, _: object = None) -> None:
        """There may be something."""
        if self._future is not None and not self._future.done():
            if not self._has_turns or self._is_over():
                self._future.set_result(True)
            elif not self.is_queued:
                self._turns.add(self)

    def served(self) -> None:
        """It is this one's turn."""
        future = self._future
        if future is None or future.done():
            return
        if self.serve is not None and not self._is_over():
            try:
                begun = Begun(self.serve())
            except Exception as error:  # the task's own, wherever it came up
                if not future.done():
                    future.set_exception(error)
                return
            if begun.is_over:
                if self._delivery.has_message(self.session):
                    self.wake()
                return
            self._begun = begun
        elif self._turns.rations.bounds(self.space):
            self._has_begun = True  # nobody else has a turn before its task does: he would use it up
            self._turns.rations.begin(self.space, AT_ONCE)
        if not future.done():
            future.set_result(True)

    async def woken(self, timeout_s: float | None = None) -> bool:
        """Wait until there is a message for the session, and its turn; it is to end; or the client has gone.

        False when none of this has come to pass in time; to go on waiting then is cheap.
        """
        delivery = self._delivery
        if self._is_over():
            return True
        has_message = delivery.has_message(self.session)
        if has_message and not self._has_turns:
            await asyncio.sleep(0)  # others have their turn between two messages of a busy subscription
            return True
        loop = asyncio.get_running_loop()
        future = self._future = loop.create_future()
        if not self._is_looked_for:
            self._is_looked_for = True
            self._look_for(delivery)
        if has_message:  # a crowd with backlogs has its space's turns, and not one each
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
                self._turns.rations.end(self.space, AT_ONCE)
            self._future = self._begun = None
        self._is_looked_for = not woken
        return woken

    def _is_over(self) -> bool:
        return self._is_closing() or self._delivery.deleted or self.session.ended or self._gone.done()


class ServingTurns:
    """Those who are to be served, each space's in its turn: one with very many keeps no other waiting.

    A space that may be sent nothing for the time being has no turns, and nothing is done for it: one timer
    says when it goes on, however many wait in it.

    Parameters
    ----------
    look_again
        Called after some were served: they wait again.
    rations
        Say which space may be sent something.
    """

    def __init__(self, look_again: Callable[[], None], rations: Rations) -> None:
        self._turns: Turns[Waiter] = Turns()
        self._look_again = look_again
        self.rations = rations
        self._is_asked = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._left: dict[str, int] = {}
        """How many of a space's queue wait for nothing any more."""
        rations.call_on_more(self.release)

    def add(self, waiter: Waiter) -> None:
        """Serve one who waits, soon, or when its space may be sent something."""
        waiter.is_queued = True
        self._turns.add(waiter.space, waiter)
        if self._turns:
            self._ask()

    def leave(self, waiter: Waiter) -> None:
        """Nobody waits with this one any more."""
        if waiter.is_queued:
            waiter.is_queued = False
            space = waiter.space
            left = self._left[space] = self._left.get(space, 0) + 1
            if left > LEFT_MAX and 2 * left > self._turns.count(space):
                self._turns.sift(space, lambda each: each.is_queued)
                del self._left[space]

    def is_held(self, space: str) -> bool:
        """Whether who wants messages is to wait for his turn: there may be none now, or others came first."""
        return self.rations.bounds(space) and (self._turns.count(space) > 0 or self.rations.is_out(space))

    def release(self, space: str) -> None:
        """A space may be sent something, or will be looked at again."""
        timer = self._timers.pop(space, None)
        if timer is not None:
            timer.cancel()
        if self._turns.release(space):
            self._ask()

    def _hold(self, space: str) -> None:
        self._turns.hold(space)
        wait_s = self.rations.wait_s(space)
        if wait_s > 0:
            wait_s = min(max(wait_s, PAUSE_S), RETRY_MAX_S)
            self._timers[space] = asyncio.get_running_loop().call_later(wait_s, self.release, space)

    def _ask(self) -> None:
        if not self._is_asked:
            self._is_asked = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        self._is_asked = False
        until_s = time.monotonic() + SERVED_S
        while self._turns:
            waiter = self._turns.first
            if waiter.is_queued and self.rations.is_out(waiter.space):
                self._hold(waiter.space)
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
            self._ask()
        self._look_again()

    def _has_left(self, space: str) -> None:
        self._left[space] -= 1
        if not self._left[space]:
            del self._left[space]


def _give_up(future: asyncio.Future[bool] | None) -> None:
    if future is not None and not future.done():
        future.set_result(False)
