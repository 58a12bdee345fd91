"""The memory of a pipeline task is bounded, whatever subscribers and publishers send."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from naive_library import each_library
from pipeline_support import arrow_payload_of

from fieldfare.filters import compile_filter
from fieldfare.matching import windows
from fieldfare.matching.index import Index
from fieldfare.matching.libraries import PLAIN
from fieldfare.matching.library import Library
from fieldfare.matching.part import build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END
from fieldfare.pipeline import access_point
from fieldfare.pipeline.access_point import by_space, decoded, record_batch
from fieldfare.pipeline.match_batch import find_matches, match_batch, stream_matches
from fieldfare.runtimes.spark import range_task, spent_time
from fieldfare.runtimes.spark.range_task import RangeMatcher, RecordRange
from fieldfare.storage.event_log import Record
from fieldfare.storage.files.match_log import FileMatchLog
from fieldfare.storage.folder import DataFolder

pytestmark = pytest.mark.long

MIB = 1 << 20


def index_of(texts: list[str], parts: int = 1, library: Library = PLAIN) -> Index:
    """An index of filters, numbered in order, divided into `parts` parts."""
    entries = [
        IndexEntry(number, number, 0, OPEN_END, compile_filter(text).compiled, text, "sql")
        for number, text in enumerate(texts)
    ]
    return Index([build_part(entries[place::parts], library) for place in range(parts)])


def record(offset: int, payload: bytes, count: int) -> Record:
    return Record(offset, "default", count, payload, 0, 0)


def lines(events: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(event) + "\n" for event in events).encode()


@contextmanager
def at_most(mib: int) -> Iterator[None]:
    """Assert that the context allocates at most `mib` MiB."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < mib * MIB, f"{peak >> 20} MiB"


def small_events(count: int) -> list[dict[str, Any]]:
    return [{"id": str(i), "data": {"a5": i % 7}} for i in range(count)]


