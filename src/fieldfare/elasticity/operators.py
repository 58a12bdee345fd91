"""The three operators (Barazzutti et al. 2014, section III): what a slice makes of what it gets.

    registration ──▶ AP ──to one matcher, by its number──▶ M: stored
    publication  ──▶ AP ──to all matchers of its scheme──▶ M ──list──▶ EP, by the publication's number
                                                                 └─ once all lists are here ──▶ notification

An operator sees its own state and nothing else. Its slices differ in their state only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Registration:
    """A subscription on its way to the slice that stores it. `scheme` names its matching operator."""

    number: int
    scheme: str
    filter: Any


@dataclass(frozen=True, slots=True)
class Publication:
    """An event on its way to all slices of its scheme's matching operator."""

    number: int
    scheme: str
    event: Any


@dataclass(frozen=True, slots=True)
class MatchList:
    """What one slice of a matching operator found for a publication."""

    publication: int
    scheme: str
    matcher: str
    subscriptions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Notification:
    """All subscriptions that a publication matched, in order."""

    publication: int
    subscriptions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operators:
    """The static configuration: how many slices each operator has (section IV.B).

    Parameters
    ----------
    matchers
        The slices of each matching operator: there is one for every filtering scheme.
    sink
        The slice that gets the notifications.
    """

    access_points: int
    matchers: Mapping[str, int]
    exit_points: int
    sink: str = "sink"

    def of(self, operator: str, count: int) -> tuple[str, ...]:
        """The names of an operator's slices."""
        return tuple(f"{operator}:{i + 1}" for i in range(count))

    @property
    def access_point_slices(self) -> tuple[str, ...]:
        return self.of("AP", self.access_points)

    def matcher_slices(self, scheme: str) -> tuple[str, ...]:
        """The slices of one matching operator."""
        return self.of(scheme, self.matchers[scheme])

    @property
    def exit_point_slices(self) -> tuple[str, ...]:
        return self.of("EP", self.exit_points)

    @property
    def slices(self) -> tuple[str, ...]:
        """All slices that may be moved."""
        matchers = [name for scheme in self.matchers for name in self.matcher_slices(scheme)]
        return (*self.access_point_slices, *matchers, *self.exit_point_slices)

    def upstream(self, name: str, sources: tuple[str, ...]) -> frozenset[str]:
        """The slices whose outputs reach a slice; `sources` are those before the access points."""
        if name in self.access_point_slices:
            return frozenset(sources)
        if name in self.exit_point_slices:
            return frozenset(name for scheme in self.matchers for name in self.matcher_slices(scheme))
        return frozenset(self.access_point_slices)


Outputs = list[tuple[str, object]]
"""For which slice, and what."""


class Operator(Protocol):
    """What a slice runs."""

    def process(self, content: Any) -> Outputs:
        """Take in one thing."""

    def state(self) -> object:
        """A copy of the state, which never changes again."""

    def restore(self, state: Any) -> None:
        """Take over a state."""


class Filtering(Protocol):
    """A filtering library (section III): what it is told to store, it finds again."""

    def store(self, number: int, filter_: Any) -> None:
        """Store a subscription."""

    def matching(self, event: Any) -> tuple[int, ...]:
        """The subscriptions that an event matches, in order."""


class AccessPoint:
    """Partitions subscriptions, broadcasts publications. Stateless."""

    def __init__(self, operators: Operators) -> None:
        self._operators = operators

    def process(self, content: Registration | Publication) -> Outputs:
        slices = self._operators.matcher_slices(content.scheme)
        if isinstance(content, Registration):
            return [(slices[content.number % len(slices)], content)]
        return [(name, content) for name in slices]

    def state(self) -> object:
        return None

    def restore(self, state: Any) -> None:
        pass


class Matching:
    """Stores its share of the subscriptions in a library of its own, and matches publications with it."""

    def __init__(self, name: str, operators: Operators, library: Callable[[], Filtering]) -> None:
        self._name, self._operators, self._new = name, operators, library
        self.restore(())

    def process(self, content: Registration | Publication) -> Outputs:
        if isinstance(content, Registration):
            self._stored[content.number] = content
            self._library.store(content.number, content.filter)
            return []
        found = self._library.matching(content.event)
        slices = self._operators.exit_point_slices
        target = slices[content.number % len(slices)]
        return [(target, MatchList(content.number, content.scheme, self._name, found))]

    def state(self) -> tuple[Registration, ...]:
        return tuple(self._stored.values())

    def restore(self, state: tuple[Registration, ...]) -> None:
        self._library = self._new()
        self._stored = {stored.number: stored for stored in state}
        for stored in state:
            self._library.store(stored.number, stored.filter)


@dataclass(slots=True)
class ExitPoint:
    """Waits for the lists of all slices of a publication's matching operator, then notifies."""

    operators: Operators
    _waiting: dict[int, tuple[MatchList, ...]] = field(default_factory=dict)

    def process(self, content: MatchList) -> Outputs:
        lists = (*self._waiting.pop(content.publication, ()), content)
        if len(lists) < self.operators.matchers[content.scheme]:
            self._waiting[content.publication] = lists
            return []
        found = sorted(number for each in lists for number in each.subscriptions)
        return [(self.operators.sink, Notification(content.publication, tuple(found)))]

    def state(self) -> dict[int, tuple[MatchList, ...]]:
        return dict(self._waiting)

    def restore(self, state: dict[int, tuple[MatchList, ...]]) -> None:
        self._waiting = dict(state)


def operator_of(name: str, operators: Operators, library: Callable[[str], Filtering]) -> Operator:
    """What the slice of this name runs. `library` makes an empty one for a scheme."""
    if name in operators.access_point_slices:
        return AccessPoint(operators)
    if name in operators.exit_point_slices:
        return ExitPoint(operators)
    scheme = name.rpartition(":")[0]
    return Matching(name, operators, lambda: library(scheme))
