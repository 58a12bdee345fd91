"""Matches of many filters for one destination are reported once an event, under the destination's number."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from fieldfare.filters import compile_filter
from fieldfare.matching.index import Index, LiveIndex
from fieldfare.matching.part import Part, build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END, Change, interest_key
from fieldfare.pipeline.access_point import record_batch
from fieldfare.pipeline.match_batch import find_matches, match_batch
from fieldfare.storage.event_log import Record

EVENTS = [{"n": n} for n in range(300)]


def entry(version: int, text: str, destination: int | None = None) -> IndexEntry:
    return IndexEntry(
        version, version, version, OPEN_END, compile_filter(text).compiled, text, "sql", destination
    )


def records(*origins: str | None, stamp: int = 1_000) -> list[Record]:
    payload = b"".join(json.dumps(event).encode() + b"\n" for event in EVENTS)
    return [
        Record(offset, "default", len(EVENTS), payload, 0, stamp, origin)
        for offset, origin in enumerate(origins)
    ]


@pytest.mark.parametrize("count", [3, 500])
def test_an_event_has_a_destination_once_however_many_filters_match(count: int, tmp_path: Path) -> None:
    entries = [entry(100 + n, f"n >= {n % 7}", 7 + n % 2) for n in range(count)]
    part = build_part(entries)
    part.save(tmp_path / "part")
    for each in (part, Part.open(tmp_path / "part", verify=True)):
        found = match_batch(record_batch(records(None)), {"default": Index([each])}).lists()
        expected = [sorted({7 + n % 2 for n in range(count) if event["n"] >= n % 7}) for event in EVENTS]
        assert [list(numbers) for numbers in found] == expected
        lists = find_matches(record_batch(records(None)), {"default": Index([each])}).by_subscription()
        assert lists.numbers.tolist() == [7, 8]
        assert np.diff(lists.starts).tolist() == [
            sum(number in numbers for numbers in expected) for number in (7, 8)
        ]


def test_parts_of_subscriptions_have_no_destinations(tmp_path: Path) -> None:
    part = build_part([entry(3, "n = 1")])
    part.save(tmp_path / "part")
    opened = Part.open(tmp_path / "part")
    assert opened.destinations is opened.versions.number
    assert not any("destination" in name for name in part._arrays())


def test_versions_are_closed_by_their_own_numbers() -> None:
    live = LiveIndex()
    live.apply([Change(n, ">default", 100 + n, f"n = {n}", "sql", destination=7) for n in range(1, 5)])
    live.apply([Change(5, ">default", 102, None), Change(6, ">default", 103, "n = 30", "sql", destination=7)])
    found = match_batch(record_batch(records(None)), {"default": live.index}).lists()
    assert [event for event, numbers in enumerate(found) if list(numbers)] == [1, 4, 30]
    assert {number for numbers in found for number in numbers} == {7}
    earlier = match_batch(record_batch(records(None, stamp=4)), {"default": live.index}).lists()
    assert [event for event, numbers in enumerate(earlier) if list(numbers)] == [1, 2, 3, 4]


def test_records_of_other_brokers_are_not_matched_for_brokers() -> None:
    indexes = {
        "default": Index([build_part([entry(1, "n = 1"), entry(2, "n = 2")])]),
        interest_key("default"): Index([build_part([entry(3, "n = 2", 9), entry(4, "n = 3", 9)])]),
    }
    found = match_batch(record_batch(records(None, "berlin/0-1/1", None)), indexes).lists()
    size = len(EVENTS)
    matched = {
        (place // size, place % size): list(numbers) for place, numbers in enumerate(found) if list(numbers)
    }
    local = {1: [1], 2: [2, 9], 3: [9]}
    assert matched == {
        **{(record, n): numbers for record in (0, 2) for n, numbers in local.items()},
        (1, 1): [1],
        (1, 2): [2],
    }


def test_a_later_space_of_a_name_has_the_same_interest() -> None:
    assert interest_key("market#2") == interest_key("market") == ">market"
