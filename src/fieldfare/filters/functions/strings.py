"""Functions over strings. Positions count from 1, as in SQL; a result that is too long has no value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from itertools import takewhile

from fieldfare.filters.expression import Expression, Like, Literal, Wild
from fieldfare.filters.functions import cases
from fieldfare.filters.functions.table import CHARACTERS_MAX, Function, Parameter, Requirements, Type
from fieldfare.filters.patterns import PATTERN_CHARACTERS_MAX, contains, find, searchable
from fieldfare.filters.values import NO_VALUES, ValueSet

_TEXT = Parameter("text", Type.STRING)
_PART = Parameter("part", Type.STRING)
_CHARACTERS = Parameter("characters", Type.STRING, optional=True)
_COUNT = Parameter("count", Type.NUMBER)

Number = int | Fraction

_TRIMMED_MAX = 16
"""Maximum characters to trim that each character of a text is compared with; more are looked up."""


def concat(*texts: str) -> str | None:
    return "".join(texts) if sum(map(len, texts)) <= CHARACTERS_MAX else None


def replace(text: str, old: str, new: str) -> str | None:
    if not old:
        return text
    searched = searchable(text, old)
    size = len(text) + searched.count(old) * (len(new) - len(old))
    return searched.replace(old, new)[:size] if size <= max(CHARACTERS_MAX, len(text)) else None


def substring(text: str, start: Number, count: Number | None = None) -> str | None:
    """Return the characters at positions from ``start`` on; positions before 1 count, but have no characters.

    None if ``start`` or ``count`` is not a whole number, or ``count`` is negative.
    """
    if type(start) is not int or (count is not None and (type(count) is not int or count < 0)):
        return None
    end = len(text) if count is None else min(len(text), start - 1 + count)
    return text[max(0, start - 1) : max(0, end)]


def left(text: str, count: Number) -> str | None:
    return text[:count] if type(count) is int and count >= 0 else None


def right(text: str, count: Number) -> str | None:
    return text[max(0, len(text) - count) :] if type(count) is int and count >= 0 else None


def position(part: str, text: str) -> int:
    return find(text, part, 0, len(text)) + 1


def trim(text: str, characters: str = " ") -> str:
    return right_trim(left_trim(text, characters), characters)


def left_trim(text: str, characters: str = " ") -> str:
    if len(characters) <= _TRIMMED_MAX:
        return text.lstrip(characters) if characters else text
    return text[_leading(text, characters) :]


def right_trim(text: str, characters: str = " ") -> str:
    if len(characters) <= _TRIMMED_MAX:
        return text.rstrip(characters) if characters else text
    return text[: len(text) - _leading(reversed(text), characters)]


def _leading(text: Iterable[str], characters: str) -> int:
    """Return how many characters at the beginning of a text are among others, in linear time."""
    return sum(1 for _ in takewhile(frozenset(characters).__contains__, text))


def _pattern(before: bool, after: bool) -> Callable[[tuple[Expression, ...]], Expression | None]:
    """Return an expansion of a search for a literal to LIKE."""

    def expand(operands: tuple[Expression, ...]) -> Expression | None:
        text, part = operands
        if not isinstance(part, Literal) or not isinstance(part.value, str):
            return None
        if len(part.value) > PATTERN_CHARACTERS_MAX:
            return None
        pieces: list[str | Wild] = [Wild.RUN] if before else []
        if part.value:
            pieces.append(part.value)
        if after and not (pieces and pieces[-1] is Wild.RUN):
            pieces.append(Wild.RUN)
        return Like(text, tuple(pieces))

    return expand


def _with_numbers(
    least: int, implied: Callable[[tuple[Expression, ...], ValueSet], Requirements | None] | None = None
) -> Callable[[tuple[Expression, ...], ValueSet], Requirements | None]:
    """Return a function that gives the texts for which a part is in a set.

    No text is, where a literal is no valid position or count.

    Parameters
    ----------
    least
        Index of the first operand that must not be negative.
    implied
        Gives the texts for valid operands.
    """

    def implied_by_part(operands: tuple[Expression, ...], wanted: ValueSet) -> Requirements | None:
        for place, operand in enumerate(operands[1:], 1):
            if isinstance(operand, Literal) and not _is_whole(operand.value, 0 if place >= least else None):
                return [(operands[0], NO_VALUES)], True
        return implied(operands, wanted) if implied else None

    return implied_by_part


def _is_whole(value: object, least: int | None) -> bool:
    return type(value) is int and (least is None or value >= least)


def _beginning(operands: tuple[Expression, ...], wanted: ValueSet) -> Requirements | None:
    """Return the texts whose first characters are in a set, and whether the set is exact."""
    targets = cases.targets_of(wanted.strings)
    if targets is None or (len(operands) == 3 and operands[1] != Literal(1)):
        return None
    starts = cases.covering([(text, True) for text, _ in targets if text])
    if any(not text for text, _ in targets):
        return None
    count = operands[-1].value if isinstance(operands[-1], Literal) else None
    is_enough = (
        type(count) is int
        and cases.covering(targets) == wanted.strings
        and all(len(text) <= count if is_prefix else len(text) == count for text, is_prefix in targets)
    )
    return [(operands[0], ValueSet(strings=starts))], is_enough


def _function(
    name: str, parameters: tuple[Parameter, ...], result: Type, summary: str, compute: Callable[..., object]
) -> Function:
    return Function(
        name=name,
        parameters=parameters,
        result=result,
        summary=summary,
        group="Strings",
        compute=compute,
        expand=_EXPANDED.get(name),
        implied=_IMPLIED.get(name),
    )


_EXPANDED = {
    "STARTS_WITH": _pattern(False, True),
    "ENDS_WITH": _pattern(True, False),
    "CONTAINS": _pattern(True, True),
}
_IMPLIED: dict[str, Callable[[tuple[Expression, ...], ValueSet], Requirements | None]] = {
    "LOWER": cases.implied(cases.lower),
    "UPPER": cases.implied(cases.upper),
    "CASEFOLD": cases.implied(cases.fold),
    "LEFT": _with_numbers(1, _beginning),
    "RIGHT": _with_numbers(1),
    "SUBSTRING": _with_numbers(
        2, lambda operands, wanted: _beginning(operands, wanted) if len(operands) == 3 else None
    ),
}

FUNCTIONS = [
    _function("LENGTH", (_TEXT,), Type.NUMBER, "the number of characters (code points) of the text", len),
    _function("LOWER", (_TEXT,), Type.STRING, "the text in lower case, by Unicode's rules", cases.lower),
    _function("UPPER", (_TEXT,), Type.STRING, "the text in upper case, by Unicode's rules", cases.upper),
    _function(
        "CASEFOLD",
        (_TEXT,),
        Type.STRING,
        "the text without differences of case, by Unicode's rules: `ß` and `SS` become `ss`",
        cases.fold,
    ),
    _function(
        "TRIM",
        (_TEXT, _CHARACTERS),
        Type.STRING,
        "the text without spaces (or any of these characters) at both ends",
        trim,
    ),
    _function("LTRIM", (_TEXT, _CHARACTERS), Type.STRING, "as TRIM, at the beginning only", left_trim),
    _function("RTRIM", (_TEXT, _CHARACTERS), Type.STRING, "as TRIM, at the end only", right_trim),
    _function(
        "SUBSTRING",
        (_TEXT, Parameter("start", Type.NUMBER), Parameter("count", Type.NUMBER, optional=True)),
        Type.STRING,
        "the characters from position `start` on, at most `count`",
        substring,
    ),
    _function("LEFT", (_TEXT, _COUNT), Type.STRING, "the first `count` characters", left),
    _function("RIGHT", (_TEXT, _COUNT), Type.STRING, "the last `count` characters", right),
    _function(
        "CONCAT",
        (_TEXT, Parameter("text", Type.STRING, repeated=True)),
        Type.STRING,
        "the texts joined; `a || b` means the same",
        concat,
    ),
    _function(
        "REPLACE",
        (_TEXT, Parameter("old", Type.STRING), Parameter("new", Type.STRING)),
        Type.STRING,
        "the text with each `old`, from left to right, replaced by `new`",
        replace,
    ),
    _function(
        "POSITION",
        (_PART, _TEXT),
        Type.NUMBER,
        "the position of the first occurrence of the part in the text, or 0; also `POSITION(part IN text)`",
        position,
    ),
    _function(
        "STARTS_WITH", (_TEXT, _PART), Type.BOOLEAN, "whether the text starts with the part", str.startswith
    ),
    _function("ENDS_WITH", (_TEXT, _PART), Type.BOOLEAN, "whether the text ends with the part", str.endswith),
    _function(
        "CONTAINS",
        (_TEXT, _PART),
        Type.BOOLEAN,
        "whether the text contains the part",
        contains,
    ),
]
