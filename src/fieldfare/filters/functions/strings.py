"""Functions over strings. Places count from 1, as in SQL; what would be too long has no value."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from fieldfare.filters.expression import Expression, Like, Literal, Wild
from fieldfare.filters.functions import cases
from fieldfare.filters.functions.table import MAX_CHARACTERS, Function, Parameter, Requirements, Type
from fieldfare.filters.patterns import MAX_PATTERN_CHARACTERS
from fieldfare.filters.values import NO_VALUES, ValueSet

_TEXT = Parameter("text", Type.STRING)
_PART = Parameter("part", Type.STRING)
_CHARACTERS = Parameter("characters", Type.STRING, optional=True)
_COUNT = Parameter("count", Type.NUMBER)

Number = int | Fraction


def concat(*texts: str) -> str | None:
    return "".join(texts) if sum(map(len, texts)) <= MAX_CHARACTERS else None


def replace(text: str, old: str, new: str) -> str | None:
    if not old:
        return text
    size = len(text) + text.count(old) * (len(new) - len(old))
    return text.replace(old, new) if size <= max(MAX_CHARACTERS, len(text)) else None


def substring(text: str, start: Number, count: Number | None = None) -> str | None:
    """The characters at the places from ``start`` on that the text has; places before 1 count too."""
    if type(start) is not int or (count is not None and (type(count) is not int or count < 0)):
        return None
    end = len(text) if count is None else min(len(text), start - 1 + count)
    return text[max(0, start - 1) : max(0, end)]


def left(text: str, count: Number) -> str | None:
    return text[:count] if type(count) is int and count >= 0 else None


def right(text: str, count: Number) -> str | None:
    return text[max(0, len(text) - count) :] if type(count) is int and count >= 0 else None


def position(part: str, text: str) -> int:
    return text.find(part) + 1


def trim(text: str, characters: str = " ") -> str:
    return text.strip(characters) if characters else text


def left_trim(text: str, characters: str = " ") -> str:
    return text.lstrip(characters) if characters else text


def right_trim(text: str, characters: str = " ") -> str:
    return text.rstrip(characters) if characters else text


def _pattern(before: bool, after: bool) -> Callable[[tuple[Expression, ...]], Expression | None]:
    """The LIKE that a search for a literal is."""

    def expand(operands: tuple[Expression, ...]) -> Expression | None:
        text, part = operands
        if not isinstance(part, Literal) or not isinstance(part.value, str):
            return None
        if len(part.value) > MAX_PATTERN_CHARACTERS:
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
    """What a text must be for a part of it: nothing will do where a literal is no place or no count.

    Parameters
    ----------
    least
        Which operand is the first that must not be below 0.
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
    """What a text must be for its first characters to lie in a set: it starts with what they start with."""
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
    _function("LENGTH", (_TEXT,), Type.NUMBER, "how many characters (code points) the text has", len),
    _function("LOWER", (_TEXT,), Type.STRING, "the text in lower case, by Unicode's rules", cases.lower),
    _function("UPPER", (_TEXT,), Type.STRING, "the text in capitals, by Unicode's rules", cases.upper),
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
    _function("LTRIM", (_TEXT, _CHARACTERS), Type.STRING, "the same, at the beginning only", left_trim),
    _function("RTRIM", (_TEXT, _CHARACTERS), Type.STRING, "the same, at the end only", right_trim),
    _function(
        "SUBSTRING",
        (_TEXT, Parameter("start", Type.NUMBER), Parameter("count", Type.NUMBER, optional=True)),
        Type.STRING,
        "the characters from the place `start` on, at most `count`",
        substring,
    ),
    _function("LEFT", (_TEXT, _COUNT), Type.STRING, "the first characters", left),
    _function("RIGHT", (_TEXT, _COUNT), Type.STRING, "the last characters", right),
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
        "the place at which the part starts first in the text, or 0; also `POSITION(part IN text)`",
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
        "whether the part is somewhere in the text",
        str.__contains__,
    ),
]
