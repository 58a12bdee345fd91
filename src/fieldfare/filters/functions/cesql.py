"""The operators and functions of CESQL, with its semantics, as functions of every filter language.

They exist so that a CESQL filter can be translated to ``sql`` exactly. Each casts its operands as CESQL
does; where CESQL has an error, the result is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from itertools import product
from typing import Any

from fieldfare.filters import values as sets
from fieldfare.filters.cesql import builtins
from fieldfare.filters.cesql.builtins import BUILTINS, Builtin, Failure
from fieldfare.filters.cesql.values import (
    INFINITIES,
    INTEGER_MAX,
    INTEGER_MIN,
    cast,
    from_json,
    number_with_text,
    to_boolean,
    to_integer,
    to_string,
    type_of,
)
from fieldfare.filters.cesql.values import CesqlType as CesqlType
from fieldfare.filters.cesql.values import Value as CesqlValue
from fieldfare.filters.expression import Expression, Literal
from fieldfare.filters.functions.table import Function, Parameter, Requirements, Type
from fieldfare.filters.values import AFTER, BEFORE, Ranges, ValueSet

_GROUP = "CESQL's operators and functions, with its casts"
_VALUE = Parameter("value", Type.ANY)
_LEFT, _RIGHT = Parameter("left", Type.ANY), Parameter("right", Type.ANY)

_TYPES = {
    CesqlType.STRING: Type.STRING,
    CesqlType.INTEGER: Type.NUMBER,
    CesqlType.BOOLEAN: Type.BOOLEAN,
}


def _typed(types: Callable[[int], CesqlType], compute: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return a function over JSON values that casts its operands and returns None for an error."""

    def call(*operands: Any) -> CesqlValue | None:
        arguments = []
        for place, operand in enumerate(operands):
            value = from_json(operand)
            argument = None if value is None else cast(value, types(place))
            if argument is None:
                return None
            arguments.append(argument)
        result = compute(*arguments) if compute else arguments[0]
        return None if isinstance(result, Failure) else result

    return call


def _equal(left: Any, right: Any) -> bool | None:
    a, b = from_json(left), from_json(right)
    if a is None or b is None:
        return None
    as_right = cast(a, type_of(b))
    return None if as_right is None else as_right == b


def _not(operand: Any) -> bool | None:
    value = from_json(operand)
    truth = None if value is None or type_of(value) is CesqlType.INTEGER else to_boolean(value)
    return None if truth is None else not truth


def _in(operand: Any, *items: Any) -> bool | None:
    value = None if operand is None else from_json(operand)
    if value is None:
        return None
    wanted = type_of(value)
    for item in items:
        other = None if item is None else from_json(item)
        found = None if other is None else cast(other, wanted)
        if found is None:
            return None
        if found == value:
            return True
    return False


# For the index: the values of an attribute for which a function's result is in a set.

_NUMERIC = Ranges(False, (("-", BEFORE), (":", BEFORE)))
"""A range of strings that contains the texts of all numbers."""
_CASTABLE = Ranges(False, (("+", BEFORE), (":", BEFORE)))
"""A range of strings that contains all strings that can be cast to an integer."""
_POINTS_MAX = 64


def _texts_of_numbers(strings: Ranges) -> tuple[Ranges, bool]:
    """Return the numbers whose texts are in a set of strings, and whether the set is exact."""
    inside = strings.intersection(_NUMERIC)
    numbers, is_exact = sets.EVERYTHING, False
    if inside.is_empty:
        numbers, is_exact = sets.NOTHING, True
    elif inside == _NUMERIC:
        is_exact = True
    elif (texts := _points_of(inside)) is not None:
        numbers, is_exact = _numbers_with(texts), True
    elif (texts := _points_of(inside.complement().intersection(_NUMERIC))) is not None:
        numbers, is_exact = _numbers_with(texts).complement(), True
    has_infinities = (numbers.starts_inside ^ bool(len(numbers.cuts) & 1), numbers.starts_inside)
    if has_infinities != tuple(text in strings for text in INFINITIES):
        return sets.EVERYTHING, False
    return numbers, is_exact


def _points_of(ranges: Ranges) -> list[Any] | None:
    """Return the values of a set that consists of single values; None for other sets."""
    befores, afters = ranges.cuts[::2], ranges.cuts[1::2]
    if ranges.starts_inside or len(befores) != len(afters):
        return None
    if any(a[0] != b[0] or a[1] == b[1] for a, b in zip(befores, afters, strict=True)):
        return None
    return [value for value, _ in befores]


def _numbers_with(texts: Iterable[str]) -> Ranges:
    found = map(number_with_text, texts)
    return sets.points([Decimal(number) for number in found if number is not None])


