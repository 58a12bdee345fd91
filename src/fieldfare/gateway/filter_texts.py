"""Validation and compilation of filters as clients send them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from fieldfare.filters import Filter, FilterError, compile_filter
from fieldfare.filters.encrypted import ENCRYPTED, EncryptedFilter, compile_encrypted
from fieldfare.filters.filter import DIALECTS

ENCRYPTED_TIMES = 8
"""Maximum size of an encrypted filter as a multiple of a plain one's; a larger one is refused. Each condition
is a row of numbers for every current epoch of the key."""


@dataclass(frozen=True, slots=True)
class RefusedFilter:
    """The reason why a subscription was refused, with the place in its filter."""

    detail: str
    pointer: str
    line: int | None = None
    column: int | None = None
    hint: str | None = None
    display: str | None = None

    def document(self) -> dict[str, Any]:
        members = {
            "detail": self.detail,
            "pointer": self.pointer,
            "line": self.line,
            "column": self.column,
            "hint": self.hint,
            "display": self.display,
        }
        return {key: value for key, value in members.items() if value is not None}


def compile_checked(filter: Any, dialect: Any, max_bytes: int) -> Filter | RefusedFilter:
    """Compile a filter as a client sends it, or return why it is refused."""
    refused = refuse_text(filter, dialect, max_bytes)
    if refused is not None:
        return refused
    try:
        return compile_filter(filter, dialect)
    except FilterError as error:
        first = error.problems[0]
        line, column = (first.line, first.column) if first.length else (None, None)
        return RefusedFilter(first.message, "/filter", line, column, first.hint or None, str(error))
    except RecursionError:
        return RefusedFilter("the filter nests too deeply", "/filter")


def compile_in_space(
    filter: Any, dialect: Any, max_bytes: int, dimensions: int | None
) -> Filter | EncryptedFilter | RefusedFilter:
    """Compile a filter for a space, or return why it is refused.

    ``dimensions`` are those of the space's vectors if it is encrypted, else None. An unencrypted filter sent
    to an encrypted space is assumed to be a mistake, so its text is not in the error.
    """
    if dimensions is None:
        if dialect == ENCRYPTED:
            return RefusedFilter("the filter is encrypted, and the space is not", "/dialect")
        return compile_checked(filter, dialect, max_bytes)
    if dialect != ENCRYPTED:
        hint = "give the client the key of the space: docs/encrypted-spaces.md"
        return RefusedFilter("the space is encrypted, and the filter is not", "/dialect", hint=hint)
    text = filter.encode("utf-8", "surrogatepass") if isinstance(filter, str) else msgspec.json.encode(filter)
    most = ENCRYPTED_TIMES * max_bytes
    if len(text) > most:
        return RefusedFilter(
            f"the filter has {len(text)} bytes; the maximum for an encrypted filter is {most}",
            "/filter",
            hint="Create one subscription for each alternative of the filter, or drop old epochs of the key.",
        )
    try:
        found = compile_encrypted(filter)
    except FilterError as error:
        first = error.problems[0]
        return RefusedFilter(first.message, "/filter", hint=first.hint)
    if found.dimensions not in (0, dimensions):
        detail = (
            f"the filter's rows have {found.dimensions} numbers, but the space's vectors have {dimensions}"
        )
        return RefusedFilter(detail, "/filter", hint="the filter was encrypted with the key of another space")
    return found


def refuse_text(filter: Any, dialect: Any, max_bytes: int) -> RefusedFilter | None:
    """Return why a filter is refused by its type, dialect or length alone; None if it is not."""
    if dialect not in DIALECTS:
        return RefusedFilter(f"the dialect must be one of {', '.join(DIALECTS)}", "/dialect")
    is_json = DIALECTS[dialect].is_json and isinstance(filter, dict | list)
    if not is_json and not (isinstance(filter, str) and filter.strip()):
        return RefusedFilter("the filter must be a non-empty string", "/filter")
    text = msgspec.json.encode(filter) if is_json else filter.encode("utf-8", "surrogatepass")
    if len(text) > max_bytes:
        return RefusedFilter(
            f"the filter has {len(text)} bytes; the maximum is {max_bytes}",
            "/filter",
            hint="Write many values of one attribute as one IN (...), or create several subscriptions.",
        )
    return None
