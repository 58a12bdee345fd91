"""Kinds of files, by their content and their names, and the files in a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import Enum
from pathlib import Path


class FileError(ValueError):
    """A file cannot be used; the message names the file and, if there is one, the line."""


class FileKind(Enum):
    """The kinds of files that are read; the value is the name in messages."""

    LINES = "JSON"
    PARQUET = "Parquet"
    ARROW = "Arrow"
    CSV = "CSV"


SUFFIXES = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), FileKind.LINES),
    ".parquet": FileKind.PARQUET,
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), FileKind.ARROW),
    ".csv": FileKind.CSV,
}
PACKED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
"""Endings of compressed files; the kind is the ending before."""

TABLES = (FileKind.PARQUET, FileKind.ARROW)

_STARTS = {b"PAR1": FileKind.PARQUET, b"ARROW1": FileKind.ARROW, b"\xff\xff\xff\xff": FileKind.ARROW}
_FOREIGN_STARTS = {
    b"PK\x03\x04": "a ZIP archive or an Excel workbook",
    b"ORC": "an ORC file",
    b"Obj\x01": "an Avro file",
    b"SQLite format 3": "an SQLite database",
    b"\xff\xfe": "a text in UTF-16",
    b"\xfe\xff": "a text in UTF-16",
}
START_BYTES = 16
"""Bytes at a file's start that determine its kind."""

EVENT_KINDS = "JSON lines (.jsonl, .ndjson, .json), Parquet (.parquet) or Arrow (.arrow, .feather)"
"""The kinds of files that hold events, for messages."""
NOT_CSV = (
    f"CSV does not say which values are numbers. Write the events as {EVENT_KINDS}, for example with DuckDB:"
    " COPY (FROM 'events.csv') TO 'events.parquet'"
)


def kind_by_name(path: Path) -> FileKind | None:
    """Return the kind by a file's name; None for an unknown name."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in PACKED_SUFFIXES:
        suffixes.pop()
    return SUFFIXES.get(suffixes[-1]) if suffixes else None


def kind_by_start(start: bytes, name: str) -> FileKind | None:
    """Return the kind by a file's first bytes, or None; FileError if it is a known kind that is not read."""
    for known, kind in _STARTS.items():
        if start.startswith(known):
            return kind
    for known, what in _FOREIGN_STARTS.items():
        if start.startswith(known):
            raise FileError(f"{name} is {what}. Use {EVENT_KINDS}, in UTF-8.")
    return None


def kind_of(path: Path) -> FileKind:
    """Return a file's kind: by its content, else by its name, else JSON."""
    return kind_by_start(_read_start(path), str(path)) or kind_by_name(path) or FileKind.LINES


def event_files(path: Path) -> tuple[FileKind, list[Path]]:
    """Return the kind and the paths of the files that hold events: the file itself, or all files of a folder.

    Files and folders whose name begins with a dot or an underscore (``_SUCCESS``) are skipped.

    Raises
    ------
    FileError
        The path does not exist, is no file of events, or is a folder without one, or with several kinds.
    """
    if not path.is_dir():
        if not path.exists():
            raise FileError(f"{path} does not exist")
        if not path.is_file():
            raise FileError(f"{path} is not a regular file, and is read more than once: save it as a file")
        only = kind_of(path)
        if only is FileKind.CSV:
            raise FileError(f"{path} is CSV. {NOT_CSV}")
        return only, [path]
    if (path / "_delta_log").is_dir():
        raise FileError(f"{path} is a Delta table, whose files also hold removed rows. Read it with Spark.")
    kinds: dict[FileKind | None, list[Path]] = {}
    for file in _files_below(path):
        kinds.setdefault(kind_by_name(file), []).append(file)
    if not kinds:
        raise FileError(f"{path} has no files of events. Give a folder of {EVENT_KINDS}.")
    for kind, files in kinds.items():
        if kind is None or kind is FileKind.CSV:
            raise FileError(f"{files[0]} is not a file of events. Remove it, or pass the files one by one.")
    if len(kinds) > 1:
        shown = " and ".join(str(files[0]) for files in kinds.values())
        raise FileError(
            f"{path} has files of several kinds: {shown}. Put each kind into a folder of its own."
        )
    ((kind, files),) = kinds.items()
    assert kind is not None
    return kind, files


def _files_below(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder, onerror=_raise):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        yield from (Path(place, name) for name in sorted(files) if not name.startswith((".", "_")))


def _raise(error: OSError) -> None:
    raise FileError(f"cannot read {error.filename}: {error.strerror}")


def _read_start(path: Path) -> bytes:
    if not path.is_file():
        return b""  # a pipe can be read only once
    try:
        with path.open("rb") as file:
            return file.read(START_BYTES)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from None
