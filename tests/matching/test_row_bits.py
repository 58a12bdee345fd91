"""Row bits give the matches of their naive twins, and those of the tables of events' bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matching_support import entry
from tests.doses import drawn

from fieldfare.matching.compiled import compiled
from fieldfare.matching.index import Index
from fieldfare.matching.part import Part, build_part
from fieldfare.matching.plain.index import PlainIndex
from fieldfare.matching.plain.layout import ALL_LANES, CODES_MAX, FIRST_EDGE, NO_LANES, Tiles
from fieldfare.matching.plain.search import few_kernels, lanes, row_bits
from fieldfare.matching.plain.search.row_bits import LazyRowBits, RowBits
from fieldfare.matching.plain.search.vectors import BLOCK
from fieldfare_lab.workloads.synthetic import WORKLOADS


def _part(name: str, count: int, seed: int) -> Part:
    forms = enumerate(WORKLOADS[name].normal_forms(count, seed))
    return build_part(entry(n, form) for n, form in forms)  # type: ignore[arg-type]


def _tiles(part: Part) -> Tiles:
    assert isinstance(part.filters, PlainIndex)
    return part.filters.groups.tiles


def _derived(to_come: LazyRowBits) -> RowBits:
    """The row bits, after enough small batches to derive them."""
    for _ in range(10_000):
        if (bits := to_come.get()) is not None:
            return bits
    raise AssertionError("never derived")


def _passes(tiles: Tiles, t: int, number: int, codes: dict[int, int]) -> bool:
    """Whether an event with a code for each edge's column is in a bitset of a tile."""
    first, last = tiles.column_start[t], tiles.column_start[t + 1]
    edges = tiles.edge[tiles.column_edge[first] : tiles.column_edge[last]]
    owners = np.repeat(np.arange(first, last), np.diff(tiles.column_edge[first : last + 1]))
    if number in (ALL_LANES, NO_LANES):
        return number == ALL_LANES
    edge = number - FIRST_EDGE
    if edge < len(edges):
        return codes[int(owners[edge])] >= int(edges[edge])
    mine = tiles.set_start[t] + edge - len(edges)
    gates = tiles.set_gates[tiles.set_gate[mine] : tiles.set_gate[mine + 1]]
    return any(
        _passes(tiles, t, int(opens), codes) and not _passes(tiles, t, int(shuts), codes)
        for opens, shuts in gates
    )


def _naive_rows(tiles: Tiles, t: int, codes: dict[int, int]) -> list[int]:
    """The rows of a tile for which an event passes all sets."""
    found, row, place = [], 0, int(tiles.row_set_start[t])
    for width, size in tiles.runs[tiles.run_start[t] : tiles.run_start[t + 1]].tolist():
        for _ in range(size):
            if all(_passes(tiles, t, int(number), codes) for number in tiles.row_sets[place : place + width]):
                found.append(row)
            place += width
            row += 1
    return found


def _rows_by_bits(tiles: Tiles, bits: RowBits, t: int, codes: dict[int, int]) -> list[int]:
    """Like `_naive_rows`, by row bits."""
    width = int(bits.width[t])
    words = bits.words[bits.start[t] : bits.start[t + 1]].reshape(-1, width)
    left, first = np.full(width, ~np.uint64(0)), 0
    for c in range(tiles.column_start[t], tiles.column_start[t + 1]):
        edges = tiles.edge[tiles.column_edge[c] : tiles.column_edge[c + 1]]
        left &= words[first + int(np.sum(edges <= codes[c]))]
        first += len(edges) + 1
    if not first:
        left, first = words[0], 1
    assert len(words) == first
    return np.flatnonzero(np.unpackbits(left.view(np.uint8), bitorder="little")).tolist()


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_row_bits_agree_with_the_sets_of_rows(name: str) -> None:
    tiles = _tiles(_part(name, 300, 5))
    if not len(tiles.row_kind):
        return
    bits, rng = _derived(LazyRowBits(tiles)), np.random.default_rng(6)
    for t in range(len(tiles.row_start) - 1):
        for _ in range(3):
            codes = {}
            for c in range(tiles.column_start[t], tiles.column_start[t + 1]):
                edges = tiles.edge[tiles.column_edge[c] : tiles.column_edge[c + 1]].tolist()
                near = int(rng.choice([0, CODES_MAX - 1, *edges])) + int(rng.integers(-1, 2))
                codes[c] = min(max(near, 0), CODES_MAX - 1)
            assert _rows_by_bits(tiles, bits, t, codes) == _naive_rows(tiles, t, codes)


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_a_few_events_match_like_many(name: str) -> None:
    """The row bits are complete, incomplete, or the room for pairs ends within a tile."""
    part, events = _part(name, 3000, 7), WORKLOADS[name].events(28, 8)
    index, stamps = Index((part,)), np.zeros(28, np.int64)
    expected = index.match(events, stamps).lists()
    assert isinstance(part.filters, PlainIndex)
    for size in (1, 3, few_kernels.FEW_EVENTS):
        found = []
        for start in range(0, 28, size):
            part.filters._pairs_room = 1 + 40 * start
            few = events.take(np.arange(start, min(28, start + size)))
            found += index.match(few, stamps[: few.size]).lists()
        assert found == expected


def test_row_bits_are_derived_in_steps_and_not_if_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiles = _tiles(_part("range", 3000, 9))
    monkeypatch.setattr(row_bits, "TILES_BATCH_SIZE", 1)
    to_come, count = LazyRowBits(tiles), len(tiles.row_start) - 1
    assert count > 1
    assert [to_come.get() is None for _ in range(count + 1)] == [True] * (count - 1) + [False] * 2
    monkeypatch.setattr(row_bits, "FREE_BYTES", 0)
    monkeypatch.setattr(row_bits, "ROW_BYTES_MAX", 1)
    never = LazyRowBits(tiles)
    assert [never.get() for _ in range(2 * count)] == [None] * (2 * count)


@compiled
def _run(edges: Any, size: int, code: int, words: Any, places: Any, width: int, out: Any) -> Any:
    return lanes.reached(edges, 1, 1 + size, code), lanes.pass_bitsets(words, places, len(places), width, out)


@settings(max_examples=drawn(60))
@given(st.integers(0, 2**32), st.integers(0, 70), st.integers(1, 9), st.sampled_from([8, 16, 32]))
def test_the_vector_loops_agree_with_their_naive_twins(seed: int, size: int, count: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    edges = np.sort(rng.integers(0, CODES_MAX, size + 1 + BLOCK).astype(np.uint16))
    code = int(rng.choice(edges)) - int(rng.integers(0, 2))
    code = max(code, 0)
    words = rng.integers(0, 2**63, 64 * width).astype(np.uint64)
    words &= rng.integers(0, 2**63, 64 * width).astype(np.uint64)
    places = rng.integers(0, 64, count) * width
    out, expected = np.zeros(width, np.uint64), np.zeros(width, np.uint64)
    found = _run(edges, size, code, words, places, width, out)
    assert found[0] == lanes._reached(edges, 1, 1 + size, code)
    assert found[1] == lanes._pass_bitsets(words, places, count, width, expected)
    assert out.tolist() == expected.tolist()
