"""Files as every command reads them: JSON lines of all origins, folders, tables, subscriptions."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
import typer

from fieldfare.cli.event_files import read_events
from fieldfare.encodings import zstd
from fieldfare.runtimes.files import lines
from fieldfare.runtimes.files.kinds import FileError, FileKind, event_files
from fieldfare.runtimes.files.lines import LineReader, whole_lines
from fieldfare.runtimes.files.subscriptions import read_subscriptions
from fieldfare.runtimes.files.tables import BATCH_BYTES, TableFile, merged_schema
from fieldfare.runtimes.spark.event_files import EventFiles, LineChunk, TablePart, chunks_of

MARK = b"\xef\xbb\xbf"
ONE, TWO = b'{"a":1}', b'{"b":2}'


def read(content: bytes) -> list[tuple[int, bytes]]:
    """The lines of a stream, which are the same in pieces."""
    found = list(LineReader(io.BytesIO(content), "x"))
    pieces = [whole_lines(*piece) for piece in LineReader(io.BytesIO(content), "x").pieces()]
    assert [
        (number, line.strip())
        for payload, numbers in pieces
        for number, line in zip(numbers, payload.split(b"\n")[:-1], strict=True)
    ] == found
    return found


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"\n \n", []),
        (ONE + b"\n" + TWO, [(1, ONE), (2, TWO)]),
        (MARK + ONE + b"\n" + MARK + TWO + b"\n", [(1, ONE), (2, TWO)]),
        (MARK + b"\r\n" + ONE + b"\r\n\r\n " + TWO + b"\r\n", [(2, ONE), (4, TWO)]),
        (b'{"a":\r1}', [(1, b'{"a": 1}')]),
        (b"[\r\n" + ONE + b",\n" + TWO + b"]", [(1, ONE), (2, TWO)]),
        (MARK + b'{\n  "a": 1\n}\n', [(1, ONE)]),
        (b"[1]\n[2]\n", [(1, b"[1]"), (2, b"[2]")]),
        (b'{"a":\n' + TWO + b"\n", [(1, b'{"a":'), (2, TWO)]),
        (b"[1,\noops", [(1, b"[1,"), (2, b"oops")]),
        (b"[" * 5000 + b"\n" + TWO, [(1, b"[" * 5000), (2, TWO)]),
        (b'{"a":"\xff"}\n' + TWO, [(1, b'{"a":"\xff"}'), (2, TWO)]),
    ],
)
@pytest.mark.parametrize(
    "pack",
    [bytes, gzip.compress, bz2.compress, lzma.compress, zstd.compress],
    ids=lambda pack: pack.__module__,
)
def test_a_byte_order_mark_or_packing_costs_no_record(
    pack: Callable[[bytes], bytes], content: bytes, expected: list[tuple[int, bytes]]
) -> None:
    """A file of Windows lost its first event, and `events.jsonl.gz` was taken for lines."""
    assert read(pack(content)) == expected


def test_packed_files_put_one_behind_the_other_are_read_to_the_end() -> None:
    assert read(gzip.compress(ONE + b"\n", mtime=0) + gzip.compress(TWO, mtime=0)) == [(1, ONE), (2, TWO)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(ONE * 50, mtime=0)[:-6], "cannot read x: Compressed file ended"),
        (b"\x1f\x8bno gzip", "cannot read x"),
        ('{"a":1}'.encode("utf-16"), "text in UTF-16"),
        (b"PK\x03\x04", "Excel"),
        (b"PAR1", "holds Parquet"),
        (gzip.compress(b"PAR1", mtime=0), "holds Parquet: pass the file itself, by name and uncompressed"),
    ],
)
def test_a_stream_without_lines_is_reported_with_its_kind(content: bytes, message: str) -> None:
    with pytest.raises(FileError, match=message):
        read(content)


def test_a_large_file_with_a_corrupt_first_line_is_not_read_completely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A line `{"a":` before a million others was kept in memory with them, as an object over lines."""
    monkeypatch.setattr(lines, "PIECE_BYTES", 64)
    stream = io.BufferedReader(io.BytesIO(b'{"a":\n' + (TWO + b"\n") * 10_000), 128)
    pieces = LineReader(stream, "x").pieces()
    next(pieces)
    assert stream.tell() < 1_000


def chunked(path: Path, chunk_bytes: int) -> list[tuple[int, bytes]]:
    chunks = list(chunks_of(path, chunk_bytes))
    return [
        (number, line.strip())
        for chunk in chunks
        for payload, numbers in chunk.pieces()
        for number, line in zip(numbers, payload.split(b"\n")[:-1], strict=True)
    ]


