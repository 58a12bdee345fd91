"""What a sample of events shows about a filter: how selective it is, and names and types that do not fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Any

from fieldfare.filters import values as sets
from fieldfare.filters.derived import value_getter
from fieldfare.filters.evaluator import event_getter
from fieldfare.filters.expression import Attribute, Expression, Literal, walk
from fieldfare.filters.help.cautions import Caution
from fieldfare.filters.help.column_types import ColumnType, form_of, misfits
from fieldfare.filters.help.statements import written
from fieldfare.filters.help.value_words import one_of
from fieldfare.filters.needles import Needle
from fieldfare.filters.predicate_sets import SETS
from fieldfare.filters.sql.paths import format_path
from fieldfare.filters.values import ABSENT, ValueSet, atom_of, is_array
from fieldfare.model import Path

Event = Mapping[str, Any]

MAX_EVENTS_FOR_NAMES = 100
"""Of so many events the names of the attributes are collected, to suggest the right one."""

MAX_NAMES = 2_000
MAX_NAME_DEPTH = 8

MAX_ELEMENTS = 32
"""So many elements of an array tell what its elements are."""

MAX_VALUES = 10_000
"""So many values of elements tell what they are."""

MAX_PREDICATES = 200
"""So many predicates are held against the sample."""

_TYPES = {
    sets.NULL: "null",
    sets.OTHER: "an array or an object",
    sets.TRUE: "a boolean",
    sets.FALSE: "a boolean",
}


class Sample:
    """Events to hold a filter against; reads each attribute once."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self._columns: dict[Path, list[Any]] = {}
        self._types: dict[Path, ColumnType | None] = {}

    def column(self, path: Path) -> list[Any]:
        """The values of an attribute or a derived column, event by event; ABSENT where it is missing."""
        found = self._columns.get(path)
        if found is None:
            get = value_getter(path, event_getter)
            found = self._columns[path] = [get(event) for event in self.events]
        return found

    def where(self, path: Path, values: ValueSet, needles: Sequence[Needle] = ()) -> list[bool]:
        """For which events an attribute lies in a set, and has some needles."""
        return [
            value in values and all(needle.is_in(value) for needle in needles) for value in self.column(path)
        ]

    def type_of(self, path: Path) -> ColumnType | None:
        """What all values of an attribute are; None if several things, or nothing. 0 is any element."""
        if path not in self._types:
            whole = next((place for place, step in enumerate(path) if isinstance(step, int)), len(path))
            values = self.column(path[:whole])
            for step in path[whole:]:
                values = list(islice((i for value in values for i in _inside(value, step)), MAX_VALUES))
            kinds = {_column_type(value) for value in values if value is not ABSENT and value is not None}
            self._types[path] = kinds.pop() if len(kinds) == 1 else None
        return self._types[path]

    def names(self) -> list[str]:
        """The attributes that the first events have, as text."""
        found: dict[str, None] = {}
        for event in self.events[:MAX_EVENTS_FOR_NAMES]:
            for path in _paths_in(event, ()):
                if len(found) >= MAX_NAMES:
                    return list(found)
                found[format_path(path)] = None
        return list(found)


def _inside(value: Any, step: str | int) -> Iterable[Any]:
    if isinstance(step, int):
        return value[:MAX_ELEMENTS] if is_array(value) else ()
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
    if isinstance(value, Mapping) and len(path) < MAX_NAME_DEPTH:
        for name, inner in value.items():
            yield from _paths_in(inner, (*path, name))


def sample_cautions(e: Expression, paths: Iterable[Path], sample: Sample) -> list[Caution]:
    """Attributes that no event has, and predicates for which no event has a value of the right type."""
    if not sample.events:
        return []
    found = []
    names: list[str] | None = None
    for path in sorted(paths, key=format_path):
        if all(value is ABSENT for value in sample.column(path)):
            names = names if names is not None else sample.names()
            near = get_close_matches(format_path(path), names, n=1, cutoff=0.75)
            hint = f"did you mean {near[0]}?" if near else ""
            found.append(Caution(f"no event of the sample has {format_path(path)}", hint))
    predicates = [part for part in walk(e) if type(part) in SETS and not isinstance(part, Attribute)]
    for part in list(dict.fromkeys(predicates))[:MAX_PREDICATES]:
        found += _type_caution(part, sample)
    return found


def misfit_cautions(e: Expression, sample: Sample, said: Sequence[Caution]) -> list[Caution]:
    """What in a filter of the dialect sql does not fit the types that the sample has, and is not said yet."""
    texts = " ".join(caution.message + caution.hint for caution in said)
    return [
        Caution(f"in the sample {found.message}", found.hint)
        for found in misfits(e, sample.type_of)[:MAX_PREDICATES]
        if not (found.hint and found.hint in texts) and f"have {format_path(found.path)}: it is " not in texts
    ]


def _type_caution(part: Any, sample: Sample) -> list[Caution]:
    """A predicate on one attribute that is unknown for every event which has a value for it."""
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
