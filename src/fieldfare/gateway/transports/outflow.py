"""The messages of one open stream, for as long as it is open: the same whatever carries them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from fieldfare.delivery.delivery import Delivery, Session
from fieldfare.delivery.pages import KeyQueue
from fieldfare.gateway.delivery.pump import Pump
from fieldfare.gateway.delivery.records import PARTS, Write
from fieldfare.gateway.delivery.waiter import Waiter
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.transports.steps import Disconnect, first_step, next_step


class Carrier(Protocol):
    """What a transport does with what is to be sent."""

    @property
    def write(self) -> Write:
        """Writes one message, in parts."""

    async def send_messages(self, parts: Sequence[bytes]) -> None:
        """Send the parts of messages."""

    async def send_sought(self) -> None:
        """Say that what comes now may have come, and been acked, before."""


@dataclass(eq=False)
class Outflow:
    """Sends what one session is given, until somebody ends it.

    Parameters
    ----------
    pump, metrics
        Who brings messages, and who counts them.
    delivery
        What is sent.
    space
        Whose it is.
    window, lease_s
        How many messages may be unacked, and for how long each: so long as the subscription's settings say
        where they say it, unless the client has named ``asked_s``.
    is_auto
        Whether the stream acknowledges them itself.
    connected
        Open for as long as the stream is; it may refuse one more.
    """

    pump: Pump
    metrics: Metrics
    delivery: Delivery
    space: str
    window: int
    lease_s: float
    asked_s: float | None
    is_auto: bool = False
    connected: Callable[[], AbstractContextManager[None]] = nullcontext
    sent: KeyQueue = field(default_factory=KeyQueue, init=False)
    """With ack=auto: what was sent and is not settled."""
    _step: int = field(default=1, init=False)
    _round: int = field(default=0, init=False)

    @contextmanager
    def opened(self) -> Iterator[Session]:
        """The session, before anything is awaited: a delivery that nobody uses is forgotten."""
        # An automatic stream never waits for acks: when its window is full it makes room itself.
        window = 2 * self.window if self.is_auto else self.window
        with self.connected():
            session = self.pump.open_stream(self.delivery, window, alone=self.is_auto)
            self.pump.connected += 1
            try:
                yield session
            finally:
                self.pump.connected -= 1
                self.pump.close_stream(self.delivery, session)

    async def run(self, session: Session, carrier: Carrier, gone: Disconnect) -> None:
        """Send until the client has gone, the delivery or the session is ended, or the gateway stops."""
        with self.pump.waiter(self.delivery, session, gone.future) as waiter:
            await self._send_all(session, carrier, gone, waiter)

    async def _send_all(self, session: Session, carrier: Carrier, gone: Disconnect, waiter: Waiter) -> None:
        self._round = self.delivery.round
        self._step = first_step(self.pump.rations.piece_bytes(self.space))
        waiter.serve = partial(self._send_next, session, carrier, gone)
        while not (gone.happened or self.pump.closing or self.delivery.deleted or session.ended):
            if self.delivery.round != self._round:
                await self._send_next(session, carrier, gone)
            await waiter.woken()

    async def _send_next(self, session: Session, carrier: Carrier, gone: Disconnect) -> bool:
        """Send some of what there is, if anything; waits for a disk, or a client that does not read."""
        delivery, pump = self.delivery, self.pump
        if delivery.round != self._round:
            self._round = delivery.round
            self.sent.drop(len(self.sent))  # what was sent before settles nothing of what is to be sent again
            await carrier.send_sought()
            return True
        if delivery.settings.order_by is not None:
            await pump.find_names(delivery, session)
            if delivery.round != self._round or session.ended or delivery.deleted:
                return True  # it was set to another place meanwhile, which must be said first
            if pump.rations.is_out(self.space):
                return True  # others of the space were given something meanwhile: the next turn is this one's
        lease_s = self.asked_s or delivery.settings.ack_deadline_s or self.lease_s
        keys = delivery.take(session, self._step, time.monotonic(), lease_s)
        if not keys:
            pump.look_for(delivery)  # what it had may have been given up instead
            return False
        pump.wake(delivery)  # others who wait must hear when these leases end
        size_bytes, done = await self._send(keys, session, carrier, gone)
        self._step = next_step(size_bytes, done, pump.rations.piece_bytes(self.space))
        return True

    async def _send(
        self, keys: list[int], session: Session, carrier: Carrier, gone: Disconnect
    ) -> tuple[int, int]:
        """Send messages in pieces; their bytes, and how many of them this has dealt with.

        What is not sent when the stream ends comes again, and in its turn what turns out to be larger than
        those before it, so that the space is in debt.
        """
        size_bytes = at = 0
        round = self.delivery.round
        while at < len(keys) and not (gone.happened or session.ended or self.delivery.round != round):
            if at and self.pump.rations.wait_s(self.space) > 0:
                break
            parts: list[bytes] = []
            done = await self.pump.compose(self.delivery, keys[at:], carrier.write, parts)
            if session.ended or self.delivery.round != round:
                break
            if parts:
                size_bytes += sum(map(len, parts))
                self.metrics.given(len(parts) // PARTS)
                await carrier.send_messages(parts)
            if self.is_auto and not session.ended and self.delivery.round == round:
                self._settle_oldest(keys[at : at + done])
            at += done
        self.delivery.give_back(session, keys[at:])
        return size_bytes, at

    def _settle_oldest(self, sent: list[int]) -> None:
        """With ack=auto: what has a whole window of younger ones behind it needs no acknowledgement."""
        self.sent.extend(sent)
        surplus = len(self.sent) - self.window
        if surplus > 0:
            oldest = self.sent.first(surplus)
            self.sent.drop(surplus)
            self.metrics.acked.inc(self.delivery.ack(oldest))
