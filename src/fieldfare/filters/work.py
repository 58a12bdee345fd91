"""The cost of evaluating a filter for an event, in steps, and the limits for it.

Nearly all filters are cheap for any event. Filters that iterate over arrays may not be: ``ANY`` inside of
``ANY`` over one array of 100,000 elements is ten billion pairs. Therefore the steps of a filter for an event
are counted *before* it is evaluated, from the lengths of the arrays and strings that it would read. They
depend on the filter and the event alone: not on early exits, on the index, or on which events are evaluated
together.

* A quantifier takes, for each element, one step for each part of its condition (a name, a literal, an
  operator, a function, a piece of a pattern), plus the steps of the quantifiers inside.
* A string takes one step for every 64 characters if a pattern or a function reads it, or, in a quantifier, a
  comparison of two values that are no literals. It takes one for every character if the pattern has a ``_``
  between other characters, as such a pattern is searched for character by character.
* An operator or a function of numbers in a quantifier takes LONG_STEPS more if a number is long, in the
  attributes calculated with or in the filter: the result may not fit into a machine word.
* CARDINALITY and ELEMENT_AT take one step, and the array is read as for a quantifier.
* An array takes one step for every four values that are in it, at any depth: it must be read first.
* A filter that iterates over arrays of at most FEW_ELEMENTS, with a simple comparison of each element, takes
  no steps: an index may decide it by columns, and otherwise it costs no more than reading a string.

The steps of a filter without quantifiers are not counted unless its strings could take more than
``STEPS_MAX`` for an event of a megabyte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from fieldfare.filters.expression import (
    Arithmetic,
    Attribute,
    Call,
    Element,
    Expression,
    Like,
    Literal,
    Quantified,
    parts_of,
    walk,
)
from fieldfare.filters.functions.arrays import READS_ARRAYS
from fieldfare.filters.functions.numbers import NUMERAL_CHARACTERS_MAX
from fieldfare.filters.functions.table import CHARACTERS_MAX
from fieldfare.filters.measuring import DIGITS_MAX, WORD_DIGITS, Get, MeasuredEvent, most_digits
from fieldfare.filters.values import ABSENT, is_array
from fieldfare.filters.weights import (
    TEXT_CHARACTERS,
    TO_TEXT,
    calculates,
    chooses,
    inside,
    references,
    text_weight,
    texts_of,
    word_of,
)
from fieldfare.model import Path

STEPS_MAX = 5_000_000
"""Maximum steps of one filter for one event, about half a second; beyond it, the event does not match."""
EVENT_STEPS_MAX = 50_000_000
"""Maximum steps, for one event, of all filters of a space that iterate over arrays: about five seconds.

Filters count in the order of subscription numbers, the older ones first. The event matches neither the first
filter that exceeds the maximum nor any later one that iterates over arrays."""
RECORD_STEPS_MAX = 100_000_000
"""Maximum steps of the filters in EVENT_STEPS_MAX, for all events of a record together: about ten seconds.

The events share the steps evenly; EVENT_STEPS_MAX bounds the share, too. A share depends on the number of
events in the record, not on their content, nor on which events are matched together. An event that is in no
record has EVENT_STEPS_MAX."""
EVENT_STEPS_MIN = 10_000
"""Minimum steps of an event, whatever its record's size: by default, a record has at most 10,000 events."""
FEW_ELEMENTS = 32
"""Maximum elements of an array that takes no steps, where the condition of an element is simple.

Registries and files contain it: it may be raised, never lowered."""
FEW_PARTS = 16
"""Maximum parts of a simple condition of an element.

Not simple is also a condition with a quantifier inside, with a pattern that is searched for character by
character, or that reads a string outside of the element."""
LOOPS_MAX = 2
"""Maximum quantifiers, side by side, of a filter; with more, none of its conditions is simple."""
LARGE_TEXT = 1 << 20
"""Expected maximum length of a string, in characters: events larger than a mebibyte are usually refused."""

VALUES_A_STEP = 4
LONG_STEPS = 50
"""Additional steps of an operator where numbers are long, for every 100 digits: Python then calculates with
fractions."""
LONG_DIGITS = 100
EXACT_STEPS = 50
"""Additional steps of a comparison, or of a choice among values, where a number fits neither an integer of 64
bits nor a float: Python then compares."""
NUMERAL_STEPS = 150
"""Additional steps of a cast of a string that only Python reads, longer than a word or with an exponent, for
every LONG_NUMERAL characters."""
LONG_NUMERAL = 500
LEVELS_MAX = 4
"""Maximum nesting of quantifiers that are evaluated by columns; deeper ones are evaluated in Python."""
PYTHON_WEIGHT = 10
"""Steps of each part of a condition that only Python evaluates."""

