"""Arrow batches become columns with the values of their rows, for every type, null, and slice."""

from __future__ import annotations

import datetime
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_decoder import columns_from_arrow_naive
from tests.doses import drawn

from fieldfare.filters import compile_filter
from fieldfare.filters.values import ABSENT, exact_number
from fieldfare.matching.evaluation.batches import BatchFilter
from fieldfare.matching.events.arrow_decoder import columns_from_arrow
from fieldfare.matching.events.columns import (
    KIND_EXACT,
    KIND_FLOAT,
    KIND_INT,
    KIND_MISSING,
    KIND_NULL,
    KIND_OTHER,
    ColumnBatch,
)
from fieldfare.matching.events.json_decoder import decode_json_lines

Paths = list[tuple[str | int, ...]]


def meaning(value: Any) -> Any:
    """The value that a filter sees: for a number, its exact decimal."""
    if isinstance(value, list):
        return [meaning(item) for item in value]
    if isinstance(value, dict):
        return {key: meaning(item) for key, item in value.items()}
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return value
    return str(value) if not math.isfinite(value) else exact_number(value)


def seen(batch: ColumnBatch, path: tuple[str | int, ...]) -> list[Any]:
    values = [meaning(batch.value(path, event)) for event in range(batch.size)]
    assert [meaning(value) for value in batch.values(path)] == values
    return values


def assert_as_naive(batch: pa.RecordBatch, paths: Paths) -> ColumnBatch:
    fast, naive = columns_from_arrow(batch, paths), columns_from_arrow_naive(batch, paths)
    assert fast.size == naive.size == batch.num_rows
    for path in paths:
        assert seen(fast, path) == seen(naive, path), path
    for column in fast.columns.values():
        assert (column.kinds.dtype, column.words.dtype) == (np.uint8, np.int64)
        assert column.kinds.flags.c_contiguous and column.words.flags.c_contiguous
        assert not column.words[column.kinds <= 4].any()
    return fast


def whole(bits: int, signed: bool) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else st.integers(0, (1 << bits) - 1)


def decimals(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    return st.integers(-(10**digits) + 1, 10**digits - 1).map(lambda n: Decimal(n).scaleb(-scale))


texts = st.text(max_size=8)
moments = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1))
TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    *[(getattr(pa, f"int{bits}")(), whole(bits, True)) for bits in (8, 16, 32, 64)],
    *[(getattr(pa, f"uint{bits}")(), whole(bits, False)) for bits in (8, 16, 32, 64)],
    (pa.float16(), st.floats(width=16).map(np.float16)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.string(), texts),
    (pa.large_string(), texts),
    (pa.string_view(), texts),
    (pa.binary(), st.binary(max_size=4)),
    (pa.dictionary(pa.int8(), pa.string()), texts),
    (pa.dictionary(pa.uint32(), pa.int64()), whole(64, True)),
    (pa.run_end_encoded(pa.int32(), pa.string()), st.sampled_from(["a", "b"])),
    (pa.decimal128(12, 2), decimals(12, 2)),
    (pa.decimal128(38, 10), decimals(28, 10)),
    (pa.decimal128(19, 0), decimals(19, 0)),
    (pa.decimal256(60, 5), decimals(40, 5)),
    (pa.date32(), st.dates()),
    (pa.date64(), st.dates()),
    (pa.time32("s"), st.times().map(lambda time: time.replace(microsecond=0))),
    (pa.time64("us"), st.times()),
    (pa.timestamp("us"), moments),
    (pa.timestamp("s", "UTC"), moments.map(lambda moment: moment.replace(microsecond=0))),
    (pa.timestamp("ns", "Europe/Vienna"), moments),
    (pa.duration("s"), st.timedeltas(datetime.timedelta(0), datetime.timedelta(9)).map(lambda t: t // 10**6)),
]


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=[str(kind) for kind, _ in TYPES])
def test_every_type_reads_as_its_values_with_nulls_and_in_slices(kind: Any, values: Any) -> None:
    @settings(max_examples=drawn(25))
    @given(st.lists(st.none() | values, max_size=12), st.integers(0, 4), st.integers(0, 12))
    def check(items: list[Any], start: int, length: int) -> None:
        if pa.types.is_run_end_encoded(kind):
            array = pa.compute.run_end_encode(pa.array(items, kind.value_type))
        elif pa.types.is_dictionary(kind):
            array = pa.array(items, kind.value_type).dictionary_encode().cast(kind)
        else:
            array = pa.array(items, kind)
        paths: Paths = [("a",), ("other",), ("a", "b"), ("a", 0), ("text",)]
        text = pa.array(["x" * (k % 3) for k in range(len(items))])
        batch = pa.RecordBatch.from_arrays([array, text], ["a", "text"])
        for part in batch, batch.slice(start, length):
            fast = assert_as_naive(part, paths)
            assert set(fast.columns) == {("a",), ("text",)}

    check()


