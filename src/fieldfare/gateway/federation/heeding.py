"""Advertisements of other sites: which filters each of them needs.

A site states what it publishes in its messages with filters, as changes of pseudo-filters: brokers of earlier
versions pass these on, and refuse them as filters of an unknown dialect. The answer, in the same way, is the
version up to which the filters that it needs were sent. An advertisement that is not valid, too long or too
complex counts as everything; so does one that may or may not intersect a filter.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import msgspec

from fieldfare.filters import Filter
from fieldfare.filters.covering import FilterRegion, intersects, region_of
from fieldfare.gateway.federation.wire import FilterChange
from fieldfare.gateway.filter_texts import compile_checked
from fieldfare.model import INTEREST, Change, space_name
from fieldfare.routing.messages import REVISION_MAX
from fieldfare.storage.links import Advertisement
from fieldfare.storage.sqlite.links import LinkStore

ADVERTISEMENT_MAX_BYTES = 16 << 10
"""Maximum bytes of an advertisement; a longer one of another site counts as everything."""

SPACES_MAX = 1_000
"""Maximum spaces with an advertisement of a site; a further one of another site counts as everything."""

BOXES_MAX = 64
"""Maximum boxes around an advertisement, each of which is compared with each filter; one with more counts as
everything."""

REGIONS_MAX = 16_384
LONG_REGIONS_MAX = 64
"""Maximum filters that are kept compiled for comparisons, of some KB each, and of those with more than
`LONG_CHARACTERS`, of which one takes up to 4 MB."""

LONG_CHARACTERS = 256

COUNTED_SHARE = 20
"""Pause between two counts of the filters that are held back, as a multiple of the time that one takes."""

ADVERTISED = "fieldfare:advertised"
CONFIRMED = "fieldfare:confirmed"
"""Dialects of the pseudo-filters; `number`, which no filter has, is 0."""

_statement = msgspec.json.Decoder(tuple[int, str, str | None])


def statement_of(row: Advertisement) -> FilterChange:
    """Return the pseudo-filter that states an advertisement."""
    text = msgspec.json.encode((row.version, row.dialect, row.filter)).decode()
    return FilterChange(row.space, 0, text, ADVERTISED)


def confirmation_of(version: int) -> FilterChange:
    """Return the pseudo-filter that confirms the advertisements of the destination up to a version."""
    return FilterChange("default", 0, str(version), CONFIRMED)


def parted(
    source: str, changes: Iterable[FilterChange]
) -> tuple[list[FilterChange], list[Advertisement], int]:
    """Return the filters among changes, the advertisements of their source, and the version it confirms."""
    filters: list[FilterChange] = []
    stated: list[Advertisement] = []
    confirmed = 0
    for each in changes:
        if each.dialect == ADVERTISED:
            found = _advertisement_of(source, each)
            stated += [] if found is None else [found]
        elif each.dialect == CONFIRMED:
            text = each.filter or ""
            confirmed = max(
                confirmed, int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
            )
        else:
            filters.append(each)
    return filters, stated, confirmed


def _advertisement_of(source: str, change: FilterChange) -> Advertisement | None:
    try:
        version, dialect, text = _statement.decode(change.filter or "")
    except (ValueError, RecursionError):
        return None
    if not 0 < version <= REVISION_MAX:
        return None
    if text is not None and len(text) + len(dialect) > ADVERTISEMENT_MAX_BYTES:
        text = None
    return Advertisement(source, change.space, version, text, dialect if text is not None else "sql")


@lru_cache(64)
def compiled(text: str, dialect: str) -> Filter | None:
    """Return an advertisement's filter; None if it is not valid."""
    found = compile_checked(text, dialect, ADVERTISEMENT_MAX_BYTES)
    return found if isinstance(found, Filter) else None


def known_region(text: str, dialect: str) -> FilterRegion | None:
    """Return a filter's region; None if it is not known."""
    return (_short_region if len(text) <= LONG_CHARACTERS else _long_region)(text, dialect)


def _compiled_region(text: str, dialect: str) -> FilterRegion | None:
    found = compile_checked(text, dialect, len(text.encode("utf-8", "surrogatepass")))
    try:
        return region_of(found) if isinstance(found, Filter) else None
    except RecursionError:
        return None


def _is_over(row: Advertisement, heeded: int) -> bool:
    """Return whether a row says no more than its absence, and all filters are sent."""
    return row.filter is None and row.version <= heeded


_short_region = lru_cache(REGIONS_MAX)(_compiled_region)
_long_region = lru_cache(LONG_REGIONS_MAX)(_compiled_region)


class _Count(NamedTuple):
    """The filters that are held back from a broker, and when they may be counted again."""

    key: tuple[int, int]
    filters: int
    next_s: float


