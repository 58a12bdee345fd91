"""Pulls: as many messages as there are, in one answer; when there is none, wait for one."""

from __future__ import annotations

import asyncio
import time

from starlette.types import Receive

from fieldfare.delivery.delivery import Delivery, Session
from fieldfare.gateway.delivery.pump import Pump
from fieldfare.gateway.delivery.records import write_pulled
from fieldfare.gateway.transports.steps import FIRST_AT_ONCE, PARTS, Disconnect, next_step

PULLED_MAX_BYTES = 8 << 20


async def pull_messages(
    pump: Pump, delivery: Delivery, limit: int, lease_s: float, wait_s: float, receive: Receive
) -> tuple[int, bytes]:
    """How many messages a pull gets, and the answer with them."""
    session = pump.puller(delivery)
    until_s = time.monotonic() + wait_s
    parts: list[bytes] = []
    async with Disconnect(receive) as gone:
        while not gone.happened:
            parts = await _pulled(pump, delivery, session, limit, lease_s, gone)
            left_s = until_s - time.monotonic()
            if parts or pump.closing or delivery.deleted or left_s <= 0:
                break
            with pump.waiter(delivery, session, gone.future) as woken:
                await woken(left_s)
    return len(parts) // PARTS, b"".join((b'{"messages":[', *parts, b"]}"))


async def _pulled(
    pump: Pump, delivery: Delivery, session: Session, limit: int, lease_s: float, gone: Disconnect
) -> list[bytes]:
    """What one pull gets, in steps, so that large events end it before memory does.

    Whatever ends it early, a message that was taken is in the answer, or is given again at once.
    """
    parts: list[bytes] = []
    taken: list[int] = []
    size_bytes, step = 0, FIRST_AT_ONCE
    try:
        while size_bytes < PULLED_MAX_BYTES and (left := limit - len(parts) // PARTS) > 0:
            await pump.read_on(delivery)
            keys = delivery.take(session, min(left, step), time.monotonic(), lease_s)
            if not keys:
                break
            pump.wake(delivery)  # others who wait must hear when these leases end
            taken += keys
            before, before_bytes, at = len(parts), size_bytes, 0
            while at < len(keys) and size_bytes < PULLED_MAX_BYTES:
                at += await pump.compose(delivery, keys[at:], write_pulled, parts)
                size_bytes += sum(map(len, parts[before:]))
                before = len(parts)
            delivery.nack(keys[at:])
            step = next_step(size_bytes - before_bytes, len(keys))
            await asyncio.sleep(0)
            if gone.happened or delivery.deleted:
                delivery.nack(taken)
                return []
    except BaseException:
        delivery.nack(taken)
        raise
    return parts
