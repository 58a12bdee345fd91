"""Kernels that choose or sort have naive twins here; every module of kernels has some."""

from __future__ import annotations

import ast
import itertools
import os
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.matching.grouping import settle_lists
from fieldfare.matching.pairs import LIST_EVENTS_MAX
from fieldfare.matching.plain.building.access import Points
from fieldfare.matching.plain.building.key_kernels import (
    ATTRIBUTE_BITS,
    KEY_ATTRIBUTES_MAX,
    NO_KEY,
    assign_keys,
    choose_keys,
    fill_key_table,
)
from fieldfare.matching.versions import NO_OVERLAY, Overlay, Versions, keep_valid
from fieldfare.storage.files.match_lists import gap_planes

from matching_support import pairs_of, run_of  # isort: skip

ROOT = Path(__file__).resolve().parent.parent.parent
COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
seeds = st.integers(0, 2**32)
many = settings(max_examples=drawn(120 if COMPILED else 15))

TWINS = {
    "matching/aspe/kernels.py": (
        "matching/test_aspe.py",
        "test_encrypted_filters_match_like_plain_ones",
    ),
    "matching/evaluation/cast_kernels.py": (
        "filters/test_vectors.py",
        "test_kernels_agree_with_the_definition_of_values",
    ),
    "matching/calendar.py": (
        "matching/test_arrow_times.py",
        "test_timestamps_are_written_as_arrow_writes_them",
    ),
    "matching/evaluation/address_kernels.py": (
        "filters/test_vectors.py",
        "test_kernels_agree_with_the_definition_of_values",
    ),
    "matching/evaluation/cesql_kernels.py": (
        "filters/test_vectors.py",
        "test_kernels_agree_with_the_definition_of_values",
    ),
    "matching/evaluation/element_kernels.py": (
        "filters/test_vectors.py",
        "test_kernels_agree_with_the_definition_of_conditions",
    ),
    "matching/evaluation/exact_numbers.py": (
        "filters/test_vectors.py",
        "test_kernels_agree_with_the_definition_of_values",
    ),
    "matching/evaluation/number_kernels.py": (
        "filters/test_vectors.py",
        "test_kernels_agree_with_the_definition_of_values",
    ),
    "matching/evaluation/place_kernels.py": (
        "filters/test_vectors.py",
        "test_kernels_agree_with_the_definition_of_values",
    ),
    "matching/evaluation/string_kernels.py": (
        "filters/test_vectors.py",
        "test_kernels_agree_with_the_definition_of_values",
    ),
    "matching/evaluation/time_kernels.py": (
        "filters/test_vectors.py",
        "test_kernels_agree_with_the_definition_of_values",
    ),
    "matching/events/arrow_times.py": (
        "matching/test_arrow_times.py",
        "test_timestamps_are_written_as_arrow_writes_them",
    ),
    "matching/events/first_bytes.py": (
        "filters/test_batches.py",
        "test_quantifiers_over_arrays_and_other_values",
    ),
    "matching/plain/search/computed_kernels.py": (
        "filters/test_derived_columns.py",
        "test_computed_numbers_are_compared_exactly",
    ),
    "matching/evaluation/kernels.py": (
        "filters/test_batches.py",
        "test_batches_of_json_lines_match_as_one_by_one",
    ),
    "matching/evaluation/text_kernels.py": (
        "filters/test_batches.py",
        "test_batches_of_dicts_match_as_one_by_one",
    ),
    "matching/events/json_bytes.py": (
        "matching/test_json_decoder.py",
        "test_any_json_decodes_like_json_loads",
    ),
    "matching/events/json_kernels.py": (
        "matching/test_json_decoder.py",
        "test_any_json_decodes_like_json_loads",
    ),
    "matching/events/json_numbers.py": (
        "matching/test_json_decoder.py",
        "test_any_json_decodes_like_json_loads",
    ),
    "matching/grouping.py": (
        "matching/test_grouping.py",
        "test_both_groupings_agree_with_a_naive_grouping",
    ),
    "matching/plain/building/constant_kernels.py": (
        "matching/test_part.py",
        "test_a_part_finds_the_same_as_the_naive_evaluator",
    ),
    "matching/plain/building/gathering_kernels.py": (
        "lab/workloads/test_predicate_columns.py",
        "test_columns_and_normal_forms_build_the_same_part",
    ),
    "matching/plain/building/key_kernels.py": (
        "matching/test_kernels.py",
        "test_key_choice_agrees_with_a_naive_greedy_choice",
    ),
    "matching/plain/building/needle_kernels.py": (
        "matching/test_needles.py",
        "test_the_needle_kernel_agrees_with_its_naive_twin",
    ),
    "matching/plain/building/tile_packing.py": (
        "matching/test_large_part.py",
        "test_thousands_of_filters_match_like_the_naive_evaluator",
    ),
    "matching/plain/codes.py": ("matching/test_part.py", "test_a_part_finds_the_same_as_the_naive_evaluator"),
    "matching/plain/dictionary_kernels.py": (
        "matching/test_part.py",
        "test_a_part_finds_the_same_as_the_naive_evaluator",
    ),
    "matching/plain/grams.py": (
        "matching/test_needles.py",
        "test_the_needle_kernel_agrees_with_its_naive_twin",
    ),
    "matching/plain/search/access_kernels.py": (
        "matching/test_access.py",
        "test_keys_find_the_same_as_the_naive_evaluator",
    ),
    "matching/plain/search/few_kernels.py": (
        "matching/test_row_bits.py",
        "test_a_few_events_match_like_many",
    ),
    "matching/plain/search/kernels.py": (
        "matching/test_part.py",
        "test_a_part_finds_the_same_as_the_naive_evaluator",
    ),
    "matching/plain/search/needle_kernels.py": (
        "matching/test_needles.py",
        "test_the_needle_kernel_agrees_with_its_naive_twin",
    ),
    "matching/plain/search/row_bits.py": (
        "matching/test_row_bits.py",
        "test_row_bits_agree_with_the_sets_of_rows",
    ),
    "matching/plain/search/tile_kernels.py": (
        "matching/test_large_part.py",
        "test_thousands_of_filters_match_like_the_naive_evaluator",
    ),
    "matching/versions.py": (
        "matching/test_index.py",
        "test_every_event_matches_the_subscriptions_valid_at_its_stamp",
    ),
    "partitioning/kernels.py": (
        "partitioning/test_partitioning.py",
        "test_an_axis_locates_a_batch_as_it_locates_one_value",
    ),
    "pipeline/exit_point.py": (
        "pipeline/test_slices.py",
        "test_merged_lists_contain_all_events_of_the_lists",
    ),
}
"""For each module with compiled loops, the test that compares their results with a naive twin."""