class Heeding:
    """The advertisements of other sites. Used by one thread at a time."""

    def __init__(self, store: LinkStore) -> None:
        self._store = store
        self._rows: dict[str, dict[str, Advertisement]] = {}
        self._versions: dict[str, int] = {}
        self._regions: dict[tuple[str, str], tuple[Advertisement, FilterRegion | None]] = {}
        """By broker and space, once a filter is compared: many spaces of another site may not be here."""
        self._counts: dict[str, _Count] = {}
        self._counting = threading.Lock()
        for row in store.advertisements():
            if row.broker:
                self._note(row)

    def _note(self, row: Advertisement) -> None:
        self._rows.setdefault(row.broker, {})[row.space] = row
        self._versions[row.broker] = max(row.version, self.version(row.broker))

    def take(self, stated: Sequence[Advertisement], heeded: int = 0) -> None:
        """Store what a site states, durable on return; earlier versions change nothing.

        Parameters
        ----------
        heeded
            The version as of which filters are sent to it: spaces in which it publishes everything since
            then make room for others.
        """
        if not stated:
            return
        broker = stated[0].broker
        rows = dict(self._rows.get(broker, {}))
        changed: dict[str, Sequence[Advertisement]] = {}
        for row in stated:
            if row.space not in rows and len(rows) >= SPACES_MAX:
                for space in [each.space for each in rows.values() if _is_over(each, heeded)]:
                    del rows[space]
                    changed[space] = ()
            if row.space not in rows and len(rows) >= SPACES_MAX:
                # The version is confirmed all the same.
                row = replace(row, space=max(rows), filter=None, dialect="sql")
            known = rows.get(row.space)
            if known is None or known.version < row.version:
                rows[row.space] = row
                changed[row.space] = (row,)
        if changed:
            self._store.advertise(broker, changed)
        for space, some in changed.items():
            if not some:
                self._rows.get(broker, {}).pop(space, None)
            for row in some:
                self._note(row)

    def forget(self, broker: str) -> None:
        """Forget what a removed broker has stated; the store forgets it with the broker."""
        self._rows.pop(broker, None)
        self._versions.pop(broker, None)
        self._regions = {key: known for key, known in self._regions.items() if key[0] != broker}

    def version(self, broker: str) -> int:
        """Return the greatest version that a broker has stated; 0 for none."""
        return self._versions.get(broker, 0)

    def spaces_after(self, broker: str, version: int) -> frozenset[str]:
        """Return the spaces whose advertisement has changed since a version."""
        rows = self._rows.get(broker, {}).values()
        return frozenset(row.space for row in rows if row.version > version)

    def needs(self, broker: str, change: Change) -> bool:
        """Return whether a broker needs a filter: an event that it publishes may match."""
        space = space_name(change.space.removeprefix(INTEREST))
        region = None if change.filter is None else self._advertised(broker, space)
        if region is None or change.filter is None:
            return True
        mine = known_region(change.filter, change.dialect or "sql")
        try:
            return mine is None or intersects(region, mine)
        except RecursionError:
            return True

    def stated(self, broker: str, space: str) -> tuple[str | None, str]:
        """Return what a broker publishes in a space, and the dialect; None for everything."""
        row = self._rows.get(broker, {}).get(space)
        return (None, "sql") if row is None else (row.filter, row.dialect)

    def _advertised(self, broker: str, space: str) -> FilterRegion | None:
        """Return the region of an advertisement; None if it is, or counts as, everything."""
        row = self._rows.get(broker, {}).get(space)
        if row is None or row.filter is None:
            return None
        known = self._regions.get((broker, space))
        if known is None or known[0] is not row:
            region = _compiled_region(row.filter, row.dialect)
            is_usable = region is not None and len(region.outer) <= BOXES_MAX
            known = self._regions[broker, space] = row, region if is_usable else None
        return known[1]

    def texts(self, broker: str) -> Mapping[str, str]:
        """Return what a broker publishes, by space, where that is not everything."""
        rows = dict(self._rows.get(broker, {}))
        return {space: row.filter for space, row in sorted(rows.items()) if row.filter is not None}

    def count_held_back(
        self, broker: str, revision: int, versions: Callable[[], Iterable[Change]], until_s: float
    ) -> int | None:
        """Return the number of current filters that are not sent to a broker; None if it is not known yet.

        Counting takes long where filters are many, so it is repeated seldom, and not begun after `until_s`,
        nor while another request counts.
        """
        if not self.texts(broker):
            return 0
        key, known, now_s = (revision, self.version(broker)), self._counts.get(broker), time.monotonic()
        is_due = known is None or (known.key != key and now_s >= known.next_s)
        # One at a time: each takes a thread, and those of the links are the same.
        if is_due and now_s < until_s and self._counting.acquire(blocking=False):
            try:
                count = sum(not self.needs(broker, each) for each in versions())
            finally:
                self._counting.release()
            end_s = time.monotonic()
            known = self._counts[broker] = _Count(key, count, end_s + COUNTED_SHARE * (end_s - now_s))
        return None if known is None else known.filters
