"""Reading events from files: one by one for ``filter``, as lines or tables for ``publish``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from fieldfare.cli.output import fail, need_packages
from fieldfare.runtimes.files.kinds import EVENT_KINDS, NOT_CSV, TABLES, FileError, FileKind, kind_of
from fieldfare.runtimes.files.lines import STANDARD_INPUT, LineReader, open_stream

FILE_HELP = (
    f"{EVENT_KINDS}; a JSON array or object; - is standard input. JSON may be compressed (.gz, .bz2, .xz, "
    ".zst)."
)

EventsOption = Annotated[
    str | None, typer.Option("--events", "-e", metavar="FILE", help=f"Events: {FILE_HELP}")
]


def kind_of_events(file: str) -> FileKind:
    """Return the kind of a file of events; FileError if it cannot hold events."""
    kind = FileKind.LINES if file == STANDARD_INPUT else kind_of(Path(file))
    if kind is FileKind.CSV:
        raise FileError(f"{file} is CSV. {NOT_CSV}")
    return kind


def open_lines(file: str) -> tuple[LineReader, int | None]:
    """Open the lines of a file; return them, and the file's size unless it is compressed or a stream."""
    reader = LineReader(*open_stream(file))
    is_sized = reader.is_plain and file != STANDARD_INPUT
    return reader, Path(file).stat().st_size if is_sized else None


def read_batches(file: str, kind: FileKind, command: str, batch_events: int | None = None) -> Iterator[Any]:
    """Return the record batches of a table."""
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        need_packages(command, "arrow", ["pyarrow"])
    from fieldfare.runtimes.files.tables import BATCH_ROWS, TableFile

    return TableFile(Path(file), kind).batches(batch_rows=batch_events or BATCH_ROWS)


def read_events(file: str, *, as_data: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the events of a file with the numbers of their lines or rows.

    Numbers in events are exact. With ``as_data`` each line is the data of an event.
    """
    kind = kind_of_events(file)
    found = _table_lines(file, kind) if kind in TABLES else open_lines(file)[0]
    for number, line in found:
        try:
            value = json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            fail(f"{file}, line {number} is not JSON: {error}")
        if as_data:
            value = {"data": value}
        if not isinstance(value, dict):
            fail(
                f"{file}, line {number} is not an event: an event is a JSON object\n"
                "hint: --data reads each line as the data of an event"
            )
        yield number, value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _table_lines(file: str, kind: FileKind) -> Iterator[tuple[int, str]]:
    row = 0
    for batch in read_batches(file, kind, "filter"):
        from fieldfare.arrow_events.json_text import row_texts

        for text in row_texts(batch).to_pylist():
            row += 1
            yield row, text