@pytest.mark.parametrize("chunk_bytes", [1, 7, 20, 1000])
def test_chunks_of_a_file_are_its_lines(tmp_path: Path, chunk_bytes: int) -> None:
    content = MARK + ONE + b"\r\n" + MARK + TWO + b"\n\n  " + ONE + b"\r\n" + TWO
    (tmp_path / "plain").write_bytes(content)
    (tmp_path / "packed").write_bytes(gzip.compress(content, mtime=0))
    expected = read(content)
    assert chunked(tmp_path / "plain", chunk_bytes) == expected
    assert chunked(tmp_path / "packed", chunk_bytes) == expected
    assert list(chunks_of(tmp_path / "packed")) == [LineChunk(tmp_path / "packed")]


def test_of_a_folder_no_file_is_passed_over(tmp_path: Path) -> None:
    """Files in folders below, packed ones, and those of another kind were left out without a word."""
    (tmp_path / "below").mkdir()
    (tmp_path / "_temporary").mkdir()
    for name in (
        "b.jsonl",
        "a.json.gz",
        "below/c.NDJSON",
        "_SUCCESS",
        ".b.jsonl.crc",
        "_temporary/d.parquet",
    ):
        (tmp_path / name).write_bytes(ONE)
    kind, files = event_files(tmp_path)
    assert kind is FileKind.LINES
    assert [file.relative_to(tmp_path).as_posix() for file in files] == [
        "a.json.gz",
        "b.jsonl",
        "below/c.NDJSON",
    ]
    for name, message in (
        ("x.parquet", r"files of several kinds: .*a\.json\.gz and .*x\.parquet"),
        ("x.csv", r"x\.csv is not a file of events"),
        ("README.txt", r"README\.txt is not a file of events"),
    ):
        (tmp_path / name).touch()
        with pytest.raises(FileError, match=message):
            event_files(tmp_path)
        (tmp_path / name).unlink()
    (tmp_path / "_delta_log").mkdir()
    with pytest.raises(FileError, match="Delta table"):
        event_files(tmp_path)


def test_unusable_event_files_are_reported_before_spark_starts(tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("a\n1\n")
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("events.csv", "CSV does not say which values are numbers"),
        ("empty", "has no files of events"),
        ("nothing.jsonl", "does not exist"),
    ):
        with pytest.raises(FileError, match=message):
            event_files(tmp_path / name)


