"""`fieldfare match` over files of every type: what docs/files.md says of each, and odd files and outputs."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from fieldfare.cli.app import app
from fieldfare.cli.event_files import read_events
from fieldfare.runtimes.files.kinds import FileError
from fieldfare.runtimes.spark.batch import match_files
from fieldfare.spark import SubscriptionsError

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
MOMENT = datetime(2020, 1, 1, 5, 15, 0, 500_000)


def zoned(moment: datetime) -> pa.Array:
    return pa.array([moment], pa.timestamp("us", "UTC"))


TYPES: dict[str, Callable[[], pa.Array]] = {
    "int8, int16, int32, int64": lambda: pa.array([-5], pa.int16()),
    "uint8, uint16, uint32, uint64": lambda: pa.array([2**64 - 1], pa.uint64()),
    "float16": lambda: pa.array([np.float16(0.1)], pa.float16()),
    "float32": lambda: pa.array([0.1], pa.float32()),
    "float64": lambda: pa.array([1e300]),
    "float64, NaN": lambda: pa.array([float("nan")]),
    "decimal": lambda: pa.array([Decimal("18.50")]),
    "boolean": lambda: pa.array([True]),
    "string": lambda: pa.array(["é"]),
    "binary": lambda: pa.array([b"\x00\xff"]),
    "date": lambda: pa.array([date(2020, 1, 1)]),
    "time": lambda: pa.array([time(5, 15, 0, 500_000)]),
    "timestamp with a time zone": lambda: zoned(MOMENT),
    "timestamp without a time zone, in ns": lambda: pa.array([1_577_855_700_000_000_001], pa.timestamp("ns")),
    "INT96, the TIMESTAMP of Spark and Impala": lambda: pa.array([MOMENT], pa.timestamp("us")),
    "duration": lambda: pa.array([timedelta(days=1, seconds=1.5)]),
    "struct": lambda: pa.array([{"a": 1, "b": None}]),
    "list": lambda: pa.array([[1, 2]]),
    "map with strings as keys": lambda: pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())),
    "map with other keys": lambda: pa.array([[(1, "y")]], pa.map_(pa.int32(), pa.string())),
    "dictionary (pandas: category)": lambda: pa.array(["a"]).dictionary_encode(),
    "null": lambda: pa.nulls(1),
}


def documented() -> list[tuple[str, str, str]]:
    """The type, the filter and the JSON of each row of the page."""
    section = (ROOT / "docs/files.md").read_text().split("\n## Types\n")[1]
    return re.findall(r"^\| (.+?) \| `(.+?)` \| `(.+?)` \|$", section, re.MULTILINE)


def written(path: Path, table: pa.Table, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        pa.parquet.write_table(table, file, **options)
    return path


def test_every_type_is_matched_and_written_as_the_page_says(session: SparkSession, tmp_path: Path) -> None:
    """Spark's own TIMESTAMP was an AssertionError, nanoseconds an illegal type; a decimal became a text."""
    rows = documented()
    assert [row[0] for row in rows] == list(TYPES)
    filters = tmp_path / "filters.jsonl"
    with filters.open("w") as file:
        for number, (_, text, _) in enumerate(rows):
            text = re.sub(r"\bx\b", f"c{number}", text)
            file.write(json.dumps({"id": f"s{number}", "filter": f"n = {number} AND ({text})"}) + "\n")
    for number, (kind, _, shown) in enumerate(rows):
        table = pa.table({"n": [number], f"c{number}": TYPES[kind]()})
        path = tmp_path / "events" / f"{number:02}.parquet"
        written(path, table, use_deprecated_int96_timestamps=kind.startswith("INT96"))
        ((_, event),) = read_events(str(path))
        assert event == {"n": number, f"c{number}": json.loads(shown)}
    for suffix in ".jsonl", ".csv", ".parquet":
        summary = match_files(tmp_path / "events", filters, tmp_path / f"out{suffix}", session=session)
        assert (summary.events, summary.matches) == (len(rows), len(rows))
    assert match_files(tmp_path / "events", filters, session=session).matches == len(rows)
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    with (tmp_path / "out.csv").open(newline="") as file:
        cells = list(csv.DictReader(file))
    for number, ((kind, _, shown), line, cell) in enumerate(zip(rows, lines, cells, strict=True)):
        assert line.startswith(f'{{"subscription":"s{number}","n":{number},')
        assert re.search(rf',"c{number}":{re.escape(shown)}[,}}]', line), kind
        in_csv = json.loads(shown) if shown.startswith('"') else {"null": ""}.get(shown, shown)
        assert cell[f"c{number}"] == ("nan" if "NaN" in kind else in_csv), kind
    table = pa.parquet.read_table(tmp_path / "out.parquet")
    assert table.schema.field("c6").type == pa.decimal128(4, 2)
    assert table.column("c1").to_pylist()[1] == 2**64 - 1


