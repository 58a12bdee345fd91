"""What evaluating a filter for an event costs, in steps, and how many it may cost.

Nearly all filters cost little whatever an event holds. Those that go through arrays do not: ``ANY`` inside of
``ANY`` over one array of 100,000 elements is ten billion pairs. So the steps of a filter for an event are
counted *before* it is evaluated, from the lengths of the arrays and texts that it would go through. They
depend on the filter and the event alone: not on what decides early, on the index, or on which events are
evaluated together.

* A quantifier takes, for each element, a step for each part of its condition (a name, a literal, an operator,
  a function, a piece of a pattern), and what the quantifiers within take.
* A text that a pattern or a function reads, or in a quantifier a comparison of two values that are no
  literals, takes a step for every 64 characters; for every character if the pattern has a ``_`` between other
  characters, which is looked for character by character.
* CARDINALITY and ELEMENT_AT take a step, and the array is read as for a quantifier.
* An array takes a step for every four values that are in it, at any depth: it must be read first.
* What goes through arrays of FEW_ELEMENTS at most, and compares each element in a simple way, takes none: an
  index may decide it by columns, and if it does not it costs no more than to read a text.

A filter without quantifiers is not counted unless its texts could take more than ``STEPS_MAX`` for an event
of a megabyte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fieldfare.filters.expression import (
    Attribute,
    Between,
    Call,
    Comparison,
    Element,
    Expression,
    In,
    Like,
    Literal,
    Pattern,
    Quantified,
    Wild,
    parts_of,
    walk,
)
from fieldfare.filters.functions.arrays import READS_ARRAYS
from fieldfare.filters.values import ABSENT, is_array
from fieldfare.model import Path

STEPS_MAX = 5_000_000
"""Steps of one filter for one event, at most: a second or two. Beyond, the event does not match."""
EVENT_STEPS_MAX = 50_000_000
"""Steps of all filters of a space that go through arrays, for one event: ten seconds or two times that.

They count by the subscriptions' numbers, the older ones first; once a filter does not fit in, the event
matches neither it nor any after it that goes through arrays."""
RECORD_STEPS_MAX = 100_000_000
"""The same for all events of a record, which share them evenly: a minute or so.

An event's share is bounded by EVENT_STEPS_MAX too. It depends on how many events the record has, not on what
they are, nor on what is matched together. Events that are in no record have EVENT_STEPS_MAX."""
EVENT_STEPS_MIN = 10_000
"""An event has so many, however many events its record has: by default a record has at most ten thousand."""
FEW_ELEMENTS = 32
"""Arrays of no more elements take no steps where what is done with an element is simple.

Registries and files hold it: it may become more, never less."""
FEW_PARTS = 16
"""A condition of an element that has more parts is not simple; nor is one with a quantifier inside, with a
pattern that is looked for character by character, or that reads a text which is no part of the element."""
MOST_LOOPS = 2
"""Nor is a filter that goes through more arrays."""
LARGE_TEXT = 1 << 20
"""No text of an event is expected to be longer: events of more than a mebibyte are refused as a rule."""

TEXT_CHARACTERS = 64
VALUES_A_STEP = 4

_NAMED = (Attribute, Element)

Get = Callable[[Path], Any]


class Reference(NamedTuple):
    """An attribute (level 0), or a part of the element of the quantifier so many levels in."""

    level: int
    path: Path
    root: Path
    """The attribute that the value is a part of."""
    steps: Path = ()
    """Of a quantifier's variable: from there to what it goes through."""


class Reading(NamedTuple):
    """A text that is read, and how many steps TEXT_CHARACTERS of it take."""

    of: Reference
    weight: int


class Loop(NamedTuple):
    """A quantifier: what it goes through, and what each element takes."""

    array: Reference
    steps: Path
    """From the root to the array, where the quantifiers around go through no array."""
    parts: int
    readings: tuple[Reading, ...]
    loops: tuple[Loop, ...]


