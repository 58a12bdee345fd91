"""docs/files.md: each kind of file is read by the commands that its table says, and refused by the others."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from fieldfare.cli.event_files import read_events
from fieldfare.encodings import zstd
from fieldfare.runtimes.files.kinds import PACKED_SUFFIXES, SUFFIXES, FileError
from fieldfare.runtimes.files.subscriptions import read_subscriptions
from fieldfare.runtimes.spark.event_files import EventFiles, LineChunk
from fieldfare.runtimes.spark.output import OUTPUT_FORMATS

ROOT = Path(__file__).parents[2]
ROWS = [{"id": "a", "filter": "x = 1"}, {"id": "é", "filter": "y = 'z'"}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def table_rows(title: str) -> list[list[str]]:
    """The cells of the table below a title."""
    section = (ROOT / "docs/files.md").read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\|(.*)\|$", section, re.MULTILINE)[2:]
    return [[cell.strip() for cell in row.split("|")] for row in rows]


def write_parquet(path: Path) -> None:
    pa.parquet.write_table(pa.Table.from_pylist(ROWS), path)


def write_arrow(new: Callable[..., Any]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        table = pa.Table.from_pylist(ROWS)
        with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema) as writer:
            writer.write_table(table)

    return write


def write_csv(path: Path) -> None:
    path.write_text("id,filter\na,x = 1\né,y = 'z'\n")


def write_folder(path: Path) -> None:
    path.mkdir()
    (path / "part.jsonl").write_bytes(LINES)


def packed(pack: Callable[[bytes], bytes]) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(pack(LINES))


WRITERS: dict[str, Callable[[Path], Any]] = {
    "JSON lines": packed(bytes),
    "a JSON array, or one object over lines": packed(lambda _: json.dumps(ROWS, indent=1).encode()),
    "JSON compressed with gzip": packed(gzip.compress),
    "JSON compressed with bzip2": packed(bz2.compress),
    "JSON compressed with xz": packed(lzma.compress),
    "JSON compressed with zstd": packed(zstd.compress),
    "Parquet": write_parquet,
    "an Arrow file": write_arrow(pa.ipc.new_file),
    "an Arrow stream": write_arrow(pa.ipc.new_stream),
    "CSV": write_csv,
    "a folder of events": write_folder,
}


def match_events(path: Path) -> Iterator[Any]:
    found = EventFiles.of(path)
    for part in found.parts:
        if isinstance(part, LineChunk):
            yield from (json.loads(line) for payload, _ in part.pieces() for line in payload.splitlines())
        else:
            assert found.schema is not None
            yield from (row for batch in part.batches(found.schema) for row in batch.to_pylist())


def other_events(path: Path) -> Iterator[Any]:
    yield from (event for _, event in read_events(str(path)))


def subscriptions(path: Path) -> Iterator[Any]:
    yield from ({"id": each.id, "filter": each.filter} for each in read_subscriptions(path, with_ids=True))


@pytest.mark.parametrize("row", table_rows("Kinds"), ids=lambda row: row[0])
def test_a_kind_of_file_is_read_where_the_page_says_so(row: list[str], tmp_path: Path) -> None:
    kind, names, *uses, output = row
    suffixes = re.findall(r"`(\.[\w.]+)`", names)
    for suffix in suffixes or [""]:
        path = tmp_path / f"events{suffix}"
        WRITERS[kind](path)
        for read, use in zip((match_events, other_events, subscriptions), uses, strict=True):
            if use == "yes":
                assert list(read(path)) == ROWS, (suffix, read)
            else:
                with pytest.raises(FileError):
                    list(read(path))
    assert output == "no" or output.strip("`") in (set(suffixes) & set(OUTPUT_FORMATS))


def test_the_page_has_every_kind_and_every_name() -> None:
    rows = table_rows("Kinds")
    assert [row[0] for row in rows] == list(WRITERS)
    named = set(re.findall(r"\.\w+", " ".join(row[1] for row in rows)))
    assert named == {*SUFFIXES, *PACKED_SUFFIXES}
    assert {row[-1].strip("`") for row in rows} == {"no", *OUTPUT_FORMATS}
