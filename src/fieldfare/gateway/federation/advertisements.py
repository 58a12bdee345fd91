"""Advertisements of this site: what is published here, by space, and from when on it is in effect.

    stated ──▶ counts for publishers ──▶ told to other sites ──▶ confirmed by all ──▶ earlier ones are dropped

Others send only the filters that can match an event which is advertised. So an event is refused unless it
matches the newest advertisement of its space and all earlier ones that another site may still use: a
narrower one is in effect at once, a wider one when every other site has sent the filters that it needs.

A narrower one is told once no event that was accepted before waits to be appended. It gets its version then:
versions increase in the order in which advertisements are told, over all spaces.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from fieldfare.arrow_events.stream import is_arrow
from fieldfare.filters import Filter
from fieldfare.filters.covering import covers, region_of
from fieldfare.filters.evaluator import event_getter
from fieldfare.filters.work import EVENT_STEPS_MIN, RECORD_STEPS_MAX, STEPS_MAX
from fieldfare.gateway.delivery.record_lines import all_lines
from fieldfare.gateway.fair_limiter import FairExecutor
from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.correspondence import Correspondence
from fieldfare.gateway.federation.documents import AdvertisementDocument
from fieldfare.gateway.federation.heeding import ADVERTISEMENT_MAX_BYTES, SPACES_MAX, compiled
from fieldfare.gateway.federation.unions import Unions, confirmed_through, is_union
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.publishing.events import INLINE_BYTES, DecodedEvents
from fieldfare.storage.errors import StorageError
from fieldfare.storage.links import Advertisement
from fieldfare.storage.sqlite.links import LinkStore

UNCONFIRMED_MAX = 16
"""Maximum advertisements of a space that are not dropped; a further change is refused (409)."""

LOOK_S = 0.5
"""Minimum seconds between two looks at the delayed events that a narrower advertisement waits for."""

RETRY_AFTER_S = 1
"""Seconds after which a publisher repeats a request that waits for a wider advertisement."""

INLINE_WORK = 1 << 18
"""Maximum bytes of events, times the cost of the advertisements, that are checked on the event loop: about
10 ms."""

SLICE_WORK = 10 * INLINE_WORK
"""Work after which a check on the thread gives way to those of other spaces."""

COUNTED_TIMES = 100
"""Cost of an advertisement that iterates over arrays, as a multiple of its cost as a filter."""

SHOWN_MAX = 1_000
"""Maximum characters of an advertisement in the answer to a publisher."""


def _number(text: str) -> float | Decimal:
    """Return a number of a table as the index has it: a decimal of many digits is no float."""
    number, exact = float(text), Decimal(text)
    return number if Decimal(repr(number)) == exact else exact


_event = msgspec.json.Decoder(dict)
_row = msgspec.json.Decoder(dict, float_hook=_number)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stated:
    """An advertisement with its compiled filter; None for everything."""

    row: Advertisement
    filter: Filter | None


class Advertisements:
    """The advertisements of this site. Used on the event loop, except for `told` and `version`.

    Parameters
    ----------
    delayed_ids
        Returns the lowest and the greatest id of the delayed records of a space, by name; None without any.
    """

    def __init__(
        self,
        store: LinkStore,
        clusters: Clusters,
        correspondence: Correspondence,
        unions: Unions,
        delayed_ids: Callable[[str], tuple[int, int] | None],
    ) -> None:
        self._store = store
        self._clusters = clusters
        self._correspondence = correspondence
        self._delayed_ids = delayed_ids
        self._unions = unions
        self._lock = asyncio.Lock()
        self._threads = FairExecutor(1, 1, "fieldfare-advertised")
        self._open = set[object]()
        """The requests that publish: one of their events may still be appended."""
        self._stated: dict[str, tuple[Stated, ...]] = {}
        self._before: dict[str, frozenset[object] | None] = {}
        """By space with an advertisement that is not told: the requests that it waits for; None: it waits for
        nothing, as all events that were accepted before match it."""
        self._delayed: dict[str, int] = {}
        """By space whose requests have ended: the greatest id of a delayed record that it waits for."""
        self._needed: dict[int, int] = {}
        """By version of an advertisement of an edge: the version through which others confirm its unions."""
        self._look_s = 0.0
        for row in store.advertisements():
            if not row.broker and not is_union(row):
                found = self._stated.get(row.space, ())
                self._stated[row.space] = (*found, Stated(row, _filter_of(row)))
        # One that is not told has version 0, and is the newest.
        for space, all_of in self._stated.items():
            self._stated[space] = tuple(sorted(all_of, key=lambda each: each.row.version or 1 << 63))
        self._before = {
            space: None if _is_wider(stated) else frozenset()
            for space, stated in self._stated.items()
            if not stated[-1].row.version
        }
        told = [correspondence.get(name).advertised for name in correspondence.names]
        self._version = max(
            [0, *told, *(each.row.version for some in self._stated.values() for each in some)]
        )
        self.told: tuple[Advertisement, ...] = ()
        """The newest advertisement of each space that others may be told."""
        self._refresh()

    def close(self) -> None:
        """End the thread."""
        self._threads.close()

    @property
    def version(self) -> int:
        """The greatest version of those that others may be told."""
        return max(self._version, self._unions.version)

    def told_to(self, name: str) -> tuple[Advertisement, ...]:
        """Return what another broker may be told: an edge states what comes through it, too."""
        is_edge = self._clusters.is_edge
        return self._unions.told(self._clusters.cluster_of(name)) if is_edge else self.told

    def ready(self, name: str) -> int | None:
        """Return the version of another broker's advertisements that may be confirmed: see `Unions.ready`."""
        return self._unions.ready(name)

    def _refresh(self) -> None:
        newest = (
            max((each.row for each in some), key=lambda row: row.version) for some in self._stated.values()
        )
        self.told = tuple(row for row in newest if row.version)

    # Publishers

    async def publish(self, space: str, events: DecodedEvents, append: Callable[[], Awaitable[T]]) -> T:
        """Check the events of a request, and append them.

        If the request is cancelled, that goes on: until its end, an advertisement that is stated now waits.

        Raises
        ------
        HttpProblem
            400 for an event that is not advertised; 503 for one that is as soon as other sites know it.
        """
        work = asyncio.ensure_future(self._publish(space, events, append))
        self._open.add(work)
        work.add_done_callback(self._open.discard)
        return await asyncio.shield(work)

    async def _publish(self, space: str, events: DecodedEvents, append: Callable[[], Awaitable[T]]) -> T:
        stated = self._stated.get(space)
        if stated is not None:
            await self._check(space, stated, events)
        return await append()

    async def _check(self, space: str, stated: Sequence[Stated], events: DecodedEvents) -> None:
        """Check events: few on the event loop, many in slices on a thread, in turn with other spaces."""
        steps_max = min(STEPS_MAX, max(EVENT_STEPS_MIN, RECORD_STEPS_MAX // events.count))
        decoder = _row if is_arrow(events.payload) else _event
        work = len(events.payload) * max(1, sum(map(_cost_of, stated)))
        if work <= INLINE_WORK and len(events.payload) <= INLINE_BYTES:
            given = stated, events.accepted, all_lines(events.payload), decoder, steps_max
            waits = _first_that_waits(*given)
        else:
            lines, waits = await asyncio.to_thread(all_lines, events.payload), None
            size = max(1, len(lines) * SLICE_WORK // work)
            for first in range(0, len(lines), size):
                some = slice(first, first + size)
                given = stated, events.accepted[some], lines[some], decoder, steps_max
                found = await self._threads.run(space, _first_that_waits, *given)
                waits = found if waits is None else waits
        if waits is not None:
            detail = (
                f"Event {waits} of the request matches an advertisement that not all other sites have"
                " confirmed. Nothing was appended. Repeat the request."
            )
            headers = {"Retry-After": str(RETRY_AFTER_S)}
            raise HttpProblem(503, "advertisement-pending", detail, headers=headers, index=waits)

    # Operators

    async def state(self, space: str, filter: Filter | None) -> None:
        """State that only events which match a filter are published in a space; None for all events.

        Raises
        ------
        HttpProblem
            400 for a filter that is too long, 409 for too many advertisements or changes.
        """
        if filter is not None and len(filter.text.encode("utf-8", "surrogatepass")) > ADVERTISEMENT_MAX_BYTES:
            detail = f"The advertisement has more than {ADVERTISEMENT_MAX_BYTES} bytes: state less exactly."
            raise HttpProblem(400, "bad-filter", detail)
        async with self._lock:
            known = self._stated.get(space, ())
            newest = known[-1].filter if known else None
            if (newest and (newest.text, newest.dialect)) == (filter and (filter.text, filter.dialect)):
                return
            told = [each for each in known if each.row.version]
            if len(told) >= UNCONFIRMED_MAX and filter is not None:
                detail = (
                    f"Other sites have not confirmed {len(told)} changes of this advertisement: try later."
                )
                raise HttpProblem(409, "advertisement-pending", detail)
            if not known and len(self._stated) >= SPACES_MAX:
                detail = f"A site has at most {SPACES_MAX} spaces with an advertisement."
                raise HttpProblem(409, "too-many-advertisements", detail)
            text, dialect = (None, "sql") if filter is None else (filter.text, filter.dialect)
            stated = (*told, Stated(Advertisement("", space, 0, text, dialect), filter))
            is_wider = await asyncio.to_thread(_is_wider, stated)
            await asyncio.to_thread(_cost_of, stated[-1])
            await self._put(space, stated)
            # From here on it counts for publishers.
            self._delayed.pop(space, None)
            self._before[space] = None if is_wider else frozenset(self._open)

    async def forget(self, space: str) -> None:
        """Forget the advertisement of a space that was deleted: another one of its name starts without."""
        if space in self._stated:
            await self.state(space, None)

    async def _put(self, space: str, stated: Sequence[Stated]) -> None:
        await asyncio.to_thread(self._store.advertise, "", {space: [each.row for each in stated]})
        if stated:
            self._stated[space] = tuple(stated)
        else:
            self._stated.pop(space, None)
        self._refresh()

    @property
    def is_due(self) -> bool:
        """Whether an advertisement may be told now to others."""
        return bool(self._before) and time.monotonic() >= self._look_s

    async def settle(self) -> bool:
        """Let others be told the advertisements that no accepted event contradicts; drop those replaced by
        one that all have confirmed."""
        has_changed = False
        async with self._lock:
            for space in list(self._before):
                if await self._may_tell(space):
                    *told, last = self._stated[space]
                    row = replace(last.row, version=self.version + 1)
                    await self._put(space, (*told, replace(last, row=row)))
                    self._version = row.version
                    del self._before[space]
                    self._delayed.pop(space, None)
                    has_changed = True
            if self._clusters.is_edge and self._unions.is_due(self.told):
                # First, since no other site has confirmed a newer union yet.
                await asyncio.to_thread(self._unions.refresh, self.told, self.version)
                # Of the unions that a change has renewed, the first ones may have come without the last.
                versions = [each.row.version for some in self._stated.values() for each in some]
                self._needed = {each: self._needed.get(each, self.version) for each in versions}
            through = self._confirmed()
            for space, stated in list(self._stated.items()):
                left = self._still_needed(stated, through)
                if len(left) < len(stated):
                    await self._put(space, left)
                    has_changed = True
        return has_changed

    async def _may_tell(self, space: str) -> bool:
        """Return whether all events that were accepted match the newest advertisement, or are stored."""
        before = self._before[space]
        if before is None:
            return True
        if not before.isdisjoint(self._open):
            return False
        self._look_s = time.monotonic() + LOOK_S
        ids = await asyncio.to_thread(self._delayed_ids, space)
        if space not in self._delayed:
            self._delayed[space] = 0 if ids is None else ids[1]
        return ids is None or ids[0] > self._delayed[space]

    def _confirmed(self) -> int:
        """Return the version up to which all other sites have confirmed."""
        return min(map(self._through, self._clusters.brokers), default=self.version)

    def _through(self, name: str) -> int:
        return confirmed_through(self._correspondence.get(name), self.told_to(name), self.version)

    def _is_confirmed(self, row: Advertisement, through: int) -> bool:
        return row.version > 0 and self._needed.get(row.version, row.version) <= through

    def _still_needed(self, stated: tuple[Stated, ...], through: int) -> tuple[Stated, ...]:
        """Return the advertisements of a space that another site may still use, and the newest.

        `through` is the version up to which all other sites send the filters that are needed.
        """
        first = 0
        while first + 1 < len(stated) and self._is_confirmed(stated[first + 1].row, through):
            first += 1
        left = stated[first:]
        is_over = len(left) == 1 and left[0].filter is None and self._is_confirmed(left[0].row, through)
        return () if is_over else left

    def document(self, space: str) -> AdvertisementDocument:
        """Return the newest advertisement of a space, and whether it counts."""
        stated = self._stated.get(space, ())
        row = stated[-1].row if stated else Advertisement("", space, self._confirmed(), None)
        return AdvertisementDocument(
            space=space,
            filter=row.filter,
            dialect=row.dialect,
            is_pending=len(stated) > 1,
            sites={
                name: not stated
                or not self._correspondence.get(name).advertised
                or self._is_confirmed(row, self._through(name))
                for name in self._clusters.brokers
            },
        )

    def texts(self) -> dict[str, str]:
        """Return the newest advertisement of each space that has one."""
        newest = {space: some[-1].row.filter for space, some in list(self._stated.items())}
        return {space: text for space, text in sorted(newest.items()) if text is not None}


def _is_wider(stated: Sequence[Stated]) -> bool:
    """Return whether the last advertisement provably allows all events that an earlier one does."""
    *earlier, last = stated
    if last.filter is None:
        return True
    region = region_of(last.filter)
    return any(each.filter is not None and covers(region, region_of(each.filter)) for each in earlier)


def _filter_of(row: Advertisement) -> Filter | None:
    if row.filter is None:
        return None
    found = compiled(row.filter, row.dialect)
    if found is None:
        raise StorageError(f"the advertisement of the space {row.space!r} is not valid: {row.filter[:80]!r}")
    return found


@lru_cache(SPACES_MAX)
def _cost(filter: Filter) -> int:
    return filter.cost * (1 if filter.work is None else COUNTED_TIMES)


def _cost_of(stated: Stated) -> int:
    """Return the cost of checking an event."""
    return 0 if stated.filter is None else _cost(stated.filter)


def _matches(filter: Filter, event: dict[str, Any], steps_max: int) -> bool:
    work = filter.work
    if work is not None and work.steps(lambda path: event_getter(path)(event), steps_max) > steps_max:
        return False
    return filter.matches(event)


def _first_that_waits(
    stated: Sequence[Stated], indexes: Sequence[int], lines: Sequence[bytes], decoder: Any, steps_max: int
) -> int | None:
    """Return the index of the first event that is advertised, but not by all that other sites use.

    An event that takes more than `steps_max` steps does not match, as in the pipeline.

    Raises
    ------
    HttpProblem
        400 for the first event that is not advertised.
    """
    newest, waits = stated[-1].filter, None
    earlier = [each.filter for each in stated[:-1] if each.filter is not None]
    for index, line in zip(indexes, lines, strict=True):
        event = decoder.decode(line)
        if newest is not None and not _matches(newest, event, steps_max):
            shown = newest.text[:SHOWN_MAX]
            detail = (
                f"Event {index} of the request does not match what the space advertises at this site:"
                f" {shown}. Nothing was appended."
            )
            raise HttpProblem(400, "not-advertised", detail, index=index, advertisement=shown)
        if waits is None and not all(_matches(each, event, steps_max) for each in earlier):
            waits = index
    return waits
