"""An external merge sort for a block's matches that exceed memory: sorted runs on disk, merged when written.

The number of matches depends on publishers and subscribers: 10,000 events and 100,000 filters that match
everything have a billion. A run holds the matches found since the last run, by subscription; the merge reads
the lists of a few million matches at a time from all runs.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.matching.pairs import MatchLists, Pairs

MERGED_MATCHES = 4_000_000
"""Approximate number of matches merged at a time; a list of up to 65,536 matches is never divided."""


class MatchRuns:
    """Sorted runs in an unnamed temporary file, which disappears when its process ends.

    Parameters
    ----------
    folder
        Folder on whose disk the file is; created if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file: Any = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by close()
        self._places: list[tuple[int, int, int, int]] = []

    def close(self) -> None:
        """Delete all runs."""
        self._file.close()

    def add(self, lists: MatchLists) -> None:
        """Write a run, which must not be empty; no match may be in two runs."""
        places = []
        for array in lists:
            self._file.write(b"\0" * (-self._file.tell() % 8))
            places.append(self._file.tell())
            self._file.write(np.ascontiguousarray(array).data)
        self._places.append((len(lists.numbers), *places))

    def pieces(self) -> Iterator[MatchLists]:
        """Yield the merged lists by ascending number, about `MERGED_MATCHES` matches at a time."""
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
    """Return the end of a range of numbers from `first` with at most MERGED_MATCHES; at least one number."""
    low, high = first + 1, limit
    while low < high:
        middle = (low + high + 1) // 2
        if sum(len(_of(run, first, middle)[1]) for run in runs) <= MERGED_MATCHES:
            low = middle
        else:
            high = middle - 1
    return low


def _of(run: MatchLists, first: int, end: int) -> tuple[slice, NDArray[np.uint16]]:
    """Return which lists of a run have numbers from `first` to before `end`, and these lists' events."""
    low = int(np.searchsorted(run.numbers, np.uint32(first)))
    high = int(np.searchsorted(run.numbers, np.uint32(end - 1), "right"))
    return slice(low, high), run.ordinals[run.starts[low] : run.starts[high]]


def _merged(runs: list[MatchLists], first: int, end: int) -> MatchLists:
    from fieldfare.matching.grouping import group_by_subscription  # Only if needed: it loads numba.

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
