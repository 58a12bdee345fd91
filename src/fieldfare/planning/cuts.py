"""Which spaces of a service are to be cut anew now: a machine without I/O.

    wished       now                      then
    one          several slices           one slice
    hash         anything else            by hash, at once: nothing need be known
    attributes   one slice, or by hash    as events and subscriptions let it be planned; tried ever later
    attributes   by attributes            when the load has drifted, see `Drift`, or there is far more of it

With ``auto`` a space is one slice as long as all such spaces fit into a matcher's memory: every task has all
of it then, and matches events where it reads them. What does not fit is cut, the largest first.
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
"""So long after a space could not be cut by its attributes it is tried again; each time twice as long."""
GROWN, GROWN_AGAIN_S = 4, 10.0
"""A space is planned anew when it has so many times as much as when it was planned, and not sooner."""
BACK_SHARE = 0.5
"""Of the memory: what was cut for its size is one again when all fit into so much."""
MARGIN = 0.2
"""By what share more the busiest matcher must search than when the cut was new."""
PATIENCE = 3
"""In so many measurements in a row."""


class Wish(NamedTuple):
    """How a space is to be held: one of ``WISHES``, and at how many matchers."""

    partitioning: str = AUTO
    matchers: int = 1

    @classmethod
    def parsed(cls, text: str, matchers: int) -> Self:
        """From ``PARTITIONING`` or ``PARTITIONING:MATCHERS``; ValueError says what is wrong with it."""
        kind, has_count, count = text.partition(":")
        if kind not in WISHES:
            raise ValueError(f"no partitioning is called {kind!r}: there are {', '.join(WISHES)}")
        if has_count and not (count.isdecimal() and 1 <= int(count) <= MATCHERS_MAX):
            raise ValueError(f"{count!r} is no number of matchers: 1 to {MATCHERS_MAX}")
        return cls(kind, int(count) if has_count else matchers)


MATCHERS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class CutSettings:
    """How a service's spaces are to be held.

    Attributes
    ----------
    default : Wish
    spaces : mapping from a space's name to Wish
        Of those that are to be held otherwise.
    memory_bytes : int
        What a matcher has for the index. Less: more spaces are cut.
    """

    default: Wish = field(default_factory=Wish)
    spaces: Mapping[str, Wish] = field(default_factory=dict)
    memory_bytes: int = 1 << 62

    @classmethod
    def parsed(cls, wish: str, matchers: int, spaces: Iterable[str], memory_bytes: int) -> Self:
        """From texts, of single spaces ``SPACE=PARTITIONING:MATCHERS``; ValueError if one is wrong."""
        of_spaces: dict[str, Wish] = {}
        for each in spaces:
            name, is_said, text = each.partition("=")
            if name in of_spaces:
                raise ValueError(f"{each!r}: how {name} is cut is said twice")
            if not (name and is_said):
                raise ValueError(
                    f"{each!r} says of no space how it is cut: write SPACE=PARTITIONING:MATCHERS"
                )
            try:
                of_spaces[name] = Wish.parsed(text, matchers)
            except ValueError as error:
                raise ValueError(f"{each!r}: {error}") from None
        return cls(Wish.parsed(wish, matchers), of_spaces, memory_bytes)

    def of(self, space: str) -> Wish:
        """How a space is to be held, by its key."""
        return self.spaces.get(space_name(space), self.default)

    def new_cut(self, space: str) -> Partitioning:
        """How a space is cut of which nothing is known yet."""
        kind, matchers = self.of(space)
        return HashPartitioning(matchers) if kind == "hash" else ONE_SLICE


class Searching(NamedTuple):
    """What the matchers of a space had to search, of as many events as it takes to say so.

    `number` tells one measurement from the next; `share` is what the busiest matcher searched for each
    event, of all that is stored.
    """

    cut: int
    number: int
    share: float


@dataclass(frozen=True, slots=True)
class Standing:
    """A space as it is: how it is cut, how many versions and bytes its slices have, what was measured."""

    partitioning: Partitioning
    rows: int
    size_bytes: int
    searching: Searching | None = None


class Cut(NamedTuple):
    """How a space is to be cut now, see ``choosing.choose_partitioning``.

    `copies_max` is how often each subscription may be stored, where `kind` is ``best``.
    """

    kind: str
    matchers: int
    copies_max: float = 1e9


@dataclass(slots=True)
class Drift:
    """Whether the load of a cut has moved away from where it was when it was new.

    A burst is forwarding's business: it must stay, `PATIENCE` measurements long.
    """

    cut: int
    first: float = 0.0
    number: int = -1
    higher: int = 0

    def observe(self, measured: Searching) -> bool:
        """Take in what was measured; whether it is time to plan anew."""
        if measured.number != self.number:
            self.number = measured.number
            self.first = self.first or measured.share
            self.higher = self.higher + 1 if measured.share > self.first * (1 + MARGIN) else 0
        return self.higher >= PATIENCE

    def settle(self) -> None:
        """No plan is better: what is measured next is how it is now."""
        self.first, self.higher = 0.0, 0


@dataclass(frozen=True, slots=True)
class _Try:
    """When a space was planned, how many versions it had, and how long that is to do."""

    at_s: float
    rows: int
    pause_s: float


class Cuts:
    """Decides which spaces are cut anew.

    Parameters
    ----------
    settings : CutSettings
    """

    def __init__(self, settings: CutSettings) -> None:
        self.settings = settings
        self._tries: dict[str, _Try] = {}
        self._drifts: dict[str, Drift] = {}

    def due(self, spaces: Mapping[str, Standing], now_s: float) -> dict[str, Cut]:
        """The spaces to be cut anew now; `tried` is to be told afterwards."""
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
        """These, which had so many versions, were planned, and are cut now as seems best."""
        for name, count in rows.items():
            before = self._tries.get(name)
            pause_s = min(2 * before.pause_s, AGAIN_MAX_S) if before else AGAIN_S
            self._tries[name] = _Try(now_s, count, pause_s)
            if name in self._drifts:
                self._drifts[name].settle()

    def _too_large(self, spaces: Mapping[str, Standing]) -> set[str]:
        """Of the spaces that look after themselves those that do not fit."""
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

    def _saved(self, name: str, standing: Standing) -> float:
        return standing.size_bytes * (1 - 1 / self.settings.of(name).matchers)

    def _wanted(self, name: str, standing: Standing, *, is_large: bool) -> Cut:
        kind, matchers = self.settings.of(name)
        if kind == AUTO and is_large and matchers > 1:
            room = self.settings.memory_bytes * matchers / max(1, standing.size_bytes)
            return Cut(BEST, matchers, max(1.0, room))
        if matchers == 1 or kind in (AUTO, "replicated"):
            # Whoever has all of it matches an event where it is read: sending it to another saves nothing.
            return Cut("hash", 1)
        return Cut(kind, matchers)

    def _is_settled(self, name: str, wanted: Cut, standing: Standing, now_s: float) -> bool:
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
