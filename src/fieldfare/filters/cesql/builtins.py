"""The operators and functions of CESQL over values of the right types (3.4, 3.5).

Each returns its result, or a ``Failure`` where the specification has an error: the kind of the error
and the value that is returned with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from fieldfare.filters.cesql.values import INTEGER_MAX, INTEGER_MIN, CesqlType, Value

RESULT_CHARACTERS_MAX = 1 << 20
"""Maximum characters of the result of CONCAT and CONCAT_WS; a longer result is an error."""

WHITESPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006"
    "\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
"""Characters that TRIM removes: Unicode's White_Space. Python's ``strip`` removes control characters too."""


class Failure(NamedTuple):
    """An error, and the value that is returned with it."""

    kind: str
    value: Value


def _bounded(result: int) -> int | Failure:
    """Return a result, or a math error if it does not fit in 32 bits; it does not wrap around."""
    return result if INTEGER_MIN <= result <= INTEGER_MAX else Failure("math", 0)


def add(left: int, right: int) -> int | Failure:
    """Return ``x + y``."""
    return _bounded(left + right)


def subtract(left: int, right: int) -> int | Failure:
    """Return ``x - y``."""
    return _bounded(left - right)


def multiply(left: int, right: int) -> int | Failure:
    """Return ``x * y``."""
    return _bounded(left * right)


def divide(left: int, right: int) -> int | Failure:
    """Return ``x / y``, rounded towards 0."""
    if right == 0:
        return Failure("math", 0)
    quotient = abs(left) // abs(right)
    return _bounded(quotient if (left < 0) == (right < 0) else -quotient)


def remainder(left: int, right: int) -> int | Failure:
    """Return ``x % y``, with the sign of x."""
    if right == 0:
        return Failure("math", 0)
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def minus(operand: int) -> int | Failure:
    """Return ``-x``."""
    return _bounded(-operand)


ARITHMETIC: dict[str, Callable[[int, int], int | Failure]] = {
    "+": add,
    "-": subtract,
    "*": multiply,
    "/": divide,
    "%": remainder,
}

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda left, right: bool(left == right),
    "<>": lambda left, right: bool(left != right),
    "<": lambda left, right: bool(left < right),
    "<=": lambda left, right: bool(left <= right),
    ">": lambda left, right: bool(left > right),
    ">=": lambda left, right: bool(left >= right),
}


def absolute(operand: int) -> int | Failure:
    """ABS: the least integer has no opposite, and gives an error and the greatest integer."""
    return Failure("math", INTEGER_MAX) if operand == INTEGER_MIN else abs(operand)


def concat(*texts: str) -> str | Failure:
    """CONCAT."""
    return concat_with("", *texts)


def concat_with(delimiter: str, *texts: str) -> str | Failure:
    """CONCAT_WS."""
    length = sum(map(len, texts)) + len(delimiter) * max(0, len(texts) - 1)
    return delimiter.join(texts) if length <= RESULT_CHARACTERS_MAX else Failure("functionEvaluation", "")


def trim(text: str) -> str:
    """TRIM."""
    return text.strip(WHITESPACE)


def left(text: str, count: int) -> str | Failure:
    """LEFT."""
    return text[:count] if count >= 0 else Failure("functionEvaluation", text)


def right(text: str, count: int) -> str | Failure:
    """RIGHT."""
    return text[max(0, len(text) - count) :] if count >= 0 else Failure("functionEvaluation", text)


def substring(text: str, position: int, length: int | None = None) -> str | Failure:
    """SUBSTRING: positions count from 1, negative ones from the end; for 0 the result is empty."""
    if not -len(text) <= position <= len(text) or (length is not None and length < 0):
        return Failure("functionEvaluation", "")
    if position == 0:
        return ""
    start = position - 1 if position > 0 else len(text) + position
    return text[start:] if length is None else text[start : start + length]


@dataclass(frozen=True, slots=True)
class Builtin:
    """A function of CESQL.

    Attributes
    ----------
    parameters
        The types of its parameters.
    result
        The type of its result.
    compute
        The function; None for a cast to ``result``.
    required
        The minimum number of arguments.
    repeated
        Whether the last parameter may occur any number of times, zero included.
    """

    parameters: tuple[CesqlType, ...]
    result: CesqlType
    compute: Callable[..., Value | Failure] | None
    required: int
    repeated: bool = False

    def takes(self, count: int) -> bool:
        """Return whether the function can be called with `count` arguments."""
        return count >= self.required and (self.repeated or count <= len(self.parameters))

    def parameter(self, place: int) -> CesqlType:
        """Return the type of the argument at an index, counted from 0."""
        return self.parameters[min(place, len(self.parameters) - 1)]


_S, _I, _B = CesqlType.STRING, CesqlType.INTEGER, CesqlType.BOOLEAN

BUILTINS: dict[str, Builtin] = {
    "LENGTH": Builtin((_S,), _I, len, 1),
    "CONCAT": Builtin((_S,), _S, concat, 0, repeated=True),
    "CONCAT_WS": Builtin((_S, _S), _S, concat_with, 1, repeated=True),
    "LOWER": Builtin((_S,), _S, str.lower, 1),
    "UPPER": Builtin((_S,), _S, str.upper, 1),
    "TRIM": Builtin((_S,), _S, trim, 1),
    "LEFT": Builtin((_S, _I), _S, left, 2),
    "RIGHT": Builtin((_S, _I), _S, right, 2),
    "SUBSTRING": Builtin((_S, _I, _I), _S, substring, 2),
    "ABS": Builtin((_I,), _I, absolute, 1),
    "INT": Builtin((_I,), _I, None, 1),
    "BOOL": Builtin((_B,), _B, None, 1),
    "STRING": Builtin((_S,), _S, None, 1),
}
"""The functions of the specification, by name."""

CALLS = {
    "LENGTH": "LENGTH(text)",
    "CONCAT": "CONCAT(text, ...)",
    "CONCAT_WS": "CONCAT_WS(delimiter, text, ...)",
    "LOWER": "LOWER(text)",
    "UPPER": "UPPER(text)",
    "TRIM": "TRIM(text)",
    "LEFT": "LEFT(text, count)",
    "RIGHT": "RIGHT(text, count)",
    "SUBSTRING": "SUBSTRING(text, position) or SUBSTRING(text, position, length)",
    "ABS": "ABS(number)",
    "INT": "INT(value)",
    "BOOL": "BOOL(value)",
    "STRING": "STRING(value)",
}
"""The call of each function, for messages."""
