"""However a space is cut and events are forwarded, each event finds its matches exactly once."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_library import match_naive
from pipeline_support import TYPED, arrow_payload_of, payload_of, random_event, random_filter, typed_event
from pipeline_support import random_partitioning as any_partitioning
from tests.doses import drawn

from fieldfare.filters import compile_filter
from fieldfare.forwarding import POLICIES, LoadReport, LoadTable
from fieldfare.matching.grouping import group_by_subscription
from fieldfare.matching.index import Index
from fieldfare.matching.pairs import MatchLists, Pairs
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END
from fieldfare.partitioning import AttributeSpace, Axis, HashPartitioning, Partitioning, Replicated
from fieldfare.partitioning.axis import place_before
from fieldfare.partitioning.placing import place
from fieldfare.pipeline import access_point
from fieldfare.pipeline.access_point import by_space, decoded, events_of, record_batch
from fieldfare.pipeline.dispatch import Forwarding
from fieldfare.pipeline.exit_point import merge_lists
from fieldfare.pipeline.indexer import Indexer
from fieldfare.pipeline.manifest import (
    Manifest,
    SliceManifest,
    SpaceManifest,
    decode_manifest,
    encode_manifest,
)
from fieldfare.pipeline.match_batch import match_batch
from fieldfare.pipeline.matcher import visits
from fieldfare.pipeline.placing import SlicesBuilder
from fieldfare.pipeline.slices import Slices
from fieldfare.storage.event_log import Record

randoms = st.randoms(use_true_random=False)


def slices_of(entries: list[IndexEntry], partitioning: Partitioning) -> Slices:
    builder = SlicesBuilder(partitioning)
    builder.add(entries)
    step = Indexer().rebase({"mine": builder.finish()}, 0, {"mine": partitioning})
    space = decode_manifest(encode_manifest(step.manifest)).spaces["mine"]
    assert len(step.parts) == len(set(partitioning.originals)), "copies are one file"
    placement = place(partitioning, entries)
    for number, original in enumerate(partitioning.originals):
        assert placement.of(number).tolist() == placement.of(original).tolist()
    return Slices(space, lambda files: Index([step.parts[name] for name in files.parts]))


def run_distributed(records: list[Record], slices: Slices, forwarding: Forwarding) -> MatchLists:
    """Run AP, M and EP one after the other, as if each ran in its own task."""
    sent: dict[int, list[tuple]] = {}
    for events in by_space(record_batch(records)):
        if events.space == "mine":
            for some, columns in decoded(events, slices.partitioning.paths):
                places = np.arange(some.size) if some.places is None else some.places
                for part in slices.dispatch(columns, forwarding, records[0].offset):
                    payload = some.payload_of(part.events)
                    stamps, sizes = some.stamps[part.events], some.record_sizes[part.events]
                    arrived = events_of("mine", stamps, sizes, payload)
                    sent.setdefault(part.matcher, []).append((arrived, part, places[part.events]))
    found = []
    for consignments in sent.values():
        for events, part, places in consignments:
            moved = type(part)(part.matcher, places, part.slices, part.positions)
            pairs = [pairs for visit in visits(events, slices, moved) for pairs in visit.find()]
            found.append(group_by_subscription(pairs))
    return merge_lists(found)


@settings(max_examples=drawn(150))
@given(randoms, st.booleans())
def test_slices_find_the_same_as_a_naive_matcher(random: Random, few_cells: bool) -> None:
    filters = [compile_filter(random_filter(random)) for _ in range(random.randrange(12))]
    entries = [IndexEntry(n + 1, n, 0, OPEN_END, f.compiled, f.text, "sql") for n, f in enumerate(filters)]
    slices = slices_of(entries, any_partitioning(random))
    records, expected = [], []
    for offset in range(random.randrange(1, 6)):
        space, in_arrow = random.choice(["mine", "mine", "other"]), random.random() < 0.3
        events = [(typed_event if in_arrow else random_event)(random) for _ in range(random.randrange(1, 9))]
        payload = arrow_payload_of(events, TYPED) if in_arrow else payload_of(events, random)
        records.append(Record(offset, space, len(events), payload, 0, 0))
        found = match_naive(events, list(enumerate(filters)))
        expected += found if space == "mine" else [[] for _ in events]
    assert match_batch(record_batch(records), {"mine": slices}).lists() == expected
    size = len(slices.holders)
    loads = LoadTable(size)
    loads.take(LoadReport(i, 1.0, 0, random.random(), 0.5 + random.random(), 3) for i in range(size))
    given = random.choice([None, loads])
    forwarding = Forwarding(random.choice(POLICIES), given, 2.0, random.randrange(9))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(access_point, "DECODED_CELLS", 9 if few_cells else access_point.DECODED_CELLS)
        lists = run_distributed(records, slices, forwarding)
    ends = zip(lists.numbers.tolist(), lists.starts[:-1].tolist(), lists.starts[1:].tolist(), strict=True)
    found = {(event, n) for n, first, last in ends for event in lists.ordinals[first:last].tolist()}
    assert found == {(event, n) for event, numbers in enumerate(expected) for n in numbers}
    assert len(found) == len(lists.ordinals)


@given(st.lists(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 9)), max_size=9), max_size=4))
def test_merged_lists_contain_all_events_of_the_lists(parts: list[list[tuple[int, int]]]) -> None:
    numbers = np.arange(7, dtype=np.uint32)
    lists = [
        group_by_subscription(
            [Pairs(np.array([(e, n) for n, e in part], np.int32).reshape(-1, 2), 0, numbers, 0, 6)]
        )
        for part in parts
    ]
    merged = merge_lists(lists)
    expected: dict[int, set[int]] = {}
    for number, event in {pair for part in parts for pair in part}:
        expected.setdefault(number, set()).add(event)
    assert merged.numbers.tolist() == sorted(expected)
    for i, number in enumerate(merged.numbers.tolist()):
        events = merged.ordinals[merged.starts[i] : merged.starts[i + 1]].tolist()
        assert events == sorted(expected[number])
    assert merged.starts[-1] == len(merged.ordinals)


@settings(max_examples=drawn(200))
@given(randoms)
def test_a_manifest_keeps_the_partitioning(random: Random) -> None:
    partitioning = any_partitioning(random)
    slices = tuple(SliceManifest(matcher=random.randrange(9)) for _ in partitioning.slices)
    manifest = Manifest(7, 9, {"mine": SpaceManifest(slices, partitioning)})
    read = decode_manifest(encode_manifest(manifest))
    assert read == manifest
    assert read.spaces["mine"].partitioning.originals == partitioning.originals


def test_a_lone_surrogate_may_bound_a_segment() -> None:
    """A JSON string may contain a lone surrogate, which UTF-8 cannot encode; a cut by events used one as a
    bound."""
    entries = [IndexEntry(1, 1, 0, OPEN_END, compile_filter("data.word >= 'a'").compiled, "", "sql")]
    axis = Axis(("data", "word"), tuple(sorted(map(place_before, ["a\\\n", "\ud800", "\U0001f426"]))))
    slices = slices_of(entries, AttributeSpace((axis,), ((0, 1, 0, 1),)))
    assert slices.partitioning.axes == (axis,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"slices":0}', '"slices":2}'), "space mine is cut into 2 slices, and 1 are listed"),
        (('"matchers":1', '"matchers":0'), "space mine: a hash partitioning needs at least one matcher"),
        (('"kind":"hash"', '"kind":"mash"'), "mash"),
        (('"size":0', '"size":"many"'), "size"),
    ],
)
def test_an_inconsistent_manifest_is_rejected(change: tuple[str, str], message: str) -> None:
    data = encode_manifest(Manifest(1, 1, {"mine": SpaceManifest()})).decode()
    assert change[0] in data
    with pytest.raises(ValueError, match=message):
        decode_manifest(unchecked(data.replace(*change)))


def unchecked(text: str) -> bytes:
    """A manifest of an earlier version, without a checksum."""
    document = json.loads(text)
    del document["checksum"]
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    "place", ["[9]", '[5,"x",0]', '[5,"NaN",0]', '[6,"ü",0]', '[6,"a",2]', '["a"]', "[]"]
)
def test_an_invalid_place_is_rejected(place: str) -> None:
    axis = '{"path":["x"],"boundaries":[' + place + "]}"
    space = f'{{"kind":"attribute_space","axes":[{axis}],"owners":[[0,1]],'
    space += '"hash_owners":[],"wide_share":0.5,"replicated":false}'
    data = encode_manifest(Manifest(1, 1, {"mine": SpaceManifest()})).decode()
    data = data.replace('{"kind":"hash","matchers":1,"slices":0}', space)
    with pytest.raises(ValueError, match=r"space mine|manifest"):
        decode_manifest(unchecked(data))


def test_the_slices_can_be_inspected_as_one_index() -> None:
    filters = [compile_filter(f"data.x > {n}") for n in range(9)]
    entries = [IndexEntry(n + 1, n, 0, OPEN_END, f.compiled, f.text, "sql") for n, f in enumerate(filters)]
    for partitioning in (HashPartitioning(2, 3), Replicated(3)):
        whole = slices_of(entries, partitioning).whole
        assert whole.size == 9
        assert all(whole.explain_subscription(n) for n in range(9))
