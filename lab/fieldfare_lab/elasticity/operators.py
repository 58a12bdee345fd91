"""The three operators (Barazzutti et al. 2014, section III): how a slice processes its inputs.

    registration ──▶ AP ──to one matcher, by its number──▶ M: stored
    publication  ──▶ AP ──to all matchers of its scheme──▶ M ──list──▶ EP, by the publication's number
                                                                 └─ once all lists are here ──▶ notification

An operator has only its own state. Its slices differ only in their states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from fieldfare.elasticity.operators import Operators


@dataclass(frozen=True, slots=True)
class Registration:
    """A subscription on its way to the slice that stores it; `scheme` names its matching operator."""

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
    """The matches of a publication in one slice of a matching operator."""

    publication: int
    scheme: str
    matcher: str
    subscriptions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Notification:
    """All subscriptions that a publication matched, in order."""

    publication: int
    subscriptions: tuple[int, ...]


Outputs = list[tuple[str, object]]


"""Outputs of an operator: target slice and content."""


class Operator(Protocol):
    """The program of a slice."""

    def process(self, content: Any) -> Outputs:
        """Process one input and return the outputs."""

    def state(self) -> object:
        """Return an immutable copy of the state."""

    def restore(self, state: Any) -> None:
        """Replace the state."""


class Filtering(Protocol):
    """A filtering library (section III): stores subscriptions and finds those that match."""

    def store(self, number: int, filter_: Any) -> None:
        """Store a subscription."""

    def matching(self, event: Any) -> tuple[int, ...]:
        """Return the subscriptions that an event matches, in order."""


class AccessPoint:
    """AP: partitions subscriptions, broadcasts publications; stateless."""

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
    """M: stores its share of the subscriptions in a library, and matches publications against it."""

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
    """EP: waits for the lists of all slices of a publication's matching operator, then notifies."""

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
    """Return the operator of a slice by its name; `library` makes an empty library for a scheme."""
    if name in operators.access_point_slices:
        return AccessPoint(operators)
    if name in operators.exit_point_slices:
        return ExitPoint(operators)
    scheme = name.rpartition(":")[0]
    return Matching(name, operators, lambda: library(scheme))
