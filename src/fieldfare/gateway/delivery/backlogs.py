"""The backlogs of all subscriptions, kept up while the gateway runs; see `BacklogTable` for what it costs.

After a start, the cursors of all subscriptions and the matches after them are read once, in small steps with
pauses. From then on each new block of the match log and each saved cursor changes the rows that it is about.
The table is used on a thread of its own: neither the event loop nor the readers of deliveries wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fieldfare.delivery.delivery import Delivery
from fieldfare.delivery.keys import key_at, key_of, offset_of
from fieldfare.gateway.admission.quotas import Quotas
from fieldfare.gateway.delivery.backlog import BacklogCounter
from fieldfare.gateway.delivery.backlog_table import BacklogTable, Count, Progress, Row, Standing, Sums
from fieldfare.gateway.delivery.match_log_follower import MatchLogFollower, ReadResult
from fieldfare.gateway.delivery.service import DeliveryService
from fieldfare.gateway.problems import HttpProblem
from fieldfare.model import Backlog, Offsets, SpaceBacklog, Subscription, SubscriptionBacklog, space_name
from fieldfare.storage import MatchBlock, MatchLog
from fieldfare.storage.errors import StorageError
from fieldfare.storage.event_log import EventReader
from fieldfare.storage.registry import Criteria, DeliveryPlace, Registry

logger = logging.getLogger("fieldfare.gateway.delivery.backlogs")

T = TypeVar("T")

KEPT_UP_S = 0.25
"""Interval of counting new blocks and saved cursors, in seconds; requests have them counted at once."""

PLACES_BATCH_SIZE = 500
"""Maximum subscriptions whose cursors one step reads after a start."""

COUNTED_S = 0.01
"""Seconds after which a step that counts the match log after a start reads no further block."""

REST_BY = 2.0
"""The pause after each step of the first count, as a multiple of the step's time: other work comes first."""

RETRY_S = 5.0
"""Seconds until the first count begins again after an error of the storage."""

ROWS_WAITED_S = 5.0
"""Seconds that a request waits until the cursors are read after a start; then it gets Problem 503."""

COUNT_WAITED_S = 0.5
"""Seconds that a request waits for the first count; then it gets what is counted so far."""

SUMS_S = 0.25
"""Seconds for which the sums of all spaces are kept: all requests in this time share them."""

COUNTED_TIMES = 3
"""Maximum counts of one backlog while new blocks come; then the last one counts as an estimate."""

ESTIMATES_BATCH_SIZE = 20
ESTIMATES_S = 0.2
"""Maximum subscriptions with an estimate that are counted at a time, and seconds after which the next one
waits for the next time."""

IN_FLIGHT_BATCH_SIZE = 1_000
"""Deliveries whose messages in flight are added up before other tasks run."""


LABELLED_MAX = 50_000
"""Maximum subscriptions with a label whose numbers are read for a page; with more, the page is found by going
through all by falling backlog."""

WALKED_MAX = 10_000
"""Maximum subscriptions that are held against the wanted labels for one page; then the page ends."""

WALKED_BATCH_SIZE = 1_000
"""Subscriptions that are held against the wanted labels at a time."""

_ANY = Criteria()


@dataclass(frozen=True, slots=True)
class Page:
    """A page of subscriptions by falling backlog; `after` is its last place, None on the last page."""

    items: Sequence[tuple[Subscription, SubscriptionBacklog]]
    after: tuple[int, int] | None