_NAMED = (Attribute, Element)


class Reference(NamedTuple):
    """An attribute (level 0), or a part of the element of the quantifier at nesting depth ``level``."""

    level: int
    path: Path
    root: Path
    """The attribute that contains the value."""
    steps: Path = ()
    """For a quantifier's variable, the path from the root to the quantifier's array."""


class Reading(NamedTuple):
    """A string that is read.

    Attributes
    ----------
    weight
        The steps that TEXT_CHARACTERS of it take.
    growth
        By how much it may be longer than the attribute, up to CHARACTERS_MAX, after REPLACE.
    word
        Maximum characters that are read without Python; None if all are. A longer string, or one with an
        exponent, takes NUMERAL_STEPS more, at least.
    """

    of: Reference
    weight: int
    growth: int = 1
    word: int | None = None

    def steps(self, text: str) -> int:
        """Return the steps for a string."""
        size = len(text)
        grown = size if self.growth == 1 else max(size, min(size * self.growth, CHARACTERS_MAX))
        steps = grown * self.weight // TEXT_CHARACTERS
        if self.word is not None and (size > self.word or _has_exponent(text)):
            steps += NUMERAL_STEPS * (1 + min(size, NUMERAL_CHARACTERS_MAX) // LONG_NUMERAL)
        return steps


def _has_exponent(text: str) -> bool:
    return not text.isalpha() and ("e" in text or "E" in text)


class Calculation(NamedTuple):
    """The calculations with numbers in a condition.

    Attributes
    ----------
    operators
        The number of operators and functions.
    digits
        Maximum digits of a number that is not long.
    roots
        The attributes that contain the numbers, at any depth; None if a number of the filter is long.
    literal_digits
        The digits of the longest number of the filter.
    choices
        The number of comparisons and choices among values.
    chosen
        The attributes that contain these values, at any depth.
    """

    operators: int = 0
    digits: int = 0
    roots: tuple[Path, ...] | None = ()
    literal_digits: int = 0
    choices: int = 0
    chosen: tuple[Path, ...] = ()

    def steps(self, event: MeasuredEvent) -> int:
        """Return the additional steps for an event."""
        steps = 0
        if self.operators:
            digits = max([self.literal_digits, *map(event.digits, self.roots or ())])
            if self.roots is None or digits > self.digits:
                numbers = WORD_DIGITS // self.digits
                steps += LONG_STEPS * self.operators * (1 + min(digits * numbers, DIGITS_MAX) // LONG_DIGITS)
        if self.choices and any(map(event.has_exact, self.chosen)):
            steps += EXACT_STEPS * self.choices
        return steps

    @property
    def most_steps(self) -> int:
        """The maximum of `steps`."""
        return LONG_STEPS * self.operators * (1 + DIGITS_MAX // LONG_DIGITS) + EXACT_STEPS * self.choices


class Loop(NamedTuple):
    """A quantifier: its array, and the cost of each element."""

    array: Reference
    steps: Path
    """The path from the root to the array, if the outer quantifiers iterate over no array."""
    parts: int
    readings: tuple[Reading, ...]
    loops: tuple[Loop, ...]
    calculation: Calculation = Calculation()
    extra: int = 0
    """The steps of its literals, and of parts that only Python evaluates."""
    levels: frozenset[int] = frozenset()
    """The nesting depths of the elements on which its steps depend."""

    def counted_for(self, event: MeasuredEvent) -> Loop:
        """Return a copy whose parts include all steps for each element that do not depend on the element."""
        loops = tuple(each.counted_for(event) for each in self.loops)
        return self._replace(parts=self.parts + self.extra + self.calculation.steps(event), loops=loops)


class Work(NamedTuple):
    """The parts of a filter that take steps; filters of the same form have equal ones.

    Attributes
    ----------
    arrays
        The attributes over which, or over parts of which, quantifiers iterate.
    through
        Each value over which a quantifier iterates, if no value around it is an array: its attribute, one of
        `arrays`, and the path from there.
    few
        Maximum elements of an array that takes no steps: FEW_ELEMENTS, or -1 if a condition is not simple.
    readings, loops
        The strings read and the quantifiers, which take steps.
    reads_much
        Whether strings alone can take more than STEPS_MAX.
    """

    arrays: tuple[Path, ...]
    readings: tuple[Reading, ...]
    loops: tuple[Loop, ...]
    reads_much: bool
    through: tuple[tuple[Path, Path], ...] = ()
    few: int = -1

    def goes_through_arrays(self, get: Get) -> bool:
        """Return whether a quantifier iterates over a larger array than `few`; else it takes no steps."""
        return any(_meets_array(get(root), steps, self.few) for root, steps in self.through)

    def steps(self, get: Get, most: int | None = None) -> int:
        """Return the steps for an event whose attributes ``get`` reads; ``most`` + 1 for any more.

        ``most`` is STEPS_MAX by default. The result is 0 if there is neither an array nor much text to read.
        """
        if not (self.reads_much or self.goes_through_arrays(get)):
            return 0
        most = STEPS_MAX if most is None else most
        event = get if isinstance(get, MeasuredEvent) else MeasuredEvent(get)
        steps = sum(event.size(path, VALUES_A_STEP * most) // VALUES_A_STEP for path in self.arrays)
        steps += _read(self.readings, event, ())
        for loop in self.loops:
            if steps > most:
                break
            steps += _loop_steps(loop.counted_for(event), event, (), most - steps)
        return min(steps, most + 1)

    def is_of_numbers(self, numbers: Iterable[int | Decimal]) -> bool:
        """Return whether the work does not change if ``numbers`` replace the filter's own."""
        calculations = [each.calculation for each in _all(self.loops) if each.calculation.operators]
        if not calculations:
            return True
        digits = most_digits(list(numbers))
        return all(each.roots is not None and digits <= each.digits for each in calculations)

    def fits(self, get: Get) -> bool:
        """Return whether the filter may be evaluated for an event: it takes at most STEPS_MAX."""
        return self.steps(get) <= STEPS_MAX


def work_of(expression: Expression) -> Work | None:
    """Return the work of a filter; None if it is cheap for every event."""
    _, readings, loops = _cost(expression, {})
    nested = _all(loops)
    weight = sum(each.weight for each in (*readings, *(each for loop in nested for each in loop.readings)))
    reads_much = weight * (LARGE_TEXT // TEXT_CHARACTERS) > STEPS_MAX
    if not loops and not reads_much:
        return None
    arrays = _ordered({loop.array.root for loop in nested})
    through = {(loop.array.root, loop.steps) for loop in nested}
    ordered = tuple(sorted(through, key=repr))
    few = FEW_ELEMENTS if not reads_much and len(loops) <= LOOPS_MAX and all(map(_is_simple, loops)) else -1
    return Work(arrays, readings, loops, reads_much, ordered, few)


def looked_into(expression: Expression) -> list[Path]:
    """Return the attributes that an expression reads as arrays."""
    found = []
    for part in walk(expression):
        array = part.array if isinstance(part, Quantified) else None
        if isinstance(part, Call) and part.function in READS_ARRAYS:
            array = part.operands[0]  # type: ignore[assignment]
        if isinstance(array, Attribute):
            found.append(array.path)
    return found


def _is_simple(loop: Loop) -> bool:
    """Return whether the condition of a quantifier is simple: see FEW_PARTS."""
    return (
        not loop.loops
        and loop.parts <= FEW_PARTS
        and all(each.of.level and each.weight < TEXT_CHARACTERS for each in loop.readings)
    )


def _meets_array(value: Any, steps: Path, few: int) -> bool:
    """Return whether a path meets an array on its way, or ends at one of more than ``few`` elements."""
    for step in steps:
        if is_array(value):
            return True
        value = value.get(step, ABSENT) if isinstance(value, Mapping) else ABSENT
    return is_array(value) and len(value) > few


def _all(loops: tuple[Loop, ...]) -> list[Loop]:
    found = list(loops)
    for loop in loops:
        found += _all(loop.loops)
    return found


_Scope = Mapping[str, Reference]


def _cost(e: Expression, scope: _Scope) -> tuple[int, tuple[Reading, ...], tuple[Loop, ...]]:
    """Return the number of parts of an expression, the strings that it reads, and its quantifiers."""
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
        weight = text_weight(part, len(scope) > 0)
        if weight:
            word = word_of(part)
            readings += [
                Reading(_reference(each, scope), weight, growth, word) for each, growth in texts_of(part)
            ]
        if isinstance(part, Like):
            parts += len(part.pattern)
        waiting += parts_of(part)
    return parts, tuple(readings), tuple(loops)


def _reading(array: Attribute | Element, scope: _Scope) -> Loop:
    """Return the cost of reading an array without iterating over it."""
    return Loop(_reference(array, scope), _steps_to(array, scope), 0, (), ())


def _steps_to(array: Attribute | Element, scope: _Scope) -> Path:
    return scope[array.variable].steps + array.path if isinstance(array, Element) else ()


def _loop(e: Quantified, scope: _Scope) -> Loop:
    array = _reference(e.array, scope)
    level = 1 + max((each.level for each in scope.values()), default=0)
    steps = _steps_to(e.array, scope)
    inner = {**scope, e.variable: Reference(level, (), array.root, steps)}
    parts, readings, loops = _cost(e.condition, inner)
    levels = {array.level, *(each.of.level for each in readings)}.union(*(each.levels for each in loops))
    extra = _extra(e.condition) + (PYTHON_WEIGHT * parts if level > LEVELS_MAX else 0)
    calculation = _calculation(e.condition, inner)
    return Loop(array, steps, parts, readings, loops, calculation, extra, frozenset(levels) - {level})


def _extra(condition: Expression) -> int:
    """Return the steps of a condition for its literals, and for what only Python evaluates."""
    steps = 0
    for part in inside(condition):
        weight = text_weight(part, False)
        if isinstance(part, Like):
            steps += sum(len(piece) for piece in part.pattern if isinstance(piece, str))
        elif weight:
            literals = [each.value for each in inside(part) if isinstance(each, Literal)]
            steps += sum(len(value) for value in literals if isinstance(value, str)) * weight
    return steps // TEXT_CHARACTERS


def _calculation(condition: Expression, scope: _Scope) -> Calculation:
    """Return the calculations of a condition, except those in quantifiers inside it."""
    operators, leaves, roots, literals = 0, 1, set[Path](), list[Any]()
    choices, chosen = 0, set[Path]()
    for part in inside(condition):
        if chooses(part):
            choices += 1
            chosen.update(_reference(each, scope).root for each in references(part))
        if isinstance(part, Like | Call) and any(
            isinstance(each, Call) and each.function in TO_TEXT for each in inside(part) if each is not part
        ):
            operators += text_weight(part, False)
        if not calculates(part):
            continue
        operators += 4 if isinstance(part, Call) and part.function in TO_TEXT else 1
        operators += isinstance(part, Arithmetic) and part.operator == "%"
        numbers = [each for each in walk(part) if isinstance(each, Literal | Attribute | Element)]
        leaves = max(leaves, len(numbers))
        literals += [each.value for each in numbers if isinstance(each, Literal)]
        roots.update(_reference(each, scope).root for each in references(part))
    digits = max(1, WORD_DIGITS // leaves)
    is_long = most_digits(literals) > digits
    return Calculation(
        operators,
        digits,
        None if is_long else _ordered(roots),
        most_digits(literals) if is_long else 0,
        choices,
        _ordered(chosen),
    )


def _ordered(paths: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(sorted(paths, key=repr))


def _reference(e: Attribute | Element, scope: _Scope) -> Reference:
    if isinstance(e, Attribute):
        return Reference(0, e.path, e.path)
    known = scope[e.variable]
    return Reference(known.level, e.path, known.root)


def _value(of: Reference, get: Get, elements: tuple[Any, ...]) -> Any:
    if of.level == 0:
        return get(of.path)
    return _inner(elements[of.level - 1], of.path)


def _at(array: Sequence[Any], path: Path) -> Sequence[Any]:
    """Return the values at a path in the elements of an array."""
    return [_inner(element, path) for element in array] if path else array


def _inner(value: Any, path: Path) -> Any:
    for step in path:
        if isinstance(step, str):
            value = value.get(step, ABSENT) if isinstance(value, Mapping) else ABSENT
        else:
            value = value[step] if is_array(value) and step < len(value) else ABSENT
    return value


def _read(readings: tuple[Reading, ...], get: Get, elements: tuple[Any, ...]) -> int:
    steps = 0
    for each in readings:
        value = _value(each.of, get, elements)
        if isinstance(value, str):
            steps += each.steps(value)
    return steps


def _loop_steps(loop: Loop, get: Get, elements: tuple[Any, ...], left: int) -> int:
    """Return the steps of a quantifier; counting ends beyond ``left``."""
    value = _value(loop.array, get, elements)
    if value is ABSENT:
        return 1
    array = value if is_array(value) else (value,)
    size, level = len(array), len(elements) + 1
    outside = (*elements, ABSENT)
    steps = 1 + size * (
        loop.parts + _read(tuple([each for each in loop.readings if each.of.level < level]), get, outside)
    )
    for each in loop.loops:
        if level not in each.levels and steps <= left and size:
            steps += size * _loop_steps(each, get, outside, (left - steps) // size)
    for reading in loop.readings:
        if reading.of.level == level and steps <= left:
            values = _at(array, reading.of.path)
            steps += sum([reading.steps(value) for value in values if isinstance(value, str)])
    for each in loop.loops:
        if level not in each.levels:
            continue
        if each.array.level == level and not (each.readings or each.loops):
            values = _at(array, each.array.path)
            sizes = [0 if value is ABSENT else len(value) if is_array(value) else 1 for value in values]
            steps += size + each.parts * sum(sizes)
            continue
        for element in array:
            if steps > left:
                break
            steps += _loop_steps(each, get, (*elements, element), left - steps)
    return steps
