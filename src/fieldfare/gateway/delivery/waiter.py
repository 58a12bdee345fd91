"""Waiting for the messages of one delivery."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fieldfare.delivery.delivery import Delivery, Session


class Waiter:
    """One who waits for messages: a stream, between those that it sends, or a pull."""

    __slots__ = ("_delivery", "_future", "_gone", "_is_closing", "_is_looked_for", "_look_for", "session")

    def __init__(
        self,
        delivery: Delivery,
        session: Session,
        gone: asyncio.Future[None],
        look_for: Callable[[Delivery], None],
        is_closing: Callable[[], bool],
    ) -> None:
        self._look_for = look_for
        self._is_closing = is_closing
        self._delivery = delivery
        self.session = session
        self._gone = gone
        self._future: asyncio.Future[bool] | None = None
        self._is_looked_for = False

    def wake(self, _: object = None) -> None:
        """There may be something."""
        if self._future is not None and not self._future.done():
            self._future.set_result(True)

    async def woken(self, timeout_s: float | None = None) -> bool:
        """Wait until there is a message for the session, it is to end, or the client has gone.

        False when none of this has come to pass in time; to go on waiting then is cheap.
        """
        delivery = self._delivery
        if self._is_closing() or delivery.deleted or self._gone.done():
            return True
        if delivery.has_message(self.session):
            await asyncio.sleep(0)  # others have their turn between two messages of a busy subscription
            return True
        loop = asyncio.get_running_loop()
        future = self._future = loop.create_future()
        if not self._is_looked_for:
            self._is_looked_for = True
            self._look_for(delivery)
        timer = None if timeout_s is None else loop.call_later(timeout_s, _give_up, future)
        try:
            woken: bool = await future
        finally:
            if timer is not None:
                timer.cancel()
            self._future = None
        self._is_looked_for = not woken
        return woken


def _give_up(future: asyncio.Future[bool] | None) -> None:
    if future is not None and not future.done():
        future.set_result(False)