NAMES = ["day[1].parquet", "{a}.parquet", "12:30.parquet", "a b#ü%20.parquet", "s3:x.parquet"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_a_name_and_no_pattern_or_address(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`day[1].parquet` read day1.parquet, and `12:30.parquet` was a URI."""
    monkeypatch.chdir(tmp_path)
    with open(name, "wb") as file:
        pa.parquet.write_table(pa.table({"n": [7]}), file)
    for other in ("day1.parquet", "a.parquet"):
        pa.parquet.write_table(pa.table({"n": [8]}), other)
    assert rows_of(Path(name)) == [{"n": 7}]
    with (
        pa.OSFile("[1].arrow", "wb") as sink,
        pa.ipc.new_stream(sink, pa.schema([("n", pa.int8())])) as writer,
    ):
        writer.write_batch(pa.record_batch([pa.array([9], pa.int8())], names=["n"]))
    assert rows_of(Path("[1].arrow")) == [{"n": 9}]


def rows_of(path: Path) -> list[dict[str, Any]]:
    found = EventFiles.of(path)
    assert found.schema is not None
    rows = []
    for part in found.parts:
        assert isinstance(part, TablePart)
        rows += [row for batch in part.batches(found.schema) for row in batch.to_pylist()]
    return rows


def write(path: Path, **columns: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pa.parquet.write_table(pa.table(columns), path)
    return path


def test_columns_that_only_later_files_have_are_read(tmp_path: Path) -> None:
    """Spark takes the columns of one file, and left out what only others have."""
    write(tmp_path / "a.parquet", n=pa.array([1], pa.int32()), at=[{"x": 1}])
    write(tmp_path / "b.parquet", more=["m"], n=pa.array([1 << 40]), at=[{"y": "z"}])
    assert rows_of(tmp_path) == [
        {"n": 1, "at": {"x": 1, "y": None}, "more": None},
        {"n": 1 << 40, "at": {"x": None, "y": "z"}, "more": "m"},
    ]
    write(tmp_path / "c.parquet", n=["text"])
    with pytest.raises(
        FileError, match=r"column n has type int64 in .*a\.parquet, and type string in .*c\.parquet"
    ):
        rows_of(tmp_path)
    write(tmp_path / "c.parquet", n=[0.5])
    with pytest.raises(FileError, match=r"a\.parquet|b\.parquet"):
        write(tmp_path / "b.parquet", n=[(1 << 60) + 1])
        rows_of(tmp_path)


def test_folders_of_a_partitioned_table_are_columns(tmp_path: Path) -> None:
    for day, hour, name in (("2020-01-01", "1", "a%20b"), ("2020-01-02", "12", "__HIVE_DEFAULT_PARTITION__")):
        write(tmp_path / f"day={day}" / f"hour={hour}" / f"name={name}" / "part.parquet", n=[1])
    assert [(str(row["day"]), row["hour"], row["name"]) for row in rows_of(tmp_path)] == [
        ("2020-01-01", 1, "a b"),
        ("2020-01-02", 12, None),
    ]


def test_names_that_come_twice_or_differ_in_case_are_kept_apart(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], ["a", "a", "A"])
    pa.parquet.write_table(table, tmp_path / "t.parquet")
    batches = list(TableFile(tmp_path / "t.parquet", FileKind.PARQUET).batches())
    assert [column.to_pylist() for column in batches[0].columns] == [[1], [2], [3]]
    schema = TableFile(tmp_path / "t.parquet", FileKind.PARQUET).schema
    with pytest.raises(FileError, match="two columns a"):
        merged_schema([(tmp_path / "t.parquet", schema), (tmp_path / "u.parquet", pa.schema([]))])


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_a_damaged_table_is_an_error_with_its_name(tmp_path: Path, suffix: str) -> None:
    """A broken Parquet file was a page of Java's traceback."""
    path = tmp_path / f"t{suffix}"
    if suffix == ".parquet":
        pa.parquet.write_table(pa.table({"n": list(range(10_000))}), path)
    else:
        with (
            pa.OSFile(str(path), "wb") as sink,
            pa.ipc.new_file(sink, pa.schema([("n", pa.int64())])) as writer,
        ):
            writer.write_table(pa.table({"n": list(range(10_000))}))
    whole = path.read_bytes()
    for damaged in (b"", whole[:100], whole[:-100], whole[:20] + b"\xee" * 500 + whole[520:]):
        path.write_bytes(damaged)
        try:
            found = rows_of(path)
        except FileError as error:
            assert str(path) in str(error)
        else:  # numbers are numbers
            assert len(found) == 10_000


def test_a_second_stream_in_an_arrow_file_is_not_passed_over(tmp_path: Path) -> None:
    table = pa.table({"a": [1, 2]})
    with pa.OSFile(str(tmp_path / "one.arrows"), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
        out.write_table(table)
    one = (tmp_path / "one.arrows").read_bytes()
    rows = [batch.num_rows for batch in TableFile(tmp_path / "one.arrows", FileKind.ARROW).batches()]
    assert rows == [2]
    (tmp_path / "two.arrows").write_bytes(one + one)
    with pytest.raises(FileError, match=r"two\.arrows has data behind the end of its Arrow stream"):
        TableFile(tmp_path / "two.arrows", FileKind.ARROW)


def test_a_text_of_a_table_that_is_not_utf_8_is_an_error_with_the_file(tmp_path: Path) -> None:
    _, offsets, text = pa.array([b"\xff\xfe"]).buffers()
    odd = pa.Array.from_buffers(pa.string(), 1, [None, offsets, text])
    pa.parquet.write_table(pa.table({"filter": odd}), tmp_path / "odd.parquet")
    with pytest.raises(FileError, match=r"cannot read .*odd\.parquet: .*UTF-?8"):
        list(TableFile(tmp_path / "odd.parquet", FileKind.PARQUET).batches())


def test_rows_with_much_text_come_in_small_batches(tmp_path: Path) -> None:
    texts = ["x" * (BATCH_BYTES // 16)] * 40
    path = tmp_path / "t.parquet"
    pa.parquet.write_table(pa.table({"text": texts}), path, use_dictionary=False)
    sizes = [batch.num_rows for batch in TableFile(path, FileKind.PARQUET).batches()]
    assert sum(sizes) == 40 and max(sizes) <= 16


CSV = 'id,filter,dialect\nNA,a = 1,\n"null","a IN (1,\n 2)",sql\nnan,"{""a"": [1]}",eventbridge\n'


def subscriptions(path: Path) -> list[tuple[str | None, str | None, str | None]]:
    return [(each.id, each.filter, each.dialect) for each in read_subscriptions(path, with_ids=True)]


@pytest.mark.parametrize("start", [b"", MARK])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_ids_of_a_csv_are_texts_whatever_they_look_like(
    tmp_path: Path, start: bytes, pack: Callable[[bytes], bytes]
) -> None:
    """A flight of Namibia's with the id NA had no id."""
    path = tmp_path / ("s.csv" if pack is bytes else "s.csv.gz")
    path.write_bytes(pack(start + CSV.encode()))
    assert subscriptions(path) == [
        ("NA", "a = 1", None),
        ("null", "a IN (1,\n 2)", "sql"),
        ("nan", '{"a": [1]}', "eventbridge"),
    ]
    path.write_bytes(pack(start + CSV.replace("\n", "\r\n").encode()))
    assert [row[0] for row in subscriptions(path)] == ["NA", "null", "nan"]


def test_a_large_csv_may_have_filters_over_several_lines(tmp_path: Path) -> None:
    """A small file might, and one of 20 MB was refused."""
    rows = [f"{number},\"a = {number}\nOR b = '{'x' * 1000}'\"\n" for number in range(20_000)]
    (tmp_path / "s.csv").write_text("id,filter\n" + "".join(rows))
    found = subscriptions(tmp_path / "s.csv")
    assert len(found) == 20_000 and found[-1][1] == f"a = 19999\nOR b = '{'x' * 1000}'"


JSON_LINES = """\
{"id": "plain", "filter": "a = 1"}

{"id": 7, "filter": {"a": [1.0, {"numeric": [">", 123456789012345678901]}]}, "dialect": "eventbridge"}
{"filter": [{"exact": {"b": "x"}}], "dialect": "subscriptions", "id": "later"}
"""


def test_a_filter_that_is_an_object_counts_as_its_json(tmp_path: Path) -> None:
    """EventBridge's patterns are objects; and a dialect that the first line did not have was left out."""
    (tmp_path / "s.jsonl").write_text(JSON_LINES)
    expected = [
        ("plain", "a = 1", None),
        ("7", '{"a": [1.0, {"numeric": [">", 123456789012345678901]}]}', "eventbridge"),
        ("later", '[{"exact": {"b": "x"}}]', "subscriptions"),
    ]
    assert subscriptions(tmp_path / "s.jsonl") == expected
    filters = [{"a": [1]}, {"b": ["x"], "data": {"n": [Decimal("1.50")]}}]
    table = pa.table({"id": [7, 8], "filter": filters, "dialect": ["eventbridge"] * 2})
    pa.parquet.write_table(table, tmp_path / "s.parquet")
    assert subscriptions(tmp_path / "s.parquet") == [
        ("7", '{"a":[1]}', "eventbridge"),
        ("8", '{"b":["x"],"data":{"n":[1.50]}}', "eventbridge"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("s.csv", "name,filter\n", "the columns id and filter are needed; it has name, filter"),
        ("s.csv", "", "it has none"),
        ("s.csv", "id,id,filter\n", "two columns id"),
        ("s.csv", "id,filter\na,b IN (1, 2)\n", "line 2 has 3 values, and there are 2 columns: put a value"),
        ("s.csv", 'id,filter\na,b\nc,"d\ne', "line 3 is not CSV"),
        ("s.csv", "id,filter\n\n,b\n", "line 3 has no id"),
        ("s.csv", b"id,filter\n\xe4,b\n", "is not UTF-8"),
        ("s.jsonl", '{"id":"a","filter":"b"}\n[]', "line 2 is not a subscription"),
        ("s.jsonl", "{oops", "line 1 is not JSON"),
        ("s.jsonl", '{"id":"a"}', "line 1 has no filter"),
        ("s.jsonl", '{"id":true,"filter":"b"}', "the id must be a string, not True"),
        ("s.jsonl", '{"id":"a","filter":5}', "the filter must be a string, not 5"),
        ("s.jsonl", '{"id":"a","filter":"b","dialect":{}}', "the dialect must be a string, not {}"),
        ("s.jsonl", b'{"id":"a","filter":{"b":"\xff"}}', "line 1 is not JSON: 'utf-8' codec can't decode"),
        ("s.jsonl", f'{{"id":{"9" * 5000},"filter":"b"}}', "line 1 is not a subscription: Integer value"),
        (
            "s.jsonl",
            f'{{"id":"a","filter":{"[" * 100_000}{"]" * 100_000}}}',
            "line 1 is not JSON: maximum rec",
        ),
        ("s.csv", f"id,filter,delivery\na,b,{'[' * 100_000}", "line 2: the delivery is not JSON"),
        ("s.csv", gzip.compress(b"id,filter\n", mtime=0)[:12] + b"\xff" * 8, "cannot read"),
        ("s.parquet", "oops", "cannot read"),
    ],
)
def test_invalid_subscriptions_are_reported_with_their_line(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(FileError) as raised:
        subscriptions(path)
    assert message in str(raised.value) and str(path) in str(raised.value)


@pytest.mark.parametrize("number", ["NaN", "-Infinity"])
def test_a_filter_is_not_tested_on_what_is_no_json(tmp_path: Path, number: str) -> None:
    (tmp_path / "e.jsonl").write_text(f'{{"data":{{"a":{number}}}}}\n')
    with pytest.raises(typer.Exit):
        list(read_events(str(tmp_path / "e.jsonl")))


def test_a_folder_is_no_file_of_subscriptions(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is a folder"):
        subscriptions(tmp_path)
    shutil.rmtree(tmp_path)
    with pytest.raises(FileError, match="does not exist"):
        subscriptions(tmp_path)
