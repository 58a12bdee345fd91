"""Tables from Parquet and Arrow files, a batch at a time, in the types that filters and outputs support.

A column's type is read without its encoding (dictionaries, extensions, large and fixed layouts), and INT96,
in which Spark and Impala write TIMESTAMP, is a timestamp in UTC. Columns are found by their exact names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from fieldfare.matching.events.arrow_paths import plain
from fieldfare.runtimes.files.kinds import FileError, FileKind

BATCH_ROWS = 10_000
"""Maximum rows of a batch."""
BATCH_BYTES = 32 << 20
"""Approximate maximum bytes of a batch, by a Parquet file's footer; a batch has at least one row."""

_BUFFER_BYTES = 1 << 20
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_FILE_START = b"ARROW1"
_INT96 = "INT96"
_UTC = pa.timestamp("us", "UTC")


class TableFile:
    """A Parquet or Arrow file: its schema, and its rows in batches.

    Parameters
    ----------
    path
        The file.
    kind
        ``FileKind.PARQUET`` or ``FileKind.ARROW``.

    Attributes
    ----------
    schema : pyarrow.Schema
        The columns, in plain types.
    parts : int
        Number of parts that can be read separately: row groups or record batches.
    spark_schema : str, optional
        The JSON of Spark's schema, if Spark wrote the file.

    Raises
    ------
    FileError
        The file cannot be opened.
    """

    def __init__(self, path: Path, kind: FileKind) -> None:
        self._path = path
        self._is_parquet = kind is FileKind.PARQUET
        with self._reading(), self._open() as reader:
            self.spark_schema: str | None = None
            if self._is_parquet:
                self.parts: int = reader.num_row_groups
                self.schema: pa.Schema = _plain_parquet_schema(reader)
                found = (reader.metadata.metadata or {}).get(_SPARK_SCHEMA)
                self.spark_schema = None if found is None else found.decode()
            else:
                self.parts = reader.num_record_batches if hasattr(reader, "num_record_batches") else 1
                self.schema = pa.schema([plain_field(field) for field in reader.schema])
                if not hasattr(reader, "num_record_batches"):
                    self._check_end()

    def batches(
        self,
        schema: pa.Schema | None = None,
        first: int = 0,
        end: int | None = None,
        batch_rows: int = BATCH_ROWS,
        constants: Mapping[str, Any] = MappingProxyType({}),
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the parts from ``first`` up to ``end``.

        Parameters
        ----------
        schema : pyarrow.Schema, optional
            The columns to read, and their types; a column that the file lacks has its constant, or nulls.
            Default: all columns of the file.
        first, end : int
            Range of parts. Default: all.
        batch_rows : int
            Maximum rows of a batch.
        constants : mapping
            Values of columns that the file lacks, by name.

        Raises
        ------
        FileError
            The file is damaged, or a value does not fit the requested type.
        """
        wanted = self.schema if schema is None else schema
        parts = range(first, self.parts if end is None else end)
        with self._reading(), self._open() as reader:
            read = self._parquet_batches if self._is_parquet else self._arrow_batches
            for batch in read(reader, parts, wanted, batch_rows):
                if batch.num_rows:
                    yield self._conform(batch, wanted, constants)

    def _parquet_batches(
        self, reader: Any, parts: Sequence[int], wanted: pa.Schema, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        columns = None if wanted is self.schema else leaf_names(wanted)
        for part in parts:
            group = reader.metadata.row_group(part)
            row_bytes = group.total_byte_size // max(group.num_rows, 1)
            rows = max(1, min(batch_rows, BATCH_BYTES // max(row_bytes, 1)))
            for batch in reader.iter_batches(rows, row_groups=[part], columns=columns, use_threads=False):
                batch.validate(full=True)  # Texts may be no UTF-8.
                yield batch

    def _arrow_batches(
        self, reader: Any, parts: Sequence[int], _wanted: pa.Schema, batch_rows: int
    ) -> Iterator[pa.RecordBatch]:
        found: Iterable[pa.RecordBatch] = reader
        if hasattr(reader, "num_record_batches"):
            found = (reader.get_batch(part) for part in parts)
        for batch in found:
            batch.validate(full=True)
            yield from (batch.slice(row, batch_rows) for row in range(0, batch.num_rows, batch_rows))

    def _conform(
        self, batch: pa.RecordBatch, wanted: pa.Schema, constants: Mapping[str, Any]
    ) -> pa.RecordBatch:
        """Return a batch with a schema's columns; by position if it has them all, as names may repeat."""
        names = batch.schema.names
        by_place = names == wanted.names
        columns = []
        for place, field in enumerate(wanted):
            if by_place or field.name in names:
                values = batch.column(place if by_place else names.index(field.name))
                columns.append(self._cast(values, field))
            else:
                value = pa.scalar(constants.get(field.name), field.type)
                columns.append(pa.repeat(value, batch.num_rows))
        if not columns:
            return batch.select([])
        return pa.RecordBatch.from_arrays(columns, schema=wanted)

    def _cast(self, values: pa.Array, field: pa.Field) -> pa.Array:
        if values.type == field.type:
            return values
        try:
            return plain(values).cast(field.type)
        except pa.ArrowException as error:
            raise FileError(
                f"{self._path}: the column {field.name} of type {values.type} cannot be read as {field.type}:"
                f" {_first_line(error)}"
            ) from None

    @contextmanager
    def _open(self) -> Iterator[Any]:
        if self._is_parquet:
            # A file object, because pyarrow would read a name such as 12:30 as a URI.
            with (
                open(self._path, "rb") as file,
                pa.parquet.ParquetFile(
                    file,
                    buffer_size=_BUFFER_BYTES,
                    pre_buffer=False,
                    coerce_int96_timestamp_unit=_UTC.unit,
                ) as reader,
            ):
                yield reader
            return
        with open(self._path, "rb") as file:
            is_file = file.read(len(_FILE_START)) == _FILE_START
        with closing(pa.memory_map(os.fsencode(self._path))) as source:
            yield pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)

    def _check_end(self) -> None:
        """Raise FileError if there is more behind a stream's end, as in two streams put into one file."""
        with closing(pa.memory_map(os.fsencode(self._path))) as source:
            messages = pa.ipc.MessageReader.open_stream(source)
            try:
                while True:
                    messages.read_next_message()
            except StopIteration:
                pass
            except (pa.ArrowException, OSError):
                return  # It is damaged, which its reader reports behind the rows that can be read.
            if source.tell() < source.size():
                raise FileError(
                    f"{self._path} has data behind the end of its Arrow stream: write each stream to a"
                    " file of its own"
                )

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except FileError:
            raise
        except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or _first_line(error)
            raise FileError(f"cannot read {self._path}: {reason}") from None


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0][:200]