def has_kernels(path: Path) -> bool:
    functions = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef))
    decorators = (ast.unparse(each) for function in functions for each in function.decorator_list)
    return any(name.split("(")[0] in ("compiled", "inlined", "njit", "numba.njit") for name in decorators)


def test_every_module_of_kernels_has_a_naive_twin() -> None:
    """Five kernels once had none, unnoticed."""
    package = ROOT / "src" / "fieldfare"
    found = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if has_kernels(path)}
    assert found == set(TWINS)
    for file, name in TWINS.values():
        assert f"def {name}(" in (ROOT / "tests" / file).read_text(), f"tests/{file} has no {name}"


def choose_keys_naive(
    rows: list[dict[int, float]], open_cost: float, fee: float, most: int, keys: int
) -> list[bool]:
    """Greedy choice by the total cost of all rows with the chosen keys, recomputed each time."""

    def total(chosen: set[int]) -> float:
        return sum(min([open_cost, *(row[k] for k in chosen & row.keys())]) for row in rows)

    order: list[int] = []
    while len(order) < most and keys:
        savings = [total(set(order)) - total({*order, k}) for k in range(keys)]
        if max(savings) <= fee:
            break
        order.append(savings.index(max(savings)))
    chosen = set(order)
    for k in order:
        if total(chosen - {k}) - total(chosen) < fee:
            chosen.remove(k)
    return [k in chosen for k in range(keys)]


