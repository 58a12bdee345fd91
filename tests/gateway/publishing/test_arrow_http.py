"""Events published as an Arrow stream: what is accepted and refused; subscribers see no difference."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from gateway_support import ARROW, BATCH, EVENTS, encode, event, run, running

from fieldfare.arrow_events.stream import read_events, write_events
from fieldfare.filters import compile_filter
from fieldfare.gateway.delivery.records import RecordCache
from fieldfare.gateway.fair_limiter import FairExecutor
from fieldfare.matching.index import Index
from fieldfare.matching.part import build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END
from fieldfare.pipeline.access_point import record_batch
from fieldfare.pipeline.match_batch import match_batch
from fieldfare.storage.errors import EventLogError
from fieldfare.storage.event_log import Record


def stream(*batches: pa.RecordBatch, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def table(count: int = 2, **columns: Any) -> pa.RecordBatch:
    """A valid table of events, with other columns, or without some (None)."""
    usual = {
        "specversion": ["1.0"] * count,
        "id": [str(number) for number in range(count)],
        "source": ["/test"] * count,
        "type": ["t"] * count,
        "data": [{"x": number} for number in range(count)],
    }
    return pa.record_batch({name: values for name, values in (usual | columns).items() if values is not None})


async def publish(r, body: bytes, **headers: str):
    return await r.client.post(EVENTS, content=body, headers=ARROW | headers)


def refusal(answer, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.json()


TYPED_EVENTS = [
    event(
        *(1, {"x": 1, "price": 18.5, "word": 'ü"\n', "flag": True, "list": [1, None], "none": None}),
        subject="s",
    ),
    event(
        *(2, {"x": -5, "price": 0.1, "word": "", "flag": None, "list": [], "none": None}),
        ext="e",
        n=7,
        yes=False,
    ),
    event(3, {"x": 2**53 + 1, "price": None, "word": None, "flag": False, "list": None, "none": None}),
    event(4),
]
FILTERS = [
    *("data.x > 0", "data.price < 18.6", "data.word LIKE '%\"%'", "EXISTS(data)", "NOT EXISTS(data.flag)"),
    *(
        "data.flag",
        "EXISTS(subject)",
        "subject IS NULL",
        "ext = 'e' AND n = 7",
        "NOT yes",
        "data.list[0] = 1",
    ),
    *("data.x = 9007199254740993", "EXISTS(data.none)", "EXISTS(n) OR id = '4'", "specversion = '1.0'"),
    *("time > '2020-01-01T00:00:00Z'", "time = '2024-05-06T07:08:09.25+00:00'", "data IS NULL"),
]


def by_columns(record) -> list[list[int]]:
    """The matches of each event of a record, computed as in the service's pipeline."""
    forms = [(number, text, compile_filter(text).normal_form) for number, text in enumerate(FILTERS)]
    entries = [IndexEntry(number, number, 0, OPEN_END, form, text, "sql") for number, text, form in forms]
    return match_batch(record_batch([record]), {"default": Index((build_part(entries),))}).lists()


