"""Files of events against files of subscriptions, as ``fieldfare match`` does it."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from pipeline_support import random_event, random_filter
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from fieldfare.cli.app import app
from fieldfare.filters import compile_filter
from fieldfare.runtimes.files.kinds import FileError
from fieldfare.runtimes.spark import event_files
from fieldfare.runtimes.spark.batch import match_files
from fieldfare.spark import SubscriptionsError

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def case() -> tuple[list[dict[str, Any]], dict[str, str], set[tuple[str, int]]]:
    """Events, filters by id, and the pairs (id, line) that match."""
    random = Random(7)
    events = [random_event(random) for _ in range(60)]
    filters = {f"s{i}": random_filter(random) for i in range(30)}
    matchers = {id: compile_filter(text).matches for id, text in filters.items()}
    pairs = {
        (id, line)
        for id, matches in matchers.items()
        for line, event in enumerate(events, 1)
        if matches(event)
    }
    return events, filters, pairs


def write_csv(path: Path, filters: dict[str, str]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("id", "filter"), *filters.items()])
    return path


def test_json_lines_give_the_same_matches_in_every_output(
    session: SparkSession,
    tmp_path: Path,
    case: tuple[list[dict[str, Any]], dict[str, str], set[tuple[str, int]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events, filters, pairs = case
    # Many small chunks: lines are cut and counted across them.
    monkeypatch.setattr(event_files.chunks_of, "__defaults__", (400,))
    source = tmp_path / "events.jsonl"
    source.write_text("\n".join(json.dumps(event) for event in events))
    subscriptions = write_csv(tmp_path / "subscriptions.csv", filters)
    summary = match_files(source, subscriptions, session=session)
    assert (summary.events, summary.matches, summary.subscriptions) == (60, len(pairs), 30)
    match_files(source, subscriptions, tmp_path / "out.jsonl", session=session)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {(row["subscription"], row["line"]) for row in rows} == pairs
    assert all(row["event"] == events[row["line"] - 1] for row in rows)
    assert [row["line"] for row in rows] == sorted(row["line"] for row in rows)
    command = ["match", *map(str, (source, "-s", subscriptions, "-o", tmp_path / "out.csv")), "--json"]
    said = json.loads(CliRunner().invoke(app, command, catch_exceptions=False).stdout)
    assert (said["events"], said["subscriptions"], said["matches"]) == (60, 30, len(pairs))
    with (tmp_path / "out.csv").open(newline="") as file:
        assert {(row["subscription"], int(row["line"])) for row in csv.DictReader(file)} == pairs
    match_files(source, subscriptions, tmp_path / "out.parquet", session=session)
    table = pa.parquet.read_table(tmp_path / "out.parquet")
    assert (
        set(zip(*(table.column(name).to_pylist() for name in ("subscription", "line")), strict=True)) == pairs
    )


def test_parquet_events_come_back_with_their_columns(session: SparkSession, tmp_path: Path) -> None:
    events = pa.table({"n": [1, 2, 3], "at": [{"x": 1.5}, {"x": 2.5}, None]})
    pa.parquet.write_table(events, tmp_path / "events.parquet")
    (tmp_path / "subscriptions.jsonl").write_text(
        '{"id": "small", "filter": "n < 3"}\n\n{"id": "far", "filter": "at.x > 2", "dialect": "sql"}\n'
    )
    summary = match_files(
        tmp_path / "events.parquet", tmp_path / "subscriptions.jsonl", tmp_path / "out.jsonl", session=session
    )
    assert (summary.events, summary.matches) == (3, 3)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted((row["subscription"], row["n"]) for row in rows) == [("far", 2), ("small", 1), ("small", 2)]
    match_files(
        tmp_path / "events.parquet", tmp_path / "subscriptions.jsonl", tmp_path / "out.csv", session=session
    )
    assert '"far",2,"{""x"":2.5}"' in (tmp_path / "out.csv").read_text()


def test_file_errors_are_reported_with_their_place(session: SparkSession, tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    events.write_text('{"a": 1}\n\n{"a": 2\n')
    good = write_csv(tmp_path / "good.csv", {"s": "a = 1"})
    with pytest.raises(FileError, match=r"events\.jsonl, line 3: this is not one JSON object"):
        match_files(events, good, session=session)
    with pytest.raises(FileError, match="does not exist"):
        match_files(tmp_path / "nothing.jsonl", good, session=session)
    with pytest.raises(FileError, match="endings"):
        match_files(events, good, tmp_path / "out.xlsx", session=session)
    (tmp_path / "bad.csv").write_text("name,filter\nx,a = 1\n")
    with pytest.raises(FileError, match="columns id and filter"):
        match_files(events, tmp_path / "bad.csv", session=session)
    with pytest.raises(SubscriptionsError, match="'s': line 1"):
        match_files(events, write_csv(tmp_path / "worse.csv", {"s": "a ="}), session=session)


def test_a_line_that_is_not_utf_8_is_named_with_and_without_an_output(
    session: SparkSession, tmp_path: Path
) -> None:
    events = tmp_path / "events.jsonl"
    events.write_bytes(b'{"a": 1}\n\n{"a": "M\xfcnchen"}\n{"a": 1}\n')
    good = write_csv(tmp_path / "good.csv", {"s": "a = 1"})
    for output in (None, tmp_path / "out.jsonl", tmp_path / "out.parquet"):
        with pytest.raises(FileError, match=r"events\.jsonl, line 3: this is not UTF-8"):
            match_files(events, good, output, session=session)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events.jsonl", "good.csv"]


def test_a_file_without_subscriptions_or_events_matches_nothing(
    session: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "events.jsonl").write_text("")
    summary = match_files(
        tmp_path / "events.jsonl",
        write_csv(tmp_path / "none.csv", {}),
        tmp_path / "out.csv",
        session=session,
    )
    assert (summary.events, summary.matches, summary.subscriptions) == (0, 0, 0)
    assert (tmp_path / "out.csv").read_text().strip() == '"subscription","line","event"'


TWICE = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from fieldfare.runtimes.spark.batch import match_files
folder = Path(sys.argv[1])
files = folder / "events.jsonl", folder / "s.csv"
found = [match_files(*files, folder / f"{n}.jsonl").matches for n in (1, 2)]
own = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(found, own.range(3).count(), len(own.range(3).collect()))
own.stop()
"""


@pytest.mark.slow
def test_a_program_matches_files_twice_and_then_starts_a_session_of_its_own(tmp_path: Path) -> None:
    """Java went on with the folder for sockets of the first session, which is deleted at its end."""
    (tmp_path / "events.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    write_csv(tmp_path / "s.csv", {"a": "x > 1"})
    command = [sys.executable, "-c", TWICE, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert (ran.stdout, ran.returncode) == ("[1, 1] 3 3\n", 0), ran.stderr
    assert (tmp_path / "1.jsonl").read_text() == (tmp_path / "2.jsonl").read_text() != ""