NESTED = pa.struct(
    [
        ("x", pa.int64()),
        ("inner", pa.struct([("s", pa.string()), ("f", pa.float64())])),
        ("list", pa.list_(pa.int32())),
        ("large", pa.large_list(pa.string())),
        ("fixed", pa.list_(pa.int16(), 2)),
        ("view", pa.list_view(pa.struct([("y", pa.string())]))),
        ("map", pa.map_(pa.string(), pa.int64())),
    ]
)
NESTED_PATHS: Paths = [
    (),
    ("data",),
    ("data", "x"),
    ("data", "inner"),
    ("data", "inner", "s"),
    ("data", "inner", "f"),
    ("data", "inner", "none"),
    ("data", "list", 0),
    ("data", "list", 1),
    ("data", "list"),
    ("data", "list", -1),
    ("data", "large", 1),
    ("data", "fixed", 1),
    ("data", "fixed", 2),
    ("data", "view", 0, "y"),
    ("data", "view", 1, "y"),
    ("data", "map", "k"),
    ("data", "map"),
    ("data", 0),
    ("none", "x"),
]


def optional(values: Any) -> Any:
    return st.none() | values


nested_rows = st.fixed_dictionaries(
    {
        "x": optional(whole(64, True)),
        "inner": optional(st.fixed_dictionaries({"s": optional(texts), "f": optional(st.floats())})),
        "list": optional(st.lists(optional(whole(32, True)), max_size=3)),
        "large": optional(st.lists(optional(texts), max_size=3)),
        "fixed": optional(st.lists(optional(whole(16, True)), min_size=2, max_size=2)),
        "view": optional(st.lists(optional(st.fixed_dictionaries({"y": optional(texts)})), max_size=3)),
        "map": optional(st.dictionaries(st.sampled_from("klm"), optional(whole(64, True)), max_size=3)).map(
            lambda items: None if items is None else list(items.items())
        ),
    }
)


@settings(max_examples=drawn(80))
@given(st.lists(optional(nested_rows), max_size=8), st.integers(0, 4), st.integers(0, 8))
def test_paths_lead_through_structs_lists_and_maps(rows: list[Any], start: int, length: int) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(rows, NESTED)], ["data"])
    for part in batch, batch.slice(start, length):
        assert_as_naive(part, NESTED_PATHS)


def test_values_below_a_null_struct_are_missing_as_in_json() -> None:
    rows = [{"a": 1}, {"a": None}, None]
    batch = pa.RecordBatch.from_arrays([pa.array(rows, pa.struct([("a", pa.int64())]))], ["data"])
    paths: Paths = [("data",), ("data", "a")]
    columns = columns_from_arrow(batch, paths).columns
    assert columns[("data",)].kinds.tolist() == [KIND_OTHER, KIND_OTHER, KIND_NULL]
    assert columns[("data", "a")].kinds.tolist() == [KIND_INT, KIND_NULL, KIND_MISSING]
    as_json = decode_json_lines(b'{"data":{"a":1}}\n{"data":{"a":null}}\n{"data":null}\n', 3, paths).columns
    for path in paths:
        assert as_json[path].kinds.tolist() == columns[path].kinds.tolist()


def test_a_single_string_column_is_not_copied() -> None:
    array = pa.array(["ab", "c", None, "def"]).slice(1)
    batch = columns_from_arrow(pa.RecordBatch.from_arrays([array, array], ["a", "b"]), [("a",)])
    assert np.shares_memory(batch.text, np.frombuffer(array.buffers()[2], np.uint8))
    assert seen(batch, ("a",)) == ["c", None, "def"]


def test_integers_without_nulls_are_not_copied() -> None:
    array = pa.array([1, 2, 3])
    batch = columns_from_arrow(pa.RecordBatch.from_arrays([array], ["a"]), [("a",)])
    assert np.shares_memory(batch.columns[("a",)].words, np.frombuffer(array.buffers()[1], np.int64))


def test_a_float32_is_the_decimal_that_it_prints_as() -> None:
    array = pa.array([0.1, 16777216.0, -0.0, 3.4028235e38, 1e-45], pa.float32())
    batch = columns_from_arrow(pa.RecordBatch.from_arrays([array], ["a"]), [("a",)])
    values = [batch.value(("a",), k) for k in range(5)]
    assert list(map(repr, values)) == ["0.1", "16777216.0", "-0.0", "3.4028235e+38", "1e-45"]