def test_subscribers_get_the_same_from_arrow_as_from_json(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            for number, text in enumerate(FILTERS):
                await r.subscribe(f"s{number}", text)
            complete = [{"time": "2024-05-06T07:08:09.25+00:00"} | each for each in TYPED_EVENTS]
            # An attribute that is null in JSON stays null there; as a column, null says that there is none.
            plain = [{name: value for name, value in each.items() if value is not None} for each in complete]
            await r.client.post(EVENTS, content=encode(plain), headers=BATCH)
            columns = {name: None for each in complete for name in each}
            rows = pa.RecordBatch.from_pylist([columns | each for each in complete])
            assert (await publish(r, stream(rows))).json()["count"] == 4
            moments = [datetime(2024, 5, 6, 7, 8, 9, 250_000, UTC)] * 4
            times = pa.array(moments, pa.timestamp("us", "Europe/Berlin"))
            rows = rows.set_column(rows.schema.get_field_index("time"), "time", times)
            assert (await publish(r, stream(rows, compression="zstd"))).json()["offset"] == 2
            first, second, third = (by_columns(record) for record in r.gateway.log.read(0, 3))
            assert first == second == third
            r.pipeline.step()
            for number, text in enumerate(FILTERS):
                messages = await r.pull(f"s{number}", max=100, wait_s=0)
                found = [
                    [each["event"] for each in messages if each["position"].startswith(f"0-{offset}-")]
                    for offset in range(3)
                ]
                assert found[0] == found[1] == found[2], text
            sample = await r.client.post(
                "/v1/filters:explain", json={"filter": "data.x = 1", "space": "default"}
            )
            assert sample.status_code == 200, sample.text

    run(work)


def test_values_that_json_has_no_type_for_come_as_json_would_carry_them(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("all", "EXISTS(id)")
            data = {
                "price": pa.array([Decimal("18.50"), Decimal("-0.25")]),
                "day": pa.array([19_000, None], pa.date32()),
                "at": pa.array([0, 1_500], pa.timestamp("ms")),
                "float": pa.array([float("nan"), float("-inf")]),
                "small": pa.array([0.1, None], pa.float32()),
                "bytes": pa.array([b"\x00\xff", None]),
                "word": pa.array(["a", "b"]).dictionary_encode(),
                "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int8())),
            }
            struct = pa.StructArray.from_arrays(list(data.values()), names=list(data))
            assert (await publish(r, stream(table(data=struct)))).status_code == 200
            assert (await publish(r, stream(table(1, data=pa.array([b"\x01\x02"]))))).status_code == 200
            r.pipeline.step()
            first, second, third = [each["event"] for each in await r.pull("all", wait_s=0)]
            assert first["data"] == {
                "price": 18.5, "day": "2022-01-08", "at": "1970-01-01T00:00:00", "float": None, "small": 0.1,
                "bytes": "AP8=", "word": "a", "map": {"k": 1},
            }  # fmt: skip
            assert second["data"]["at"] == "1970-01-01T00:00:01.5" and second["data"]["float"] is None
            assert second["data"]["price"] == -0.25 and second["data"]["map"] is None
            assert "data" not in third and third["data_base64"] == "AQI="

    run(work)


def test_several_packed_batches_become_one_plain_batch(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            body = stream(table(3), table(2), compression="lz4")
            producer = {"fieldfare-producer": "p", "fieldfare-sequence": "1"}
            for _ in range(2):
                answer = (await publish(r, body, **producer)).json()
            assert answer == {"partition": 0, "offset": 0, "count": 5, "stamp": 0, "duplicate": True}
            (record,) = r.gateway.log.read(0, 1)
            assert read_events(record.payload, 5).column("id").to_pylist() == ["0", "1", "2", "0", "1"]

    run(work)


def test_bad_rows_are_named_and_the_good_ones_are_taken(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            columns = {
                "id": ["0", "", None, "3", "4", "5", "6"],
                "specversion": ["1.0", "1.0", "1.0", "0.3", "1.0", "1.0", "1.0"],
                "time": [*["2020-01-01T00:00:00Z"] * 4, "2020-02-30T00:00:00Z", None, "noon"],
            }
            answer = await publish(r, stream(table(7, **columns)))
            assert answer.status_code == 207
            body = answer.json()
            assert [each["index"] for each in body["accepted"]] == [0, 5]
            found = [(each["index"], each["pointer"]) for each in body["refused"]]
            assert found == [(1, "/id"), (2, "/id"), (3, "/specversion"), (4, "/time"), (6, "/time")]
            assert "must be a non-empty string" in body["refused"][0]["detail"]
            (record,) = r.gateway.log.read(0, 1)
            assert read_events(record.payload, 2).column("id").to_pylist() == ["0", "5"]
            none = refusal(await publish(r, stream(table(1, n=[1 << 31]))))
            assert none["pointer"] == "/n" and "32 bits" in none["detail"]

    run(work)


@pytest.mark.parametrize(
    ("columns", "column", "words"),
    [
        ({"type": None}, "type", "is missing"),
        ({"id": [1, 2]}, "id", "must be one of strings, not of type int64"),
        ({"Price": [1, 2]}, "Price", "other than a-z and 0-9"),
        ({"price": [0.5, 1]}, "price", "strings, whole numbers or booleans"),
        ({"time": pa.array([0, 1], pa.timestamp("s"))}, "time", "without a time zone"),
        ({"data": pa.array([{"d": 1}, None], pa.struct({"d": pa.duration("s")}))}, "data.d", "duration"),
        ({"data": pa.array([1 << 60, 0], pa.timestamp("s"))}, "data", "years 1 to 9999"),
        ({"data": pa.array([b"", b""]), "data_base64": ["", ""]}, "data_base64", "both a binary column data"),
    ],
)
def test_a_column_that_cannot_be_is_named(tmp_path, columns, column, words):
    async def work() -> None:
        async with running(tmp_path) as r:
            body = refusal(await publish(r, stream(table(**columns))))
            assert body["column"] == column
            assert words in body["detail"]
            assert r.gateway.log.end() == 0

    run(work)


def test_two_columns_of_one_name_are_refused(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            batch = table()
            twice = batch.append_column(pa.field("type", pa.string()), batch.column("type"))
            assert refusal(await publish(r, stream(twice)))["column"] == "type"
            inner = pa.StructArray.from_arrays([pa.array([1, 2])] * 2, names=["x", "x"])
            assert refusal(await publish(r, stream(table(data=inner))))["column"] == "data.x"

    run(work)


def test_what_is_no_stream_is_refused(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            good = stream(table())
            for body in (b"", b"{}", good[:-100], good[:300], good[:4] + b"\x00" * 50, b"\xff" * 64):
                assert "not an Arrow IPC stream" in refusal(await publish(r, body))["detail"]
            sink = pa.BufferOutputStream()
            with pa.ipc.new_file(sink, table().schema) as writer:
                writer.write_batch(table())
            found = refusal(await publish(r, sink.getvalue().to_pybytes()))
            assert "file format" in found["detail"] and "new_stream" in found["hint"]
            assert "no event" in refusal(await publish(r, stream(table().slice(0, 0))))["detail"]

    run(work)


def test_too_much_is_too_much(tmp_path):
    async def work() -> None:
        limits = {"batch_max_events": 3, "event_max_bytes": 2_000, "body_max_bytes": 20_000}
        async with running(tmp_path, **limits) as r:
            assert refusal(await publish(r, stream(table(2), table(2))), 413)["max_events"] == 3
            large = table(3, data=["x", "x" * 3_000, "\n" * 1_900])
            answer = await publish(r, stream(large))
            assert answer.status_code == 207, answer.text
            assert [each["index"] for each in answer.json()["refused"]] == [1]
            refusal(await publish(r, stream(table(1, data=["x" * 3_000]))), 413)
            packed = stream(table(2, data=["x" * 30_000] * 2), compression="zstd")
            assert len(packed) < 5_000
            assert refusal(await publish(r, packed), 413)["max_bytes"] == 20_000
            words = pa.DictionaryArray.from_arrays(pa.array([0] * 3), pa.array(["x" * 15_000]))
            assert refusal(await publish(r, stream(table(3, data=words))), 413)["max_bytes"] == 40_000

    run(work)


class OneRecord:
    """A log that holds one record."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self.partitions = (self,)

    def bound(self, start: int, max_bytes: int, max_events: int) -> int:
        return start + 1

    def read(self, start: int, end: int) -> list[Record]:
        return [Record(start, "default", 2, self._payload, 0, 0)]


def test_a_record_of_the_log_that_is_broken_is_named():
    records = RecordCache(OneRecord(stream(table())[:400]), 1000, FairExecutor(2, 1, "test"))
    with pytest.raises(EventLogError, match="record 7 cannot be read: a corrupt Arrow stream"):
        records.lines(7, [0])


def test_rows_of_a_large_record_are_written_as_they_are_needed():
    """The rows in memory count towards the limit."""
    payload = bytes(write_events(table(2_000)))
    records = RecordCache(OneRecord(payload), 1 << 20, FairExecutor(2, 1, "test"))
    for indexes in ([5], [1_999, 5, 7], [3, 3]):
        lines = records.lines(0, indexes)
        assert [json.loads(line)["data"]["x"] for line in lines] == indexes
    held = records._held[0]
    assert held.size_bytes == len(payload) + sum(map(len, records.lines(0, [5, 1_999, 7, 3])))
    for index in range(20):
        records.lines(0, [index])
    assert len(held._written) == 2_000
    assert records._size_bytes == held.size_bytes
    records.put(1, b"{}\n" * (1 << 19), 0)
    assert list(records._held) == [1]
    assert records._size_bytes == 3 << 19
