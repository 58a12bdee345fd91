"""Reading tables of events: Parquet and Arrow files, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fieldfare.cli.output import fail, need_packages

TABLE_SUFFIXES = (".parquet", ".arrow", ".arrows", ".feather", ".ipc")
_FILE_START = b"ARROW1"


def is_table(file: str) -> bool:
    """Whether a file's name says that it holds columns."""
    return Path(file).suffix.lower() in TABLE_SUFFIXES


def read_batches(file: str, batch_events: int) -> Iterator[Any]:
    """The record batches of a file; a Parquet file is read in batches of so many rows."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError:
        need_packages("publish", "arrow", ["pyarrow"])
    path = Path(file)
    try:
        if path.suffix.lower() == ".parquet":
            yield from pyarrow.parquet.ParquetFile(path, memory_map=True).iter_batches(batch_events)
            return
        with path.open("rb") as opened:
            is_file = opened.read(len(_FILE_START)) == _FILE_START
        with pa.memory_map(str(path)) as source:
            reader = pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)
            if is_file:
                yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
            else:
                yield from reader
    except OSError as error:
        fail(f"cannot read {file}: {error.strerror or error}")
    except pa.ArrowException as error:
        fail(f"cannot read {file}: {error}")
