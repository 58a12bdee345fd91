"""Columns of every type become the JSON of their values, whatever their layout."""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.arrow_events.canonical import SizeBudget, canonical
from fieldfare.arrow_events.errors import TableRefused, TableTooLarge
from fieldfare.arrow_events.json_text import json_lines
from fieldfare.arrow_events.sizes import json_sizes

randoms = st.randoms(use_true_random=False)
WORDS = ("", "a", 'q"', "back\\slash", "line\n\t\x01", "ü\U0001f426", "\x7f", "/")


def random_type(random: Random, depth: int = 3) -> pa.DataType:
    kinds: list[Any] = [
        *(pa.null(), pa.bool_(), pa.int8(), pa.int64(), pa.uint64(), pa.float32(), pa.float64()),
        *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.binary_view()),
        *(pa.float16(), pa.date32(), pa.date64()),
        *(pa.decimal128(20, 4), pa.decimal256(50, 2), pa.time32("s"), pa.time64("us")),
        *(pa.timestamp("s"), pa.timestamp("us", "UTC"), pa.timestamp("ms", "Europe/Berlin")),
        *(pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.int64())),
    ]  # fmt: skip
    if depth and random.random() < 0.5:
        inner = random_type(random, depth - 1)
        other = random_type(random, depth - 1)
        kinds = [
            *(pa.struct({'na"me': inner, "other": other}), pa.list_(inner), pa.large_list(inner)),
            *(pa.list_(inner, 2), pa.list_view(inner), pa.map_(pa.string(), inner), pa.struct([])),
        ]  # fmt: skip
    kind: pa.DataType = random.choice(kinds)
    return kind


def random_value(random: Random, kind: pa.DataType) -> Any:
    if pa.types.is_null(kind) or random.random() < 0.2:
        return None
    if pa.types.is_struct(kind):
        return {kind.field(i).name: random_value(random, kind.field(i).type) for i in range(kind.num_fields)}
    if pa.types.is_map(kind):
        keys = random.sample(WORDS, random.randrange(3))
        return [(key, random_value(random, kind.item_type)) for key in keys]
    if pa.types.is_nested(kind):
        size = 2 if pa.types.is_fixed_size_list(kind) else random.randrange(3)
        return [random_value(random, kind.value_type) for _ in range(size)]
    if pa.types.is_dictionary(kind):
        return random_value(random, kind.value_type)
    if pa.types.is_boolean(kind):
        return random.random() < 0.5
    if pa.types.is_integer(kind):
        return random.choice([0, 7, 127, (1 << kind.bit_width - 1) - 1])
    if pa.types.is_float16(kind):
        return np.float16(random.choice([0.1, -2.5, float("nan")]))
    if pa.types.is_floating(kind):
        return random.choice([0.1, -2.5, 1e30, 1e-30, 0.0, float("inf"), float("nan"), 100.0])
    if pa.types.is_decimal(kind):
        return random.choice([Decimal("1.50"), Decimal("-12345678901234.25"), Decimal(0)])
    if pa.types.is_date(kind):
        return random.choice([date(2013, 1, 1), date(1, 1, 1), date(9999, 12, 31)])
    if pa.types.is_time(kind):
        return random.choice([time(5, 15), time(23, 59, 59)])
    if pa.types.is_timestamp(kind):
        return datetime(2013, 6, 1, 5, random.randrange(60), tzinfo=UTC if kind.tz else None)
    word = random.choice(WORDS)
    return word.encode("utf-8") + b"\xff" if "binary" in str(kind) else word


