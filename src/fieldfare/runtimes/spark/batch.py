"""Matching files: events in Parquet or JSON lines against a file of subscriptions, as one Spark job.

JSON lines go through the same ``match_batch`` as the service's events, Parquet through the DataFrame API's
rows. Tasks write what they find themselves, in the format wanted; the pieces become one file at the end.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from pyspark import TaskContext
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from fieldfare.matching.events.json_decoder import DecodeError
from fieldfare.matching.grouping import Matches
from fieldfare.pipeline.access_point import RECORDS
from fieldfare.pipeline.match_batch import match_batch
from fieldfare.runtimes.spark.compile import compile_subscriptions
from fieldfare.runtimes.spark.event_columns import EventColumns, by_place
from fieldfare.runtimes.spark.json_lines import Chunk, chunks_of, json_line_files, read_chunk
from fieldfare.runtimes.spark.matching_rows import OUTPUT_ROWS, match_rows, matching_rows
from fieldfare.runtimes.spark.output import OUTPUT_FORMATS, PieceWriter, join_pieces
from fieldfare.runtimes.spark.query import reason
from fieldfare.runtimes.spark.saved_index import SavedIndex
from fieldfare.runtimes.spark.session import SparkSettings, service_session, standard_error_to
from fieldfare.runtimes.spark.shipping import ShippedIndex, ship_index

SPACE = "file"
LINE_MATCHES = pa.schema(
    [pa.field("subscription", pa.string()), pa.field("line", pa.int64()), pa.field("event", pa.string())]
)
"""What is given back of an event in JSON lines: which line it is (from 1), and its text."""

_COUNTS = pa.schema([pa.field("events", pa.int64()), pa.field("matches", pa.int64())])
_COUNTS_SQL = "events long, matches long"
_CHUNKS_SQL = "path string, start long, end long, first_line long"


class MatchFilesError(ValueError):
    """A file cannot be used; the message names it and, where there is one, the line."""


@dataclass(frozen=True, slots=True)
class MatchSummary:
    """What `match_files` did."""

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
        A Parquet file or a folder of them (columns are attributes), or a JSON-lines file or a folder of them.
    subscriptions_path : str or Path
        CSV (with a header), JSON lines or Parquet with `id`, `filter` and, where wanted, `dialect`.
    output_path : str or Path, optional
        The file for the matches: ``.parquet``, ``.csv`` or ``.jsonl``. A row has the subscription's id, then
        the event's columns; of an event in JSON lines its line's number and text. Default: only count.
    session : SparkSession, optional
        Where to run it. Default: the active session, or else a local one that is stopped at the end.
    settings : SparkSettings, optional
        For that local session.

    Raises
    ------
    MatchFilesError
        A file is not there, is of no known format, or has a broken line.
    SubscriptionsError
        Some filters are invalid, or name a column that the Parquet files do not have.
    """
    started_s = time.monotonic()
    events_file, output = Path(events_path), Path(output_path) if output_path is not None else None
    if output is not None and output.suffix not in OUTPUT_FORMATS:
        raise MatchFilesError(
            f"{output}: the output is a file with one of the endings {', '.join(OUTPUT_FORMATS)}"
        )
    if events_file.suffix == ".csv":
        raise MatchFilesError(f"{events_file}: events come as JSON lines or Parquet; CSV has no types")
    if not events_file.exists():
        raise MatchFilesError(f"{events_file} does not exist")
    rows = read_subscriptions(Path(subscriptions_path))
    with _session(session, settings) as running, tempfile.TemporaryDirectory(prefix="fieldfare-") as scratch:
        pieces = Path(scratch) / "pieces"
        pieces.mkdir()
        suffix = output.suffix if output is not None else None
        frame, schema, attributes = _events(running, events_file)
        compiled = compile_subscriptions(_subscription_frame(running, rows) if rows else [], attributes)
        saved = SavedIndex.write(Path(scratch) / "index", compiled)
        shipped = ship_index(running, saved, Path(scratch) / "index")
        task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
        if attributes is None:
            task = MatchJsonLines(shipped, str(pieces), suffix)
        elif output is None:
            columns = EventColumns.of(attributes, saved.slices.paths)
            frame = by_place(frame).select(*columns.columns)
            task = MatchParquet(shipped, str(pieces), suffix, columns.names)
        else:
            frame, task = by_place(frame), MatchParquet(shipped, str(pieces), suffix, tuple(frame.columns))
        counts = _collect(by_place(frame).mapInArrow(task, _COUNTS_SQL))
        if output is not None:
            output.parent.mkdir(parents=True, exist_ok=True)
            join_pieces(sorted(pieces.iterdir()), output, schema)
    seconds = time.monotonic() - started_s
    return MatchSummary(counts[0], counts[1], len(rows), seconds, output)


def read_subscriptions(path: Path) -> list[tuple[str | None, str | None, str | None]]:
    """The (id, filter, dialect) of a CSV, JSON-lines or Parquet file; MatchFilesError when it has none."""
    if not path.exists():
        raise MatchFilesError(f"{path} does not exist")
    try:
        match path.suffix:
            case ".parquet":
                table = pa.parquet.read_table(path)
            case ".csv":
                names = pa.csv.read_csv(path, pa.csv.ReadOptions(block_size=1 << 24)).schema.names
                texts = pa.csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True
                )
                quoted = pa.csv.ParseOptions(newlines_in_values=True)
                table = pa.csv.read_csv(path, parse_options=quoted, convert_options=texts)
            case ".jsonl" | ".ndjson" | ".json":
                table = pa.Table.from_pylist(list(_json_objects(path)))
            case _:
                raise MatchFilesError(f"{path}: subscriptions come in .csv, .jsonl or .parquet")
    except (pa.ArrowException, OSError) as error:
        raise MatchFilesError(f"{path}: {error}") from error
    missing = {"id", "filter"} - set(table.column_names)
    if missing:
        raise MatchFilesError(
            f"{path}: the columns id and filter are needed; it has {', '.join(table.column_names) or 'none'}"
        )
    if "dialect" not in table.column_names:
        table = table.append_column("dialect", pa.array(["sql"] * len(table)))
    columns = [table.column(name).cast(pa.string()).to_pylist() for name in ("id", "filter", "dialect")]
    return list(zip(*columns, strict=True))