def test_decimals_get_the_cheapest_exact_kind() -> None:
    numbers = ["18.50", "7.00", "123456789012345.67", "-0.01"]
    array = pa.array([Decimal(number) for number in numbers], pa.decimal128(20, 2))
    batch = columns_from_arrow(pa.RecordBatch.from_arrays([array], ["a"]), [("a",)])
    assert batch.columns[("a",)].kinds.tolist() == [KIND_FLOAT, KIND_INT, KIND_EXACT, KIND_FLOAT]
    assert seen(batch, ("a",)) == [Decimal(number) for number in numbers]


def test_moments_read_as_their_json_text() -> None:
    moments = [datetime.datetime(2013, 1, 1, 5, 15), datetime.datetime(2013, 1, 1, 5, 15, 0, 250_000)]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(moments, pa.timestamp("ms")), pa.array(moments, pa.timestamp("us", "America/New_York"))],
        ["local", "utc"],
    )
    columns = columns_from_arrow(batch, [("local",), ("utc",)])
    assert seen(columns, ("local",)) == ["2013-01-01T05:15:00", "2013-01-01T05:15:00.25"]
    assert seen(columns, ("utc",)) == ["2013-01-01T05:15:00+00:00", "2013-01-01T05:15:00.25+00:00"]


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"], ids=["local", "zoned"])
def test_moments_of_different_units_compare_correctly(zone: str | None) -> None:
    """A flight that left at 12:00:00.5 was sorted before one that left at 12:00:00, because `.` is less than
    `Z`."""
    start = 1_700_000_000_000_000_000
    steps = [0, 1, 500, 5_000, 5_000_000, 50_000_000, 500_000_000, 510_000_000, 1_000_000_000]
    found: list[tuple[int, str]] = []
    for unit, ns in ("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1):
        moments = [start + step for step in steps if step % ns == 0]
        column = pa.array([moment // ns for moment in moments], pa.int64()).cast(pa.timestamp(unit, zone))
        columns = columns_from_arrow(pa.RecordBatch.from_arrays([column], ["at"]), [("at",)])
        found += zip(moments, seen(columns, ("at",)), strict=True)
    assert len(dict(found)) == len(steps) == len({text for _, text in found})
    assert [text for _, text in sorted(found)] == sorted(text for _, text in found)


def test_the_last_of_several_fields_with_one_name_counts() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    assert columns_from_arrow(batch, [("a",)]).value(("a",), 0) == 2


def test_an_empty_batch_has_empty_columns() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([], pa.string()), pa.array([], NESTED)], ["a", "data"])
    columns = columns_from_arrow(batch, [("a",), ("b",), *NESTED_PATHS])
    assert columns.size == columns.text.size == 0
    assert len(columns.columns[("a",)].kinds) == 0
    assert columns.value(("b",), 0) is ABSENT


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (pa.timestamp("us"), bytes(24)),
        (pa.decimal128(38, 2), bytes(48)),
        (pa.string(), struct.pack("<4i", 0, 1, 2, 3)),
        (pa.large_string(), struct.pack("<4q", 0, 1, 2, 3)),
    ],
    ids=["timestamp", "decimal", "string", "large_string"],
)
@pytest.mark.parametrize("more", range(8))
def test_a_buffer_may_be_larger_than_its_values(kind: Any, content: bytes, more: int) -> None:
    buffers = [None, pa.py_buffer(content + bytes(more))]
    buffers += [pa.py_buffer(b"abc")] if kind in (pa.string(), pa.large_string()) else []
    for start in range(4):
        values = pa.Array.from_buffers(kind, 3, buffers)[start:]
        assert_as_naive(pa.RecordBatch.from_arrays([values], names=["v"]), [("v",)])


@pytest.mark.parametrize("lists", [pa.list_, pa.large_list, pa.list_view, lambda kind: pa.list_(kind, 2)])
def test_arrays_of_views_of_strings_are_read(lists: Callable[[pa.DataType], pa.DataType]) -> None:
    """Polars writes all strings as views, which Arrow cannot take from lists."""
    rows = [["x", "y"], None, ["a string that is longer than twelve bytes", None]]
    batches = [
        pa.record_batch({"a": pa.array(rows, lists(kind))}) for kind in (pa.string_view(), pa.string())
    ]
    for text in ("'x' = ANY(a)", "a[-1] = 'y'", "a[0] LIKE 'a string%'", "CARDINALITY(a) = 2"):
        found, expected = (BatchFilter(compile_filter(text)).matches(batch).tolist() for batch in batches)
        assert found == expected and any(found)
    inner = pa.list_(pa.struct({"s": pa.string_view()}))
    batch = pa.record_batch({"a": pa.array([[{"s": "x"}, {"s": "y"}], []], inner)})
    by_member = BatchFilter(compile_filter("ANY i IN a SATISFIES (i.s = 'y')"))
    assert by_member.matches(batch).tolist() == [True, False]
