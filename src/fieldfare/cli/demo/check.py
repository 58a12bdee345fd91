"""The demo's check: compares the service's results with those of a naive evaluator.

The naive evaluator uses no index, batches or log: it evaluates each filter on each event, as the events were
sent. Its result for a filter, a list of positions, is compared with the events delivered to the filter's
subscriber and with the match log.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldfare.filters import compile_filter
from fieldfare.storage import open_match_log

Positions = NDArray[np.int64]
"""Positions of one partition as integers in the same order: the record's offset, then the index in it."""

INDEX_BITS = 16
PROCESSES = 2
CHUNK_EVENTS = 5_000


def as_positions(offsets: NDArray[np.int64], indexes: NDArray[np.int32]) -> Positions:
    """Pack each offset and index into one integer."""
    return (offsets.astype(np.int64) << INDEX_BITS) | indexes


def position_text(position: int) -> str:
    """Write a packed position as the service does."""
    return f"0-{position >> INDEX_BITS}-{position & ((1 << INDEX_BITS) - 1)}"


@dataclass(frozen=True, slots=True)
class Difference:
    """A filter whose result differs from the expected one."""

    id: str
    filter: str
    where: str
    missing: Positions
    surplus: Positions

    def __str__(self) -> str:
        parts = [
            f"{len(positions):,} {kind} ({', '.join(map(position_text, positions[:5].tolist()))}"
            f"{', ...' if len(positions) > 5 else ''})"
            for kind, positions in (("missing", self.missing), ("too many", self.surplus))
            if len(positions)
        ]
        return f"{self.id} [{self.filter}] {self.where}: {'; '.join(parts)}"


def compare(id: str, filter: str, where: str, expected: Positions, found: Positions) -> Difference | None:
    """Compare found positions with the expected ones; a repeated position counts as surplus."""
    expected, found = np.sort(expected), np.sort(found)
    if np.array_equal(expected, found):
        return None
    values, counts = np.unique(found, return_counts=True)
    surplus = np.concatenate([np.setdiff1d(values, expected), values[counts > 1]])
    return Difference(id, filter, where, np.setdiff1d(expected, values), surplus)


def write_events(events: pa.LargeBinaryArray, path: Path) -> None:
    """Write the events to a file that several processes can map."""
    table = pa.table({"event": events})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)


def open_events(path: Path) -> pa.ChunkedArray:
    """Map the events of a file written by `write_events`; they are read on access."""
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()["event"]


def match_naively(
    events_path: Path, count: int, filters: Sequence[str], on_progress: Callable[[int], None]
) -> list[NDArray[np.int64]]:
    """Evaluate every filter on each of the first ``count`` events.

    Parameters
    ----------
    on_progress
        Called with the number of further events evaluated.

    Returns
    -------
    list of int64 arrays
        For each filter, the indexes of the events that it matches, in order.
    """
    starts = range(0, count, CHUNK_EVENTS)
    ends = [min(start + CHUNK_EVENTS, count) for start in starts]
    # Fresh interpreters: forking a process with threads is not safe.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, spawn, _Evaluator.start, (events_path, list(filters))) as pool:
        parts = []
        for start, end, part in zip(starts, ends, pool.map(_match_range, starts, ends), strict=True):
            parts.append(part)
            on_progress(end - start)
    return [np.concatenate([part[k] for part in parts]) for k in range(len(filters))]


class _Evaluator:
    """The state of a pool process: compiled filters and mapped events."""

    tests: ClassVar[list[Callable[[Mapping[str, object]], bool]]]
    events: ClassVar[pa.ChunkedArray]

    @classmethod
    def start(cls, events_path: Path, filters: Sequence[str]) -> None:
        cls.tests = [compile_filter(text).matches for text in filters]
        cls.events = open_events(events_path)


def _match_range(start: int, end: int) -> list[NDArray[np.int64]]:
    found: list[list[int]] = [[] for _ in _Evaluator.tests]
    pairs = list(zip(_Evaluator.tests, found, strict=True))
    decode = msgspec.json.Decoder().decode
    for number, text in enumerate(_Evaluator.events[start:end].to_pylist(), start):
        event = decode(text)
        for test, own in pairs:
            if test(event):
                own.append(number)
    return [np.array(own, np.int64) for own in found]


def read_match_log(url: str, end: int, numbers: Sequence[int]) -> list[Positions]:
    """Return the match log's positions before offset ``end`` for each subscription number."""
    log = open_match_log(url).partition(0)
    found: list[list[Positions]] = [[] for _ in numbers]
    offset = 0
    while offset < end:
        block = log.block_at(offset)
        if block is None:
            break
        for number, own in zip(numbers, found, strict=True):
            offsets, indexes = block.matches_of(number)
            new = (offsets >= offset) & (offsets < end)  # Blocks may overlap after a crash.
            own.append(as_positions(offsets[new], indexes[new]))
        offset = block.end
    return [np.concatenate([np.empty(0, np.int64), *own]) for own in found]