def _string_implied(operands: tuple[Expression, ...], wanted: ValueSet) -> Requirements:
    numbers, is_exact = _texts_of_numbers(wanted.strings)
    atoms = (sets.TRUE if "true" in wanted.strings else 0) | (sets.FALSE if "false" in wanted.strings else 0)
    return [(operands[0], ValueSet(atoms, numbers, wanted.strings))], is_exact


def _int_implied(operands: tuple[Expression, ...], wanted: ValueSet) -> Requirements:
    limits = Ranges(False, ((Decimal(INTEGER_MIN), BEFORE), (Decimal(INTEGER_MAX), AFTER)))
    numbers = wanted.numbers.intersection(limits)
    atoms = (sets.TRUE if Decimal(1) in numbers else 0) | (sets.FALSE if Decimal(0) in numbers else 0)
    strings = sets.NOTHING if numbers.is_empty else _CASTABLE
    points = _points_of(numbers) if len(numbers.cuts) <= 2 * _POINTS_MAX else None
    if points:  # one of these numbers, with a sign or zeros before it or not
        strings = sets.points([str(point) for point in points])
        for prefix in "+", "0", "-0":
            strings = strings.union(sets.with_prefix(prefix))
    return [(operands[0], ValueSet(atoms, numbers, strings))], False


_SPELLINGS = {
    truth: sets.points(map("".join, product(*[(letter, letter.upper()) for letter in word])))
    for truth, word in ((True, "true"), (False, "false"))
}


_ZERO = sets.points([Decimal(0)])
_TRUTH_SETS = {
    truth: ValueSet(sets.TRUE if truth else sets.FALSE, strings=_SPELLINGS[truth]) for truth in (True, False)
}
_FALSE_VALUES = _TRUTH_SETS[False].union(ValueSet(numbers=_ZERO))
_TRUE_VALUES = _TRUTH_SETS[True].union(ValueSet(numbers=_ZERO.complement()))
_CAST_TO_BOOLEAN = {
    0: sets.NO_VALUES,
    sets.FALSE: _FALSE_VALUES,
    sets.TRUE: _TRUE_VALUES,
    sets.FALSE | sets.TRUE: _FALSE_VALUES.union(_TRUE_VALUES),
}
_NEGATED = {
    0: sets.NO_VALUES,
    sets.FALSE: _TRUTH_SETS[True],
    sets.TRUE: _TRUTH_SETS[False],
    sets.FALSE | sets.TRUE: _TRUTH_SETS[True].union(_TRUTH_SETS[False]),
}
"""The values for each set of wanted results. Made once, because many filters need them."""


def _bool_implied(operands: tuple[Expression, ...], wanted: ValueSet) -> Requirements:
    values = _CAST_TO_BOOLEAN[wanted.atoms & (sets.FALSE | sets.TRUE)]
    return [(operands[0], values)], not wanted.atoms & sets.TRUE


def _not_implied(operands: tuple[Expression, ...], wanted: ValueSet) -> Requirements:
    return [(operands[0], _NEGATED[wanted.atoms & (sets.FALSE | sets.TRUE)])], True


def _in_implied(operands: tuple[Expression, ...], wanted: ValueSet) -> Requirements | None:
    operand, *items = operands
    if not all(isinstance(item, Literal) for item in items):
        return None
    constants = [from_json(item.value) for item in items if isinstance(item, Literal)]
    if None in constants:
        return None
    equal = equal_to_any(constants)  # type: ignore[arg-type]
    values, is_exact = sets.NO_VALUES, True
    if wanted.atoms & sets.TRUE:
        if equal is None:
            return None
        values = _set_of(equal)
    if wanted.atoms & sets.FALSE:
        texts = sets.points([to_string(item) for item in constants if item is not None])
        rest = ValueSet(sets.TRUE | sets.FALSE, sets.EVERYTHING, texts.complement())
        values, is_exact = values.union(rest), False
    return [(operand, values)], is_exact


def with_text(text: str) -> list[str | int | Decimal | bool] | None:
    """Return all JSON values that STRING converts to a text; None if an infinity is one of them."""
    if text in INFINITIES:
        return None
    number = number_with_text(text)
    booleans = [text == "true"] if text in ("true", "false") else []
    return [text, *([] if number is None else [number]), *booleans]


