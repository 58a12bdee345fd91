"""The vector loops agree with their twins in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fieldfare.matching.compiled import compiled
from fieldfare.matching.events.columns import Column, ColumnBatch
from fieldfare.matching.index import Index
from fieldfare.matching.part import build_part
from fieldfare.matching.plain.search import lanes, left_lanes
from fieldfare.matching.plain.search.vectors import BLOCK, WIDTHS
from fieldfare_lab.workloads.synthetic import WORKLOADS

from matching_support import entry  # isort: skip


@compiled
def _run(
    codes: Any, masks: Any, out: Any, edges: Any, table: Any, gates: Any, left: Any, passed: Any, words: Any
) -> Any:
    """All loops, in sequence, as a tile uses them."""
    blocks = len(masks)
    lanes.keep_between(codes, 0, 100, 65000, blocks, masks)
    count = lanes.gather(codes, 0, blocks, masks, out, 0)
    lanes.fill_edges(out, 0, min(count, 64 * words), edges, 1, len(edges), table, 2, words)
    first_set = len(edges) + 1
    lanes.fill_sets(table, np.arange(0, len(gates) + 1, 2), gates, 0, len(gates) // 2, first_set, words)
    rows = len(left) // words - 1
    members = (np.arange(5 * rows) * 7 % (len(gates) // 2) + first_set).astype(np.uint16)
    found = lanes.pass_sets(table, members, 0, 5, 3, rows, 40, left, passed, 0, words)
    mask = 0
    for i in range(found):
        mask = mask * 31 + left_lanes.words_set(left, i, words)
    return count, found, mask


def _run_twins(*arrays: Any) -> Any:
    codes, masks, out, edges, table, gates, left, passed, words = arrays
    blocks = len(masks)
    lanes._keep_between(codes, 0, 100, 65000, blocks, masks)
    count = lanes._gather(codes, 0, blocks, masks, out, 0)
    lanes._fill_edges(out, 0, min(count, 64 * words), edges, 1, len(edges), table, 2, words)
    first_set = len(edges) + 1
    lanes._fill_sets(table, np.arange(0, len(gates) + 1, 2), gates, 0, len(gates) // 2, first_set, words)
    rows = len(left) // words - 1
    members = (np.arange(5 * rows) * 7 % (len(gates) // 2) + first_set).astype(np.uint16)
    found = lanes._pass_sets(table, members, 0, 5, 3, rows, 40, left, passed, 0, words)
    mask = 0
    for i in range(found):
        mask = mask * 31 + left_lanes._words_set(left, i, words)
    return count, found, mask


@pytest.mark.parametrize("words", WIDTHS)
@pytest.mark.parametrize(("seed", "events"), [(1, 5), (2, 64), (3, 130), (4, 700)])
def test_vector_loops_agree_with_their_twins(seed: int, events: int, words: int) -> None:
    rng = np.random.default_rng(seed)
    blocks = -(-events // BLOCK)
    codes = rng.integers(0, 65536, blocks * BLOCK).astype(np.uint16)
    masks = np.packbits(np.arange(blocks * BLOCK) < events, bitorder="little").view(np.uint32)
    edges = np.sort(rng.integers(0, 65536, 9)).astype(np.uint16)
    gates = rng.integers(0, len(edges) + 1, (10, 2)).astype(np.uint16)
    table = np.zeros(32 * words, np.uint64)
    lanes_used = min(64 * words, int(np.sum((codes[:events] >= 100) & (codes[:events] <= 65000))))
    table[:words] = np.packbits(np.arange(64 * words) < lanes_used, bitorder="little").view(np.uint64)
    results: list[Any] = []
    runs: list[Any] = [_run, _run_twins]
    for run in runs:
        arrays: list[Any] = [
            codes,
            masks.copy(),
            np.zeros(len(codes) + 512, np.uint16),
            edges,
            table.copy(),
            gates,
        ]
        left, passed = np.zeros(21 * words, np.uint64), np.zeros(21, np.int32)
        count, found, mask = run(*arrays, left, passed, words)
        rows = left[: found * words].reshape(-1, words)
        results.append(
            (
                count,
                mask,
                arrays[1].tolist(),
                arrays[2][:count].tolist(),
                rows.tolist(),
                passed[:found].tolist(),
            )
        )
    assert results[0] == results[1]
    assert results[0][0] > 0


@compiled
def _flatten(bitsets: Any, words: Any, values: Any, out: Any, sizes: Any) -> Any:
    count = 0
    for number in range(len(sizes)):
        sizes[number] = left_lanes.lanes_set(bitsets, number, words)
        count += left_lanes.flatten(bitsets, number, words, values, 3, out, count)
    return count


def _flatten_twins(bitsets: Any, words: Any, values: Any, out: Any, sizes: Any) -> Any:
    count = 0
    for number in range(len(sizes)):
        sizes[number] = left_lanes._lanes_set(bitsets, number, words)
        count += left_lanes._flatten(bitsets, number, words, values, 3, out, count)
    return count


@pytest.mark.parametrize("words", WIDTHS)
@pytest.mark.parametrize("share", [0.0, 0.02, 0.2, 1.0])
def test_remaining_lanes_agree_with_their_twins(share: float, words: int) -> None:
    rng = np.random.default_rng(words)
    bits = rng.random((20, 64 * words)) < share
    bitsets = np.packbits(bits, axis=1, bitorder="little").view(np.uint64).reshape(-1)
    values = rng.integers(0, 65536, 64 * words + 64 + 3).astype(np.uint16)
    results = []
    for run in (_flatten, _flatten_twins):
        out, sizes = np.zeros(bits.size + left_lanes.UNROLLED, np.uint16), np.zeros(20, np.int64)
        count = run(bitsets, words, values, out, sizes)
        results.append((count, out[:count].tolist(), sizes.tolist()))
    assert results[0] == results[1]
    assert results[0][2] == bits.sum(axis=1).tolist()


@compiled
def _pass_first(table: Any, sets: Any, left: Any, passed: Any) -> Any:
    return lanes.pass_first(table, sets, 1, 5, len(left) - 1, 7, left, passed)


@pytest.mark.parametrize("seed", [1, 2])
def test_pass_first_agrees_with_its_twin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 8, 50).astype(np.uint64)
    sets = rng.integers(0, 50, 500 + 1).astype(np.uint16)
    results = []
    for run in (
        _pass_first,
        lambda *arrays: lanes._pass_first(arrays[0], arrays[1], 1, 5, 100, 7, *arrays[2:]),
    ):
        left, passed = np.zeros(101, np.uint64), np.zeros(101, np.int32)
        found = run(table, sets, left, passed)
        results.append((found, left[:found].tolist(), passed[:found].tolist()))
    assert results[0] == results[1]
    assert 0 < results[0][0] < 100


@pytest.mark.parametrize("name", ["range", "bluedove", "mixed"])
def test_a_large_batch_matches_like_small_batches(name: str) -> None:
    """More live events in a tile than a bitset has bits, and more matches than initially fit."""
    workload = WORKLOADS[name]
    part = build_part(entry(n, form) for n, form in enumerate(workload.normal_forms(2500, 5)))  # type: ignore[arg-type]
    events = workload.events(2000, 6)
    whole = Index((part,)).match(events, np.zeros(2000, np.int64))
    for start, count in ((0, 10), (777, 1), (778, 2), (800, 70), (900, 200), (1200, 400), (1990, 10)):
        columns = {
            path: Column(column.kinds[start : start + count], column.words[start : start + count])
            for path, column in events.columns.items()
        }
        small = Index((part,)).match(ColumnBatch(count, columns, events.text), np.zeros(count, np.int64))
        assert small.lists() == [whole.of(event).tolist() for event in range(start, start + count)]