def _json_objects(path: Path) -> Iterator[dict[str, object]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield msgspec.json.decode(line, type=dict[str, object])
                except msgspec.DecodeError as error:
                    raise MatchFilesError(f"{path}, line {number}: {error}") from error


def _subscription_frame(
    session: SparkSession, rows: Sequence[tuple[str | None, str | None, str | None]]
) -> DataFrame:
    """Subscriptions as a DataFrame, so that the executors compile them."""
    names = ("id", "filter", "dialect")
    columns = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
    return session.createDataFrame(pa.table(dict(zip(names, columns, strict=True))))


@contextmanager
def _session(given: SparkSession | None, settings: SparkSettings | None) -> Iterator[SparkSession]:
    active = given or SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    with tempfile.TemporaryDirectory(prefix="fieldfare-spark-") as scratch:
        with standard_error_to(Path(scratch) / "spark.log"):
            session = service_session(settings or SparkSettings(), Path(scratch))
        try:
            yield session
        finally:
            session.stop()


def _events(session: SparkSession, path: Path) -> tuple[DataFrame, pa.Schema, StructType | None]:
    """What to hand to tasks, the schema of a match, and the attributes where columns say what they are."""
    if path.suffix == ".parquet" or (path.is_dir() and any(path.rglob("*.parquet"))):
        frame = session.read.parquet(str(path))
        output = StructType([StructField("subscription", StringType()), *frame.schema])
        return frame, to_arrow_schema(output), frame.schema
    chunks = [chunk for file in json_line_files(path) for chunk in chunks_of(file)]
    if not chunks:
        return session.createDataFrame([], _CHUNKS_SQL), LINE_MATCHES, None
    rows = [astuple(chunk) for chunk in chunks]
    tasks = min(len(rows), 4 * session.sparkContext.defaultParallelism)
    # Parallelised as they are, in order, so that the pieces of the output are in the order of the file.
    frame = session.sparkContext.parallelize(rows, tasks).toDF(_CHUNKS_SQL)
    return frame, LINE_MATCHES, None


def _collect(counts: DataFrame) -> tuple[int, int]:
    try:
        rows = counts.collect()
    except PythonException as error:
        raise MatchFilesError(re.sub(r"^[\w.]+Error: ", "", reason(error))) from error
    return sum(row.events for row in rows), sum(row.matches for row in rows)


@dataclass(frozen=True, slots=True)
class _Task:
    """What both kinds of task share: the index that was shipped, and where pieces of the output go."""

    shipped: ShippedIndex
    pieces: str
    suffix: str | None

    def writer(self, raw_column: str | None = None) -> PieceWriter | None:
        if self.suffix is None:
            return None
        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        return PieceWriter(Path(self.pieces) / f"{task:08d}{self.suffix}", raw_column)


@dataclass(frozen=True, slots=True)
class MatchParquet(_Task):
    """A task over batches of rows whose columns are the attributes; Spark knows them by their places."""

    names: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        saved, writer, events, matches = self.shipped.open(), self.writer(), 0, 0
        for columns in batches:
            batch = columns.rename_columns(list(self.names))
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
    """A task over chunks of files of JSON lines."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        saved, writer, events, matches = self.shipped.open(), self.writer("event"), 0, 0
        for batch in batches:
            # By place: on their way here columns may have been given other names.
            for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                chunk = Chunk(*values)
                payload, lines = read_chunk(chunk)
                found = match_lines(chunk.path, payload, lines, saved)
                events, matches = events + len(lines), matches + len(found.subscriptions)
                if writer is not None:
                    write_lines(writer, payload, lines, found, saved)
        if writer is not None:
            writer.close()
        yield pa.record_batch([[events], [matches]], schema=_COUNTS)


def match_lines(path: str, payload: bytes, lines: Sequence[int], saved: SavedIndex) -> Matches:
    """Match a chunk of a file as if it were a record of the log; a broken line is a MatchFilesError."""
    records = pa.record_batch(
        [[0], [0], [SPACE], pa.array([len(lines)], pa.int32()), pa.array([payload], pa.large_binary())],
        schema=RECORDS,
    )
    try:
        return match_batch(records, {SPACE: saved.slices})
    except DecodeError as error:
        raise MatchFilesError(f"{path}, line {lines[error.line]}: this is not one JSON object") from error


def write_lines(
    writer: PieceWriter, payload: bytes, lines: Sequence[int], found: Matches, saved: SavedIndex
) -> None:
    """Write a row for each match: the subscription's id, the line's number, the line."""
    texts = pa.array(payload.split(b"\n")[:-1], pa.binary()).cast(pa.string())
    numbers = np.array(lines, np.int64)
    events = np.repeat(np.arange(len(numbers)), np.diff(found.indptr))
    for start in range(0, len(events), OUTPUT_ROWS):
        rows = slice(start, start + OUTPUT_ROWS)
        ids = saved.ids.take(pa.array(found.subscriptions[rows]))
        columns = [ids, pa.array(numbers[events[rows]]), texts.take(pa.array(events[rows]))]
        writer.write(pa.RecordBatch.from_arrays(columns, schema=LINE_MATCHES))
