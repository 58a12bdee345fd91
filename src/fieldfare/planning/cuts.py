"""Decides which spaces of a service are to be cut again: a machine without I/O.

    wished       now                      then
    one          several slices           one slice
    hash         anything else            by hash, immediately: no data is needed
    attributes   one slice, or by hash    by a plan from events and subscriptions; retried ever later
    attributes   by attributes            when the load has drifted, see `Drift`, or has grown a lot

With ``auto`` a space is one slice as long as all such spaces fit into a matcher's memory: every task has all
of it then, and matches events where it reads them. Spaces that do not fit are cut, the largest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from fieldfare.model import space_name
from fieldfare.partitioning import ONE_SLICE, AttributeSpace, HashPartitioning, Partitioning
from fieldfare.planning.choosing import BEST, PARTITIONINGS

AUTO = "auto"
WISHES = (AUTO, *PARTITIONINGS)

AGAIN_S, AGAIN_MAX_S = 60.0, 3_600.0
"""Seconds until planning is retried for a space without a plan by attributes; doubled up to the maximum."""
GROWN, GROWN_AGAIN_S = 4, 10.0
"""Growth of a space's versions after which it is planned again, and minimum seconds in between."""
BACK_SHARE = 0.5
"""Share of the memory below which spaces that were cut for their size become one slice again."""
MARGIN = 0.2
"""Increase of the busiest matcher's work, as a share, above which a cut has drifted."""
PATIENCE = 3
"""Number of measurements in a row above `MARGIN` that make a drift."""


class CutRequest(NamedTuple):
    """How a space shall be held: one of ``WISHES``, and the number of matchers."""

    partitioning: str = AUTO
    matchers: int = 1

    @classmethod
    def parsed(cls, text: str, matchers: int) -> Self:
        """Parse ``PARTITIONING`` or ``PARTITIONING:MATCHERS``; ValueError explains an invalid text."""
        kind, has_count, count = text.partition(":")
        if kind not in WISHES:
            raise ValueError(f"{kind!r} is not a partitioning; partitionings are {', '.join(WISHES)}")
        if has_count and not (count.isdecimal() and 1 <= int(count) <= MATCHERS_MAX):
            raise ValueError(f"{count!r} is not a number of matchers, 1 to {MATCHERS_MAX}")
        return cls(kind, int(count) if has_count else matchers)


MATCHERS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class CutSettings:
    """How a service's spaces shall be held.

    Attributes
    ----------
    default : Wish
        For spaces without a wish of their own.
    spaces : mapping from a space's name to Wish
        Wishes of single spaces.
    memory_bytes : int
        A matcher's memory for the index. Less: more spaces are cut.
    """

    default: CutRequest = field(default_factory=CutRequest)
    spaces: Mapping[str, CutRequest] = field(default_factory=dict)
    memory_bytes: int = 1 << 62

    @classmethod
    def parsed(cls, wish: str, matchers: int, spaces: Iterable[str], memory_bytes: int) -> Self:
        """Parse texts; ``SPACE=PARTITIONING:MATCHERS`` for single spaces. ValueError if one is invalid."""
        of_spaces: dict[str, CutRequest] = {}
        for each in spaces:
            name, is_said, text = each.partition("=")
            if name in of_spaces:
                raise ValueError(f"{each!r}: the space {name} is given twice")
            if not (name and is_said):
                raise ValueError(f"{each!r} is not SPACE=PARTITIONING:MATCHERS")
            try:
                of_spaces[name] = CutRequest.parsed(text, matchers)
            except ValueError as error:
                raise ValueError(f"{each!r}: {error}") from None
        return cls(CutRequest.parsed(wish, matchers), of_spaces, memory_bytes)

    def of(self, space: str) -> CutRequest:
        """Return how a space shall be held, by its key."""
        return self.spaces.get(space_name(space), self.default)

    def new_cut(self, space: str) -> Partitioning:
        """Return the cut of a new space."""
        kind, matchers = self.of(space)
        return HashPartitioning(matchers) if kind == "hash" else ONE_SLICE


class Searching(NamedTuple):
    """How much the matchers of a space searched, over enough events for a measurement.

    `number` identifies the measurement; `share` is the share of all stored subscriptions that the busiest
    matcher searched for each event.
    """

    cut: int
    number: int
    share: float


@dataclass(frozen=True, slots=True)
class SpaceState:
    """The present state of a space: its cut, its versions and bytes, and the last measurement."""

    partitioning: Partitioning
    rows: int
    size_bytes: int
    searching: Searching | None = None


class Cut(NamedTuple):
    """How a space is to be cut now, see ``choosing.choose_partitioning``.

    `copies_max` is the maximum average copies of a subscription, if `kind` is ``best``.
    """

    kind: str
    matchers: int
    copies_max: float = 1e9