@many
@given(seeds)
def test_key_choice_agrees_with_a_naive_greedy_choice(seed: int) -> None:
    random = Random(seed)
    keys = random.randrange(1, 8)
    rows = [
        {
            k: float(random.randrange(12))
            for k in sorted(random.sample(range(keys), random.randrange(keys + 1)))
        }
        for _ in range(random.randrange(1, 20))
    ]
    open_cost, fee, most = 10.0, float(random.randrange(15)), random.randrange(6)
    owner = np.array([r for r, row in enumerate(rows) for _ in row], np.int64)
    key = np.array([k for row in rows for k in row], np.int64)
    cost = np.array([c for row in rows for c in row.values()], np.float64)
    chosen = choose_keys(
        np.searchsorted(owner, np.arange(len(rows) + 1)), owner, key, cost, open_cost, fee, most
    )
    used = int(key.max()) + 1 if len(key) else 0
    assert chosen.tolist() == choose_keys_naive(rows, open_cost, fee, most, used)


def random_points(random: Random, rows: int) -> Points:
    starts, attributes, shares, counts = [0], list[int](), list[float](), list[int]()
    for _ in range(rows):
        mine = sorted(random.sample(range(6), random.randrange(5)))
        attributes += mine
        shares += [random.choice([0.5, 0.25, 0.125, 1.0]) for _ in mine]
        counts += [random.choice([1, 1, 2, 3]) for _ in mine]
        starts.append(len(attributes))
    size = len(attributes)
    return Points(
        np.array(starts, np.int64),
        np.arange(size),
        np.array(attributes, np.int32),
        np.array(shares, np.float64),
        np.arange(size),
        np.array(counts, np.int64),
        np.arange(size),
    )


def key_of(attributes: tuple[int, ...]) -> int:
    key = 0
    for attribute in attributes:
        key = key << ATTRIBUTE_BITS | attribute + 1
    return key


@many
@given(seeds)
def test_rows_use_the_most_selective_key(seed: int) -> None:
    random = Random(seed)
    rows, most_entries, share_max = (
        random.randrange(1, 8),
        random.choice([1, 4, 100]),
        random.choice([0.3, 2.0]),
    )
    points = random_points(random, rows)
    sets = [some for n in range(1, 4) for some in itertools.combinations(range(6), n)]
    chosen = random.sample(sets, random.randrange(1, 12))
    lift = np.array([random.choice([1.0, 2.0, 8.0]) for _ in chosen])
    keys = np.array([key_of(some) for some in chosen], np.int64)
    table = np.full(4 << len(keys).bit_length(), NO_KEY, np.int32)
    fill_key_table(keys, table)
    taken, masks = assign_keys(points, keys, lift, table, share_max, most_entries)
    for row in range(rows):
        mine = range(points.row_start[row], points.row_start[row + 1])
        best, expected = share_max, (NO_KEY, 0)
        for mask in range(1, 1 << len(mine)):
            subset = [i for place, i in enumerate(mine) if mask >> place & 1]
            attributes = tuple(points.attribute[subset].tolist())
            if attributes not in chosen or len(subset) > KEY_ATTRIBUTES_MAX:
                continue
            number, shares = chosen.index(attributes), points.share[subset]
            met = min(float(np.prod(shares)) * lift[number], float(shares.min()))
            if met < best and int(np.prod(points.cell_count[subset])) <= most_entries:
                best, expected = met, (number, mask)
        assert (taken[row], masks[row]) == expected


