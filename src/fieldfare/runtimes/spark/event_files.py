"""Events of files in the units that tasks read (parts of tables, chunks of lines), and their schema."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from fieldfare.runtimes.files.kinds import TABLES, FileError, FileKind, event_files
from fieldfare.runtimes.files.lines import PIECE_BYTES, LineReader, open_stream, whole_lines
from fieldfare.runtimes.files.partitions import partition_columns
from fieldfare.runtimes.files.tables import TableFile, merged_schema
from fieldfare.runtimes.spark.attributes import attributes_of

LINE_MATCHES = pa.schema(
    [pa.field("subscription", pa.string()), pa.field("line", pa.int64()), pa.field("event", pa.string())]
)
"""Columns of a match of JSON lines: subscription's id, line number (from 1), text."""


@dataclass(frozen=True, slots=True)
class LineChunk:
    """Lines of a file: the bytes from `start` to `end`; the first one is line `first_line`, counted from 1.

    Without an `end` it is the complete file, compressed or a JSON array, which only a single task can read.
    """

    path: Path
    start: int = 0
    end: int | None = None
    first_line: int = 1

    def pieces(self) -> Iterator[tuple[bytes, list[int] | range]]:
        """Yield events, one per line, each ended by a line feed, and the line number of each in the file."""
        with open(self.path, "rb") as file:
            if self.end is None:
                for piece, first_line in LineReader(file, str(self.path)).pieces():
                    yield whole_lines(piece, first_line)
                return
            file.seek(self.start)
            yield whole_lines(file.read(self.end - self.start), self.first_line)


@dataclass(frozen=True, slots=True)
class TablePart:
    """Row groups or record batches of a file, and the values of its partition columns (from folder names)."""

    path: Path
    kind: FileKind
    first: int
    end: int
    constants: dict[str, Any] = field(default_factory=dict)

    def batches(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Return the rows, with the columns of a schema."""
        table = TableFile(self.path, self.kind)
        return table.batches(schema, self.first, self.end, constants=self.constants)


@dataclass(frozen=True, slots=True)
class EventFiles:
    """The events of a file or a folder.

    Attributes
    ----------
    parts
        The units that tasks read, in the order of the output.
    schema
        The columns of tables; None for JSON lines, which have none.
    attributes
        The schema of tables as filters are checked against it.
    """

    parts: Sequence[LineChunk | TablePart]
    schema: pa.Schema | None = None
    attributes: StructType | None = None

    @classmethod
    def of(cls, path: Path) -> EventFiles:
        """Read what is at a path; FileError if it cannot be used."""
        kind, files = event_files(path)
        if kind not in TABLES:
            return cls([chunk for file in files for chunk in chunks_of(file)])
        tables = [TableFile(file, kind) for file in files]
        schema = merged_schema([(file, table.schema) for file, table in zip(files, tables, strict=True)])
        folders, constants = partition_columns(path if path.is_dir() else path.parent, files)
        schema = pa.schema([*schema, *(field for field in folders if field.name not in schema.names)])
        parts = [
            TablePart(file, kind, part, part + 1, dict(values))
            for file, table, values in zip(files, tables, constants, strict=True)
            for part in range(table.parts)
        ]
        known = {table.spark_schema for table in tables if table.spark_schema is not None}
        return cls(parts, schema, attributes_of(schema, _spark_fields(known)))


def _spark_fields(schemas: Iterable[str]) -> StructType:
    """Return the columns as Spark noted them in files that it wrote; notes that are no schema are ignored."""
    found = StructType()
    for text in sorted(schemas):
        try:
            noted = StructType.fromJson(json.loads(text))
        except Exception:  # written by another version of Spark, with types unknown to this one
            continue
        for column in noted:
            if column.name not in found.names:
                found.add(column)
    return found


def chunks_of(path: Path, chunk_bytes: int = PIECE_BYTES) -> Iterator[LineChunk]:
    """Cut a file at line ends into chunks of about `chunk_bytes`; lines are counted on the way."""
    stream, name = open_stream(path)
    with stream:
        if not LineReader(stream, name).is_plain:
            yield LineChunk(path)
            return
        stream.seek(0)
        start, first_line = 0, 1
        while data := stream.read(chunk_bytes):
            if not data.endswith(b"\n"):
                data += stream.readline()
            yield LineChunk(path, start, start + len(data), first_line)
            start += len(data)
            first_line += data.count(b"\n")


def check_output_columns(schema: pa.Schema) -> None:
    """Raise FileError for events whose columns would collide in a result."""
    names = schema.names
    for name in names:
        if name.lower() == "subscription":
            raise FileError(
                f"the events have a column called {name!r}, and so has the result: write the events with"
                " another name for it, or match without an output, which only counts"
            )
        if names.count(name) > 1:
            raise FileError(
                f"the events have two columns {name!r}: write the events with one name for each, or match"
                " without an output, which only counts"
            )
