"""Matches as one file: tasks write pieces of it, which are joined at the end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from fieldfare.arrow_events.canonical import is_list, widened
from fieldfare.arrow_events.json_text import json_texts, object_texts, scalar_texts

OUTPUT_FORMATS = (".parquet", ".csv", ".jsonl")


class PieceWriter:
    """Writes the rows that one task found; writes no file if there are none.

    Parameters
    ----------
    path : Path
        The piece; its suffix determines the format.
    raw_column : str, optional
        A column of JSON texts that JSON lines embed as they are, not as strings.
    """

    def __init__(self, path: Path, raw_column: str | None = None) -> None:
        self._path = path
        self._raw_column = raw_column
        self._file: BinaryIO | None = None
        self._parquet: Any = None

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows; all have the same columns."""
        if self._file is None:
            self._file = self._path.open("wb")
        match self._path.suffix.lower():
            case ".parquet":
                if self._parquet is None:
                    self._parquet = pa.parquet.ParquetWriter(self._file, rows.schema, compression="zstd")
                self._parquet.write_batch(rows)
            case ".csv":
                pa.csv.write_csv(flat(rows), self._file, pa.csv.WriteOptions(include_header=False))
            case _:
                self._file.write(self._json_lines(rows))

    def _json_lines(self, rows: pa.RecordBatch) -> bytes:
        names = rows.schema.names
        texts = [
            values if name == self._raw_column else json_texts(values)
            for name, values in zip(names, rows.columns, strict=True)
        ]
        lines = pc.binary_join_element_wise(object_texts(names, texts), "", "\n")
        whole = pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines)
        return bytes(pc.binary_join(whole, "")[0].as_buffer())

    def close(self) -> None:
        """Finish the piece."""
        if self._parquet is not None:
            self._parquet.close()
        if self._file is not None:
            self._file.close()


def flat(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the columns for CSV: numbers, booleans, strings as in JSON, other values as JSON."""
    return pa.RecordBatch.from_arrays(list(map(_flat_column, rows.columns)), names=rows.schema.names)


def _flat_column(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_struct(kind) or pa.types.is_map(kind) or is_list(kind):
        texts = json_texts(values)
        return pc.if_else(values.is_null(), pa.scalar(None, pa.string()), texts)
    if pa.types.is_float16(kind):
        return widened(values)
    strings = scalar_texts(values)
    return values if strings is None else strings


def unwritable_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the first type in a column's type that JSON and CSV cannot represent, or None."""
    if pa.types.is_interval(kind) or pa.types.is_union(kind):
        return kind
    parts = (kind.field(place).type for place in range(kind.num_fields)) if pa.types.is_nested(kind) else ()
    return next((found for part in parts if (found := unwritable_type(part)) is not None), None)


def join_pieces(pieces: Sequence[Path], output: Path, schema: pa.Schema) -> None:
    """Join the pieces, in order, into one file, which appears complete or not at all."""
    partial = output.with_name(f".{output.name}.partial")
    try:
        if output.suffix.lower() == ".parquet":
            _join_parquet(pieces, partial, schema)
        else:
            with partial.open("wb") as file:
                if output.suffix.lower() == ".csv":
                    header = pa.schema([(name, pa.string()) for name in schema.names]).empty_table()
                    pa.csv.write_csv(header, file)
                for piece in pieces:
                    with piece.open("rb") as part:
                        shutil.copyfileobj(part, file, 1 << 20)
        os.replace(partial, output)
    finally:
        partial.unlink(missing_ok=True)


def _join_parquet(pieces: Sequence[Path], output: Path, schema: pa.Schema) -> None:
    with output.open("wb") as file, pa.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for piece in pieces:
            with piece.open("rb") as source, pa.parquet.ParquetFile(source) as part:
                for group in range(part.num_row_groups):
                    writer.write_table(part.read_row_group(group).cast(schema))
