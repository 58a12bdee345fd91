"""What an element's condition reads of the event around is read once, not once for each element."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from fieldfare.filters import compile_filter
from fieldfare.filters.evaluator import event_getter
from fieldfare.matching.evaluation.batches import BatchFilter
from fieldfare.matching.evaluation.steps import count_steps
from fieldfare.matching.events import columns
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.events.json_decoder import decode_json_lines

SIZE = 300
EVENTS: list[dict[str, Any]] = [
    {"a": list(range(SIZE)), "b": [[n] for n in range(SIZE)], "o": list(range(5_000)), "p": {"x": [1] * 500}},
    {"a": list(range(SIZE)), "b": [["x"]] * SIZE, "o": [4.5] * 250, "p": {str(n): n for n in range(250)}},
    {"a": list(range(SIZE)), "b": 7, "o": {"x": 1}, "p": list(range(SIZE - 1))},
    {"a": [-5000, "x", 10**30, [1], {"x": 2}, None] * 50, "b": [[[3]]] * 9, "o": [1, [2, "\\n"]], "p": None},
]
TEXTS = [
    "ANY i IN data.a SATISFIES (ELEMENT_AT(data.o, i) = 4.5)",
    "ANY i IN data.a SATISFIES (ELEMENT_AT(data.o, i - 5001) = i - 1)",
    "ANY i IN data.a SATISFIES (ELEMENT_AT(data.o, i) = 299 AND CARDINALITY(data.o) = 5000)",
    "ANY i IN data.a SATISFIES (CARDINALITY(data.o) = i)",
    "ANY i IN data.a SATISFIES (CARDINALITY(data.p) = i)",
    "ANY i IN data.b SATISFIES (i[0] = CARDINALITY(data.p) OR i[0] = 'x' OR i[0][0] = 3)",
    "ALL i IN data.b SATISFIES (i[0] = data.o OR CARDINALITY(data.o) > 9)",
    "ANY i IN data.a SATISFIES (ANY j IN data.b SATISFIES (ELEMENT_AT(data.o, i) = j[0]))",
    "ANY i IN data.a SATISFIES (ANY j IN data.b SATISFIES (CARDINALITY(data.o) + j[0] = 5299 AND i = 7))",
    "ANY i IN data.b SATISFIES (ANY j IN data.a SATISFIES (ELEMENT_AT(i, 1) = ELEMENT_AT(data.o, j)))",
]


@pytest.mark.parametrize("text", TEXTS)
def test_arrays_around_are_neither_read_nor_copied_for_each_element(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100,000 elements beside an object of half a megabyte held every space up for a quarter of an hour."""
    condition = compile_filter(text)
    events = [{"data": event} for event in EVENTS]
    lines = [json.dumps(event).encode() + b"\n" for event in events]
    batch = decode_json_lines(b"".join(lines), len(lines), list(condition.column_paths))
    taken, read = [0], list[bytes]()
    take, read_json = ColumnBatch.take, columns._read_json

    def counted_take(batch: ColumnBatch, chosen: Any) -> ColumnBatch:
        taken.append(len(chosen))
        return take(batch, chosen)

    def counted_read(text: bytes) -> Any:
        read.append(text)
        return read_json(text)

    monkeypatch.setattr(ColumnBatch, "take", counted_take)
    monkeypatch.setattr(columns, "_read_json", counted_read)
    assert BatchFilter(condition).matches(batch).tolist() == [condition.matches(event) for event in events]
    assert condition.work is not None
    steps = [condition.work.steps(lambda path, event=event: event_getter(path)(event)) for event in events]
    assert count_steps(batch, condition.work, np.arange(len(events))).tolist() == steps
    assert max(taken) <= max(2 * SIZE, *steps)
    large = [text for text in read if len(text) > 20]
    assert len(large) <= 2 * 4 * len(EVENTS)


def test_values_that_are_remembered_are_few_and_those_of_their_place() -> None:
    lines = [json.dumps({"a": [number] * 1_000, "b": [number]}).encode() + b"\n" for number in range(20)]
    batch = decode_json_lines(b"".join(lines), len(lines), [("a",), ("b",)])
    for number in [*range(20), 3, 3, 2, 19]:
        assert batch.value(("a",), number) == [number] * 1_000
        assert batch.value(("b",), number) == [number]
    assert list(batch.kept["read"].values()) == [[number] * 1_000 for number in (18, 19, 3, 2)]