@many
@given(st.lists(st.lists(st.integers(0, LIST_EVENTS_MAX - 1) | st.integers(0, 90), min_size=1, max_size=30)))
def test_settled_lists_are_sorted_sets(lists: list[list[int]]) -> None:
    lists = [sorted(events) if place % 3 == 1 else events for place, events in enumerate(lists)]
    starts = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    ordinals = np.array([event for events in lists for event in events], np.uint16)
    seen, words = np.zeros(LIST_EVENTS_MAX >> 6, np.uint64), np.zeros(LIST_EVENTS_MAX >> 12, np.uint64)
    kept = settle_lists(starts, ordinals, seen, words)
    expected = [sorted(set(events)) for events in lists]
    assert starts.tolist() == np.cumsum([0, *map(len, expected)]).tolist() and kept == starts[-1]
    assert ordinals[:kept].tolist() == [event for events in expected for event in events]
    assert not seen.any() and not words.any()


@many
@given(
    st.lists(st.lists(st.integers(0, 65_535) | st.integers(0, 900), min_size=1, max_size=20)), st.booleans()
)
def test_gaps_are_what_lies_between_events(lists: list[list[int]], ascend: bool) -> None:
    lists = [sorted(set(events)) for events in lists] if ascend else lists
    starts = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    ordinals = np.array([event for events in lists for event in events], np.uint16)
    low, high, ascending = gap_planes(starts, ordinals)
    assert ascending == all(sorted(set(events)) == events for events in lists)
    if ascending:
        gaps = [b - a - 1 for events in lists for a, b in itertools.pairwise([-1, *events])]
        assert [divmod(gap, 256) for gap in gaps] == list(zip(high.tolist(), low.tolist(), strict=True))


@many
@given(seeds)
def test_matches_are_kept_where_versions_are_valid(seed: int) -> None:
    random = Random(seed)
    versions = random.randrange(1, 20)
    valid_from = [random.randrange(8) for _ in range(versions)]
    valid_to = [start + random.randrange(9) for start in valid_from]
    ended = sorted(random.sample(range(versions), random.randrange(versions + 1)))
    ends = [random.randrange(10) for _ in ended]
    offsets = [random.randrange(10) for _ in range(6)]
    signed, slots = list[tuple[int, int]](), []
    for _ in range(random.randrange(60)):
        place, events = random.randrange(versions), [random.randrange(6) for _ in range(random.randrange(9))]
        if len(events) < 4:
            events, place = [random.randrange(6)], ~place if random.random() < 0.3 else place
            slots.append(np.array([[events[0], place]], np.int32))
        else:
            slots.append(run_of(events, place))
        signed += [(event, place) for event in events]
    pairs = [(event, place if place >= 0 else ~place) for event, place in signed]
    expected = [
        given
        for given, (event, place) in zip(signed, pairs, strict=True)
        if valid_from[place] <= offsets[event] < valid_to[place]
        and not (place in ended and offsets[event] >= ends[ended.index(place)])
    ]
    closed = np.zeros((versions + 7) // 8, np.uint8)
    for place in ended:
        closed[place >> 3] |= 1 << (place & 7)
    overlay = Overlay(closed, np.array(ended, np.int32), np.array(ends, np.int64)) if ended else NO_OVERLAY
    none = np.zeros(versions, np.int64)
    bounds = np.array(valid_from, np.int64), np.array(valid_to, np.int64)
    fields = {"valid_from": bounds[0], "valid_to": bounds[1]}
    subscriptions = Versions(*(fields.get(name, none) for name in Versions._fields))
    array = np.concatenate([np.zeros((0, 2), np.int32), *slots])
    kept = keep_valid(subscriptions, overlay, np.array(offsets, np.int64), array)
    assert pairs_of(array[:kept]) == expected


@pytest.mark.long
@pytest.mark.skipif(not COMPILED, reason="this is that run")
def test_these_kernels_agree_uncompiled_where_every_index_is_checked() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", __file__]
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout
