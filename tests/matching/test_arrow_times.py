"""Timestamps become the texts that Arrow itself would write, for every unit, null and slice."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.matching.events.arrow_times import texts_by_arrow, time_texts

UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
FIRST_S, LAST_S = -62_135_596_800, 253_402_300_799  # the years 1 to 9999


@settings(max_examples=drawn(200))
@given(
    st.sampled_from(sorted(UNITS)),
    st.sampled_from([None, "UTC", "America/New_York", "+05:30"]),
    st.lists(
        st.none()
        | st.tuples(st.integers(FIRST_S, LAST_S), st.sampled_from([0, 1, 5, 120, 999, 500_000, 999_999_999])),
        max_size=8,
    ),
    st.integers(0, 3),
)
def test_timestamps_are_written_as_arrow_writes_them(unit, zone, drawn_moments, skipped) -> None:
    moments = [
        None if moment is None else moment[0] * UNITS[unit] + moment[1] % UNITS[unit]
        for moment in drawn_moments
    ]
    moments = [m if m is None or -(1 << 63) <= m < 1 << 63 else 0 for m in moments]
    values = pa.array(moments, pa.int64()).cast(pa.timestamp(unit, zone)).slice(skipped)
    assert time_texts(values).to_pylist() == texts_by_arrow(values).to_pylist()


def test_the_ends_of_the_calendar_are_written() -> None:
    values = pa.array([FIRST_S, -1, 0, LAST_S], pa.int64()).cast(pa.timestamp("s", "UTC"))
    assert time_texts(values).to_pylist() == [
        "0001-01-01T00:00:00+00:00",
        "1969-12-31T23:59:59+00:00",
        "1970-01-01T00:00:00+00:00",
        "9999-12-31T23:59:59+00:00",
    ]


@pytest.mark.parametrize("beyond", [FIRST_S - 1, LAST_S + 1])
def test_years_of_other_than_four_digits_are_left_to_arrow(beyond: int) -> None:
    values = pa.array([0, beyond], pa.int64()).cast(pa.timestamp("s"))
    assert time_texts(values).to_pylist() == texts_by_arrow(values).to_pylist()


@pytest.mark.parametrize(
    ("kind", "per_day"),
    [
        (pa.date32(), 1),
        (pa.date64(), 86_400_000),
        (pa.timestamp("s"), 86_400),
        (pa.timestamp("ms", "UTC"), 86_400_000),
        (pa.timestamp("us", "America/New_York"), 86_400_000_000),
    ],
    ids=str,
)
def test_a_day_that_arrow_cannot_write_does_not_stop_the_others(kind: pa.DataType, per_day: int) -> None:
    raw = pa.int32() if per_day == 1 else pa.int64()
    days = [-12_687_429, -12_687_428, None, 0, 11_248_737, 11_248_738]
    numbers = [None if day is None else day * per_day for day in days]
    texts = [text and text[:10] for text in time_texts(pa.array(numbers, raw).view(kind)).to_pylist()]
    written = [texts[1], texts[3], texts[4]]
    assert written == ["-32767-01-", "1970-01-01", "32767-12-3"]
    assert texts[0] is texts[2] is texts[5] is None


def test_dates_and_times_of_day_are_written() -> None:
    day, hour = pa.array([datetime.date(2013, 1, 2), None]), pa.array([datetime.time(5, 15, 0, 500_000)])
    assert time_texts(day).to_pylist() == ["2013-01-02", None]
    assert time_texts(hour).to_pylist() == ["05:15:00.5"]
