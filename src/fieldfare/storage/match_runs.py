"""Matches of one block that are too many for memory: sorted runs on disk, merged as they are written.

How many matches a record has its publisher and the subscribers decide: 10,000 events and 100,000 filters that
match everything are a billion. A run holds what was found since the last, by subscription; a merge takes the
lists of some hundred thousand matches at a time out of all runs.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.grouping import MatchLists, Pairs, group_by_subscription

MERGED_MATCHES = 4_000_000
"""Matches merged at once, about: a list of up to 65,536 is never divided."""


class MatchRuns:
    """Sorted runs in a file that has no name, so that nothing is left of it when its process ends.

    Parameters
    ----------
    folder
        On whose disk the file is; made if it is missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file: Any = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by close()
        self._places: list[tuple[int, int, int, int]] = []

    def close(self) -> None:
        """Forget all runs."""
        self._file.close()

    def add(self, lists: MatchLists) -> None:
        """Write a run, which is not empty; no match may be in two."""
        places = []
        for array in lists:
            self._file.write(b"\0" * (-self._file.tell() % 8))
            places.append(self._file.tell())
            self._file.write(np.ascontiguousarray(array).data)
        self._places.append((len(lists.numbers), *places))

    def pieces(self) -> Iterator[MatchLists]:
        """All lists by ascending number, some at a time."""
        self._file.flush()
        mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        runs = [_mapped_run(mapped, *places) for places in self._places]
        first = min(int(run.numbers[0]) for run in runs)
        last = max(int(run.numbers[-1]) for run in runs)
        while first <= last:
            end = _end_of_piece(runs, first, last + 1)
            piece = _merged(runs, first, end)
            if len(piece.numbers):
                yield piece
            first = end


def _mapped_run(mapped: mmap.mmap, size: int, numbers: int, starts: int, ordinals: int) -> MatchLists:
    bounds = np.frombuffer(mapped, np.int64, size + 1, starts)
    return MatchLists(
        np.frombuffer(mapped, np.uint32, size, numbers),
        bounds,
        np.frombuffer(mapped, np.uint16, int(bounds[-1]), ordinals),
    )


def _end_of_piece(runs: list[MatchLists], first: int, limit: int) -> int:
    """Up to which number the lists from `first` on have about MERGED_MATCHES; at least one number."""
    low, high = first + 1, limit
    while low < high:
        middle = (low + high + 1) // 2
        if sum(len(_of(run, first, middle)[1]) for run in runs) <= MERGED_MATCHES:
            low = middle
        else:
            high = middle - 1
    return low


def _of(run: MatchLists, first: int, end: int) -> tuple[slice, NDArray[np.uint16]]:
    """Which lists of a run have these numbers, and their events."""
    low = int(np.searchsorted(run.numbers, np.uint32(first)))
    high = int(np.searchsorted(run.numbers, np.uint32(end - 1), "right"))
    return slice(low, high), run.ordinals[run.starts[low] : run.starts[high]]


def _merged(runs: list[MatchLists], first: int, end: int) -> MatchLists:
    found = []
    for run in runs:
        chosen, ordinals = _of(run, first, end)
        numbers = run.numbers[chosen]
        if len(numbers):
            lengths = np.diff(run.starts[chosen.start : chosen.stop + 1])
            pairs = np.empty((len(ordinals), 2), np.int32)
            pairs[:, 0] = ordinals
            pairs[:, 1] = np.repeat(np.arange(len(numbers), dtype=np.int32), lengths)
            found.append(Pairs(pairs, 0, numbers.copy(), int(numbers[0]), int(numbers[-1])))
    return group_by_subscription(found)
