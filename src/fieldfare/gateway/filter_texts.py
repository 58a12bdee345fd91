"""Filters as clients send them: compiled, or why they are not taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from fieldfare.filters import Filter, FilterError, compile_filter
from fieldfare.filters.encrypted import ENCRYPTED, EncryptedFilter, compile_encrypted
from fieldfare.filters.filter import DIALECTS

ENCRYPTED_TIMES = 8
"""So many times the bytes of another filter an encrypted one may have: a condition is a row of numbers, in
each of the epochs that stand side by side."""


@dataclass(frozen=True, slots=True)
class RefusedFilter:
    """Why a subscription was not taken, and the place in its filter."""

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
    """A filter as a client sends it, compiled; or why it is not taken."""
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
    """The same for a space; ``dimensions`` are those of its vectors if it is encrypted.

    A filter that is not encrypted would say here what it looks for, and is taken to mean no harm: its text is
    in no error.
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
            f"the filter has {len(text)} bytes; at most {most} are taken of an encrypted one",
            "/filter",
            hint="Make several subscriptions of its alternatives, or drop old epochs of the key.",
        )
    try:
        found = compile_encrypted(filter)
    except FilterError as error:
        first = error.problems[0]
        return RefusedFilter(first.message, "/filter", hint=first.hint)
    if found.dimensions not in (0, dimensions):
        detail = (
            f"the filter has rows of {found.dimensions} numbers, and the space's vectors have {dimensions}"
        )
        return RefusedFilter(detail, "/filter", hint="the filter was encrypted with the key of another space")
    return found


def refuse_text(filter: Any, dialect: Any, max_bytes: int) -> RefusedFilter | None:
    """Why a filter is not even looked at: its type, its dialect, its length."""
    if dialect not in DIALECTS:
        return RefusedFilter(f"the dialect must be one of {', '.join(DIALECTS)}", "/dialect")
    is_json = DIALECTS[dialect].is_json and isinstance(filter, dict | list)
    if not is_json and not (isinstance(filter, str) and filter.strip()):
        return RefusedFilter("the filter must be a non-empty string", "/filter")
    text = msgspec.json.encode(filter) if is_json else filter.encode("utf-8", "surrogatepass")
    if len(text) > max_bytes:
        return RefusedFilter(
            f"the filter has {len(text)} bytes; at most {max_bytes} are taken",
            "/filter",
            hint="Many values of one attribute fit into one IN (...); or make several subscriptions.",
        )
    return None
