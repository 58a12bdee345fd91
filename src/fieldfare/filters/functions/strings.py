"""Functions over strings."""

from __future__ import annotations

from collections.abc import Callable

from fieldfare.filters.expression import Expression, Like, Literal, Wild
from fieldfare.filters.functions.table import Function, Parameter, Type
from fieldfare.filters.patterns import MAX_PATTERN_CHARACTERS

_TEXT = Parameter("text", Type.STRING)


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


FUNCTIONS = [
    Function(
        name="LENGTH",
        parameters=(_TEXT,),
        result=Type.NUMBER,
        summary="how many characters (code points) the text has",
        group="Strings",
        compute=len,
    ),
    Function(
        name="LOWER",
        parameters=(_TEXT,),
        result=Type.STRING,
        summary="the text in lower case, by Unicode's rules, whatever the language",
        group="Strings",
        compute=str.lower,
    ),
    Function(
        name="UPPER",
        parameters=(_TEXT,),
        result=Type.STRING,
        summary="the text in capitals, by Unicode's rules, whatever the language",
        group="Strings",
        compute=str.upper,
    ),
    Function(
        name="STARTS_WITH",
        parameters=(_TEXT, Parameter("part", Type.STRING)),
        result=Type.BOOLEAN,
        summary="whether the text starts with the part",
        group="Strings",
        compute=str.startswith,
        expand=_pattern(False, True),
    ),
    Function(
        name="ENDS_WITH",
        parameters=(_TEXT, Parameter("part", Type.STRING)),
        result=Type.BOOLEAN,
        summary="whether the text ends with the part",
        group="Strings",
        compute=str.endswith,
        expand=_pattern(True, False),
    ),
    Function(
        name="CONTAINS",
        parameters=(_TEXT, Parameter("part", Type.STRING)),
        result=Type.BOOLEAN,
        summary="whether the part is somewhere in the text",
        group="Strings",
        compute=str.__contains__,
        expand=_pattern(True, True),
    ),
]
