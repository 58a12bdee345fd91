"""The table of matchers: the owner of each span of each attribute's axis, spread by gossip.

Li et al. 2011, section III.C: each matcher keeps a table with the contact information and the segment
boundaries, one pair on each dimension, of all matchers. How tables spread and merge is in ``gossip``.

There must be no gap: a place without an owner. An overlap is harmless, since every owner has every
subscription of its span. So all changes extend before they shrink, and a message that reports a shrunk span
also reports the owner of the rest: tables are only passed on complete, or as everything newer than the
receiver's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from fieldfare.model import Path
from fieldfare.partitioning.attribute_space import AttributeSpace
from fieldfare.partitioning.axis import AXIS_END, AXIS_START, Axis, Place
from fieldfare_lab.membership.gossip import GossipTable

Span = tuple[Place, Place]
"""Low and high end of an interval of an axis."""


class State(Enum):
    """The phase of a matcher's membership."""

    JOINING = "joining"
    UP = "up"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class MatcherRow:
    """A matcher, as all others shall see it: a row of gossip.

    Attributes
    ----------
    name, version
        See `gossip.Row`.
    spans
        The span that it owns on each dimension, None for none.
    absorbed
        (matcher, dimension, version): it took over the span in this version of a silent matcher's row. A
        later version is a sign of life, and is valid again.
    """

    name: str
    version: int
    state: State
    spans: tuple[Span | None, ...]
    absorbed: frozenset[tuple[str, int, int]] = frozenset()

    @property
    def is_gone(self) -> bool:
        return self.state is State.LEFT


class MatcherTable(GossipTable[MatcherRow]):
    """One server's knowledge of all matchers, from gossip."""

    def is_outlived(self, matcher: str, by: Callable[[str], bool]) -> bool:
        """Return whether a matcher that is up and satisfies `by` has taken over a span of `matcher`."""
        return any(
            row.state is State.UP and by(row.name) and any(name == matcher for name, _, _ in row.absorbed)
            for row in self.rows.values()
        )

    def taken_over_from(self, matcher: str) -> frozenset[tuple[str, int, int]]:
        """Return (new owner, dimension, version) of each span taken over from a matcher."""
        return frozenset(
            (row.name, dimension, version)
            for row in self.rows.values()
            for name, dimension, version in row.absorbed
            if name == matcher
        )

    def owned(self, dimension: int) -> list[tuple[str, Span]]:
        """Return (owner, span) pairs of a dimension, including silent owners, without spans taken over."""
        last: dict[str, int] = {}
        for row in self.rows.values():
            for name, i, version in row.absorbed:
                if i == dimension:
                    last[name] = max(version, last.get(name, -1))
        return sorted(
            (name, span)
            for name, row in self.rows.items()
            if row.state is State.UP and row.version > last.get(name, -1) and (span := row.spans[dimension])
        )

    def heir(self, dimension: int, span: Span, able: Callable[[str], bool]) -> str | None:
        """Return the heir of a span: the nearest able owner below it, else above it, else any able matcher.

        All servers that know the same rows agree.
        """
        owned = [(name, found) for name, found in self.owned(dimension) if able(name)]
        below = [(found[0], found[1], name) for name, found in owned if found[0] <= span[0]]
        if below:
            return max(below)[2]
        if owned:
            return min((found[0], name) for name, found in owned)[1]
        up = [name for name, row in self.rows.items() if row.state is State.UP and able(name)]
        return min(up, default=None)


def overlap(a: Span, b: Span) -> bool:
    """Return whether two spans overlap in more than an end."""
    return a[0] < b[1] and b[0] < a[1]


def contains(outer: Span | None, inner: Span) -> bool:
    """Return whether a span, if there is one, contains another completely."""
    return outer is not None and outer[0] <= inner[0] and inner[1] <= outer[1]


def hull(a: Span | None, b: Span) -> Span:
    """Return the smallest span that contains both."""
    return b if a is None else (min(a[0], b[0]), max(a[1], b[1]))


def touch(a: Span | None, b: Span) -> bool:
    """Return whether two spans overlap or meet, so that no gap is between them; True without a first span."""
    return a is None or (a[0] <= b[1] and b[0] <= a[1])


def uncovered(span: Span, covers: Iterable[Span]) -> Iterator[Span]:
    """Yield the parts of a span that no cover contains, ascending."""
    low, high = span
    for start, end in sorted(covers):
        if start >= high:
            break
        if start > low:
            yield low, start
        low = max(low, end)
        if low >= high:
            return
    if low < high:
        yield low, high


def attribute_space(
    table: MatcherTable,
    paths: Iterable[Path],
    matchers: Mapping[str, int],
    live: frozenset[str] | None = None,
) -> AttributeSpace:
    """Return the partitioning that a table describes; without spares, since no member stores any.

    Parameters
    ----------
    matchers
        A number for every name, as partitionings require.
    live
        Preferred owners where spans overlap. Default: no preference.

    Raises
    ------
    ValueError
        A part of an axis has no owner.
    """
    axes, owners = [], []
    for dimension, path in enumerate(paths):
        owned = table.owned(dimension)
        if gap := next(uncovered((AXIS_START, AXIS_END), (span for _, span in owned)), None):
            raise ValueError(f"{gap} of {path} has no owner")
        starts = sorted({place for _, span in owned for place in span} - {AXIS_END})
        names = [_owner_of(start, owned, live) for start in starts]
        changes = [i for i in range(len(starts)) if i == 0 or names[i] != names[i - 1]]
        axes.append(Axis(path, tuple(starts[i] for i in changes[1:])))
        owners.append(tuple(matchers[names[i]] for i in changes))
    return AttributeSpace(tuple(axes), tuple(owners))


def _owner_of(start: Place, owned: list[tuple[str, Span]], live: frozenset[str] | None) -> str:
    found = [name for name, (low, high) in owned if low <= start < high]
    return next((name for name in found if live and name in live), found[0])
