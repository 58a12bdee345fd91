"""Pull: return the available messages in one response, and wait for one if there is none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.types import Receive

from fieldfare.delivery.delivery import Delivery, Session
from fieldfare.gateway.delivery.records import PARTS, write_pulled
from fieldfare.gateway.delivery.service import DeliveryService
from fieldfare.gateway.sent_pieces import SentPieces
from fieldfare.gateway.transports.steps import (
    SENT_BATCH_SIZE,
    Disconnect,
    first_step,
    next_step,
)

PULLED_MAX_BYTES = 8 << 20

HELD_S = 0.5
"""Minimum seconds that a pull waits for its turn when its space has reached its delivery rate: a client that
retries at once, whatever the answer, would be work for all.
"""


class PullAnswer(SentPieces):
    """The messages of a pull's response."""

    def __init__(self, count: int, pieces: Sequence[bytes]) -> None:
        super().__init__((b'{"messages":[', *(piece[at == 0 :] for at, piece in enumerate(pieces)), b"]}"))
        self.count = count


@dataclass(frozen=True, slots=True)
class Pull:
    """A pull request: at most ``limit`` messages of a subscription, each leased for ``lease_s`` seconds."""

    deliveries: DeliveryService
    delivery: Delivery
    space: str
    limit: int
    lease_s: float

    async def answer(self, wait_s: float, receive: Receive) -> PullAnswer:
        """Return the messages available now or within ``wait_s`` seconds.

        Raise Problem 429 if there are messages that the space's delivery rate does not allow yet: an empty
        answer would tell a client that reads until there are no messages that it has read them all.
        """
        deliveries, delivery = self.deliveries, self.delivery
        now_s, is_turn = time.monotonic(), False
        until_s, held_until_s = now_s + wait_s, now_s + max(wait_s, HELD_S)
        with deliveries.pulled(delivery) as session:
            async with Disconnect(receive) as gone:
                while True:
                    answer = await self._pulled(session, gone, is_turn)
                    is_over = gone.happened or deliveries.closing or delivery.deleted
                    if answer is None and is_over:
                        answer = PullAnswer(0, ())
                    left_s = (held_until_s if answer is None else until_s) - time.monotonic()
                    if answer is not None and (answer.count or is_over or left_s <= 0):
                        return answer
                    if left_s <= 0:
                        raise deliveries.rate_limiter.problem(self.space)
                    with deliveries.waiter(delivery, session, gone.future) as waiter:
                        is_turn = await waiter.woken(left_s)

    async def _pulled(self, session: Session, gone: Disconnect, is_turn: bool) -> PullAnswer | None:
        """Take and compose messages, in steps, so that large events end it before memory does.

        Return None if there are messages but the space must wait for its turn. However the pull ends, each
        message taken is in the answer or given back at once.
        """
        deliveries, delivery, limit, lease_s = self.deliveries, self.delivery, self.limit, self.lease_s
        pieces: list[bytes] = []
        taken: list[int] = []
        sent: list[int] = []
        piece_bytes = deliveries.rate_limiter.piece_bytes(self.space)
        count, size_bytes, step, until_s = 0, 0, first_step(piece_bytes), 0.0
        try:
            while size_bytes < PULLED_MAX_BYTES and count < limit:
                await deliveries.read_on(delivery)
                await deliveries.find_names(delivery, session)
                if not is_turn and deliveries.turns.is_held(self.space):
                    if not count and delivery.has_message(session):
                        return None
                    break
                is_turn = False
                now_s = time.monotonic()
                if not taken:
                    until_s = now_s + lease_s
                elif now_s >= until_s:
                    break  # the first leases have expired: their messages could be in the answer twice
                keys = delivery.take(session, min(limit - count, step), now_s, lease_s)
                if not keys:
                    break
                deliveries.wake(delivery)  # other waiters must learn when these leases end
                taken += keys
                before_bytes, at = size_bytes, 0
                while at < len(keys) and size_bytes < PULLED_MAX_BYTES:
                    if at and deliveries.rate_limiter.wait_s(self.space) > 0:
                        break  # these are larger than those before them
                    parts: list[bytes] = []
                    done = await deliveries.compose(delivery, keys[at:], write_pulled, parts)
                    if not done:
                        break
                    at += done
                    if parts:
                        count += len(parts) // PARTS
                        pieces.append(b"".join(parts))
                        size_bytes += len(pieces[-1])
                delivery.give_back(session, keys[at:])
                sent += keys[:at]
                step = next_step(size_bytes - before_bytes, len(keys), piece_bytes)
                await asyncio.sleep(0)
                if gone.is_lost or delivery.deleted:
                    break
        except BaseException:
            delivery.give_back(session, taken)
            raise
        if gone.is_lost or delivery.deleted:
            for start in range(0, len(taken), SENT_BATCH_SIZE):
                delivery.give_back(session, taken[start : start + SENT_BATCH_SIZE])
                await asyncio.sleep(0)
            return PullAnswer(0, ())
        deliveries.tracer.sent(sent, delivery.number)
        return PullAnswer(count, pieces)
