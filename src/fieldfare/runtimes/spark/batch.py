"""Match files: events in JSON lines, Parquet or Arrow against a file of subscriptions, as one Spark job.

Spark distributes the parts of the files, and tasks read them: JSON lines go through the same ``match_batch``
as the service's events, tables through the DataFrame API's code. Tasks write the matches that they find, in
the requested format; the pieces are joined into one file at the end.
"""

from __future__ import annotations

import pickle
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkContext, TaskContext
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from fieldfare.matching.events.json_decoder import DecodeError
from fieldfare.matching.grouping import Matches
from fieldfare.model import Path as AttributePath
from fieldfare.pipeline.access_point import RECORDS
from fieldfare.pipeline.match_batch import match_batch
from fieldfare.runtimes.files.kinds import FileError
from fieldfare.runtimes.files.subscriptions import read_subscriptions
from fieldfare.runtimes.files.tables import projected
from fieldfare.runtimes.spark.compile import compile_subscriptions
from fieldfare.runtimes.spark.event_files import LINE_MATCHES, EventFiles, check_output_columns
from fieldfare.runtimes.spark.failures import reason
from fieldfare.runtimes.spark.matching_rows import match_rows, matching_rows, output_slices
from fieldfare.runtimes.spark.output import OUTPUT_FORMATS, PieceWriter, join_pieces, unwritable_type
from fieldfare.runtimes.spark.saved_index import SavedIndex
from fieldfare.runtimes.spark.session import (
    SparkSettings,
    own_java,
    scratch_parent,
    service_session,
    standard_error_to,
)
from fieldfare.runtimes.spark.shipping import ShippedIndex, ship_index

SPACE = "file"

_COUNTS = pa.schema([pa.field("events", pa.int64()), pa.field("matches", pa.int64())])
_COUNTS_SQL = "events long, matches long"
_PARTS_SQL = "part binary"
TASKS_PER_CORE_MAX = 4
"""Maximum tasks per core; if there are more parts than that, each task matches several, in order."""


@dataclass(frozen=True, slots=True)
class MatchSummary:
    """Result of `match_files`."""

    events: int
    matches: int
    subscriptions: int
    seconds: float
    output: Path | None


def match_files(
    events_path: str | Path,
    subscriptions_path: str | Path,
    output_path: str | Path | None = None,
    *,
    session: SparkSession | None = None,
    settings: SparkSettings | None = None,
) -> MatchSummary:
    """Match a file of events against a file of subscriptions.

    Parameters
    ----------
    events_path : str or Path
        A file of JSON lines, Parquet or Arrow, or a folder of files of one kind. Columns are attributes.
    subscriptions_path : str or Path
        CSV (with a header), JSON lines, Parquet or Arrow with `id`, `filter` and, where wanted, `dialect`.
    output_path : str or Path, optional
        The file for the matches: ``.parquet``, ``.csv`` or ``.jsonl``. A row has the subscription's id, then
        the event's columns; of an event in JSON lines its line's number and text. Default: only count.
    session : SparkSession, optional
        Where to run it. Default: the active session, or else a local one that is stopped at the end.
    settings : SparkSettings, optional
        For that local session.

    Raises
    ------
    FileError
        A file does not exist, is of no known kind, or is damaged; the message says where.
    SubscriptionsError
        Some filters are invalid, or name a column that the tables do not have.
    """
    started_s = time.monotonic()
    events_file, output = Path(events_path), Path(output_path) if output_path is not None else None
    if output is not None:
        _check_output(output, events_file, Path(subscriptions_path))
    events = EventFiles.of(events_file)
    if output is not None and events.schema is not None:
        _check_columns(events.schema, output)
    rows = [
        (str(found.id), str(found.filter), found.dialect or "sql")
        for found in read_subscriptions(subscriptions_path, with_ids=True)
    ]
    with _session(session, settings) as running, tempfile.TemporaryDirectory(prefix="fieldfare-") as scratch:
        pieces = Path(scratch) / "pieces"
        pieces.mkdir()
        suffix = output.suffix.lower() if output is not None else None
        compiled = compile_subscriptions(
            _subscription_frame(running, rows) if rows else [], events.attributes
        )
        saved = SavedIndex.write(Path(scratch) / "index", compiled)
        shipped = ship_index(running, saved, Path(scratch) / "index")
        task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
        if events.schema is None:
            task, schema = MatchJsonLines(shipped, str(pieces), suffix), LINE_MATCHES
        else:
            columns = _needed_columns(events.schema, saved.slices.paths)
            schema = pa.schema([pa.field("subscription", pa.string()), *events.schema])
            task = MatchTables(shipped, str(pieces), suffix, columns if output is None else events.schema)
        counts = _collect(_parts_frame(running, events).mapInArrow(task, _COUNTS_SQL))
        if output is not None:
            output.parent.mkdir(parents=True, exist_ok=True)
            join_pieces(sorted(pieces.iterdir()), output, schema)
    seconds = time.monotonic() - started_s
    return MatchSummary(counts[0], counts[1], len(rows), seconds, output)