def equal_to_any(items: Iterable[CesqlValue]) -> list[str | int | Decimal | bool] | None:
    """Return all JSON values that CESQL's IN finds among constants; None if an infinity is one of them."""
    strings: dict[str, None] = {}
    numbers: dict[int | Decimal, None] = {}
    booleans: dict[bool, None] = {}
    has_integers = has_booleans = True  # until one of the constants cannot be cast to that type
    for item in {(type(item), item): item for item in items}.values():
        text = to_string(item)
        if text in INFINITIES:
            return None
        strings[text] = None
        number = number_with_text(text)
        if number is not None and not isinstance(from_json(number), int):
            numbers[number] = None
        integer, boolean = to_integer(item), to_boolean(item)
        has_integers, has_booleans = (
            has_integers and integer is not None,
            has_booleans and boolean is not None,
        )
        if has_integers and integer is not None:
            numbers[integer] = None
        if has_booleans and boolean is not None:
            booleans[boolean] = None
    return [*strings, *numbers, *booleans]


def _set_of(values: Iterable[Any]) -> ValueSet:
    """Return the set of some JSON values."""
    atoms, numbers, strings = 0, [], []
    for value in values:
        if isinstance(value, str):
            strings.append(value)
        elif isinstance(value, bool):
            atoms |= sets.TRUE if value else sets.FALSE
        else:
            numbers.append(Decimal(value))
    return ValueSet(atoms, sets.points(numbers), sets.points(strings))


def _function(
    name: str, parameters: tuple[Parameter, ...], result: Type, summary: str, **rest: Any
) -> Function:
    return Function(
        name=f"CESQL_{name}", parameters=parameters, result=result, summary=summary, group=_GROUP, **rest
    )


ARITHMETIC = {"+": "ADD", "-": "SUBTRACT", "*": "MULTIPLY", "/": "DIVIDE", "%": "REMAINDER"}
"""CESQL's operators, with the names of their functions without the prefix ``CESQL_``."""

_SUMMARIES = {
    "LENGTH": "the number of characters of the value as a string",
    "CONCAT": "the values as strings, one after the other",
    "CONCAT_WS": "the values as strings, with the delimiter between them",
    "LOWER": "the value as a string in lower case",
    "UPPER": "the value as a string in upper case",
    "TRIM": "the value as a string without white space (Unicode's) around it",
    "LEFT": "the first characters of a string",
    "RIGHT": "the last characters of a string",
    "SUBSTRING": "the characters from a position on, from the end if it is negative",
    "ABS": "the number without its sign",
    "INT": "the value as an integer of 32 bits: a string of digits, or 1 and 0 for TRUE and FALSE",
    "BOOL": "the value as a boolean: 'true' or 'false' in any case, or whether a number is not 0",
    "STRING": "the value as a string: the digits of a number, or 'true' or 'false'",
}
_NAMES = {
    "CONCAT": ("text",),
    "CONCAT_WS": ("delimiter", "text"),
    "LEFT": ("text", "count"),
    "RIGHT": ("text", "count"),
    "SUBSTRING": ("text", "position", "length"),
}
_IMPLIED = {"INT": _int_implied, "BOOL": _bool_implied, "STRING": _string_implied}


def _builtin(name: str, builtin: Builtin) -> Function:
    names = _NAMES.get(name, ("value",))
    parameters = [
        Parameter(
            parameter,
            Type.ANY,
            optional=place >= builtin.required,
            repeated=builtin.repeated and place == len(names) - 1,
        )
        for place, parameter in enumerate(names)
    ]
    compute = _typed(builtin.parameter, builtin.compute)
    return _function(
        name,
        tuple(parameters),
        _TYPES[builtin.result],
        _SUMMARIES[name],
        compute=compute,
        implied=_IMPLIED.get(name),
    )


def _integers(compute: Callable[..., Any]) -> Callable[..., Any]:
    return _typed(lambda place: CesqlType.INTEGER, compute)


FUNCTIONS = [
    *(_builtin(name, builtin) for name, builtin in BUILTINS.items()),
    *(
        _function(
            name,
            (_LEFT, _RIGHT),
            Type.NUMBER,
            f"left {operator} right, in integers of 32 bits; unknown beyond them",
            compute=_integers(builtins.ARITHMETIC[operator]),
        )
        for operator, name in ARITHMETIC.items()
    ),
    _function("MINUS", (_VALUE,), Type.NUMBER, "minus the integer", compute=_integers(builtins.minus)),
    _function(
        "NOT",
        (_VALUE,),
        Type.BOOLEAN,
        "NOT of a boolean, or of 'true' or 'false'",
        compute=_not,
        implied=_not_implied,
    ),
    _function(
        "EQUAL",
        (_LEFT, _RIGHT),
        Type.BOOLEAN,
        "whether left, cast to the type of right, is equal to it",
        compute=_equal,
    ),
    _function(
        "IN",
        (_VALUE, Parameter("item", Type.ANY, repeated=True)),
        Type.BOOLEAN,
        "whether an item, cast to the value's type, is equal to it; compares from left to right",
        compute=_in,
        implied=_in_implied,
        takes_null=True,
    ),
]
