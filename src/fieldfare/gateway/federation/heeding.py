"""Advertisements of other sites: which filters each of them needs.

A site states what it publishes in its messages with filters, as changes of pseudo-filters: brokers of earlier
versions pass these on, and refuse them as filters of an unknown dialect. The answer, in the same way, is the
version up to which the filters that it needs were sent. An advertisement that is not valid, too long or too
complex counts as everything; so does one that may or may not intersect a filter.
"""

from __future__ import annotations

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
from fieldfare.storage.links import Advertisement, LinkStore

ADVERTISEMENT_MAX_BYTES = 16 << 10
"""Maximum bytes of an advertisement; a longer one of another site counts as everything."""

SPACES_MAX = 1_000
"""Maximum spaces with an advertisement of a site; a further one of another site counts as everything."""

BOXES_MAX = 64
"""Maximum boxes around an advertisement, each of which is compared with each filter; one with more counts as
everything."""

REGIONS_MAX = 16_384
"""Maximum filters that are kept compiled for comparisons, of some KB each."""

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


@lru_cache(REGIONS_MAX)
def _region(text: str, dialect: str) -> FilterRegion | None:
    """Return a filter's region; None if it is not known."""
    found = compile_checked(text, dialect, len(text.encode("utf-8", "surrogatepass")))
    try:
        return region_of(found) if isinstance(found, Filter) else None
    except RecursionError:
        return None


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
        self._regions: dict[str, dict[str, FilterRegion]] = {}
        self._counts: dict[str, _Count] = {}
        for row in store.advertisements():
            if row.broker:
                self._note(row)

    def _note(self, row: Advertisement) -> None:
        self._rows.setdefault(row.broker, {})[row.space] = row
        self._versions[row.broker] = max(row.version, self.version(row.broker))
        region = None if row.filter is None else _region(row.filter, row.dialect)
        regions = dict(self._regions.get(row.broker, {}))
        if region is None or len(region.outer) > BOXES_MAX:
            regions.pop(row.space, None)
        else:
            regions[row.space] = region
        self._regions[row.broker] = regions

    def take(self, stated: Sequence[Advertisement]) -> None:
        """Store what another site states, durable on return; earlier versions change nothing."""
        for row in stated:
            rows = self._rows.get(row.broker, {})
            if row.space not in rows and len(rows) >= SPACES_MAX:
                # The version is confirmed all the same.
                row = replace(row, space=max(rows), filter=None, dialect="sql")
            known = rows.get(row.space)
            if known is None or known.version < row.version:
                self._store.advertise(row.broker, row.space, [row])
                self._note(row)

    def forget(self, broker: str) -> None:
        """Forget what a removed broker has stated; the store forgets it with the broker."""
        self._rows.pop(broker, None)
        self._versions.pop(broker, None)
        self._regions.pop(broker, None)

    def version(self, broker: str) -> int:
        """Return the greatest version that a broker has stated; 0 for none."""
        return self._versions.get(broker, 0)

    def spaces_after(self, broker: str, version: int) -> frozenset[str]:
        """Return the spaces whose advertisement has changed since a version."""
        rows = self._rows.get(broker, {}).values()
        return frozenset(row.space for row in rows if row.version > version)

    def needs(self, broker: str, change: Change) -> bool:
        """Return whether a broker needs a filter: an event that it publishes may match."""
        region = self._regions.get(broker, {}).get(space_name(change.space.removeprefix(INTEREST)))
        if region is None or change.filter is None:
            return True
        mine = _region(change.filter, change.dialect or "sql")
        try:
            return mine is None or intersects(region, mine)
        except RecursionError:
            return True

    def stated(self, broker: str, space: str) -> tuple[str | None, str]:
        """Return what a broker publishes in a space, and the dialect; None for everything."""
        row = self._rows.get(broker, {}).get(space)
        return (None, "sql") if row is None else (row.filter, row.dialect)

    def texts(self, broker: str) -> Mapping[str, str]:
        """Return what a broker publishes, by space, where that is not everything."""
        rows = dict(self._rows.get(broker, {}))
        return {space: row.filter for space, row in sorted(rows.items()) if row.filter is not None}

    def count_held_back(
        self, broker: str, revision: int, versions: Callable[[], Iterable[Change]], until_s: float
    ) -> int | None:
        """Return the number of current filters that are not sent to a broker; None if it is not known yet.

        Counting takes long where filters are many, so it is repeated seldom, and not begun after `until_s`.
        """
        if not self._regions.get(broker):
            return 0
        key, known, now_s = (revision, self.version(broker)), self._counts.get(broker), time.monotonic()
        is_due = known is None or (known.key != key and now_s >= known.next_s)
        if is_due and now_s < until_s:
            count = sum(not self.needs(broker, each) for each in versions())
            end_s = time.monotonic()
            known = self._counts[broker] = _Count(key, count, end_s + COUNTED_SHARE * (end_s - now_s))
        return None if known is None else known.filters