class Backlogs:
    """The backlogs of all subscriptions, for lists and sums.

    Parameters
    ----------
    registry, log, match_log
        The stores.
    tail
        Reads the match log, and reports each new block.
    deliveries
        Report changed subscriptions and saved cursors, and know what is in flight.
    quotas
        Know the bytes that each space stores.
    """

    def __init__(
        self,
        registry: Registry,
        log: EventReader,
        match_log: MatchLog,
        tail: MatchLogFollower,
        deliveries: DeliveryService,
        quotas: Quotas,
    ) -> None:
        self._registry = registry
        self._log = log
        self._match_log = match_log
        self._tail = tail
        self._deliveries = deliveries
        self._quotas = quotas
        self._counter = BacklogCounter(deliveries, tail, log)
        self._table = BacklogTable(len(log.partitions))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fieldfare-backlogs")
        self._lock = threading.Lock()
        """Held by what uses the table: its thread, and that of maintenance."""
        self._blocks: list[ReadResult | Count] = []
        """New blocks and counts, in the order in which the table gets them."""
        self._added: list[Subscription] = []
        self._removed: list[int] = []
        self._saved: dict[int, Progress] = {}
        self._in_use: set[int] = set()
        """Subscriptions with messages beyond their cursors that were delivered, or acked."""
        self._has_rows, self._counted = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._sums: tuple[float, asyncio.Task[dict[str, SpaceBacklog]]] | None = None
        tail.call_on_found(self._blocks.append)
        deliveries.call_on_change(self._changed)
        deliveries.on_saved = self.note

    def start(self) -> None:
        """Start to count, on the running event loop."""
        for work in (self._count_all(), self._keep_up()):
            self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._thread.shutdown(cancel_futures=True)

    # Changes

    def _changed(self, number: int, subscription: Subscription | None) -> None:
        if subscription is None:
            self._removed.append(number)
            self._in_use.discard(number)
        else:
            self._added.append(subscription)

    def note(self, delivery: Delivery) -> None:
        """Note where a delivery stands, after a change; several notes of one become one."""
        done, is_sure = delivery.tries.take_done()
        before = self._saved.get(delivery.number)
        if before is not None:
            done, is_sure = done + before.done, is_sure and before.is_sure
        forgotten = self._table.forgotten if before is None else before.forgotten
        partitions = delivery.partitions
        has_given = any(each.given_to > each.cursor_key or each.runs() for each in partitions.values())
        if has_given and not delivery.deleted:
            self._in_use.add(delivery.number)
        else:
            self._in_use.discard(delivery.number)
        read_to = tuple(offset_of(each.read_to) for each in partitions.values())
        if any(offset_of(each.cursor_key) < self._tail.begins[number] for number, each in partitions.items()):
            read_to = ()  # it still owes messages that retention has removed
        self._saved[delivery.number] = Progress(
            delivery.number,
            delivery.cursor_keys,
            done,
            is_sure,
            delivery.tries.listed,
            _owed(delivery) if read_to == self._tail.tips else 0,
            read_to,
            forgotten,
        )

    def forget_before(self, partition: int, offset: int) -> None:
        """Take away the matches before an offset, which are about to be removed; call this on a thread."""
        start = self._tail.begins[partition]
        for block in self._read_blocks(partition, start, offset):
            with self._lock, self._reported():
                self._table.forget_block(partition, block, start, offset)
        with self._lock:
            self._table.forget_before(partition, offset, list(self._in_use))

    async def count(self, delivery: Delivery) -> Backlog:
        """Count the backlog of one subscription in the match log, and correct the table by it."""
        for _ in range(COUNTED_TIMES):
            version, forgotten = delivery.version, self._table.forgotten
            found, read_to = await self._counter.count(delivery)
            # The count may have a part of a block that was matched meanwhile, and of other calls' changes.
            is_of_one_time = read_to == self._tail.tips and delivery.version == version
            if is_of_one_time or not found.is_exact:
                break
        if not (is_of_one_time and found.is_exact):
            read_to = ()
        if read_to or delivery.number not in self._saved:
            first_ms = None if found.oldest_s is None else round((time.time() - found.oldest_s) * 1000)
            self._blocks.append(Count(delivery.number, found.pending, first_ms, read_to, forgotten))
            if read_to:
                delivery.tries.take_done()  # the count includes it
                self._saved.pop(delivery.number, None)
                self.note(delivery)  # its cursor: what retention removes before it is not taken away again
        return found

    async def uncounted(self) -> int:
        """Return how many backlogs are not counted exactly, up to `ESTIMATES_BATCH_SIZE`, and count these.

        After a start it is at least 1 until all are counted. A subscription that begins in the past, and was
        not read up to the present, has an estimate.
        """
        await self._ready()
        numbers = await self._run(self._table.estimates, ESTIMATES_BATCH_SIZE)
        until_s = time.monotonic() + ESTIMATES_S
        for each in (await self._run(self._registry.by_number, numbers)).values():
            if time.monotonic() > until_s:
                break
            if self._deliveries.delivery_of(each) is None:
                await self._deliveries.load(each)
            delivery = self._deliveries.delivery_of(each)
            if delivery is not None:
                await self.count(delivery)
        return len(numbers) or int(not self._counted.is_set())

    # The table, on its thread

    async def _run(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._locked, work, *args)

    def _locked(self, work: Callable[..., T], *args: Any) -> T:
        with self._lock:
            return work(*args)

    async def _keep_up(self) -> None:
        while True:
            await asyncio.sleep(KEPT_UP_S)
            try:
                await self._update()
            except Exception:
                logger.exception("counting backlogs failed; retrying later")

    async def _update(self, *, begins: bool = False) -> None:
        """Count everything noted so far; with `begins`, then begin at the present end of the match log."""
        if not (begins or self._blocks or self._added or self._removed or self._saved):
            return
        # Together, without a pause between: a subscription noted after the end was read counts from it on.
        ends = self._tail.tips if begins else None
        blocks, added, removed, saved = self._blocks[:], self._added, self._removed, self._saved
        self._blocks.clear()  # the list itself is called with each new block
        self._added, self._removed, self._saved = [], [], {}
        await self._run(self._apply, blocks, added, removed, list(saved.values()), ends)

    def _apply(
        self,
        found: Sequence[ReadResult | Count],
        added: Sequence[Subscription],
        removed: Sequence[int],
        saved: Sequence[Progress],
        ends: Offsets | None,
    ) -> None:
        table = self._table
        if added:
            table.add(map(self._row_of_new, added))
        for each in found:
            if isinstance(each, Count):
                table.correct(each)
                continue
            time_ms = 0 if each.block is None else self._time_ms(each.partition, each.block)
            with self._reported():
                table.count_new(each.partition, each.block, each.end, time_ms)
        if saved:
            table.save(saved)
        if removed:
            table.remove(removed)
        if ends is not None:
            table.begin(ends)

    def _row_of_new(self, subscription: Subscription) -> Row:
        partitions = range(len(self._log.partitions))
        begins = (*subscription.valid_from, *(0 for _ in partitions))
        cursor = tuple(key_at(partition, begins[partition]) for partition in partitions)
        return Row(subscription.number, subscription.space, cursor, is_sure=subscription.start is None)

    def _row_of_place(self, space: str, place: DeliveryPlace) -> Row:
        keys = [key_at(partition, 0) for partition in range(len(self._log.partitions))]
        for position in place.positions:
            if position.partition < len(keys):
                keys[position.partition] = key_of(position)
        return Row(place.number, space, tuple(keys), place.is_plain, place.dead_letters)

    def _time_ms(self, partition: int, block: MatchBlock) -> int:
        """Return when the first event of a block was published."""
        known = block.extra.get("appended_ms")
        if known is not None:
            return int(known)
        records = self._log.partitions[partition].read(block.start, block.end)
        first = next(iter(records), None)
        return time.time_ns() // 1_000_000 if first is None else first.appended_ms

    def _read_blocks(self, partition: int, start: int, end: int) -> Iterator[MatchBlock]:
        """Yield the readable blocks that hold the records of a range, in order."""
        offset = start
        while offset < end:
            block = self._tail.block_at(partition, offset)
            if block is not None:
                yield block
                offset = block.end
            else:
                offset = self._match_log.partition(partition).next_start(offset) or end

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Report a corrupt block, whose matches are not counted: subscribers skip them, too."""
        try:
            yield
        except StorageError as error:
            self._tail.report(error)

    # The first count

    async def _count_all(self) -> None:
        """Read all cursors and the matches after them, until that succeeds."""
        while True:
            try:
                await self._load_rows()
                await self._update(begins=True)
                self._has_rows.set()
                for partition, end in enumerate(self._table.counted_to or ()):
                    await self._count_past(partition, end)
                await self._run(self._table.complete)
                self._counted.set()
                return
            except Exception:
                logger.exception("the backlogs cannot be counted; retrying later")
                self._table = BacklogTable(len(self._log.partitions))
                self._has_rows.clear()
                await asyncio.sleep(RETRY_S)

    async def _load_rows(self) -> None:
        for space in await self._run(self._registry.stored_spaces):
            after: str | None = None
            while (after := await self._rested(self._load_some, space.key, after)) is not None:
                pass

    def _load_some(self, space: str, after: str | None) -> str | None:
        """Read the cursors of the next subscriptions of a space; return the last id, None at the end."""
        places = self._registry.places(space, after, PLACES_BATCH_SIZE)
        if not places:
            return None
        self._table.load([self._row_of_place(space, place) for place in places])
        return places[-1].id

    async def _count_past(self, partition: int, end: int) -> None:
        offset = await self._run(self._table.first_offset, partition)
        offset = max(offset, self._tail.begins[partition])
        while offset < end:
            offset = await self._rested(self._count_some, partition, offset, end)

    def _count_some(self, partition: int, start: int, end: int) -> int:
        """Count some blocks of the match log from before the start; return where the next step begins."""
        until_s = time.monotonic() + COUNTED_S
        offset = start
        for block in self._read_blocks(partition, start, end):
            time_ms = self._time_ms(partition, block)
            first, last = max(offset, block.start), min(end, block.end)
            with self._reported():
                self._table.count_before(partition, block, first, last, time_ms)
            offset = block.end
            if time.monotonic() > until_s:
                return offset
        return end

    async def _rested(self, step: Callable[..., T], *args: Any) -> T:
        """Run a step of the first count, then pause for a multiple of its time."""
        begun_s = time.monotonic()
        found = await self._run(step, *args)
        await asyncio.sleep(REST_BY * (time.monotonic() - begun_s))
        return found

    # Pages and sums

    async def _ready(self) -> None:
        """Count everything noted so far; raise Problem 503 if the cursors are not read yet."""
        for event, wait_s in ((self._has_rows, ROWS_WAITED_S), (self._counted, COUNT_WAITED_S)):
            if not event.is_set():
                # Not wait_for: in Python 3.11 it may lose a cancellation.
                waiting = asyncio.ensure_future(event.wait())
                await asyncio.wait((waiting,), timeout=wait_s)
                waiting.cancel()
        await self._tail.catch_up()
        await self._update()
        if not self._has_rows.is_set():
            detail = (
                "The gateway has started a moment ago, and reads the cursors of all subscriptions: send the"
                " request again."
            )
            raise HttpProblem(503, "starting", detail, headers={"Retry-After": "2"})

    async def page(
        self, space: str | None, after: tuple[int, int] | None, limit: int, criteria: Criteria = _ANY
    ) -> Page:
        """Return the subscriptions of a space by falling backlog; None: of all, those with pending messages.

        Subscriptions whose backlog changes while a client reads pages may be missing, or on two of them. If
        many have the wanted labels, a page may be short, or empty, and be followed by others.
        """
        await self._ready()
        standings, subscriptions, last = await self._run(self._read_page, space, after, limit, criteria)
        letters = await self._run(self._registry.count_letters, [each.number for each in standings])
        items = [
            (found, self._backlog_of(each, letters.get(each.number, 0)))
            for each in standings
            if (found := subscriptions.get(each.number)) is not None
        ]
        return Page(items, None if last is None else (last.pending, last.number))

    def _read_page(
        self, space: str | None, after: tuple[int, int] | None, limit: int, criteria: Criteria
    ) -> tuple[list[Standing], dict[int, Subscription], Standing | None]:
        """Return a page, its subscriptions by number, and where to continue after it."""
        among = None
        if space is not None and criteria.labels:
            among = self._registry.labelled(space, criteria, LABELLED_MAX)
            if among is None:
                return self._walk_page(space, after, limit, criteria)
        standings = self._table.greatest(space, after, limit, among)
        numbers = [each.number for each in standings]
        found = {
            number: each
            for number, each in self._registry.by_number(numbers).items()
            if criteria.has_labels(each)
        }
        last = standings[-1] if len(standings) == limit else None
        return standings, found, last

    def _walk_page(
        self, space: str, after: tuple[int, int] | None, limit: int, criteria: Criteria
    ) -> tuple[list[Standing], dict[int, Subscription], Standing | None]:
        """Return a page as `_read_page` does, where many subscriptions have the wanted labels."""
        some = self._table.greatest(space, after, WALKED_MAX)
        labelled: list[Standing] = []
        for first in range(0, len(some), WALKED_BATCH_SIZE):
            step = some[first : first + WALKED_BATCH_SIZE]
            having = set(self._registry.labelled(space, criteria, 0, [each.number for each in step]) or ())
            labelled += [each for each in step if each.number in having]
            if len(labelled) >= limit:
                break
        page = labelled[:limit]
        found = dict(self._registry.by_number([each.number for each in page]))
        if len(page) == limit:
            return page, found, page[-1]
        return page, found, some[-1] if len(some) == WALKED_MAX else None

    def _backlog_of(self, standing: Standing, letters: int) -> SubscriptionBacklog:
        delivery = self._deliveries.loaded.get(standing.number)
        return SubscriptionBacklog(
            pending=standing.pending,
            is_exact=standing.is_exact,
            in_flight=0 if delivery is None else delivery.in_flight,
            dead_letters=letters,
            readers=0 if delivery is None else self._deliveries.readers(delivery),
            oldest_s=_age_s(standing.first_ms),
        )

    async def sums(self) -> dict[str, SpaceBacklog]:
        """Return the sums of each space that has subscriptions, by its key."""
        await self._ready()
        now_s = time.monotonic()
        if self._sums is None or now_s - self._sums[0] > SUMS_S:
            self._sums = now_s, asyncio.get_running_loop().create_task(self._add_up())
        return await asyncio.shield(self._sums[1])

    async def worst_spaces(self, limit: int) -> list[SpaceBacklog]:
        """Return the sums of the spaces with the most pending messages, then with the most dead letters."""
        sums = (await self.sums()).values()
        return sorted(sums, key=lambda each: (-each.pending, -each.dead_letters, each.space))[:limit]

    async def sums_of(self, space: str) -> SpaceBacklog:
        """Return the sums of one space, by its key."""
        found = (await self.sums()).get(space)
        return found or self._with_bytes(space, SpaceBacklog(space_name(space)))

    async def _add_up(self) -> dict[str, SpaceBacklog]:
        sums = await self._run(self._table.sums)
        in_flight: Counter[str] = Counter()
        for at, delivery in enumerate(list(self._deliveries.loaded.values())):
            in_flight[self._deliveries.space_of(delivery)] += delivery.in_flight
            if at % IN_FLIGHT_BATCH_SIZE == IN_FLIGHT_BATCH_SIZE - 1:
                await asyncio.sleep(0)
        return {
            space: self._with_bytes(space, _public(each, in_flight[space]))
            for space, each in sums.items()
            if each.subscriptions
        }

    def _with_bytes(self, space: str, sums: SpaceBacklog) -> SpaceBacklog:
        used = self._quotas.used(space)
        return replace(
            sums, stored_event_bytes=used.stored_event_bytes, stored_match_bytes=used.stored_match_bytes
        )


def _owed(delivery: Delivery) -> int:
    """Return the number of messages that are owed, as far as the match log was read."""
    return sum(each.owed_count for each in delivery.partitions.values()) + len(delivery.tries.retried)


def _public(sums: Sums, in_flight: int) -> SpaceBacklog:
    return SpaceBacklog(
        space=space_name(sums.space),
        subscriptions=sums.subscriptions,
        behind=sums.behind,
        pending=sums.pending,
        is_exact=sums.is_exact,
        in_flight=in_flight,
        dead_letters=sums.letters,
        oldest_s=_age_s(sums.first_ms),
    )


def _age_s(first_ms: int | None) -> float | None:
    return None if first_ms is None else max(0.0, round(time.time() - first_ms / 1000, 3))
