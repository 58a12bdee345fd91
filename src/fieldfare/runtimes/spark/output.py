"""Matches as one file: tasks write pieces of it, which are joined at the end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

OUTPUT_FORMATS = (".parquet", ".csv", ".jsonl")


class PieceWriter:
    """Writes the rows that one task found; nothing is written when there are none.

    Parameters
    ----------
    path : Path
        The piece; its suffix says the format.
    raw_column : str, optional
        A column of JSON texts that JSON lines show as what they are, not as strings.
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
        match self._path.suffix:
            case ".parquet":
                if self._parquet is None:
                    self._parquet = pa.parquet.ParquetWriter(self._file, rows.schema, compression="zstd")
                self._parquet.write_batch(rows)
            case ".csv":
                pa.csv.write_csv(flat(rows), self._file, pa.csv.WriteOptions(include_header=False))
            case _:
                self._file.write(self._json_lines(rows))

    def _json_lines(self, rows: pa.RecordBatch) -> bytes:
        encoder = msgspec.json.Encoder()
        found = rows.to_pylist()
        if self._raw_column:
            for row in found:
                row[self._raw_column] = msgspec.Raw(row[self._raw_column].encode())
        return bytes(encoder.encode_lines(found))

    def close(self) -> None:
        """Finish the piece."""
        if self._parquet is not None:
            self._parquet.close()
        if self._file is not None:
            self._file.close()


def flat(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Columns that CSV cannot hold (structs, lists, maps, bytes) as JSON texts."""
    columns = [
        pa.array(
            [None if value is None else msgspec.json.encode(value).decode() for value in column.to_pylist()]
        )
        if pa.types.is_nested(column.type)
        or pa.types.is_large_binary(column.type)
        or pa.types.is_binary(column.type)
        else column
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def join_pieces(pieces: Sequence[Path], output: Path, schema: pa.Schema) -> None:
    """Make one file of the pieces, in their order; it is there whole or not at all."""
    partial = output.with_name(f".{output.name}.partial")
    try:
        if output.suffix == ".parquet":
            _join_parquet(pieces, partial, schema)
        else:
            with partial.open("wb") as file:
                if output.suffix == ".csv":
                    pa.csv.write_csv(_header(schema), file)
                for piece in pieces:
                    with piece.open("rb") as part:
                        shutil.copyfileobj(part, file, 1 << 20)
        os.replace(partial, output)
    finally:
        partial.unlink(missing_ok=True)


def _header(schema: pa.Schema) -> pa.Table:
    return pa.table({name: pa.array([], pa.string()) for name in schema.names})


def _join_parquet(pieces: Sequence[Path], output: Path, schema: pa.Schema) -> None:
    first = pa.parquet.read_schema(pieces[0]) if pieces else schema
    with pa.parquet.ParquetWriter(output, first, compression="zstd") as writer:
        for piece in pieces:
            with pa.parquet.ParquetFile(piece) as file:
                for group in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(group).cast(first))