def plain(value: Any, kind: pa.DataType) -> Any:
    """The JSON value of a Python value."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {
            kind.field(i).name: plain(value[kind.field(i).name], kind.field(i).type)
            for i in range(kind.num_fields)
        }
    if pa.types.is_map(kind):
        return {key: plain(item, kind.item_type) for key, item in value}
    if pa.types.is_nested(kind):
        return [plain(item, kind.value_type) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, np.float16):
        value = float(str(value))
    if pa.types.is_float32(kind):
        value = float(str(np.float32(value)))
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime):
        moment, _, fraction = value.replace(tzinfo=None).isoformat().partition(".")
        fraction = "." + fraction.rstrip("0") if fraction else ""
        return moment + fraction + ("+00:00" if kind.tz else "")
    if isinstance(value, date | time):
        return value.isoformat().rstrip("0") if "." in value.isoformat() else value.isoformat()
    return float(value) if isinstance(value, Decimal) else value


@settings(max_examples=drawn(200))
@given(randoms)
def test_every_value_becomes_its_json(random: Random) -> None:
    kind = random_type(random)
    values = [random_value(random, kind) for _ in range(random.randrange(1, 6))]
    column = pa.array(values, kind)
    start = random.randrange(len(values))
    for part, there in (
        (column, values),
        (column.slice(start), values[start:]),
        (column.slice(0, 1), values[:1]),
    ):
        kept = canonical(part, "data", SizeBudget(1 << 20))
        kept.validate(full=True)
        events = pa.record_batch({"data": kept, "id": ["x"] * len(part)})
        lines = json_lines(events)
        read = [plain(value, kind) for value in there]
        expected = [{"id": "x"} | ({} if value is None else {"data": value}) for value in read]
        assert [json.loads(line) for line in lines] == expected
        sizes = json_sizes(events).tolist()
        escapes = [line.count(b"\\") * 6 for line in lines]
        assert all(size + more >= len(line) for size, line, more in zip(sizes, lines, escapes, strict=True))
        assert [json.loads(line) for line in json_lines(events.slice(len(part) - 1))] == expected[-1:]


def test_run_end_encodings_are_expanded() -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 6], pa.int32()), pa.array(["a", None, "b"]))
    assert canonical(runs.slice(1, 3), "data", SizeBudget(1 << 20)).to_pylist() == ["a", None, "b"]
    numbers = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int16()), pa.array([0.5, 1]))
    assert canonical(numbers, "data", SizeBudget(1 << 20)).to_pylist() == [0.5, 0.5, 1]


def test_rows_without_a_common_attribute_are_written() -> None:
    events = pa.record_batch({"a": pa.array([1, None, None]), "b": pa.array([None, 2, None], pa.int8())})
    assert json_lines(events) == [b'{"a":1}', b'{"b":2}', b"{}"]
    assert json_lines(events.slice(0, 0)) == []


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([1], pa.duration("s")), "duration"),
        (pa.array([[(1, 2)]], pa.map_(pa.int8(), pa.int8())), "keys are not strings"),
        (pa.array([[(b"k", 2)]], pa.map_(pa.binary(), pa.int8())), "keys are not strings"),
        (pa.ListViewArray.from_arrays([0, 0], [2, 2], pa.array([1, 2])), "share items"),
        (pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([{"a": 1}])), "dictionary or run-end"),
        (pa.array([1 << 60], pa.timestamp("s")), "years 1 to 9999"),
        (pa.array([(1 << 31) - 1], pa.date32()), "years 1 to 9999"),
    ],
)  # fmt: skip
def test_types_without_json_are_rejected(column: pa.Array, words: str) -> None:
    with pytest.raises(TableRefused, match=words):
        canonical(column, "data", SizeBudget(1 << 20))


def test_oversized_tables_are_rejected_before_unpacking() -> None:
    """A dictionary, a run-end encoding, a list of nulls: small to send, large in memory."""
    large = pa.array(["x" * 100_000])
    indexes = pa.array(np.zeros(10_000, np.int8))
    for column in (
        pa.DictionaryArray.from_arrays(indexes, large),
        pa.RunEndEncodedArray.from_arrays(pa.array([10_000], pa.int32()), large),
        pa.FixedSizeListArray.from_arrays(pa.nulls(1 << 30), 1 << 20),
    ):
        with pytest.raises(TableTooLarge):
            canonical(column, "data", SizeBudget(8 << 20))
    with pytest.raises(TableRefused, match="more than 5000 fields"):
        canonical(pa.array([{str(n): 1 for n in range(5_001)}]), "data", SizeBudget(8 << 20))
