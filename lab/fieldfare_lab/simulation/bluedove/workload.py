"""The workload of Li et al. 2011, section IV.B: boxes around hot spots, and points.

Attributes have values from 0 to 999. A subscription has a range of width 250 on each, whose centre is
normal around the attribute's hot spot, cropped to the axis; hot spots are spread evenly along it. The
messages are uniform, or on some attributes skewed as the subscriptions are (section IV.F).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters import Conjunction, NormalForm
from fieldfare.matching.events.columns import KIND_INT, Column, ColumnBatch
from fieldfare.model import Path
from fieldfare.partitioning import Extents, extents_of
from fieldfare_lab.workloads.synthetic import closed_range

LENGTH = 1000
RANGE_WIDTH = 250
PATHS: tuple[Path, ...] = tuple(("data", f"a{i:02d}") for i in range(4))
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Boxes:
    """Subscriptions: ``low[i, d] <= value <= high[i, d]`` on every attribute d; int64[s, 4] each."""

    low: Integers
    high: Integers

    def __len__(self) -> int:
        return len(self.low)

    def normal_forms(self) -> Iterator[NormalForm]:
        """Yield the subscriptions' normal forms for the partitionings."""
        for lows, highs in zip(self.low.tolist(), self.high.tolist(), strict=True):
            ranges = map(closed_range, lows, highs)
            yield NormalForm((Conjunction(tuple(zip(PATHS, ranges, strict=True)), True),))

    @cached_property
    def extents(self) -> Extents:
        """The subscriptions' extents on all attributes; numbered from 0."""
        return extents_of(enumerate(self.normal_forms()), PATHS)


def boxes(count: int, rng: np.random.Generator, deviation: float = 250.0, cut_off: bool = False) -> Boxes:
    """Draw subscriptions.

    Parameters
    ----------
    deviation
        Standard deviation of the centres (the paper: 250). Higher: less skewed.
    cut_off
        How to treat a range that extends beyond the axis. False: it is moved inside, as in the workload
        `bluedove`, so that ranges pile up at both ends even if the centres are uniform. True: the part
        outside is cut off, and uniform centres make uniform subscriptions. The paper does not say which.
    """
    if cut_off:
        low = _around_hot_spots(count, rng, deviation) - RANGE_WIDTH // 2
        return Boxes(np.maximum(low, 0), np.minimum(low + RANGE_WIDTH, LENGTH - 1))
    low = np.clip(_around_hot_spots(count, rng, deviation) - RANGE_WIDTH // 2, 0, LENGTH - RANGE_WIDTH)
    return Boxes(low, low + RANGE_WIDTH)


def points(count: int, rng: np.random.Generator, skewed: int = 0, deviation: float = 250.0) -> Integers:
    """Draw messages: int64[n, 4]; on the first `skewed` attributes as the subscriptions' centres are."""
    values = rng.integers(0, LENGTH, (count, len(PATHS)))
    values[:, :skewed] = _around_hot_spots(count, rng, deviation)[:, :skewed]
    return values


def columns_of(values: Integers) -> ColumnBatch:
    """Return messages as a batch of columns for the partitionings."""
    kinds = np.full(len(values), KIND_INT, np.uint8)
    columns = {path: Column(kinds, np.ascontiguousarray(values[:, i])) for i, path in enumerate(PATHS)}
    return ColumnBatch(len(values), columns)


def _around_hot_spots(count: int, rng: np.random.Generator, deviation: float) -> Integers:
    spots = LENGTH * (np.arange(len(PATHS)) + 0.5) / len(PATHS)
    drawn = rng.normal(spots, deviation, (count, len(PATHS)))
    while (outside := (drawn < 0) | (drawn >= LENGTH)).any():
        again = rng.normal(spots, deviation, (count, len(PATHS)))
        drawn = np.where(outside, again, drawn)
    return drawn.astype(np.int64)
