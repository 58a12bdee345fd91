"""The bounds for the work of filters over arrays are never too low, for Arrow values and Python values."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.filters.evaluator import event_getter
from fieldfare.matching.events.arrow_values import text_sizes
from fieldfare.matching.events.columns import UNKNOWN_BYTES
from fieldfare.matching.events.event_columns import EventOthers

texts = st.none() | st.text(max_size=5)
numbers = st.none() | st.integers(0, 9)
FORMS = [
    (pa.list_(pa.string()), st.lists(texts, max_size=4)),
    (
        pa.large_list(pa.list_(pa.large_string())),
        st.lists(st.none() | st.lists(texts, max_size=3), max_size=3),
    ),
    (pa.list_(pa.int32(), 2), st.lists(numbers, min_size=2, max_size=2)),
    (
        pa.struct([("a", pa.list_(pa.string())), ("b", pa.int64())]),
        st.fixed_dictionaries({"a": st.none() | st.lists(texts, max_size=3), "b": numbers}),
    ),
    (
        pa.map_(pa.string(), pa.list_(pa.string())),
        st.dictionaries(st.text(max_size=3), st.lists(texts, max_size=2), max_size=3).map(
            lambda found: list(found.items())
        ),
    ),
    (pa.dictionary(pa.int32(), pa.string()), texts),
]


def held(value: object) -> tuple[int, int]:
    """The number of values in a value, at any depth, and the number of characters of its texts."""
    if isinstance(value, str):
        return 0, len(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    inner = [held(part) for part in parts]
    return sum(values + 1 for values, _ in inner), sum(size for _, size in inner)


@settings(max_examples=drawn(200))
@given(st.data(), st.sampled_from(range(len(FORMS))), st.integers(0, 2))
def test_text_sizes_are_upper_bounds(data: st.DataObject, form: int, skipped: int) -> None:
    kind, drawn_values = FORMS[form]
    rows = data.draw(st.lists(st.none() | drawn_values, max_size=5))
    array = pa.array(rows, kind).slice(skipped)
    sizes = text_sizes(array)
    assert sizes.dtype == np.float64
    events = [{"a": value} for value in array.to_pylist(maps_as_pydicts="lossy")]
    of_events = EventOthers(events, event_getter).text_sizes(("a",), np.arange(len(events)))
    for each in sizes, of_events:
        for size, event in zip(each.tolist(), events, strict=True):
            values, text = held(event["a"])
            assert size >= 2 * (values + 1)
            assert size >= text


@pytest.mark.parametrize("kind", [pa.list_view(pa.string()), pa.list_(pa.string_view())])
def test_unknown_sizes_are_reported(kind: pa.DataType) -> None:
    assert (text_sizes(pa.array([["a"], []], kind))[:1] >= UNKNOWN_BYTES).all()