class Work(NamedTuple):
    """What must be known of an event to tell the steps of a filter; filters written alike have the same.

    Attributes
    ----------
    arrays
        The attributes that quantifiers go through, or through parts of.
    through
        All that they go through, where nothing is an array: of which of `arrays`, and the steps to it.
    few
        An array with so many elements takes no steps: FEW_ELEMENTS or, where nothing is simple, -1.
    readings, loops
        What takes steps.
    reads_much
        Whether texts alone can take more than STEPS_MAX.
    """

    arrays: tuple[Path, ...]
    readings: tuple[Reading, ...]
    loops: tuple[Loop, ...]
    reads_much: bool
    through: tuple[tuple[Path, Path], ...] = ()
    few: int = -1

    def goes_through_arrays(self, get: Get) -> bool:
        """Whether a quantifier has an array to go through that is not small; else it takes no steps."""
        return any(_meets_array(get(root), steps, self.few) for root, steps in self.through)

    def steps(self, get: Get, most: int | None = None) -> int:
        """The steps for an event whose attributes are read by a function; `most` + 1 for any more.

        At most STEPS_MAX are counted, if `most` is not given; none, if there is neither an array nor much
        text to go through.
        """
        if not (self.reads_much or self.goes_through_arrays(get)):
            return 0
        most = STEPS_MAX if most is None else most
        steps = sum(size_of(get(path), VALUES_A_STEP * most) // VALUES_A_STEP for path in self.arrays)
        steps += _read(self.readings, get, ())
        for loop in self.loops:
            if steps > most:
                break
            steps += _loop_steps(loop, get, (), most - steps)
        return min(steps, most + 1)

    def fits(self, get: Get) -> bool:
        """Whether the filter may be evaluated for an event."""
        return self.steps(get) <= STEPS_MAX


def work_of(expression: Expression) -> Work | None:
    """The work of a filter; None if no event makes it cost much."""
    _, readings, loops = _cost(expression, {})
    nested = _all(loops)
    weight = sum(each.weight for each in (*readings, *(each for loop in nested for each in loop.readings)))
    reads_much = weight * (LARGE_TEXT // TEXT_CHARACTERS) > STEPS_MAX
    if not loops and not reads_much:
        return None
    arrays = {loop.array.root for loop in nested}
    through = {(loop.array.root, loop.steps) for loop in nested}
    ordered = tuple(sorted(through, key=repr))
    few = FEW_ELEMENTS if not reads_much and len(loops) <= MOST_LOOPS and all(map(_is_simple, loops)) else -1
    return Work(tuple(sorted(arrays, key=repr)), readings, loops, reads_much, ordered, few)


def looked_into(expression: Expression) -> list[Path]:
    """The attributes that an expression looks into as arrays."""
    found = []
    for part in walk(expression):
        array = part.array if isinstance(part, Quantified) else None
        if isinstance(part, Call) and part.function in READS_ARRAYS:
            array = part.operands[0]  # type: ignore[assignment]
        if isinstance(array, Attribute):
            found.append(array.path)
    return found


def _is_simple(loop: Loop) -> bool:
    """Whether what is done with each element costs little."""
    return (
        not loop.loops
        and loop.parts <= FEW_PARTS
        and all(each.of.level and each.weight == 1 for each in loop.readings)
    )


def _meets_array(value: Any, steps: Path, few: int) -> bool:
    """Whether a value is an array of more than so many elements, or what some steps of it lead to."""
    for step in steps:
        if is_array(value):
            return True
        value = value.get(step, ABSENT) if isinstance(value, Mapping) else ABSENT
    return is_array(value) and len(value) > few


def holds_values(value: Any) -> bool:
    """Whether a value is an array or an object."""
    return isinstance(value, Mapping) or is_array(value)


def size_of(value: Any, most: int) -> int:
    """How many values an array or an object holds at any depth; counting ends beyond `most`."""
    waiting, size = [value], 0
    while waiting and size <= most:
        inner = waiting.pop()
        members = inner.values() if isinstance(inner, Mapping) else inner if is_array(inner) else ()
        size += len(members)
        waiting += [member for member in members if holds_values(member)]
    return size


def _all(loops: tuple[Loop, ...]) -> list[Loop]:
    found = list(loops)
    for loop in loops:
        found += _all(loop.loops)
    return found


_Scope = Mapping[str, Reference]


def _cost(e: Expression, scope: _Scope) -> tuple[int, tuple[Reading, ...], tuple[Loop, ...]]:
    """The parts of an expression, the texts that it reads, and its quantifiers."""
    parts, readings, loops = 0, list[Reading](), list[Loop]()
    waiting = [e]
    while waiting:
        part = waiting.pop()
        parts += 1
        if isinstance(part, Quantified):
            loops.append(_loop(part, scope))
            continue
        if isinstance(part, Call) and part.function in READS_ARRAYS:
            loops += [_reading(each, scope) for each in part.operands[:1] if isinstance(each, _NAMED)]
        weight = _text_weight(part, len(scope) > 0)
        if weight:
            readings += [Reading(_reference(each, scope), weight) for each in _references(part)]
        if isinstance(part, Like):
            parts += len(part.pattern)
        waiting += parts_of(part)
    return parts, tuple(readings), tuple(loops)


def _reading(array: Attribute | Element, scope: _Scope) -> Loop:
    """What it takes to look into an array without going through it."""
    return Loop(_reference(array, scope), _steps_to(array, scope), 0, (), ())


def _steps_to(array: Attribute | Element, scope: _Scope) -> Path:
    return scope[array.variable].steps + array.path if isinstance(array, Element) else ()


def _loop(e: Quantified, scope: _Scope) -> Loop:
    array = _reference(e.array, scope)
    level = 1 + max((each.level for each in scope.values()), default=0)
    steps = _steps_to(e.array, scope)
    inner = {**scope, e.variable: Reference(level, (), array.root, steps)}
    parts, readings, loops = _cost(e.condition, inner)
    return Loop(array, steps, parts, readings, loops)


def _reference(e: Attribute | Element, scope: _Scope) -> Reference:
    if isinstance(e, Attribute):
        return Reference(0, e.path, e.path)
    known = scope[e.variable]
    return Reference(known.level, e.path, known.root)


def _references(e: Expression) -> list[Attribute | Element]:
    """What an expression reads, but for what quantifiers in it do."""
    found, waiting = list[Attribute | Element](), [e]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Attribute | Element):
            found.append(part)
        elif not isinstance(part, Quantified):
            waiting += parts_of(part)
    return found


def _text_weight(e: Expression, is_repeated: bool) -> int:
    """How many steps TEXT_CHARACTERS of a text take that an expression looks at; 0 if it looks at few."""
    if isinstance(e, Like):
        return TEXT_CHARACTERS if _is_slow(e.pattern) else 1
    if isinstance(e, Call):
        return TEXT_CHARACTERS if e.function.endswith("_IGNORE_CASE") or e.function.startswith("CESQL") else 1
    if is_repeated and isinstance(e, Comparison | Between | In):
        return sum(not isinstance(part, Literal) for part in parts_of(e)) > 1
    return 0


def _is_slow(pattern: Pattern) -> bool:
    """Whether a piece between two RUNs has a ONE between texts."""
    pieces: list[list[Any]] = [[]]
    for part in pattern:
        if part is Wild.RUN:
            pieces.append([])
        else:
            pieces[-1].append(part)
    return any(sum(isinstance(part, str) for part in piece) > 1 for piece in pieces[1:-1])


def _value(of: Reference, get: Get, elements: tuple[Any, ...]) -> Any:
    if of.level == 0:
        return get(of.path)
    value = elements[of.level - 1]
    for step in of.path:
        if isinstance(step, str):
            value = value.get(step, ABSENT) if isinstance(value, Mapping) else ABSENT
        else:
            value = value[step] if is_array(value) and step < len(value) else ABSENT
    return value


def _read(readings: tuple[Reading, ...], get: Get, elements: tuple[Any, ...]) -> int:
    steps = 0
    for of, weight in readings:
        value = _value(of, get, elements)
        if isinstance(value, str):
            steps += len(value) * weight // TEXT_CHARACTERS
    return steps


def _loop_steps(loop: Loop, get: Get, elements: tuple[Any, ...], left: int) -> int:
    """The steps of a quantifier; counting ends beyond `left`."""
    value = _value(loop.array, get, elements)
    if value is ABSENT:
        return 1
    array = value if is_array(value) else (value,)
    if not loop.readings and not loop.loops:
        return 1 + len(array) * loop.parts
    steps = 1
    for element in array:
        inner = (*elements, element)
        steps += loop.parts + _read(loop.readings, get, inner)
        for each in loop.loops:
            if steps <= left:
                steps += _loop_steps(each, get, inner, left - steps)
        if steps > left:
            break
    return steps