def plain_field(field: pa.Field) -> pa.Field:
    """Return a field with a plain type, which may be null."""
    return pa.field(field.name, plain_type(field.type))


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without encodings, and with one layout for strings, for bytes and for lists."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind) or kind == pa.binary_view():
        return pa.binary()
    return _with_parts(kind, plain_field, plain_type)


def _with_parts(
    kind: pa.DataType,
    field_of: Callable[[pa.Field], pa.Field],
    type_of: Callable[[pa.DataType], pa.DataType],
) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field_of(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(type_of(kind.key_type), type_of(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(type_of(kind.value_type))
    return kind


def _plain_parquet_schema(reader: Any) -> pa.Schema:
    """Return the plain schema of a Parquet file; its INT96 columns are timestamps."""
    leaves = iter(reader.schema)

    def with_moments(kind: pa.DataType) -> pa.DataType:
        if isinstance(kind, pa.BaseExtensionType):
            return with_moments(kind.storage_type)
        if pa.types.is_struct(kind) or pa.types.is_map(kind) or hasattr(kind, "value_field"):
            return _with_parts(kind, lambda field: field.with_type(with_moments(field.type)), with_moments)
        leaf = next(leaves, None)
        is_moment = leaf is not None and leaf.physical_type == _INT96 and pa.types.is_timestamp(kind)
        return _UTC if is_moment else plain_type(kind)

    return pa.schema([pa.field(field.name, with_moments(field.type)) for field in reader.schema_arrow])


def merged_schema(files: Sequence[tuple[Path, pa.Schema]]) -> pa.Schema:
    """Return the columns of all files, with types that hold the values of every file.

    Raises
    ------
    FileError
        A column's types in two files have no common type, or files that differ have a duplicate name.
    """
    first_path, first = files[0]
    found: dict[str, tuple[Path, pa.Field]] = {field.name: (first_path, field) for field in first}
    for path, schema in files[1:]:
        if schema.equals(first):
            continue
        for names, place in (first.names, first_path), (schema.names, path):
            if len(set(names)) < len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise FileError(f"{place} has two columns {twice}, and other files of the folder differ")
        for field in schema:
            known_path, known = found.setdefault(field.name, (path, field))
            if known.type != field.type:
                found[field.name] = known_path, _merged_field(known_path, known, path, field)
    return (
        first
        if all(schema.equals(first) for _, schema in files)
        else pa.schema([field for _, field in found.values()])
    )


def _merged_field(known_path: Path, known: pa.Field, path: Path, field: pa.Field) -> pa.Field:
    try:
        pair = [pa.schema([known]), pa.schema([field])]
        if {known.type, field.type} != {pa.string(), pa.binary()}:
            return pa.unify_schemas(pair, promote_options="permissive").field(0)
    except pa.ArrowException:
        pass
    raise FileError(
        f"the column {field.name} has type {known.type} in {known_path}, and type {field.type} in {path}:"
        " write both with one type, or match the files one by one"
    )


def projected(schema: pa.Schema, paths: Iterable[tuple[str | int, ...]]) -> pa.Schema:
    """Return the columns that hold the attributes with these paths; of structs only the named fields."""
    return pa.schema(_named_fields(schema, set(paths)))


def _named_fields(fields: Iterable[pa.Field], paths: set[tuple[str | int, ...]]) -> list[pa.Field]:
    found = []
    for field in fields:
        below = {path[1:] for path in paths if path[0] == field.name}
        if not below:
            continue
        parts: list[pa.Field] = []
        if pa.types.is_struct(field.type) and () not in below:
            parts = _named_fields(field.type, below)
        found.append(field.with_type(pa.struct(parts)) if parts else field)
    return found


def leaf_names(schema: pa.Schema) -> list[str]:
    """Return a schema's columns as pyarrow names a Parquet file's: a struct's fields by their paths."""

    def below(start: str, kind: pa.DataType) -> Iterator[str]:
        if pa.types.is_struct(kind) and kind.num_fields:
            for field in kind:
                yield from below(f"{start}.{field.name}", field.type)
        else:
            yield start

    return [name for field in schema for name in below(field.name, field.type)]
