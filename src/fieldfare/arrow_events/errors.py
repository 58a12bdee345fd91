"""Why a table of events is not taken."""

from __future__ import annotations


class TableRefused(ValueError):
    """Nothing of a table can be taken; ``column`` is the path of the column that is to blame, if one is."""

    def __init__(self, detail: str, column: str | None = None, hint: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.column = column
        self.hint = hint


class StreamRefused(TableRefused):
    """Bytes that are no Arrow stream."""


class TableTooLarge(ValueError):
    """More rows or bytes than may come at once; ``limits`` says how many those are."""

    def __init__(self, detail: str, **limits: int) -> None:
        super().__init__(detail)
        self.detail = detail
        self.limits = limits