@pytest.mark.parametrize("form", ["json", "arrow"])
def test_filters_of_many_attributes_do_not_multiply_with_the_events_of_a_request(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """330 filters of 1,000 attributes each and one request of 10,000 events: 24.6 GiB for the columns.

    The worker was killed for it, Spark retried, the service stopped, and the same record was waiting after
    the restart. Here: 6,000 attributes, which took 540 MB, and smaller bounds.
    """
    monkeypatch.setattr(access_point, "DECODED_CELLS", 1 << 20)
    monkeypatch.setattr(windows, "WINDOW_CELLS", 1 << 18)
    index = index_of([f"data.a{i} = 5" for i in range(6_000)])
    events = small_events(10_000)
    payload = lines(events) if form == "json" else arrow_payload_of(pa.RecordBatch.from_pylist(events))
    records = record_batch([record(3, payload, len(events))])
    stream = stream_matches(record_batch([record(0, lines(events[:1]), 1)]), {"default": index})
    assert not [pairs for pairs in stream if len(pairs.pairs)]
    with at_most(60):
        found = find_matches(records, {"default": index}).by_subscription()
    assert found.numbers.tolist() == [5]
    assert found.ordinals.tolist() == [i for i in range(10_000) if i % 7 == 5]


@each_library
@pytest.mark.parametrize("form", ["json", "arrow"])
def test_decoding_in_pieces_does_not_change_the_matches(
    library: Library, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = index_of([f"data.a{i % 9} > {i % 5}" for i in range(40)], 3, library)
    events = [{"id": str(i), "data": {"a5": i % 7, "a1": i % 3}} for i in range(100)]
    payload = lines(events) if form == "json" else arrow_payload_of(pa.RecordBatch.from_pylist(events))
    records = record_batch([record(3, payload, 100), record(4, lines(events[:7]), 7)])
    expected = match_batch(records, {"default": index}).lists()
    monkeypatch.setattr(access_point, "DECODED_CELLS", 30 * len(index.paths))
    sizes = [some.size for part in by_space(records) for some, _ in decoded(part, index.paths)]
    assert max(sizes) == 30 and sum(sizes) == 107
    assert match_batch(records, {"default": index}).lists() == expected
    monkeypatch.setattr(windows, "WINDOW_PAIRS", 50)
    assert match_batch(records, {"default": index}).lists() == expected


FOUND_BY: dict[str, Callable[[int], str]] = {
    "tiles": lambda i: f"data.a5 < {1000 + i}",
    "keys": lambda i: f"data.word = 'busy' AND data.a5 < {1000 + i}",
    "needles": lambda i: f"data.word LIKE '%busy%' AND data.a5 < {1000 + i}",
    "filters": lambda i: f"data.a5 + data.a5 < {1000 + i}",
}


@pytest.mark.parametrize("kind", FOUND_BY)
def test_a_window_with_too_many_matches_is_halved(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever structure finds them, no more matches than allowed come at once; none is lost or
    duplicated."""
    filters = 300
    index = index_of([FOUND_BY[kind](i) for i in range(filters)], parts=2)
    events = [{"data": {"a5": 5, "word": "busy" if i >= 100 else "idle"}} for i in range(200)]
    records = record_batch([record(0, lines(events), len(events))])
    monkeypatch.setattr(windows, "WINDOW_PAIRS", 10 * filters)
    streamed = list(stream_matches(records, {"default": index}))
    assert max(len(pairs.pairs) for pairs in streamed) <= 10 * filters
    lists = find_matches(records, {"default": index}).by_event().lists()
    some = [] if kind in ("keys", "needles") else list(range(filters))
    assert lists == [some] * 100 + [list(range(filters))] * 100
    monkeypatch.setattr(windows, "WINDOW_PAIRS", 1)
    assert match_batch(records, {"default": index}).lists() == lists


class _Fixed:
    """An index cache with one index."""

    def __init__(self, index: Index) -> None:
        self.index = index

    def indexes(self, manifest: int, revision: int) -> dict[str, Index]:
        return {"default": self.index}

    def check_unmatched(self, *_: object) -> None:
        pass


class _Records:
    """A log of given records."""

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.partitions = (self,)

    def end(self) -> int:
        return self.records[-1].offset + 1

    def read(self, start: int, end: int) -> Iterator[Record]:
        return (record for record in self.records if start <= record.offset < end)


@pytest.fixture
def range_matcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., RangeMatcher]:
    def make(index: Index, records: list[Record]) -> RangeMatcher:
        monkeypatch.setattr(range_task, "IndexCache", lambda store: _Fixed(index))
        monkeypatch.setattr(range_task, "open_event_log", lambda url: _Records(records))
        monkeypatch.setattr(spent_time, "time", SimpleNamespace(thread_time=lambda: 0.0))
        return RangeMatcher(DataFolder(tmp_path), lambda: 5.0)

    return make


def test_filters_that_match_everything_do_not_multiply_with_the_events_of_a_request(
    tmp_path: Path, range_matcher: Callable[..., RangeMatcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 match-all filters and a request of 10,000 events took 1.3 GB in a task; 100,000 took 12 GB.

    Here: 2,000 filters and proportionally smaller bounds; without bounds this takes 330 MB.
    """
    monkeypatch.setattr(windows, "WINDOW_PAIRS", 1 << 20)
    monkeypatch.setattr(range_task, "HELD_SLOTS", 1 << 20)
    monkeypatch.setattr("fieldfare.storage.match_runs.MERGED_MATCHES", 1 << 18)
    monkeypatch.setattr("fieldfare.storage.files.match_block.WAITING_BATCHES", 8)
    filters, events = 2_000, 10_000
    index = index_of([f"data.a5 < {1000 + i}" for i in range(filters)])
    records = [record(0, lines(small_events(5)), 5), record(1, lines(small_events(events)), events)]
    range_matcher(index, records[:1]).match(RecordRange(0, 0, 1, 0))
    with at_most(100):
        row = range_matcher(index, records).match(RecordRange(0, 0, 2, 0))
    assert row["matches"] == filters * (events + 5)
    assert list(tmp_path.rglob("*.tmp")) == []
    log = FileMatchLog(tmp_path / "matches")
    at = 0
    while (block := log.block_at(at)) is not None:
        assert block.numbers().tolist() == list(range(filters))
        for number in (0, 1_000, filters - 1):
            offsets, indexes = block.matches_of(number, at)
            assert indexes.tolist() == [i for record in records[at : block.end] for i in range(record.count)]
            assert np.unique(offsets).tolist() == list(range(at, block.end))
        at = block.end
    assert at == 2


def test_blocks_gathered_on_disk_equal_blocks_gathered_in_memory(
    tmp_path: Path, range_matcher: Callable[..., RangeMatcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    filters = [f"data.a5 = {i % 7} OR data.a5 > {i % 11}" for i in range(90)]
    records = [record(i, lines(small_events(20 + i)), 20 + i) for i in range(6)]
    index = index_of(filters, parts=2)
    (tmp_path / "matches").mkdir()
    range_matcher(index, records).match(RecordRange(0, 0, 6, 0))
    (path,) = (tmp_path / "matches").rglob("*.arrow")
    in_memory = path.read_bytes()
    monkeypatch.setattr(windows, "WINDOW_PAIRS", 200)
    monkeypatch.setattr(range_task, "HELD_SLOTS", 300)
    monkeypatch.setattr("fieldfare.storage.match_runs.MERGED_MATCHES", 1 << 20)
    range_matcher(index, records).match(RecordRange(0, 0, 6, 0))
    assert path.read_bytes() == in_memory
    monkeypatch.setattr("fieldfare.storage.match_runs.MERGED_MATCHES", 100)
    monkeypatch.setattr("fieldfare.storage.files.match_block.WAITING_BATCHES", 2)
    before = FileMatchLog(tmp_path / "matches").block_at(0)
    assert before is not None
    range_matcher(index, records).match(RecordRange(0, 0, 6, 0))
    after = FileMatchLog(tmp_path / "matches").block_at(0)
    assert after is not None
    for mine, other in zip(before.by_event(), after.by_event(), strict=True):
        assert mine.tolist() == other.tolist()


def test_a_block_lists_the_subscriptions_that_exceeded_the_work_limit(
    tmp_path: Path, range_matcher: Callable[..., RangeMatcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fieldfare.filters.work.STEPS_MAX", 1_000)
    heavy = "ANY i IN data.list SATISFIES (ANY j IN data.list SATISFIES (i + j = 1))"
    index = index_of(["data.a5 = 1", heavy, "3 = ANY(data.list)"], parts=2)
    events = [{"data": {"a5": 1, "list": list(range(2, size))}} for size in (5, 50, 60)]
    records = [record(0, lines(events[:1]), 1), record(1, lines(events), 3)]
    range_matcher(index, records).match(RecordRange(0, 0, 2, 0))
    block = FileMatchLog(tmp_path / "matches").block_at(0)
    assert block is not None
    assert {name: n for name, n in block.extra.items() if name.startswith("given")} == {
        "given_up": 2,
        "given_up 1": 2,
    }
    assert block.numbers().tolist() == [0, 2] and block.matches == 8
