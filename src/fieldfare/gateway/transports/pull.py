"""Pulls: as many messages as there are, in one answer; when there is none, wait for one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from starlette.types import Receive

from fieldfare.delivery.delivery import Delivery, Session
from fieldfare.gateway.delivery.pump import Pump
from fieldfare.gateway.delivery.records import PARTS, write_pulled
from fieldfare.gateway.transports.steps import (
    FIRST_AT_ONCE,
    SENT_AT_ONCE,
    Disconnect,
    SentPieces,
    next_step,
)

PULLED_MAX_BYTES = 8 << 20


class PullAnswer(SentPieces):
    """Messages that a pull was given."""

    def __init__(self, count: int, pieces: Sequence[bytes]) -> None:
        super().__init__((b'{"messages":[', *(piece[at == 0 :] for at, piece in enumerate(pieces)), b"]}"))
        self.count = count


async def pull_messages(
    pump: Pump, delivery: Delivery, limit: int, lease_s: float, wait_s: float, receive: Receive
) -> PullAnswer:
    """What a pull gets."""
    until_s = time.monotonic() + wait_s
    with pump.pulled(delivery) as session:
        async with Disconnect(receive) as gone:
            while True:
                answer = await _pulled(pump, delivery, session, limit, lease_s, gone)
                left_s = until_s - time.monotonic()
                if answer.count or gone.happened or pump.closing or delivery.deleted or left_s <= 0:
                    return answer
                with pump.waiter(delivery, session, gone.future) as waiter:
                    await waiter.woken(left_s)


async def _pulled(
    pump: Pump, delivery: Delivery, session: Session, limit: int, lease_s: float, gone: Disconnect
) -> PullAnswer:
    """What one pull gets, in steps, so that large events end it before memory does.

    Whatever ends it early, a message that was taken is in the answer, or is given again at once.
    """
    pieces: list[bytes] = []
    taken: list[int] = []
    count, size_bytes, step, until_s = 0, 0, FIRST_AT_ONCE, 0.0
    try:
        while size_bytes < PULLED_MAX_BYTES and count < limit:
            await pump.read_on(delivery)
            await pump.find_names(delivery, session)
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
                parts: list[bytes] = []
                at += await pump.compose(delivery, keys[at:], write_pulled, parts)
                if parts:
                    count += len(parts) // PARTS
                    pieces.append(b"".join(parts))
                    size_bytes += len(pieces[-1])
            delivery.give_back(session, keys[at:])
            step = next_step(size_bytes - before_bytes, len(keys))
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
