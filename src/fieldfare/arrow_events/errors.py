"""Errors for tables of events that are rejected."""

from __future__ import annotations


class TableRefused(ValueError):
    """A table is rejected as a whole; ``column`` is the path of the invalid column, if there is one."""

    def __init__(self, detail: str, column: str | None = None, hint: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.column = column
        self.hint = hint


class StreamRefused(TableRefused):
    """The bytes are not an Arrow stream."""


class TableTooLarge(ValueError):
    """A table has too many rows or bytes; ``limits`` contains the exceeded limit."""

    def __init__(self, detail: str, **limits: int) -> None:
        super().__init__(detail)
        self.detail = detail
        self.limits = limits
