"""Cautions about a filter from a sample of events: its selectivity, and names and types that do not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from fieldfare.filters import values as sets
from fieldfare.filters.derived import value_getter
from fieldfare.filters.evaluator import event_getter
from fieldfare.filters.expression import Attribute, Expression, Literal, walk
from fieldfare.filters.help.cautions import Caution
from fieldfare.filters.help.column_types import ColumnType, form_of, misfits
from fieldfare.filters.help.names import KnownNames, missing_names
from fieldfare.filters.help.statements import written
from fieldfare.filters.help.value_words import one_of
from fieldfare.filters.needles import Needle
from fieldfare.filters.predicate_sets import SETS
from fieldfare.filters.sql.paths import format_path
from fieldfare.filters.values import ABSENT, ValueSet, atom_of, is_array
from fieldfare.model import Path

Event = Mapping[str, Any]

EVENTS_FOR_NAMES_MAX = 100
"""Maximum events whose attribute names are collected for suggestions; later events are not read for it."""

NAMES_MAX = 2_000
NAME_DEPTH_MAX = 8

ELEMENTS_MAX = 32
"""Maximum elements of an array that are read to find the type of its elements."""

VALUES_MAX = 10_000
"""Maximum values of elements that are read to find their type."""

PREDICATES_MAX = 200
"""Maximum predicates compared with the sample; further ones get no cautions."""

_TYPES = {
    sets.NULL: "null",
    sets.OTHER: "an array or an object",
    sets.TRUE: "a boolean",
    sets.FALSE: "a boolean",
}


class Sample:
    """A sample of events for comparison with filters; each attribute is read once.

    Parameters
    ----------
    events
        The events.
    names
        The attributes of these events, if `names` has returned them for another sample of the same events.
    """

    def __init__(self, events: Sequence[Event], names: KnownNames | None = None) -> None:
        self.events = events
        self._names = names
        self._columns: dict[Path, list[Any]] = {}
        self._types: dict[Path, ColumnType | None] = {}

    def column(self, path: Path) -> list[Any]:
        """Return the values of an attribute or a derived column, one per event; ABSENT if missing."""
        found = self._columns.get(path)
        if found is None:
            get = value_getter(path, event_getter)
            found = self._columns[path] = [get(event) for event in self.events]
        return found

    def where(self, path: Path, values: ValueSet, needles: Sequence[Needle] = ()) -> list[bool]:
        """Return, for each event, whether an attribute is in a set and contains all needles."""
        return [
            value in values and all(needle.is_in(value) for needle in needles) for value in self.column(path)
        ]

    def type_of(self, path: Path) -> ColumnType | None:
        """Return the type of all values of an attribute; None if they have several, or there is none.

        An integer step in the path stands for any element of the array.
        """
        if path not in self._types:
            whole = next((place for place, step in enumerate(path) if isinstance(step, int)), len(path))
            values = self.column(path[:whole])
            for step in path[whole:]:
                values = list(islice((i for value in values for i in _inside(value, step)), VALUES_MAX))
            kinds = {_column_type(value) for value in values if value is not ABSENT and value is not None}
            self._types[path] = kinds.pop() if len(kinds) == 1 else None
        return self._types[path]

    def missing(self, paths: Iterable[Path]) -> list[Path]:
        """Return the attributes that no event has, only the innermost of each; none if there are no events.

        A path that goes through an array is not missing: a filter may ask for it in each element.
        """
        if not self.events:
            return []
        known = self.names()
        found = {
            path
            for path in paths
            if path not in known
            and all(value is ABSENT for value in self.column(path))
            and not any(is_array(value) for size in range(1, len(path)) for value in self.column(path[:size]))
        }
        outer = {path[:size] for path in found for size in range(1, len(path))}
        return sorted(found - outer, key=format_path)

    def names(self) -> KnownNames:
        """Return the attributes of the first EVENTS_FOR_NAMES_MAX events, at most NAMES_MAX."""
        if self._names is None:
            events = self.events[:EVENTS_FOR_NAMES_MAX]
            found = (path for event in events for path in _paths_in(event, ()))
            self._names = KnownNames(_distinct(found, NAMES_MAX))
        return self._names


def _distinct(paths: Iterable[Path], limit: int) -> Iterator[Path]:
    """Yield the first ``limit`` distinct paths, in order."""
    found: set[Path] = set()
    for path in paths:
        if len(found) >= limit:
            break
        if path not in found:
            found.add(path)
            yield path


def _inside(value: Any, step: str | int) -> Iterable[Any]:
    if isinstance(step, int):
        return value[:ELEMENTS_MAX] if is_array(value) else ()
    return (value[step],) if isinstance(value, Mapping) and step in value else ()


def _column_type(value: Any) -> ColumnType:
    if isinstance(value, str):
        return form_of(value)
    if is_array(value):
        return ColumnType.ARRAY
    kinds = {sets.TRUE: ColumnType.BOOLEAN, sets.FALSE: ColumnType.BOOLEAN, sets.OTHER: ColumnType.OBJECT}
    return kinds.get(atom_of(value), ColumnType.NUMBER)


def _paths_in(value: Any, path: Path) -> Iterable[Path]:
    if path:
        yield path
    if isinstance(value, Mapping) and len(path) < NAME_DEPTH_MAX:
        for name, inner in value.items():
            yield from _paths_in(inner, (*path, name))


def sample_cautions(e: Expression, paths: Iterable[Path], sample: Sample) -> list[Caution]:
    """Return cautions on attributes that no event has, and on predicates that fit no event's types."""
    if not sample.events:
        return []
    missing = sample.missing(paths)
    found = missing_names(missing, sample.names()) if missing else []
    predicates = [part for part in walk(e) if type(part) in SETS and not isinstance(part, Attribute)]
    for part in list(dict.fromkeys(predicates))[:PREDICATES_MAX]:
        found += _type_caution(part, sample)
    return found