@dataclass(slots=True)
class Drift:
    """Detects that the load of a cut has moved away from its initial distribution.

    Short bursts are balanced by forwarding: a drift must last for `PATIENCE` measurements.
    """

    cut: int
    first: float = 0.0
    number: int = -1
    higher: int = 0

    def observe(self, measured: Searching) -> bool:
        """Add a measurement; return whether it is time to plan again."""
        if measured.number != self.number:
            self.number = measured.number
            self.first = self.first or measured.share
            self.higher = self.higher + 1 if measured.share > self.first * (1 + MARGIN) else 0
        return self.higher >= PATIENCE

    def settle(self) -> None:
        """Accept the present load as the new reference: no plan is better."""
        self.first, self.higher = 0.0, 0


@dataclass(frozen=True, slots=True)
class _Try:
    """The time of a space's last planning, its versions then, and how long the result is kept."""

    at_s: float
    rows: int
    pause_s: float


class Cuts:
    """Decides which spaces are cut again."""

    def __init__(self, settings: CutSettings) -> None:
        self.settings = settings
        self._tries: dict[str, _Try] = {}
        self._drifts: dict[str, Drift] = {}

    def due(self, spaces: Mapping[str, SpaceState], now_s: float) -> dict[str, Cut]:
        """Return the spaces to be cut again now; call `tried` afterwards."""
        large = self._too_large(spaces)
        found = {}
        for name, standing in spaces.items():
            wanted = self._wanted(name, standing, is_large=name in large)
            if standing.rows and not self._is_settled(name, wanted, standing, now_s):
                found[name] = wanted
        for known in (self._tries, self._drifts):
            for name in set(known) - set(spaces):
                del known[name]
        return found

    def tried(self, rows: Mapping[str, int], now_s: float) -> None:
        """Note that these spaces, with their numbers of versions, were planned and cut as planned."""
        for name, count in rows.items():
            before = self._tries.get(name)
            pause_s = min(2 * before.pause_s, AGAIN_MAX_S) if before else AGAIN_S
            self._tries[name] = _Try(now_s, count, pause_s)
            if name in self._drifts:
                self._drifts[name].settle()

    def _too_large(self, spaces: Mapping[str, SpaceState]) -> set[str]:
        """Return the spaces with the wish ``auto`` that do not fit into memory."""
        whole = sum(each.size_bytes for each in spaces.values())
        cut_before = {
            name
            for name, each in spaces.items()
            if self.settings.of(name).partitioning == AUTO and len(each.partitioning.slices) > 1
        }
        if whole <= BACK_SHARE * self.settings.memory_bytes:
            return set()
        found = set(cut_before)
        left: float = whole
        for name in cut_before:
            left -= self._saved(name, spaces[name])
        for name in sorted(spaces, key=lambda name: -spaces[name].size_bytes):
            kind, matchers = self.settings.of(name)
            if left <= self.settings.memory_bytes or not spaces[name].size_bytes:
                break
            if kind == AUTO and matchers > 1 and name not in found:
                found.add(name)
                left -= self._saved(name, spaces[name])
        return found

    def _saved(self, name: str, standing: SpaceState) -> float:
        return standing.size_bytes * (1 - 1 / self.settings.of(name).matchers)

    def _wanted(self, name: str, standing: SpaceState, *, is_large: bool) -> Cut:
        kind, matchers = self.settings.of(name)
        if kind == AUTO and is_large and matchers > 1:
            room = self.settings.memory_bytes * matchers / max(1, standing.size_bytes)
            return Cut(BEST, matchers, max(1.0, room))
        if matchers == 1 or kind in (AUTO, "replicated"):
            # If every task has all of the space, an event is matched where it is read: sending it saves
            # nothing.
            return Cut("hash", 1)
        return Cut(kind, matchers)

    def _is_settled(self, name: str, wanted: Cut, standing: SpaceState, now_s: float) -> bool:
        cut = standing.partitioning
        if wanted.kind == "hash":
            return cut == HashPartitioning(wanted.matchers)
        trial = self._tries.get(name)
        if trial is not None and standing.rows >= GROWN * trial.rows:
            return now_s < trial.at_s + GROWN_AGAIN_S
        if isinstance(cut, AttributeSpace) and _fits(cut, wanted):
            return not self._has_drifted(name, standing.searching)
        return trial is not None and now_s < trial.at_s + trial.pause_s

    def _has_drifted(self, name: str, measured: Searching | None) -> bool:
        if measured is None:
            return False
        drift = self._drifts.get(name)
        if drift is None or drift.cut != measured.cut:
            drift = self._drifts[name] = Drift(measured.cut)
        return drift.observe(measured)


def _fits(cut: AttributeSpace, wanted: Cut) -> bool:
    return 1 + max(part.matcher for part in cut.slices) == wanted.matchers and (
        wanted.kind != "single_attribute" or len(cut.axes) == 1
    )
