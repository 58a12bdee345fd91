"""Simple filters of the ``sql`` dialect, read a predicate at a time by one regular expression.

Most filters of a service are written by programs: attributes compared with literals, joined by AND. Such
a filter needs no parser, and its normal form is one conjunction that can be written down directly. What
is recognised here means exactly what the parser says that it means; whatever is not certain, every
mistake above all, is left to the parser.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

from fieldfare.filters.encoding import encode_layout
from fieldfare.filters.expression import And, Attribute, Between, Comparison, Expression, In, Literal
from fieldfare.filters.sql.lexer import KEYWORDS
from fieldfare.filters.sql.mistakes import MISTAKEN_NAMES
from fieldfare.filters.sql.paths import unquoted
from fieldfare.model import Path

MAX_CHARACTERS = 4_096
"""A longer text is left to the parser, and its normal form to the budget that bounds these."""
MAX_PREDICATES = 256
"""More of them are left to the parser, which counts what a filter is made of."""
KNOWN_CHARACTERS = 64
"""Names that are no longer are remembered, so many that clients fill no more than 15 MB."""

_NUMBER = r"-?(?:0|[1-9][0-9]{0,17}+)(?:\.[0-9]{1,18}+)?(?![\w.])"
_STRING = r"'[^']*+(?:''[^']*+)*+'"
_LITERAL = rf"(?:{_NUMBER}|{_STRING})"
_PREDICATE = re.compile(
    rf"""\s*+(?:
      ([^\W\d]\w*+(?:\.[^\W\d]\w*+)*+)\s*+
      (?:
        (?ai:BETWEEN)\s++({_NUMBER})\s++(?ai:AND)\s++({_NUMBER})
      | (<=|>=|<>|!=|=|<|>)\s*+(?:({_NUMBER})|({_STRING}))
      | (?ai:IN)\s*+\(\s*+({_LITERAL}(?:\s*+,\s*+{_LITERAL})*+)\s*+\)
      )
      \s*+(?:(?<=[\s)'])((?ai:AND))\b|\Z)
    | (.)
    )""",
    re.VERBOSE | re.DOTALL,
)
_LITERALS = re.compile(rf"({_STRING})|({_NUMBER})")

_Found = tuple[str, str, str, str, str, str, str, str, str]
"""Path, the bounds of BETWEEN, operator, number, string, the list of IN, AND, and what is none of it."""
_Constant = int | Decimal | str

_CUTS: dict[str, tuple[bool, tuple[int, ...]]] = {
    "=": (False, (0, 1)),
    "<>": (True, (0, 1)),
    "!=": (True, (0, 1)),
    "<": (True, (0,)),
    "<=": (True, (1,)),
    ">": (False, (1,)),
    ">=": (False, (0,)),
}
"""For each comparison with a constant: whether the least values are in, and the cuts' sides."""
_NONE = (False, ())


class SimpleFilter:
    """A conjunction of predicates, each of an attribute and literals; see `read_simple`."""

    __slots__ = ("_found",)

    def __init__(self, found: Sequence[_Found]) -> None:
        self._found = found

    def expression(self) -> Expression:
        """What the parser makes of the same text."""
        operands: list[Expression] = []
        for path, low, high, operator, number, string, items, _, _ in self._found:
            attribute = Attribute(_path(path))  # type: ignore[arg-type]
            if low:
                operands.append(Between(attribute, Literal(_number(low)), Literal(_number(high))))
            elif operator:
                constant = _number(number) if number else unquoted(string)
                operands.append(
                    Comparison("<>" if operator == "!=" else operator, attribute, Literal(constant))
                )
            else:
                operands.append(In(attribute, tuple(map(Literal, _items(items)))))
        return operands[0] if len(operands) == 1 else And(tuple(operands))

    def encoded(self) -> bytes | None:
        """The normal form as bytes; None where it takes more than to write it down."""
        constraints: dict[Path, Any] = {}
        never = False
        for path, low, high, operator, number, string, items, _, _ in self._found:
            numbers: Any = _NONE
            strings: Any = _NONE
            if low:
                first, last = _number(low), _number(high)
                never |= first > last
                numbers = False, ((_written(first), 0), (_written(last), 1))
            elif number:
                value = _written(_number(number))
                inside, sides = _CUTS[operator]
                numbers = inside, [(value, side) for side in sides]
            elif string == "''":  # nothing is less than it
                return None
            elif string:
                text = unquoted(string)
                inside, sides = _CUTS[operator]
                strings = inside, [(text, side) for side in sides]
            else:
                constants = set(_items(items))
                numbers = False, _points([c for c in constants if not isinstance(c, str)])
                strings = False, _points([c for c in constants if isinstance(c, str)])
            steps = _path(path)
            if steps in constraints:
                return None
            constraints[steps] = steps, 0, numbers, strings  # type: ignore[index]
        ordered = [constraints[steps] for steps in sorted(constraints)]
        return encode_layout([] if never else [(True, ordered)])

    def cost(self) -> int:
        """What `cost_of` says of it, as its text says it: a list's values are counted as they are written."""
        return sum([1 + (len(_LITERALS.findall(each[6])) - 1) // 2 if each[6] else 1 for each in self._found])


def read_simple(text: str) -> SimpleFilter | None:
    """A filter that is simple; None for any other, and for one that cannot be read."""
    if len(text) > MAX_CHARACTERS or not _is_utf8(text):
        return None
    found = _PREDICATE.findall(text)
    if not found or len(found) > MAX_PREDICATES or found[-1][7]:
        return None
    for each in found:
        if each[8] or _path(each[0]) is None:
            return None
    return SimpleFilter(found)


def _is_utf8(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _path(text: str) -> Path | None:
    """The path that a name, or names with dots between, stand for; None if the parser has a word on it."""
    return _path_known(text) if len(text) <= KNOWN_CHARACTERS else _path_read(text)


def _path_read(text: str) -> Path | None:
    path = tuple(text.split("."))
    if path[0].upper() in KEYWORDS or len(path) > 32:
        return None
    return None if text.lower() in MISTAKEN_NAMES else path


_path_known = lru_cache(4_096)(_path_read)


def _number(text: str) -> int | Decimal:
    """The exact value: an int if it is whole."""
    if "." not in text:
        return int(text)
    text = text.rstrip("0")
    return int(text[:-1]) if text[-1] == "." else Decimal(text)


def _written(number: int | Decimal) -> int | str:
    """A number as encoded normal forms have it."""
    return number if isinstance(number, int) else str(number)


def _items(text: str) -> list[_Constant]:
    return [unquoted(string) if string else _number(number) for string, number in _LITERALS.findall(text)]


def _points(values: list[Any]) -> list[tuple[Any, int]]:
    values.sort()
    written = values if values and isinstance(values[0], str) else list(map(_written, values))
    return [(value, side) for value in written for side in (0, 1)]
