"""Send the messages of one open stream, on any transport, for as long as the stream is open."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from fieldfare.delivery.delivery import Delivery, Session
from fieldfare.delivery.pages import KeyQueue
from fieldfare.gateway.delivery.records import PARTS, Write
from fieldfare.gateway.delivery.service import DeliveryService
from fieldfare.gateway.delivery.waiter import Waiter
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.transports.steps import Disconnect, first_step, next_step


class Carrier(Protocol):
    """A transport: writes and sends the messages of a stream."""

    @property
    def write(self) -> Write:
        """The function that writes one message, in parts."""

    async def send_messages(self, parts: Sequence[bytes]) -> None:
        """Send the parts of messages."""

    async def send_sought(self) -> None:
        """Tell the client that messages from here on may have been delivered, and acked, before."""


@dataclass(eq=False)
class StreamSender:
    """Sends the messages of one session until the session ends.

    Parameters
    ----------
    deliveries, metrics
        The delivery service that provides messages, and the metrics that count them.
    delivery
        The delivery whose messages are sent.
    space
        The space of the subscription.
    window
        Maximum messages that may be unacked.
    lease_s, asked_s
        Seconds that a message may be unacked: ``asked_s`` if the client has named it, else the subscription's
        ack deadline, else ``lease_s``.
    is_auto
        Whether the stream acknowledges messages itself (``ack=auto``).
    connected
        Context manager that is open while the stream is; it may refuse another stream.
    """

    deliveries: DeliveryService
    metrics: Metrics
    delivery: Delivery
    space: str
    window: int
    lease_s: float
    asked_s: float | None
    is_auto: bool = False
    connected: Callable[[], AbstractContextManager[None]] = nullcontext
    sent: KeyQueue = field(default_factory=KeyQueue, init=False)
    """With ``ack=auto``: messages sent and not yet acked."""
    _step: int = field(default=1, init=False)
    _round: int = field(default=0, init=False)

    @contextmanager
    def opened(self) -> Iterator[Session]:
        """Open the session, before anything is awaited: an unused delivery may be unloaded."""
        # An automatic stream never waits for acks: when its window is full, it acks the oldest itself.
        window = 2 * self.window if self.is_auto else self.window
        with self.connected():
            session = self.deliveries.open_stream(self.delivery, window, alone=self.is_auto)
            self.deliveries.connected += 1
            try:
                yield session
            finally:
                self.deliveries.connected -= 1
                self.deliveries.close_stream(self.delivery, session)

    async def run(self, session: Session, carrier: Carrier, gone: Disconnect) -> None:
        """Send until the client disconnects, the delivery or the session ends, or the gateway stops."""
        with self.deliveries.waiter(self.delivery, session, gone.future) as waiter:
            await self._send_all(session, carrier, gone, waiter)

    async def _send_all(self, session: Session, carrier: Carrier, gone: Disconnect, waiter: Waiter) -> None:
        self._round = self.delivery.round
        self._step = first_step(self.deliveries.rate_limiter.piece_bytes(self.space))
        waiter.serve = partial(self._send_next, session, carrier, gone)
        while not (gone.happened or self.deliveries.closing or self.delivery.deleted or session.ended):
            if self.delivery.round != self._round:
                await self._send_next(session, carrier, gone)
            await waiter.woken()

    async def _send_next(self, session: Session, carrier: Carrier, gone: Disconnect) -> bool:
        """Send some of the available messages; return False if there are none.

        This waits for the disk, and for a client that reads slowly.
        """
        delivery, deliveries = self.delivery, self.deliveries
        if delivery.round != self._round:
            self._round = delivery.round
            self.sent.drop(len(self.sent))  # earlier messages settle nothing that is sent again
            await carrier.send_sought()
            return True
        if delivery.settings.order_by is not None:
            await deliveries.find_names(delivery, session)
            if delivery.round != self._round or session.ended or delivery.deleted:
                return True  # a seek meanwhile must be announced first
            if deliveries.rate_limiter.is_out(self.space):
                return True  # others of the space were served meanwhile: the next turn is this stream's
        lease_s = self.asked_s or delivery.settings.ack_deadline_s or self.lease_s
        keys = delivery.take(session, self._step, time.monotonic(), lease_s)
        if not keys:
            deliveries.look_for(delivery)  # the messages it had may have been dead-lettered instead
            return False
        deliveries.wake(delivery)  # other waiters must learn when these leases end
        size_bytes, done = await self._send(keys, session, carrier, gone)
        self._step = next_step(size_bytes, done, deliveries.rate_limiter.piece_bytes(self.space))
        return True

    async def _send(
        self, keys: list[int], session: Session, carrier: Carrier, gone: Disconnect
    ) -> tuple[int, int]:
        """Send messages in pieces; return their bytes and the number of messages handled.

        Messages not sent when the stream ends are given back. So are those that turn out to be larger than
        the ones before them, so that the space has exceeded its rate: they are sent at its next turn.
        """
        size_bytes = at = 0
        round = self.delivery.round
        while at < len(keys) and not (gone.happened or session.ended or self.delivery.round != round):
            if at and self.deliveries.rate_limiter.wait_s(self.space) > 0:
                break
            parts: list[bytes] = []
            done = await self.deliveries.compose(self.delivery, keys[at:], carrier.write, parts)
            if session.ended or self.delivery.round != round or not done:
                break
            if parts:
                size_bytes += sum(map(len, parts))
                self.metrics.count_delivered(len(parts) // PARTS)
                await carrier.send_messages(parts)
                self.deliveries.tracer.sent(keys[at : at + done], self.delivery.number)
            if self.is_auto and not session.ended and self.delivery.round == round:
                self._settle_oldest(keys[at : at + done])
            at += done
        self.delivery.give_back(session, keys[at:])
        return size_bytes, at

    def _settle_oldest(self, sent: list[int]) -> None:
        """With ``ack=auto``: ack messages that a full window of later ones has followed."""
        self.sent.extend(sent)
        surplus = len(self.sent) - self.window
        if surplus > 0:
            oldest = self.sent.first(surplus)
            self.sent.drop(surplus)
            began_ms = self.deliveries.tracer.ack_begins()
            self.metrics.acked.inc(self.delivery.ack(oldest))
            self.deliveries.tracer.acked(oldest, self.delivery.number, began_ms)
