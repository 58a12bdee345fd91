"""The vector loops do what their twins in plain Python do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fieldfare.matching import lanes
from fieldfare.matching.columns import Column, ColumnBatch
from fieldfare.matching.compiled import compiled
from fieldfare.matching.part import build_part
from fieldfare.workloads.synthetic import WORKLOADS

from matching_support import entry  # isort: skip


@compiled
def _run(codes: Any, masks: Any, out: Any, edges: Any, table: Any, gates: Any, left: Any, passed: Any) -> Any:
    """All of them, one after another, as a tile does it."""
    blocks = len(masks)
    lanes.keep_between(codes, 0, 100, 65000, blocks, masks)
    count = lanes.gather(codes, 0, blocks, masks, out, 0)
    lanes.fill_edges(out, 0, min(count, lanes.LANES), edges, 1, len(edges), table, 2)
    lanes.fill_sets(table, np.arange(0, len(gates) + 1, 2), gates, 0, len(gates) // 2, len(edges) + 1)
    rows = len(left) // lanes.WORDS - 1
    members = (np.arange(3 * rows) * 7 % (len(gates) // 2) + len(edges) + 1).astype(np.uint16)
    return count, lanes.pass_sets(table, members, 0, 3, rows, 40, left, passed, 0)


def _run_twins(*arrays: Any) -> Any:
    codes, masks, out, edges, table, gates, left, passed = arrays
    blocks = len(masks)
    lanes._keep_between(codes, 0, 100, 65000, blocks, masks)
    count = lanes._gather(codes, 0, blocks, masks, out, 0)
    lanes._fill_edges(out, 0, min(count, lanes.LANES), edges, 1, len(edges), table, 2)
    lanes._fill_sets(table, np.arange(0, len(gates) + 1, 2), gates, 0, len(gates) // 2, len(edges) + 1)
    rows = len(left) // lanes.WORDS - 1
    members = (np.arange(3 * rows) * 7 % (len(gates) // 2) + len(edges) + 1).astype(np.uint16)
    return count, lanes._pass_sets(table, members, 0, 3, rows, 40, left, passed, 0)


@pytest.mark.parametrize(("seed", "events"), [(1, 5), (2, 64), (3, 130), (4, 700)])
def test_vector_loops_agree_with_their_twins(seed: int, events: int) -> None:
    rng = np.random.default_rng(seed)
    blocks = -(-events // lanes.BLOCK)
    codes = rng.integers(0, 65536, blocks * lanes.BLOCK).astype(np.uint16)
    masks = np.packbits(np.arange(blocks * lanes.BLOCK) < events, bitorder="little").view(np.uint32)
    edges = np.sort(rng.integers(0, 65536, 9)).astype(np.uint16)
    gates = rng.integers(0, len(edges) + 1, (10, 2)).astype(np.uint16)
    table = np.zeros(32 * lanes.WORDS, np.uint64)
    lanes_used = min(lanes.LANES, int(np.sum((codes[:events] >= 100) & (codes[:events] <= 65000))))
    full = np.packbits(np.arange(lanes.LANES) < lanes_used, bitorder="little").view(np.uint64)
    table[: lanes.WORDS] = full
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
        left, passed = np.zeros(21 * lanes.WORDS, np.uint64), np.zeros(21, np.int32)
        count, found = run(*arrays, left, passed)
        rows = left[: found * lanes.WORDS].reshape(-1, lanes.WORDS)
        results.append(
            (count, arrays[1].tolist(), arrays[2][:count].tolist(), rows.tolist(), passed[:found].tolist())
        )
    assert results[0] == results[1]
    assert results[0][0] > 0


@pytest.mark.parametrize("name", ["range", "bluedove", "mixed"])
def test_a_large_batch_finds_what_small_batches_find(name: str) -> None:
    """More live events in a tile than a bitset has bits, and more matches than there is room for at first."""
    workload = WORKLOADS[name]
    part = build_part(entry(n, form) for n, form in enumerate(workload.normal_forms(2500, 5)))  # type: ignore[arg-type]
    events = workload.events(2000, 6)
    whole = part.match(events, np.zeros(2000, np.int64))
    for start in (0, 777, 1990):
        columns = {
            path: Column(column.kinds[start : start + 10], column.words[start : start + 10])
            for path, column in events.columns.items()
        }
        small = part.match(ColumnBatch(10, columns, events.text), np.zeros(10, np.int64))
        assert small.lists() == [whole.of(event).tolist() for event in range(start, start + 10)]
