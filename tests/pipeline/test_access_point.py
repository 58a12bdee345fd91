"""Records in both formats, JSON lines and Arrow streams, decode to the same events."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_support import TYPED, arrow_payload_of, payload_of, typed_event
from tests.doses import drawn

from fieldfare.arrow_events.stream import read_events
from fieldfare.matching.events.json_decoder import DecodeError
from fieldfare.pipeline.access_point import RECORDS, by_space, decode

randoms = st.randoms(use_true_random=False)
PATHS = [("id",), ("subject",), ("data",), ("data", "x"), ("data", "word"), ("data", "flag")]


def batch_of(*rows: tuple[int, str, int, Any]) -> pa.RecordBatch:
    rows = [(offset, 100 + offset, *rest) for offset, *rest in rows]
    return pa.record_batch(
        [
            pa.array(list(column), field.type)
            for column, field in zip(zip(*rows, strict=True), RECORDS, strict=True)
        ],
        schema=RECORDS,
    )


def events_in(payload: Any, count: int) -> list[dict[str, Any]]:
    """The events of a payload in either format."""
    if bytes(payload[:1]) == b"{":
        return [json.loads(line) for line in bytes(payload).splitlines()]
    rows = read_events(payload, count).to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


@settings(max_examples=drawn(40))
@given(randoms)
def test_payload_of_keeps_events_and_format(random: Random) -> None:
    rows, all_events = [], []
    for offset in range(random.randrange(1, 6)):
        events = [typed_event(random) for _ in range(random.randrange(1, 4))]
        schema = random.choice([None, TYPED, pa.schema([*TYPED][::-1])])
        payload = payload_of(events, random) if schema is None else arrow_payload_of(events, schema)
        rows.append((offset, random.choice("ab"), len(events), payload))
        all_events += events
    seen = np.zeros(len(all_events), int)
    for part in by_space(batch_of(*rows)):
        places = part.places if part.places is not None else np.arange(len(all_events))
        seen[places] += 1
        for _ in range(2):
            chosen = np.array([random.randrange(part.size) for _ in range(random.randrange(1, 5))])
            payload = part.payload_of(chosen)
            assert events_in(payload, len(chosen)) == [all_events[places[place]] for place in chosen]
            (read,) = by_space(batch_of((0, "a", len(chosen), payload)))
            columns, before = decode(read, PATHS), decode(part, PATHS)
            for path in {*PATHS} - {("data",)}:
                assert columns.values(path) == [before.value(path, place) for place in chosen]
    assert seen.tolist() == [1] * len(all_events)


def test_a_null_at_the_top_is_a_missing_attribute_and_a_null_in_data_is_null() -> None:
    events = pa.RecordBatch.from_pylist(
        [{"id": "1", "subject": None, "data": {"x": None}}, {"id": "2", "subject": "s", "data": None}]
    )
    payload = arrow_payload_of(events)
    (part,) = by_space(batch_of((0, "a", 2, payload)))
    columns = decode(part, PATHS)
    assert columns.columns["subject",].kinds.tolist() == [0, 8]
    assert columns.columns["data", "x"].kinds.tolist() == [1, 0]
    assert columns.columns["data",].kinds.tolist() == [2, 0]
    assert decode(part, [("nothing",)]).size == 2
    assert decode(part, []).size == 2


def test_a_single_arrow_record_is_not_copied() -> None:
    payload = arrow_payload_of([{"id": "long enough to be no accident", "data": {"x": 5.0}}] * 50)
    batch = batch_of((3, "a", 50, payload))
    (part,) = by_space(batch)
    assert part.places is None
    inside = batch.column("payload").buffers()[2]
    text = decode(part, [("id",)]).text
    assert inside.address < text.ctypes.data < inside.address + inside.size
    assert (
        inside.address
        < decode(part, PATHS).columns["data", "x"].words.ctypes.data
        < inside.address + inside.size
    )


def test_arrow_records_with_equal_columns_are_grouped() -> None:
    one, two = arrow_payload_of([{"id": "1"}]), arrow_payload_of([{"id": "2"}, {"id": "3"}])
    other = arrow_payload_of([{"id": "4", "data": 1}])
    parts = list(
        by_space(batch_of((0, "a", 1, one), (1, "a", 1, b"{}\n"), (2, "a", 1, other), (3, "a", 2, two)))
    )
    assert [part.places.tolist() for part in parts if part.places is not None] == [[0, 3, 4], [1], [2]]
    assert parts[0].stamps.tolist() == [100, 103, 103]
    assert decode(parts[0], PATHS).values(("id",)) == ["1", "2", "3"]


def corrupt_payloads() -> dict[str, bytes]:
    good = bytes(arrow_payload_of([{"id": "1"}, {"id": "2"}]))
    return {
        "cut": good[:-60],
        "only the mark": good[:4],
        "noise": good[:4] + bytes(range(100)),
        "too few rows": bytes(arrow_payload_of([{"id": "1"}])),
        "no batch": good[:4] + good[4:8] + good[8 : 8 + int.from_bytes(good[4:8], "little")],
    }


@pytest.mark.parametrize("name", corrupt_payloads())
def test_the_error_names_a_corrupt_arrow_record(name: str) -> None:
    batch = batch_of((41, "a", 1, b"{}\n"), (42, "a", 2, corrupt_payloads()[name]))
    with pytest.raises(DecodeError, match="record 42 cannot be read"):
        list(by_space(batch))


@pytest.mark.parametrize("name", corrupt_payloads())
def test_the_error_names_a_corrupt_record_after_a_good_one_with_equal_columns(name: str) -> None:
    rows = (41, "a", 1, arrow_payload_of([{"id": "0"}])), (42, "a", 2, corrupt_payloads()[name])
    with pytest.raises(DecodeError, match="record 42 cannot be read"):
        list(by_space(batch_of(*rows)))


def test_missing_json_lines_are_reported() -> None:
    (part,) = by_space(batch_of((0, "a", 3, b"{}\n{}\n")))
    with pytest.raises(DecodeError, match="line 2"):
        part.payload_of(np.array([0]))
