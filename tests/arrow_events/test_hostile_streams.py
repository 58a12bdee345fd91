"""Arbitrary bytes sent as an Arrow stream are read or rejected."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest
from tests.doses import drawn

from fieldfare.arrow_events.canonical import SizeBudget
from fieldfare.arrow_events.checking import check_events
from fieldfare.arrow_events.errors import TableRefused, TableTooLarge
from fieldfare.arrow_events.json_text import json_lines
from fieldfare.arrow_events.wire import read_stream

EVENTS = pa.record_batch(
    {
        "specversion": ["1.0"] * 3,
        "id": ["1", "2", "3"],
        "source": pa.array(["/a"] * 3).dictionary_encode(),
        "type": pa.array(["t"] * 3, pa.string_view()),
        "data": [{"x": 1, "l": [1.5, None], "m": "ü"}, None, {"x": 3, "l": None, "m": ""}],
    }
)


def stream(compression: str | None, events: pa.RecordBatch = EVENTS) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, events.schema, options=options) as writer:
        writer.write_batch(events)
    return sink.getvalue().to_pybytes()


@pytest.mark.long
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_a_damaged_stream_is_read_or_rejected(compression: str | None) -> None:
    good = stream(compression)
    random = Random(7)
    outcomes = set()
    for _ in range(drawn(3_000)):
        body = bytearray(good)
        for _ in range(random.choice([1, 1, 2, 8])):
            body[random.randrange(len(body))] = random.choice([0, 1, 0x7F, 0xFF, random.randrange(256)])
        if random.random() < 0.2:
            del body[random.randrange(len(body)) :]
        try:
            batches = read_stream(bytes(body), 1_000, 1 << 20)
            if batches:
                json_lines(check_events(batches, 1 << 16, SizeBudget(1 << 20)).events)
            outcomes.add("read")
        except (TableRefused, TableTooLarge) as error:
            outcomes.add(type(error).__name__)
    assert {"read", "StreamRefused"} <= outcomes


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_small_stream_with_a_large_unpacked_size_is_rejected(compression: str) -> None:
    body = stream(compression, pa.record_batch({"id": ["x" * (32 << 20)]}))
    assert len(body) < 1 << 20
    with pytest.raises(TableTooLarge, match="when unpacked"):
        read_stream(body, 1_000, 8 << 20)