def _check_output(output: Path, *inputs: Path) -> None:
    if output.suffix.lower() not in OUTPUT_FORMATS:
        raise FileError(f"{output}: the output is a file with one of the endings {', '.join(OUTPUT_FORMATS)}")
    for path in inputs:
        if output.exists() and path.exists() and output.samefile(path):
            raise FileError(f"{output} is an input, so it cannot be the output: name another file")
        if path.is_dir() and path.resolve() in output.resolve().parents:
            raise FileError(
                f"{output} is in the folder of events, so the next run would read it: name a file in another"
                " folder"
            )


def _check_columns(schema: pa.Schema, output: Path) -> None:
    check_output_columns(schema)
    for field in schema:
        kind = unwritable_type(field.type)
        if kind is not None:
            raise FileError(
                f"the column {field.name} has the type {kind}, which {output.suffix} cannot represent"
            )


def _needed_columns(schema: pa.Schema, paths: Sequence[AttributePath]) -> pa.Schema:
    """Return the columns that filters name."""
    found = projected(schema, paths)
    for name in found.names:
        if schema.names.count(name) > 1:
            raise FileError(
                f"a filter names {name!r}, and the events have two columns of this name:"
                " write the events with one name for each"
            )
    return found


def _subscription_frame(session: SparkSession, rows: Sequence[tuple[str, str, str]]) -> DataFrame:
    """Return subscriptions as a DataFrame, so that the executors compile them."""
    names = ("id", "filter", "dialect")
    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    return session.createDataFrame(pa.table(dict(zip(names, columns, strict=True))))


def _parts_frame(session: SparkSession, events: EventFiles) -> DataFrame:
    """Return what tasks read, in order, so that the pieces of the output are in the order of the files."""
    rows = [(pickle.dumps(part),) for part in events.parts]
    if not rows:
        return session.createDataFrame([], _PARTS_SQL)
    tasks = min(len(rows), TASKS_PER_CORE_MAX * session.sparkContext.defaultParallelism)
    return session.sparkContext.parallelize(rows, tasks).toDF(_PARTS_SQL)


@contextmanager
def _session(given: SparkSession | None, settings: SparkSettings | None) -> Iterator[SparkSession]:
    active = given or SparkSession.getActiveSession()
    if active is None and SparkContext._active_spark_context is not None:
        active = SparkSession.builder.getOrCreate()  # the session of another thread
    if active is not None:
        yield active
        return
    with tempfile.TemporaryDirectory(prefix="fieldfare-spark-", dir=scratch_parent()) as scratch, own_java():
        with standard_error_to(Path(scratch) / "spark.log"):
            session = service_session(settings or SparkSettings(), Path(scratch))
        try:
            yield session
        finally:
            session.stop()


