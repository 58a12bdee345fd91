"""The backlog of one subscription: the messages that it owes its readers, counted in the match log.

Counting is bounded in time. Where a backlog goes on beyond what was read, the rest is estimated from the
share of events that matched so far. Other requests may change the delivery meanwhile: the figures need not be
of one moment.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

from fieldfare.delivery.delivery import Delivery
from fieldfare.delivery.keys import PARTITION_SHIFT, offset_of, position_of
from fieldfare.delivery.partition_delivery import PartitionDelivery
from fieldfare.gateway.delivery.match_log_follower import MatchLogFollower
from fieldfare.gateway.delivery.service import DeliveryService
from fieldfare.model import Backlog, Offsets
from fieldfare.storage.errors import TrimmedError
from fieldfare.storage.event_log import EventReader

COUNTING_S = 0.2
"""Seconds after which counting reads no further block of the match log."""


@dataclass(slots=True)
class _Counted:
    """The pending messages of one partition.

    `delivered` is the number of those delivered before, `fresh` that of the others; `first` is the key of the
    first one, `read_to` the offset up to which the match log was read.
    """

    delivered: int
    first: int | None
    fresh: int = 0
    is_exact: bool = True
    read_to: int = 0


class BacklogCounter:
    """Counts backlogs.

    Parameters
    ----------
    deliveries
        The state of deliveries, and the reader of their matches.
    tail
        The ends of the match log.
    log
        The event log, for times of publishing.
    """

    def __init__(self, deliveries: DeliveryService, tail: MatchLogFollower, log: EventReader) -> None:
        self._deliveries = deliveries
        self._tail = tail
        self._log = log

    async def count(self, delivery: Delivery) -> tuple[Backlog, Offsets]:
        """Count the backlog of a subscription's delivery; return it, and up to where matches were read.

        Messages whose events retention has removed are settled: they are delivered to no reader.
        """
        self._deliveries.expire(delivery)
        await self._deliveries.skip_removed(delivery)
        await self._tail.catch_up()
        until_s = time.monotonic() + COUNTING_S
        counted = [
            await self._count(delivery, number, partition, until_s)
            for number, partition in list(delivery.partitions.items())
        ]
        firsts = [each.first for each in counted if each.first is not None]
        oldest_ms = await asyncio.to_thread(self._oldest_ms, firsts)
        delivered = sum(each.delivered for each in counted) + len(delivery.tries.retried)
        found = Backlog(
            pending=delivered + sum(each.fresh for each in counted),
            is_exact=all(each.is_exact for each in counted),
            in_flight=delivery.in_flight,
            redeliveries=max(0, delivered - delivery.in_flight),
            dead_letters=delivery.tries.listed,
            readers=self._deliveries.readers(delivery),
            cursor=tuple(map(position_of, delivery.cursor_keys)),
            oldest_s=None if oldest_ms is None else max(0.0, round(time.time() - oldest_ms / 1000, 3)),
        )
        return found, tuple(each.read_to for each in counted)

    async def _count(
        self, delivery: Delivery, number: int, partition: PartitionDelivery, until_s: float
    ) -> _Counted:
        """Count the messages of a partition: those delivered and not acked, then those after them."""
        found = _Counted(partition.given.open_count, partition.given.front)
        begin = key = partition.next_key
        while time.monotonic() < until_s:
            result = await self._deliveries.read_from(delivery, key)
            if result is None or result.read_to <= key:
                break
            key = result.read_to
            for _, keys in result.keys:
                owed = keys[partition.are_owed(keys)]
                found.fresh += len(owed)
                if len(owed) and found.first is None:
                    found.first = int(owed[0])
        found.read_to = offset_of(key)
        left = self._tail.tips[number] - found.read_to
        if left > 0:
            found.is_exact = False
            found.fresh += round(found.fresh * left / max(offset_of(key) - offset_of(begin), 1))
        return found

    def _oldest_ms(self, firsts: list[int]) -> int | None:
        """Return the earliest time of publishing of some messages, if the log still has any of them."""
        times: list[int] = []
        for key in firsts:
            partition, offset = key >> PARTITION_SHIFT, offset_of(key)
            with suppress(TrimmedError):
                times += [
                    record.appended_ms for record in self._log.partitions[partition].read(offset, offset + 1)
                ]
        return min(times, default=None)
