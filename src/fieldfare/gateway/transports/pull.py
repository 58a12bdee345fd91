"""Pulls: as many messages as there are, in one answer; when there is none, wait for one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.types import Receive

from fieldfare.delivery.delivery import Delivery, Session
from fieldfare.gateway.delivery.pump import Pump
from fieldfare.gateway.delivery.records import PARTS, write_pulled
from fieldfare.gateway.transports.steps import (
    SENT_AT_ONCE,
    Disconnect,
    SentPieces,
    first_step,
    next_step,
)

PULLED_MAX_BYTES = 8 << 20

HELD_S = 0.5
"""So long at least a pull waits for its turn, where its space was sent as much as it may be: who asks again
at once, whatever he is answered, would be work for all."""


class PullAnswer(SentPieces):
    """Messages that a pull was given."""

    def __init__(self, count: int, pieces: Sequence[bytes]) -> None:
        super().__init__((b'{"messages":[', *(piece[at == 0 :] for at, piece in enumerate(pieces)), b"]}"))
        self.count = count


@dataclass(frozen=True, slots=True)
class Pull:
    """What a pull asks for: so many messages of a space's subscription, leased for so long."""

    pump: Pump
    delivery: Delivery
    space: str
    limit: int
    lease_s: float

    async def answer(self, wait_s: float, receive: Receive) -> PullAnswer:
        """What it gets, now or within so long.

        Problem 429 where there is something that its space may not be sent yet: an empty answer would tell
        whoever reads until there is nothing that he has it all.
        """
        pump, delivery = self.pump, self.delivery
        now_s, is_turn = time.monotonic(), False
        until_s, held_until_s = now_s + wait_s, now_s + max(wait_s, HELD_S)
        with pump.pulled(delivery) as session:
            async with Disconnect(receive) as gone:
                while True:
                    answer = await self._pulled(session, gone, is_turn)
                    is_over = gone.happened or pump.closing or delivery.deleted
                    if answer is None and is_over:
                        answer = PullAnswer(0, ())
                    left_s = (held_until_s if answer is None else until_s) - time.monotonic()
                    if answer is not None and (answer.count or is_over or left_s <= 0):
                        return answer
                    if left_s <= 0:
                        raise pump.rations.problem(self.space)
                    with pump.waiter(delivery, session, gone.future) as waiter:
                        is_turn = await waiter.woken(left_s)

    async def _pulled(self, session: Session, gone: Disconnect, is_turn: bool) -> PullAnswer | None:
        """What it gets, in steps, so that large events end it before memory does; None before its turn.

        Whatever ends it early, a message that was taken is in the answer, or is given again at once.
        """
        pump, delivery, limit, lease_s = self.pump, self.delivery, self.limit, self.lease_s
        pieces: list[bytes] = []
        taken: list[int] = []
        piece_bytes = pump.rations.piece_bytes(self.space)
        count, size_bytes, step, until_s = 0, 0, first_step(piece_bytes), 0.0
        try:
            while size_bytes < PULLED_MAX_BYTES and count < limit:
                await pump.read_on(delivery)
                await pump.find_names(delivery, session)
                if not is_turn and pump.turns.is_held(self.space):
                    if not count and delivery.has_message(session):
                        return None
                    break
                is_turn = False
                now_s = time.monotonic()
                if not taken:
                    until_s = now_s + lease_s
                elif now_s >= until_s:
                    break  # what it took first is not its own any more, and would be in the answer twice
                keys = delivery.take(session, min(limit - count, step), now_s, lease_s)
                if not keys:
                    break
                pump.wake(delivery)  # others who wait must hear when these leases end
                taken += keys
                before_bytes, at = size_bytes, 0
                while at < len(keys) and size_bytes < PULLED_MAX_BYTES:
                    if at and pump.rations.wait_s(self.space) > 0:
                        break  # these are larger than those before them
                    parts: list[bytes] = []
                    at += await pump.compose(delivery, keys[at:], write_pulled, parts)
                    if parts:
                        count += len(parts) // PARTS
                        pieces.append(b"".join(parts))
                        size_bytes += len(pieces[-1])
                delivery.give_back(session, keys[at:])
                step = next_step(size_bytes - before_bytes, len(keys), piece_bytes)
                await asyncio.sleep(0)
                if gone.happened or delivery.deleted:
                    break
        except BaseException:
            delivery.give_back(session, taken)
            raise
        if gone.happened or delivery.deleted:
            for start in range(0, len(taken), SENT_AT_ONCE):
                delivery.give_back(session, taken[start : start + SENT_AT_ONCE])
                await asyncio.sleep(0)
            return PullAnswer(0, ())
        return PullAnswer(count, pieces)
