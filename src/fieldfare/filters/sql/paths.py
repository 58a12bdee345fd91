"""Names of attributes as text: ``data.a.b``, ``data.items[0].price``, ``data."odd name"``, ``data['a']``."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fieldfare.filters.errors import FilterError, Mistake
from fieldfare.filters.sql.lexer import KEYWORDS, Token, tokens_of
from fieldfare.model import Path, derived_text

STEPS_MAX = 64
"""Maximum steps of a path; longer ones are rejected."""

INDEX_MAX = 2**31 - 1
"""Maximum index of an array element; higher ones are rejected."""

_PLAIN = re.compile(r"[^\W\d]\w*")


def format_path(path: Path) -> str:
    """Return a path as text for ``parse_path``; for a derived column, the text of its expression."""
    derived = derived_text(path)
    if derived is not None:
        return derived
    first, *rest = path
    pieces = [_name(str(first), first=True)]
    for step in rest:
        pieces.append(f".{_name(step)}" if isinstance(step, str) else f"[{step}]")
    return "".join(pieces)


def parse_path(text: str) -> Path:
    """Parse the name of an attribute to its path; raise FilterError if it is not one."""
    tokens, problems = tokens_of(text)
    if problems:
        raise FilterError(text, problems)
    try:
        path, index = read_path(tokens, 0)
        extra = tokens[index]
        if extra.kind != "end":
            raise Mistake(extra.start, extra.end, f"unexpected {extra.text!r} after the name of an attribute")
    except Mistake as mistake:
        raise FilterError(text, [mistake.problem(text)]) from None
    return path


def read_path(tokens: Sequence[Token], index: int) -> tuple[Path, int]:
    """Parse a path from the token at ``index`` on; return it and the index after it, or raise Mistake."""
    kind, text, start = first = tokens[index]
    path: Path
    if kind == "path":
        path = tuple(text.split("."))
        if len(path) > 1 and path[0].upper() in KEYWORDS:  # type: ignore[union-attr]
            word = str(path[0])
            hint = f'to name an attribute {word}, write "{word}" in double quotes'
            raise Mistake(start, start + len(word), f"{word.upper()} is a keyword", hint)
    elif kind == "quoted":
        path = (unquoted(text),)
    else:
        hint = "for example data.price"
        if index > 1 and tokens[index - 2].text.upper() in ("ANY", "SOME", "ALL"):
            hint += "; for constants write IN (1, 2, 3)"
        raise Mistake(start, first.end, "expected the name of an attribute", hint)
    more, index = _further_steps(tokens, index + 1)
    path += more
    if len(path) > STEPS_MAX:
        message = f"the name of an attribute has at most {STEPS_MAX} steps"
        raise Mistake(start, tokens[index - 1].end, message, fatal=True)
    return path, index


def _further_steps(tokens: Sequence[Token], index: int) -> tuple[Path, int]:
    """Parse steps of a path up to an index from the end; return them and the index after them."""
    path: Path = ()
    while (kind := tokens[index].kind) in (".", "[") and len(path) <= STEPS_MAX:
        if kind == "[" and tokens[index + 1].kind == "-":
            break
        steps, index = _after_dot(tokens, index) if kind == "." else _in_brackets(tokens, index)
        path += steps
    return path, index


def read_from_end(tokens: Sequence[Token], index: int) -> tuple[int, Path, int]:
    """Parse ``[-1].price``; return the negative index, the steps after it, and the index after them."""
    start = tokens[index].start
    (place,), index = _in_brackets(tokens, index + 1, start)
    if not place:
        raise Mistake(start, tokens[index - 1].end, "[-0] is not an element", "the last is data.items[-1]")
    more, index = _further_steps(tokens, index)
    return -int(place), more, index


def unquoted(text: str) -> str:
    """Decode a quoted token: remove its quotes, and replace doubled quotes by single ones."""
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)


def _after_dot(tokens: Sequence[Token], index: int) -> tuple[Path, int]:
    name = tokens[index + 1]
    if name.kind == "path":
        return tuple(name.text.split(".")), index + 2
    if name.kind == "quoted":
        return (unquoted(name.text),), index + 2
    if name.kind in KEYWORDS:
        return (name.text,), index + 2
    hint = 'put an odd name in double quotes, as in data."odd name"'
    raise Mistake(tokens[index].start, name.end, "expected a name after '.'", hint)


def _in_brackets(tokens: Sequence[Token], index: int, start: int | None = None) -> tuple[Path, int]:
    """Parse a step in brackets; ``start`` is the position of the opening one if it is not at ``index``."""
    number = tokens[index + 1]
    closing = tokens[min(index + 2, len(tokens) - 1)]
    text = number.text
    if number.kind == "string" and closing.kind == "]" and start is None:
        return (unquoted(text),), index + 3
    if number.kind != "number" or not (text.isascii() and text.isdigit()) or closing.kind != "]":
        start = tokens[index].start if start is None else start
        hint = "elements are counted from 0, as in data.items[0], or from the end: data.items[-1]"
        if number.kind in ("*", "number"):
            hint += "; for any of them write ANY item IN data.items SATISFIES (item > 5)"
        if tokens[index - 1].text.upper() == "ARRAY":
            hint = "there are no arrays of constants; write IN (1, 2), or 5 = ANY(data.items)"
        if number.kind in ("path", "quoted"):
            hint = f"a name in brackets has single quotes, or it goes after a dot: .{number.text[:40]}"
        message = "expected [ a whole number ] or [ a name in single quotes ]"
        raise Mistake(start, number.end, message, hint)
    if len(text) > 10 or int(text) > INDEX_MAX:
        raise Mistake(number.start, number.end, f"the index of an element is at most {INDEX_MAX}")
    return (int(text),), index + 3


def _name(name: str, *, first: bool = False) -> str:
    if _PLAIN.fullmatch(name) and not (first and name.upper() in KEYWORDS):
        return name
    return '"' + name.replace('"', '""') + '"'
