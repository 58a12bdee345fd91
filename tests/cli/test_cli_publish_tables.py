"""`fieldfare publish` with Parquet and Arrow files: they are sent as they are."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from cli_support import Fieldfare
from real_gateway import RealGateway

from fieldfare.arrow_events.stream import read_events
from fieldfare.storage import open_event_log
from fieldfare.storage.folder import DataFolder

pytestmark = pytest.mark.long


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[RealGateway]:
    running = RealGateway(tmp_path)
    running.start()
    yield running
    running.stop()


def published(folder: Path) -> list[list[dict[str, Any]]]:
    log = open_event_log(DataFolder(folder).log_url)
    records = [read_events(record.payload, record.count).to_pylist() for record in log.read(0, log.end())]
    log.close()
    return records


def test_files_of_columns_are_published_as_columns(
    gateway: RealGateway, fieldfare: Fieldfare, tmp_path: Path
) -> None:
    plain = pa.table({"price": [1.0, 2.0, 3.0], "Symbol": ["A", None, "C"]})
    pyarrow.parquet.write_table(plain, tmp_path / "plain.parquet")
    arguments = ("--url", gateway.url, "--type", "quote", "--source", "/q")
    result = fieldfare("publish", str(tmp_path / "plain.parquet"), *arguments, "--batch", "2")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("published 3 events in ")
    events = pa.table({"type": ["t", "t"], "source": ["/a"] * 2, "id": ["1", "2"], "data": [1, 2]})
    with pa.OSFile(str(tmp_path / "file.arrow"), "wb") as sink, pa.ipc.new_file(sink, events.schema) as file:
        file.write_table(events)
    with pa.OSFile(str(tmp_path / "s.arrows"), "wb") as sink, pa.ipc.new_stream(sink, events.schema) as file:
        file.write_table(events)
    for name in ("file.arrow", "s.arrows"):
        result = fieldfare("publish", str(tmp_path / name), "--url", gateway.url)
        assert (result.exit_code, result.stderr) == (0, "")
    records = published(tmp_path)
    assert [len(rows) for rows in records] == [2, 1, 2, 2]
    assert [row["data"] for row in records[0]] == [
        {"price": 1.0, "Symbol": "A"},
        {"price": 2.0, "Symbol": None},
    ]
    assert {(row["type"], row["source"]) for row in records[1]} == {("quote", "/q")}
    assert [(row["id"], row["data"]) for row in records[3]] == [("1", 1), ("2", 2)]


def test_rows_that_are_refused_are_named(gateway: RealGateway, fieldfare: Fieldfare, tmp_path: Path) -> None:
    events = pa.table({"type": ["t", "", "t", None], "source": ["/a"] * 4})
    pyarrow.parquet.write_table(events, tmp_path / "e.parquet")
    result = fieldfare("publish", str(tmp_path / "e.parquet"), "--url", gateway.url, "--batch", "2")
    assert result.exit_code == 1
    assert result.stdout.startswith("published 2 events in ") and result.stdout.endswith(", 2 failed\n")
    assert "row 2: type must be a non-empty string" in result.stderr
    assert "row 4: the required attribute type is missing" in result.stderr


def test_files_that_cannot_be_published_are_explained(
    gateway: RealGateway, fieldfare: Fieldfare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pyarrow.parquet.write_table(pa.table({"price": [1.0]}), tmp_path / "p.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 but no more")
    (tmp_path / "broken.arrow").write_bytes(b"ARROW1 but no more")
    for name, words in (
        ("p.parquet", "--type NAME publishes the rows"),
        ("broken.parquet", "cannot read"),
        ("broken.arrow", "cannot read"),
        ("nothing.parquet", "cannot read"),
    ):
        result = fieldfare("publish", str(tmp_path / name), "--url", gateway.url)
        assert result.exit_code != 0 and words in result.stderr, name
    real = builtins.__import__

    def refuse(name: str, *arguments: Any, **more: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    result = fieldfare("publish", str(tmp_path / "p.parquet"), "--url", gateway.url)
    assert "pip install 'fieldfare[arrow]'" in result.stderr