def test_files_written_by_spark_are_read_with_sparks_types(session: SparkSession, tmp_path: Path) -> None:
    frame = session.sql(
        "SELECT 1 AS n, TIMESTAMP'2020-01-01 05:15:00Z' AS at, INTERVAL '1' DAY AS wait,"
        " 'Ab' COLLATE UTF8_LCASE AS name"
    )
    frame.write.parquet(str(tmp_path / "events"))
    for text, what in (
        ("wait = 86400000000", "filters do not read"),
        ("name = 'AB'", "collation UTF8_LCASE"),
    ):
        (tmp_path / "s.jsonl").write_text(json.dumps({"id": "s", "filter": text}))
        with pytest.raises(SubscriptionsError, match=what):
            match_files(tmp_path / "events", tmp_path / "s.jsonl", session=session)
    (tmp_path / "s.jsonl").write_text('{"id": "s", "filter": "at < TIMESTAMP \'2020-01-01T06:00:00Z\'"}')
    summary = match_files(tmp_path / "events", tmp_path / "s.jsonl", tmp_path / "o.jsonl", session=session)
    assert summary.matches == 1
    assert '"at":"2020-01-01T05:15:00+00:00"' in (tmp_path / "o.jsonl").read_text()


def test_line_ends_of_windows_do_not_break_the_output(session: SparkSession, tmp_path: Path) -> None:
    """The line of an output had the CR of its event's line; of a packed file nothing was read."""
    content = b'\xef\xbb\xbf{"a":1}\r\n\r\n{"a":\r1}\r\n{"a":1 }'
    (tmp_path / "plain.jsonl").write_bytes(content)
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(content))
    (tmp_path / "s.csv").write_bytes(b'\xef\xbb\xbfid,filter\r\nNA,"a = 1\r\nAND a < 2"\r\n')
    for name in "plain.jsonl", "packed.jsonl.gz":
        match_files(tmp_path / name, tmp_path / "s.csv", tmp_path / "out.jsonl", session=session)
        assert (tmp_path / "out.jsonl").read_bytes().splitlines() == [
            b'{"subscription":"NA","line":1,"event":{"a":1}}',
            b'{"subscription":"NA","line":3,"event":{"a": 1}}',
            b'{"subscription":"NA","line":4,"event":{"a":1 }}',
        ]


def test_columns_that_a_result_cannot_have_are_refused_and_counted(
    session: SparkSession, tmp_path: Path
) -> None:
    """A column `subscription` of the events took the place of the id."""
    (tmp_path / "s.csv").write_text("id,filter\ns,n = 1\n")
    own = written(tmp_path / "own.parquet", pa.table({"n": [1], "Subscription": ["gold"]}))
    arrays = [pa.array([1]), pa.array([2]), pa.array([3]), pa.array([4])]
    twice = written(tmp_path / "twice.parquet", pa.Table.from_arrays(arrays, ["n", "a", "a", "N"]))
    for events, message in (own, "a column called 'Subscription'"), (twice, "two columns 'a'"):
        with pytest.raises(FileError, match=message):
            match_files(events, tmp_path / "s.csv", tmp_path / "out.csv", session=session)
        assert match_files(events, tmp_path / "s.csv", session=session).matches == 1
    (tmp_path / "s.csv").write_text("id,filter\ns,a = 2\n")
    with pytest.raises(FileError, match="a filter names 'a', and the events have two columns"):
        match_files(twice, tmp_path / "s.csv", session=session)
    cased = written(tmp_path / "cased.parquet", pa.table({"a": [2], "A": [3]}))
    match_files(cased, tmp_path / "s.csv", tmp_path / "out.jsonl", session=session)
    assert (tmp_path / "out.jsonl").read_text() == '{"subscription":"s","a":2,"A":3}\n'


def test_an_output_does_not_replace_its_input(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "events").mkdir()
    events = tmp_path / "events" / "e.jsonl"
    events.write_text('{"a":1}\n')
    subscriptions = tmp_path / "s.jsonl"
    subscriptions.write_text('{"id":"s","filter":"a = 1"}\n')
    for source, output, message in (
        (events, events, "is an input, so it cannot be the output"),
        (events, subscriptions, "is an input, so it cannot be the output"),
        (events.parent, events.parent / "out.jsonl", "is in the folder of events"),
    ):
        with pytest.raises(FileError, match=message):
            match_files(source, subscriptions, output, session=session)
    assert events.read_text() == '{"a":1}\n'


def test_large_events_that_many_match_are_written_in_parts(session: SparkSession, tmp_path: Path) -> None:
    """Matches of large events made a column of more than 2 GiB, which Arrow cannot have."""
    events = written(tmp_path / "e.parquet", pa.table({"n": [1, 2], "text": ["x" * (1 << 20)] * 2}))
    with (tmp_path / "s.csv").open("w") as file:
        file.write("id,filter\n" + "".join(f"{number},n >= 1\n" for number in range(100)))
    summary = match_files(events, tmp_path / "s.csv", tmp_path / "out.parquet", session=session)
    assert summary.matches == 200
    with pa.parquet.ParquetFile(tmp_path / "out.parquet") as file:
        rows = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
    assert sum(rows) == 200 and max(rows) <= 64


def test_a_damaged_file_is_one_line_of_words(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("id,filter\ns,n = 1\n")
    path = written(tmp_path / "e.parquet", pa.table({"n": list(range(100_000))}), compression="snappy")
    content = bytearray(path.read_bytes())
    content[4:2_000] = b"\xee" * 1_996
    path.write_bytes(content)
    result = CliRunner().invoke(app, ["match", str(path), "-s", str(tmp_path / "s.csv")])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: cannot read {path}: ") and result.stderr.count("\n") == 1
