"""Patterns of literal text and wildcards, as in LIKE, matched in linear time.

A RUN (``%``) matches any text, so the pieces between RUNs are searched one after the other, each at
the first place where it fits after the previous one: a later place could only leave less text for the
rest. A piece without inner wildcards is found by ``str.find``; one with a ``_`` inside by the Shift-And
algorithm, which is linear too since patterns are bounded.
"""

from __future__ import annotations

from collections.abc import Callable

from fieldfare.filters.expression import Pattern, Wild

PATTERN_CHARACTERS_MAX = 4_096
"""Maximum characters of a LIKE pattern; longer ones are rejected."""

Piece = tuple[str | Wild, ...]
"""Part of a pattern between two RUNs: literals and ONEs."""


def parse_like(text: str, escape: str | None) -> Pattern:
    """Parse a LIKE pattern; raise ValueError if an escape is not followed by a special character."""
    parts: list[str | Wild] = []
    literal = ""
    characters = iter(text)
    for character in characters:
        if character == escape:
            escaped = next(characters, "")
            if escaped not in ("%", "_", escape):
                raise ValueError(f"after the escape character {escape} only %, _ or {escape} may follow")
            literal += escaped
        elif character in "%_":
            if literal:
                parts.append(literal)
                literal = ""
            if not (character == "%" and parts and parts[-1] is Wild.RUN):
                parts.append(Wild(character))
        else:
            literal += character
    if literal:
        parts.append(literal)
    return tuple(parts)


def folded(pattern: Pattern) -> Pattern:
    """Return a pattern with its literals casefolded."""
    return tuple([part if isinstance(part, Wild) else part.casefold() for part in pattern])


def format_like(pattern: Pattern) -> tuple[str, str | None]:
    r"""Return the text of a pattern for LIKE, and its escape character: ``\``, or None if it needs none."""
    special = any(isinstance(part, str) and ("%" in part or "_" in part) for part in pattern)
    text = ""
    for part in pattern:
        if isinstance(part, Wild):
            text += part.value
        elif special:
            text += part.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        else:
            text += part
    return text, "\\" if special else None


_PAIRS_MAX = 1 << 13
"""Maximum product of the characters of a text and of a part for which any search is quick enough."""
_LONG_TEXT = 30_000
"""Characters from which on Python searches in linear time (Crochemore and Perrin 1991)."""


def find(text: str, part: str, start: int, end: int) -> int:
    """Return where a part first occurs in ``text[start:end]``, or -1, in linear time."""
    if (end - start) * len(part) <= _PAIRS_MAX or end - start >= _LONG_TEXT:
        return text.find(part, start, end)
    found = searchable(text[start:end], part).find(part)
    return start + found if found >= 0 else -1


def contains(text: str, part: str) -> bool:
    """Return whether a text contains a part, in linear time."""
    return part in searchable(text, part)


def searchable(text: str, part: str) -> str:
    """Return a text, longer if need be, in which Python finds the same occurrences of a part in linear time.

    It compares each place of a short text with a long part. No occurrence ends in the characters added.
    """
    if len(text) * len(part) <= _PAIRS_MAX or len(text) >= _LONG_TEXT:
        return text
    return text + ("\0" if part[-1] != "\0" else "\1") * (_LONG_TEXT + 3 * len(part))


def matcher_of(pattern: Pattern) -> Callable[[str], bool]:
    """Return a function that tests whether an entire string matches a pattern."""
    pieces = _pieces(pattern)
    if all(len(piece) <= 1 and not (piece and piece[0] is Wild.ONE) for piece in pieces):
        texts = [str(piece[0]) if piece else "" for piece in pieces]
        if len(texts) == 1:
            return texts[0].__eq__
        if len(texts) == 2:
            return _between(texts[0], texts[1])
        if len(texts) == 3 and not texts[0] and not texts[2]:
            return _containing(texts[1])
    return _general(pieces)


def _pieces(pattern: Pattern) -> list[Piece]:
    pieces: list[list[str | Wild]] = [[]]
    for part in pattern:
        if part is Wild.RUN:
            pieces.append([])
        else:
            pieces[-1].append(part)
    return [tuple(piece) for piece in pieces]


def _between(prefix: str, suffix: str) -> Callable[[str], bool]:
    if not suffix:
        return lambda text: text.startswith(prefix)
    if not prefix:
        return lambda text: text.endswith(suffix)
    least = len(prefix) + len(suffix)
    return lambda text: len(text) >= least and text.startswith(prefix) and text.endswith(suffix)


def _containing(part: str) -> Callable[[str], bool]:
    return lambda text: contains(text, part)


def _general(pieces: list[Piece]) -> Callable[[str], bool]:
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        size = _length(first)
        return lambda text: len(text) == size and _fits(first, text, 0)
    first_size, last_size = _length(first), _length(last)
    finders = [_finder(piece) for piece in pieces[1:-1] if piece]

    def matches(text: str) -> bool:
        end = len(text) - last_size
        if end < first_size or not _fits(first, text, 0) or not _fits(last, text, end):
            return False
        position = first_size
        for find in finders:
            position = find(text, position, end)
            if position < 0:
                return False
        return True

    return matches


def _length(piece: Piece) -> int:
    return sum(len(part) if isinstance(part, str) else 1 for part in piece)


def _fits(piece: Piece, text: str, position: int) -> bool:
    """Return whether a piece matches at a position of a text; the text must be long enough."""
    for part in piece:
        if isinstance(part, str):
            if not text.startswith(part, position):
                return False
            position += len(part)
        else:
            position += 1
    return True


Finder = Callable[[str, int, int], int]
"""(text, from, to) -> end of the first match of a piece in ``text[from:to]``, or -1."""


def _finder(piece: Piece) -> Finder:
    literals = [part for part in piece if isinstance(part, str)]
    size = _length(piece)
    if not literals:
        return lambda text, start, end: start + size if start + size <= end else -1
    if len(literals) > 1:
        return _shifting_finder(piece, size)
    literal = literals[0]
    lead = piece.index(literal)
    trail = size - lead - len(literal)

    def find_literal(text: str, start: int, end: int) -> int:
        found = find(text, literal, start + lead, end - trail) if start + size <= end else -1
        return found + len(literal) + trail if found >= 0 else -1

    return find_literal


def _shifting_finder(piece: Piece, size: int) -> Finder:
    """Return a Shift-And finder (Baeza-Yates and Gonnet 1992): bit i: the last i + 1 characters match."""
    anything = 0
    masks: dict[str, int] = {}
    place = 0
    for part in piece:
        for character in part if isinstance(part, str) else "_":
            if isinstance(part, str):
                masks[character] = masks.get(character, 0) | 1 << place
            else:
                anything |= 1 << place
            place += 1
    masks = {character: mask | anything for character, mask in masks.items()}
    goal = 1 << size - 1

    def find(text: str, start: int, end: int) -> int:
        state = 0
        for position in range(start, end):
            state = (state << 1 | 1) & masks.get(text[position], anything)
            if state & goal:
                return position + 1
        return -1

    return find
