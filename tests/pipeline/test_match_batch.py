"""The data path's pure function finds the same matches as a naive replay of the history."""

from __future__ import annotations

from random import Random

import pyarrow as pa
from encrypted_library import SEALING, as_sent, drawn_for, every_library
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_support import (
    SPACES,
    TYPED,
    History,
    arrow_payload_of,
    payload_of,
    random_event,
    random_filter,
    typed_event,
)
from tests.doses import drawn

from fieldfare.filters import compile_filter
from fieldfare.matching.index import Index
from fieldfare.matching.library import Library
from fieldfare.matching.part import build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.pipeline.access_point import RECORDS, by_space
from fieldfare.pipeline.exit_point import Found
from fieldfare.pipeline.match_batch import find_matches, match_batch

randoms = st.randoms(use_true_random=False)


def index_of(history: History, space: str, library: Library) -> Index:
    forms = [(v, compile_filter(v.filter).normal_form) for v in history.versions if v.space == space]
    entries = [
        IndexEntry(v.revision, v.number, v.revision, v.closed_by, form, v.filter, "sql") for v, form in forms
    ]
    return Index((build_part(entries, library),))


@every_library
@settings(max_examples=drawn(40))
@given(randoms)
def test_match_batch_finds_the_same_as_a_naive_replay(library: Library, random: Random) -> None:
    history = History()
    rows, expected, stamp = [], [], 0
    for offset in range(random.randrange(1, 8)):
        for _ in range(random.randrange(4)):
            text = drawn_for(library, lambda: random_filter(random)) if random.random() < 0.8 else None
            number = random.randrange(6)
            history.change(SPACES[number % 2], number, text)
        stamp = random.randint(stamp, history.revision)
        in_arrow = random.random() < 0.4 and library is not SEALING
        make_event = typed_event if in_arrow else random_event
        events = [
            drawn_for(library, lambda make=make_event: make(random)) for _ in range(random.randrange(1, 4))
        ]
        json_lines = as_sent(library, payload_of(events, random))
        payload = arrow_payload_of(events, TYPED) if in_arrow else json_lines
        rows.append((offset, stamp, random.choice([*SPACES, "nobody"]), events, payload))
    for _, stamp, space, events, _ in rows:
        expected += [history.expected(space, stamp, event) for event in events]
    batch = pa.record_batch(
        [
            pa.array([offset for offset, *_ in rows], pa.int64()),
            pa.array([stamp for _, stamp, *_ in rows], pa.int64()),
            pa.array([space for _, _, space, _, _ in rows]),
            pa.array([len(events) for _, _, _, events, _ in rows], pa.int32()),
            pa.array([payload for *_, payload in rows], pa.large_binary()),
        ],
        schema=RECORDS,
    )
    indexes = {space: index_of(history, space, library) for space in SPACES}
    assert match_batch(batch, indexes).lists() == expected
    cut = random.randrange(len(rows) + 1)
    first, second = find_matches(batch.slice(0, cut), indexes), find_matches(batch.slice(cut), indexes)
    behind = [pairs.behind(first.size) for pairs in second.pairs]
    found = Found(first.size + second.size, [*first.pairs, *behind])
    assert found.by_event().lists() == expected
    lists = found.by_subscription()
    bounds = lists.starts.tolist()
    assert {
        (number, event)
        for i, number in enumerate(lists.numbers.tolist())
        for event in lists.ordinals[bounds[i] : bounds[i + 1]].tolist()
    } == {(number, event) for event, numbers in enumerate(expected) for number in numbers}


def test_a_batch_of_one_space_is_not_copied() -> None:
    payloads = pa.array([b"{}\n", b"{}\n{}\n"], pa.large_binary())
    batch = pa.record_batch(
        [[7, 8], [3, 4], ["a", "a"], pa.array([1, 2], pa.int32()), payloads],
        schema=RECORDS,
    )
    (events,) = by_space(batch)
    assert events.places is None
    assert events.stamps.tolist() == [3, 4, 4]
    address = batch.column("payload").buffers()[2].address
    assert pa.py_buffer(events.payload).address == address
