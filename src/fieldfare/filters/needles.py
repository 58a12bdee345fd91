"""Needles: texts that a string must contain to match a pattern, so that an index can search for them.

No set of ranges expresses ``title LIKE '%storm%'``. A needle does: the attribute is a string that contains a
literal: anywhere, at its beginning or at its end. The search may also ignore case, in the string that
``str.casefold`` returns; this covers LOWER and UPPER too:

    casefold(lower(text)) = casefold(text)        for every text
    casefold(upper(text)) = casefold(text)        unless the text has a dotless i, which becomes an I

Both work character by character (a test checks all of Unicode), so a literal in ``UPPER(text)`` is cut at
each I. A pattern may have several literals or pieces: the one with most letters is its needle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fieldfare.filters.expression import (
    Attribute,
    Call,
    Comparison,
    Expression,
    Like,
    Literal,
    Pattern,
    Wild,
)
from fieldfare.model import Path

FOLDED, AT_START, AT_END = 1, 2, 4
"""Bits of a needle's kind: found in the casefolded string; only at its beginning; only at its end."""

NEEDLE_BYTES_MAX = 200
"""Maximum UTF-8 bytes of a needle; a longer literal is cut, and its piece is still necessary for a match."""
NEEDLES_MAX = 8
"""Maximum needles of a conjunction; of more, the longest are kept and the conjunction is not exact."""

_CUT_IN_CAPITALS = "I"
_CUT_IN_PARTS = "ı"


class Needle(NamedTuple):
    """A text that an attribute must contain; the attribute must be a string.

    Attributes
    ----------
    path
        The attribute.
    text
        The literal, never empty; casefolded if the kind is FOLDED.
    kind
        The sum of some of FOLDED, AT_START and AT_END.
    """

    path: Path
    text: str
    kind: int

    def is_in(self, value: object) -> bool:
        """Return whether a value is a string that contains the needle."""
        if not isinstance(value, str):
            return False
        if self.kind & FOLDED:
            value = value.casefold()
        if self.kind & AT_START and self.kind & AT_END:
            return value == self.text
        if self.kind & AT_START:
            return value.startswith(self.text)
        return value.endswith(self.text) if self.kind & AT_END else self.text in value


Found = tuple[Needle, bool]
"""A needle that is necessary for a predicate to be true, and whether it is also sufficient."""


def needle_of(e: Expression) -> Found | None:
    """Return the needle of a predicate; None if it has none, or if a range of strings is more selective."""
    if isinstance(e, Like):
        return _of_pattern(e.operand, e.pattern)
    if isinstance(e, Comparison) and e.operator == "=":
        operand, literal = (e.right, e.left) if isinstance(e.left, Literal) else (e.left, e.right)
        if isinstance(operand, Call) and isinstance(literal, Literal) and isinstance(literal.value, str):
            return _of_pattern(operand, (literal.value,))
        return None
    if isinstance(e, Call) and e.function in _IGNORING_CASE:
        text, part = e.operands
        if isinstance(text, Attribute) and isinstance(part, Literal) and isinstance(part.value, str):
            kind = _IGNORING_CASE[e.function]
            return _inexact(_best(text.path, _pieces(part.value, kind, _CUT_IN_PARTS), True))
    return None


_IGNORING_CASE = {
    "EQUALS_IGNORE_CASE": AT_START | AT_END,
    "STARTS_WITH_IGNORE_CASE": AT_START,
    "ENDS_WITH_IGNORE_CASE": AT_END,
}
_SHORTENED = frozenset(["TRIM", "LTRIM", "RTRIM", "SUBSTRING", "LEFT", "RIGHT"])
"""Functions that return a part of their first operand."""
_CASES = {"CASEFOLD": "", "LOWER": "", "UPPER": _CUT_IN_CAPITALS}
"""Functions that change the case, each with the character at which a literal must be cut."""


def _of_pattern(operand: Expression, pattern: Pattern) -> Found | None:
    cut, case = "", ""
    if isinstance(operand, Call) and operand.function in _CASES:
        case, cut = operand.function, _CASES[operand.function]
        operand = operand.operands[0]
    whole = isinstance(operand, Attribute)
    while isinstance(operand, Call) and operand.function in _SHORTENED:
        operand = operand.operands[0]
    if not isinstance(operand, Attribute):
        return None
    pieces: list[tuple[str, int]] = []
    last = len(pattern) - 1
    for place, part in enumerate(pattern):
        if isinstance(part, Wild):
            continue
        kind = (AT_START if place == 0 else 0) | (AT_END if place == last else 0)
        pieces += _pieces(part, kind if whole else 0, cut)
    if case == "CASEFOLD" and any(text.casefold() != text for text, _ in pieces):
        return None
    found = _best(operand.path, pieces, bool(case))
    if found is None:
        return None
    literals = [part for part in pattern if isinstance(part, str)]
    is_exact = (
        whole
        and case in ("", "CASEFOLD")
        and len(literals) == 1
        and found.text == literals[0]
        and Wild.ONE not in pattern
    )
    if not case and is_exact and found.kind & AT_START:
        return None  # a range of strings expresses it
    return found, is_exact


def _pieces(text: str, kind: int, cut: str) -> list[tuple[str, int]]:
    """Split a literal at the character `cut`; return the pieces with their kinds."""
    if not cut or cut not in text:
        return [(text, kind)]
    parts = text.split(cut)
    places = [0] * len(parts)
    places[0] |= kind & AT_START
    places[-1] |= kind & AT_END
    return list(zip(parts, places, strict=True))


def _inexact(needle: Needle | None) -> Found | None:
    return None if needle is None else (needle, False)


def _best(path: Path, pieces: Sequence[tuple[str, int]], fold: bool) -> Needle | None:
    """Return the needle of the piece with most letters, which is probably the rarest."""
    needles = [
        Needle(path, *_shortened(text.casefold() if fold else text, kind | (FOLDED if fold else 0)))
        for text, kind in pieces
        if text
    ]
    return max(needles, key=lambda needle: letters_in(needle.text) + (needle.kind > 1), default=None)


def letters_in(text: str) -> int:
    """Return the length of a text as a measure of its rarity; an ideograph counts as two letters."""
    return len(text) if text.isascii() else sum(1 + (character >= "\u0800") for character in text)


def _shortened(text: str, kind: int) -> tuple[str, int]:
    if len(text.encode("utf-8", "surrogatepass")) <= NEEDLE_BYTES_MAX:
        return text, kind
    most = NEEDLE_BYTES_MAX // 4  # characters of any width
    if kind & AT_END and not kind & AT_START:
        return text[-most:], kind
    return text[:most], kind & ~AT_END
