"""The functions that are computed by columns, with their kernels and costs."""

from __future__ import annotations

from typing import NamedTuple

from fieldfare.filters.cesql.builtins import WHITESPACE
from fieldfare.filters.expression import Scalar
from fieldfare.filters.functions.table import CHARACTERS_MAX
from fieldfare.matching.evaluation import (
    casts,
    cesql,
    cesql_kernels,
    numbers,
    places,
    string_kernels,
    strings,
    texts,
    time_kernels,
    times,
    values,
)
from fieldfare.matching.evaluation.operands import Compute


class Vector(NamedTuple):
    """The vectorized implementation of a function.

    Attributes
    ----------
    compute
        The implementation; takes `takes` operands.
    cost_ns
        The estimated cost per row in ns, without the operands.
    defaults
        The defaults of the last operands.
    takes
        The number of operands, including those with defaults.
    folds
        Whether `compute` takes two operands, and more are folded: ``f(f(a, b), c)``.
    """

    compute: Compute
    cost_ns: float
    defaults: tuple[Scalar, ...] = ()
    takes: int = 0
    folds: bool = False


_PARTS = ("TIME_OF_DAY", "WEEKDAY", "YEAR", "MONTH", "DAY", "HOUR", "MINUTE", "SECOND", "DATE")
_OPERATORS = ("ADD", "SUBTRACT", "MULTIPLY", "DIVIDE", "REMAINDER", "MINUS")

VECTORS: dict[str, Vector] = {
    "ABS": Vector(numbers.absolute, 5),
    "FLOOR": Vector(numbers.rounded_to_whole(up=False), 6),
    "CEIL": Vector(numbers.rounded_to_whole(up=True), 6),
    "ROUND": Vector(numbers.rounded, 15, (0,), 2),
    "NUMBER": Vector(numbers.read, 15),
    "COALESCE": Vector(values.first_value, 8, folds=True),
    "CASE": Vector(values.case_value, 20),
    "NULLIF": Vector(values.unless_equal, 15),
    "GREATEST": Vector(values.most(greatest=True), 25),
    "LEAST": Vector(values.most(greatest=False), 25),
    "EQUAL_NULL": Vector(values.same, 15),
    "INT": Vector(casts.whole(32), 15),
    "BIGINT": Vector(casts.whole(64), 15),
    "BOOLEAN": Vector(casts.truth, 10),
    "STRING": Vector(casts.text, 40),
    "DECIMAL": Vector(casts.decimal, 60, (10, 0), 3),
    "TIMESTAMP": Vector(times.instants, 25),
    "INTERVAL": Vector(numbers.numbers_only, 3),
    "TIME": Vector(times.since_midnight, 15),
    **{name: Vector(times.part(getattr(time_kernels, name)), 8, ("Z",), 2) for name in _PARTS},
    "LENGTH": Vector(texts.length, 10),
    "LOWER": Vector(texts.case_changed(str.lower), 15),
    "UPPER": Vector(texts.case_changed(str.upper), 15),
    "CASEFOLD": Vector(texts.case_changed(str.casefold), 15),
    "TRIM": Vector(strings.trimmed(string_kernels.BOTH_ENDS), 15, (" ",), 2),
    "LTRIM": Vector(strings.trimmed(string_kernels.LEFT_END), 10, (" ",), 2),
    "RTRIM": Vector(strings.trimmed(string_kernels.RIGHT_END), 10, (" ",), 2),
    "SUBSTRING": Vector(strings.cut(string_kernels.SUBSTRING), 20),
    "LEFT": Vector(strings.cut(string_kernels.LEFT), 15),
    "RIGHT": Vector(strings.cut(string_kernels.RIGHT), 15),
    "CONCAT": Vector(strings.joined(CHARACTERS_MAX), 40),
    "REPLACE": Vector(strings.replaced, 80),
    "POSITION": Vector(strings.position, 25),
    "STARTS_WITH": Vector(strings.searched(string_kernels.STARTS), 10),
    "ENDS_WITH": Vector(strings.searched(string_kernels.ENDS), 10),
    "CONTAINS": Vector(strings.searched(string_kernels.CONTAINS), 25),
    "EQUALS_IGNORE_CASE": Vector(strings.searched(string_kernels.EQUALS_FOLDED), 10),
    "STARTS_WITH_IGNORE_CASE": Vector(strings.searched(string_kernels.STARTS_FOLDED), 10),
    "ENDS_WITH_IGNORE_CASE": Vector(strings.searched(string_kernels.ENDS_FOLDED), 10),
    "DISTANCE_KM": Vector(places.distance, 90),
    "IN_CIDR": Vector(places.in_block, 25),
    "CESQL_INT": Vector(cesql.as_integer, 2),
    "CESQL_STRING": Vector(cesql.as_string, 2),
    "CESQL_BOOL": Vector(cesql.as_boolean, 2),
    "CESQL_NOT": Vector(cesql.negated, 3),
    "CESQL_EQUAL": Vector(cesql.equal, 8),
    "CESQL_IN": Vector(cesql.is_in, 20),
    **{f"CESQL_{name}": Vector(cesql.calculated(getattr(cesql_kernels, name)), 5) for name in _OPERATORS},
    "CESQL_ABS": Vector(cesql.calculated(cesql_kernels.ABSOLUTE), 5),
    "CESQL_LENGTH": Vector(cesql.length, 12),
    "CESQL_LOWER": Vector(cesql.lower, 17),
    "CESQL_UPPER": Vector(cesql.upper, 17),
    "CESQL_CONCAT": Vector(cesql.concatenated, 40),
    "CESQL_TRIM": Vector(cesql.of_strings(strings.trimmed(string_kernels.BOTH_ENDS)), 25, (WHITESPACE,), 2),
    "CESQL_LEFT": Vector(cesql.of_string_and_count(strings.cut(string_kernels.LEFT)), 15),
    "CESQL_RIGHT": Vector(cesql.of_string_and_count(strings.cut(string_kernels.RIGHT)), 15),
}
"""The implementations, by the function's name."""
