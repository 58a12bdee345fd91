"""Events published as JSON and as a table have the same matches and the same deliveries."""

from __future__ import annotations

import json
from random import Random

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_support import TYPED, random_filter, typed_event
from tests.doses import drawn

from fieldfare.filters import compile_filter
from fieldfare.gateway.delivery.record_lines import all_lines
from fieldfare.gateway.publishing.arrow_bodies import decode_arrow
from fieldfare.gateway.publishing.events import Limits, decode_lines
from fieldfare.matching.index import Index
from fieldfare.matching.part import build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END
from fieldfare.pipeline.access_point import record_batch
from fieldfare.pipeline.match_batch import match_batch
from fieldfare.storage.event_log import Record

randoms = st.randoms(use_true_random=False)
REQUIRED = {"specversion": "1.0", "source": "/s", "type": "t"}
SCHEMA = pa.schema([*TYPED, *(pa.field(name, pa.string()) for name in REQUIRED), pa.field("n", pa.int16())])


def stream(batches: list[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, batches[0].schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
    ) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


@settings(max_examples=drawn(60))
@given(randoms)
def test_json_and_arrow_publishes_have_equal_matches_and_deliveries(random: Random) -> None:
    events = [typed_event(random) | REQUIRED for _ in range(random.randrange(2, 8))]
    for event in events:
        if random.random() < 0.5:
            event["n"] = random.randrange(4)
    lines = "\n".join(map(json.dumps, events)).encode()
    cut = random.randrange(len(events))
    parts = [part for part in (events[:cut], events[cut:]) if part]
    body = stream([pa.RecordBatch.from_pylist(part, SCHEMA) for part in parts])
    decoded = [decode_lines(lines, Limits()), decode_arrow(body, Limits(), 1 << 20)]
    assert [each.count for each in decoded] == [len(events)] * 2
    delivered = [[json.loads(line) for line in all_lines(each.payload)] for each in decoded]
    assert delivered == [events, events]
    filters = [random_filter(random) for _ in range(6)] + [
        "EXISTS(n)",
        "n > 1 OR subject LIKE 'a%'",
        "EXISTS(data)",
    ]
    forms = [(number, text, compile_filter(text).normal_form) for number, text in enumerate(filters)]
    entries = [IndexEntry(number, number, 0, OPEN_END, form, text, "sql") for number, text, form in forms]
    index = Index((build_part(entries),))
    records = [Record(offset, "a", each.count, each.payload, 0, 0) for offset, each in enumerate(decoded)]
    found = match_batch(record_batch(records), {"a": index}).lists()
    assert found[: len(events)] == found[len(events) :]
    matchers = [compile_filter(text).matches for text in filters]
    assert found[: len(events)] == [
        [number for number, matches in enumerate(matchers) if matches(event)] for event in events
    ]