def _collect(counts: DataFrame) -> tuple[int, int]:
    try:
        rows = counts.collect()
    except PythonException as error:
        raise FileError(re.sub(r"^[\w.]+Error: ", "", reason(error))) from error
    return sum(row.events for row in rows), sum(row.matches for row in rows)


@dataclass(frozen=True, slots=True)
class _Task:
    """Base of both kinds of task: the shipped index, and where pieces of the output go."""

    shipped: ShippedIndex
    pieces: str
    suffix: str | None

    def writer(self, raw_column: str | None = None) -> PieceWriter | None:
        if self.suffix is None:
            return None
        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        return PieceWriter(Path(self.pieces) / f"{task:08d}{self.suffix}", raw_column)


def _parts_in(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
    for batch in batches:
        yield from map(pickle.loads, batch.column(0).to_pylist())


@dataclass(frozen=True, slots=True)
class MatchTables(_Task):
    """A task that matches parts of tables; it reads only the columns in `schema`."""

    schema: pa.Schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        saved, writer, events, matches = self.shipped.open(), self.writer(), 0, 0
        for part in _parts_in(batches):
            for batch in part.batches(self.schema):
                events += batch.num_rows
                if writer is None:
                    matches += len(match_rows(batch, saved.slices)[1])
                    continue
                for rows in matching_rows(batch, saved.slices, saved.ids):
                    matches += rows.num_rows
                    writer.write(rows)
        if writer is not None:
            writer.close()
        yield pa.record_batch([[events], [matches]], schema=_COUNTS)


@dataclass(frozen=True, slots=True)
class MatchJsonLines(_Task):
    """A task that matches chunks of files of JSON lines."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        saved, writer, events, matches = self.shipped.open(), self.writer("event"), 0, 0
        for chunk in _parts_in(batches):
            for payload, lines in chunk.pieces():
                found = match_lines(str(chunk.path), payload, lines, saved)
                events, matches = events + len(lines), matches + len(found.subscriptions)
                if writer is not None:
                    write_lines(writer, payload, lines, found, saved)
        if writer is not None:
            writer.close()
        yield pa.record_batch([[events], [matches]], schema=_COUNTS)


def match_lines(path: str, payload: bytes, lines: Sequence[int], saved: SavedIndex) -> Matches:
    """Match a chunk of a file like a record of the log; FileError if a line is no JSON object in UTF-8."""
    try:
        payload.decode()
    except UnicodeDecodeError as error:
        number = lines[payload.count(b"\n", 0, error.start)]
        raise FileError(f"{path}, line {number}: this is not UTF-8") from error
    records = pa.record_batch(
        [[0], [0], [SPACE], pa.array([len(lines)], pa.int32()), pa.array([payload], pa.large_binary())],
        schema=RECORDS,
    )
    try:
        return match_batch(records, {SPACE: saved.slices})
    except DecodeError as error:
        raise FileError(f"{path}, line {lines[error.line]}: this is not one JSON object") from error


def write_lines(
    writer: PieceWriter, payload: bytes, lines: Sequence[int], found: Matches, saved: SavedIndex
) -> None:
    """Write a row for each match: the subscription's id, the line's number, the line."""
    texts = pa.array([line.rstrip() for line in payload.split(b"\n")[:-1]], pa.binary()).cast(pa.string())
    numbers = np.array(lines, np.int64)
    events = np.repeat(np.arange(len(numbers)), np.diff(found.indptr))
    for rows in output_slices(pc.binary_length(texts).to_numpy().astype(np.int64)[events]):
        ids = saved.ids.take(pa.array(found.subscriptions[rows]))
        columns = [ids, pa.array(numbers[events[rows]]), texts.take(pa.array(events[rows]))]
        writer.write(pa.RecordBatch.from_arrays(columns, schema=LINE_MATCHES))
