"""The layout of help texts: no word is shortened to an ellipsis, also in a narrow terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.columns import Columns
from rich.console import Group
from rich.table import Table
from typer import rich_utils

TEXT_COLUMNS = 2
"""The last columns of a table of options, for values and for help texts: their lines may be broken."""


class HelpTable(Table):
    """A table of options or commands that breaks texts, but no names, to fit the terminal."""

    def add_row(self, *cells: Any, **more: Any) -> None:
        # Columns shorten words that are too long for them; one text below the other is broken.
        super().add_row(
            *(Group(*each.renderables) if isinstance(each, Columns) else each for each in cells), **more
        )
        for column in self.columns:
            column.overflow = "fold"
        for column in self.columns[:-TEXT_COLUMNS]:
            column.no_wrap = True


@contextmanager
def whole_words() -> Iterator[None]:
    """Make typer lay out help texts with `HelpTable`."""
    setting: Any = rich_utils
    before, setting.Table = setting.Table, HelpTable
    try:
        yield
    finally:
        setting.Table = before
