"""Documents that hold filters: JSON without duplicate names, and files of names and values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

from fieldfare.filters.foreign.items import DocumentError, Item

DEPTH_MAX = 200
"""Maximum nesting depth of a document; a deeper one is rejected."""


def read_document(text: str) -> Any:
    """Parse JSON; floats are Decimals.

    Raises
    ------
    DocumentError
        The text is not JSON, is nested too deeply, or has an object with a duplicate name.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_float=_decimal, parse_constant=_refuse_constant
        )
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise DocumentError(f"{place}: this is not JSON: {error.msg}") from None
    except ValueError as error:
        raise DocumentError(f"this is not JSON: {error}") from None
    except RecursionError:
        raise DocumentError("this is nested too deeply") from None
    refuse_depth(value)
    return value


def refuse_depth(value: Any) -> None:
    """Raise DocumentError for a value that is nested deeper than ``DEPTH_MAX``."""
    level = [value]
    for _ in range(DEPTH_MAX):
        level = [
            item
            for above in level
            if isinstance(above, dict | list)
            for item in (above.values() if isinstance(above, dict) else above)
        ]
        if not level:
            return
    raise DocumentError(f"this is nested deeper than {DEPTH_MAX} levels")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"an object has the name {name[:60]!r} twice")
        found[name] = value
    return found


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError(f"the exponent of {text[:60]} is too large") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def named_items(text: str, convert: Callable[[str], tuple[str, str]]) -> list[Item]:
    """Return the filters of a file of names and values, to be converted one by one."""
    return [Item(name, place, partial(convert, filter)) for name, filter, place in read_names(text)]


def read_names(text: str) -> list[tuple[str, str, str]]:
    """Read names and values: a JSON object of strings, or lines as in a Java properties file.

    Returns
    -------
    list of (name, value, place)

    Raises
    ------
    DocumentError
        The text is neither, or has a name twice.
    """
    if text.lstrip()[:1] in ("{", "["):
        value = read_document(text)
        if not isinstance(value, dict):
            raise DocumentError('a file of filters is an object of names and filters: {"late": "delay > 30"}')
        found = []
        for name, filter in value.items():
            if not isinstance(filter, str):
                raise DocumentError(f"{name}: a filter is a string")
            found.append((name, filter, name))
        return found
    found = list(_properties(text))
    names: set[str] = set()
    for name, _, place in found:
        if name in names:
            raise DocumentError(f"{place}: the name {name[:60]!r} is used twice")
        names.add(name)
    return found


_BREAK = re.compile("\r\n|\r|\n")
_KEY = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _properties(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield the keys and values of a Java properties file, with the lines where they begin."""
    lines = iter(enumerate(_BREAK.split(text), 1))
    for number, line in lines:
        line = line.lstrip(" \t\f")
        if not line or line[0] in "#!":
            continue
        while _continues(line):
            line = line[:-1] + next(lines, (0, ""))[1].lstrip(" \t\f")
        found = _KEY.fullmatch(line)
        assert found is not None  # each part may be empty, and the last takes anything
        key, value = (_unescaped(part, number) for part in found.groups())
        place = f"line {number}"
        if not key:
            raise DocumentError(f"{place}: a name is missing before the filter")
        yield key, value, place


def _continues(line: str) -> bool:
    """Return whether a line ends with an odd number of backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(text: str, number: int) -> str:
    plain = _ESCAPE.sub(
        lambda found: chr(int(found[1][1:], 16)) if len(found[1]) == 5 else _ESCAPED.get(found[1], found[1]),
        text,
    )
    try:
        return plain.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise DocumentError(f"line {number}: half of a character (a lone surrogate)") from None
