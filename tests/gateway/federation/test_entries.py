"""Entries for other brokers: each event once, for all brokers that want it, in order."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
import pytest

from fieldfare.arrow_events.stream import read_events, write_events
from fieldfare.gateway.federation.entries import (
    ENTRY_BYTES,
    MERGED_BYTES,
    Group,
    Merger,
    destination_lists,
)
from fieldfare.model import RECORD_EVENTS_MAX
from fieldfare.storage.event_log import Record


def matches(wanted: list[set[tuple[int, int]]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `MatchBlock.matches_of_each` returns, from the (offset, index) that each broker wants."""
    places = [place for each in wanted for place in sorted(each)]
    bounds = np.cumsum([0, *(len(each) for each in wanted)])
    return (
        bounds.astype(np.int64),
        np.array([offset for offset, _ in places], np.int64),
        np.array([index for _, index in places], np.int32),
    )


@pytest.mark.parametrize("brokers", [1, 3, 70])
@pytest.mark.parametrize("start", [0, 5])
def test_each_event_is_listed_once_with_all_its_brokers(brokers: int, start: int) -> None:
    random = Random(brokers + start)
    names = [f"b{number}" for number in range(brokers)]
    wanted = [
        {(random.randrange(12), random.randrange(6)) for _ in range(random.randrange(20))} for _ in names
    ]
    expected: dict[tuple[int, int], list[str]] = {}
    for name, places in zip(names, wanted, strict=True):
        for place in places:
            if place[0] >= start:
                expected.setdefault(place, []).append(name)
    found: dict[tuple[int, int], list[str]] = {}
    lists = destination_lists(names, *matches(wanted), start)
    for offset, of_record in lists.items():
        assert len({chosen for chosen, _ in of_record}) == len(of_record), "a list is named once"
        for chosen, indexes in of_record:
            assert indexes.tolist() == sorted(indexes.tolist())
            for index in indexes.tolist():
                assert (offset, index) not in found
                found[offset, index] = list(chosen)
    assert found == expected
    assert list(lists) == sorted(lists)


def test_no_matches_make_no_lists() -> None:
    assert destination_lists(["b"], *matches([set()]), 0) == {}
    assert destination_lists(["b"], *matches([{(1, 0)}]), 2) == {}


def record(offset: int, lines: list[bytes], space: str = "default", origin: str | None = None) -> Record:
    return Record(offset, space, len(lines), b"\n".join([*lines, b""]), 0, 1, origin)


def merged(given: list[tuple[Record, dict[str, list[int]]]]) -> list[Group]:
    """The groups of records, whose events' indexes are given by the letters of their destinations."""
    merger, found = Merger(), list[Group]()
    for one, lists in given:
        reached = {tuple((name, 1) for name in names): np.array(some) for names, some in lists.items()}
        found += merger.add(one, reached)
    return [*found, *merger.flush()]


def received(groups: list[Group], name: str) -> list[bytes]:
    """The events that a broker gets, in order."""
    return [
        line for group in groups if (name, 1) in group.reached for line in group.payload.split(b"\n") if line
    ]


@pytest.mark.parametrize("seed", range(20))
def test_each_broker_gets_its_events_of_successive_records_in_order(seed: int) -> None:
    random = Random(seed)
    given: list[tuple[Record, dict[str, list[int]]]] = []
    expected: dict[tuple[str, str], list[bytes]] = {}
    for offset in range(30):
        space = random.choice(("default", "other"))
        lines = [b"%s %d %d" % (space.encode(), offset, index) for index in range(random.choice((1, 1, 3)))]
        lists: dict[str, list[int]] = {}
        for index in range(len(lines)):
            lists.setdefault(random.choice(("a", "a", "b", "ab", "c", "bc")), []).append(index)
        given.append((record(offset, lines, space), lists))
        for names, some in lists.items():
            for name in names:
                expected.setdefault((name, space), []).extend(lines[index] for index in some)
    groups = merged(given)
    for (name, space), lines in expected.items():
        got = [each for each in received(groups, name) if each.startswith(space.encode())]
        assert sorted(got) == sorted(lines)
        # Events of one record that go to different brokers may change places.
        assert [each.split()[1] for each in got] == [each.split()[1] for each in lines]
    assert all(group.count == group.payload.count(b"\n") for group in groups)
    assert len(groups) < sum(len(lists) for _, lists in given), "some were merged"


def test_single_events_for_the_same_brokers_share_an_entry_up_to_its_bounds() -> None:
    [group] = merged([(record(offset, [b"x" * 100]), {"ab": [0]}) for offset in range(100)])
    assert (group.count, group.first.offset) == (100, 0)
    large = merged([(record(offset, [b"x" * (MERGED_BYTES // 3)]), {"a": [0]}) for offset in range(7)])
    assert [group.count for group in large] == [2, 2, 2, 1]
    many = merged([(record(offset, [b"x"] * 4_000), {"a": [*range(4_000)]}) for offset in range(5)])
    assert [group.count for group in many] == [8_000, 8_000, 4_000]
    assert max(group.count for group in many) <= RECORD_EVENTS_MAX
    apart = merged([(record(offset, [b"x"], origin=f"o{offset // 2}"), {"a": [0]}) for offset in range(4)])
    assert [group.first.origin for group in apart] == ["o0", "o1"]


def test_a_large_record_is_cut_between_events() -> None:
    lines = [bytes([97 + number]) * (ENTRY_BYTES // 3) for number in range(7)]
    lines.append(b"z" * (2 * ENTRY_BYTES))
    groups = merged([(record(0, [b"first"]), {"a": [0]}), (record(1, lines), {"a": [*range(8)]})])
    assert received(groups, "a") == [b"first", *lines]
    assert [group.count for group in groups] == [1, 2, 2, 2, 1, 1]


def test_rows_of_a_table_are_chosen_and_cut() -> None:
    table = pa.record_batch({"id": [str(number) for number in range(40)], "pad": ["x" * 100_000] * 40})
    one = Record(3, "default", 40, bytes(write_events(table)), 0, 1, None)
    groups = merged([(record(2, [b"line"]), {"a": [0]}), (one, {"a": [*range(0, 40, 2)], "b": [1]})])
    assert groups[0].payload == b"line\n"
    rows = [read_events(group.payload).column("id").to_pylist() for group in groups[1:]]
    assert [group.count for group in groups[1:]] == [len(each) for each in rows]
    assert [id for each in rows[:-1] for id in each] == [str(number) for number in range(0, 40, 2)]
    assert rows[-1] == ["1"] and len(rows) > 2


def test_an_entry_holds_records_of_one_stamp() -> None:
    """A stamp says on which side of a moved subscription's switch place all events of an entry are."""
    early = record(1, [b"{}"])
    late = Record(2, "default", 1, b"{}\n", 0, 2)
    assert [group.count for group in merged([(early, {"b": [0]}), (record(2, [b"{}"]), {"b": [0]})])] == [2]
    assert [group.first.stamp for group in merged([(early, {"b": [0]}), (late, {"b": [0]})])] == [1, 2]