def misfit_cautions(e: Expression, sample: Sample, said: Sequence[Caution]) -> list[Caution]:
    """Return cautions, except those in ``said``, on parts of an sql filter that do not fit the types."""
    texts = " ".join(caution.message + caution.hint for caution in said)
    return [
        Caution(f"in the sample {found.message}", found.hint)
        for found in misfits(e, sample.type_of)[:PREDICATES_MAX]
        if not (found.hint and found.hint in texts) and f"have {format_path(found.path)}: it is " not in texts
    ]


def _type_caution(part: Any, sample: Sample) -> list[Caution]:
    """Return a caution if a predicate on one attribute is unknown for all events with a value for it."""
    true, false = SETS[type(part)](part, True), SETS[type(part)](part, False)
    if true is None or false is None or (true[1].is_empty and false[1].is_empty):
        return []
    decided = true[1].union(false[1])
    present = [value for value in sample.column(true[0]) if value is not ABSENT and value is not None]
    if not present or any(value in decided for value in present):
        return []
    found = [kind for kind, _ in Counter(map(_type_of, present)).most_common()]
    name = format_path(true[0])
    events = "event" if len(present) == 1 else "events"
    message = (
        f"`{written(part)}` is unknown for all {len(present):,} {events} of the sample that have {name}: "
        f"it is {one_of(found)} there"
    )
    return [Caution(message, _type_hint(part, found[0]))]


def _type_hint(part: Any, kind: str) -> str:
    literals = [inner for inner in walk(part) if isinstance(inner, Literal) and inner.value is not None]
    if kind == "a string" and literals and not any(isinstance(each.value, str) for each in literals):
        return f"a string is written in quotes: '{written(literals[0])}'"
    if kind == "a number" and literals and all(isinstance(each.value, str) for each in literals):
        return "a number is written without quotes"
    return ""


def _type_of(value: Any) -> str:
    atom = atom_of(value)
    return _TYPES[atom] if atom else "a string" if isinstance(value, str) else "a number"
