"""Encrypted filters in flat arrays, searched a batch of events at a time.

Alternatives without tokens lie in *lanes*, apart by epoch and number of rows; those with tokens in an index
of the library that knows tokens, and their rows are decided for what that finds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.encrypted import EPOCH_PATH, VECTOR_PATH
from fieldfare.filters.work import Work
from fieldfare.matching.aspe.kernels import (
    CHUNK_BYTES,
    EVENTS,
    LANES,
    floor_of,
    keep_positive,
    scan,
    without_negligible,
)
from fieldfare.matching.aspe.vectors import EventVectors, vectors_of
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.grouping import single_pairs
from fieldfare.matching.library import Candidates, FilterIndex, TooManyPairs
from fieldfare.model import Path

PAIRS_ROOM = 8192
SAMPLE = 64
"""Events from which it is learnt which rows let fewest through; fewer, while there were no more."""
LEARNT_AGAIN = 4
"""It is learnt anew from so many times as many."""
LEARNT_AT_ONCE = 8192
TOKENS_GROUP = "tokens/"


class LaneGroup(NamedTuple):
    """Alternatives of one epoch that have as many rows, as views of the arrays that all lie in.

    Who may subscribe may name any epoch: there may be a great many groups, and events ask for few.
    """

    epoch: int
    depth: int
    place: NDArray[np.int32]
    """[n]: whose they are."""
    rows: NDArray[np.float64]
    """[n * depth, D]"""


class _Lanes(NamedTuple):
    """A group as the kernel takes it, in the order that was learnt."""

    learnt_from: int
    lanes: NDArray[np.float32]
    shape: tuple[int, int, int]
    place: NDArray[np.int32]
    rows: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Untokened:
    """Alternatives without tokens.

    Attributes
    ----------
    groups
        Of each group the epoch, how many rows an alternative has, and how many alternatives there are:
        int64[g, 3], rising.
    place
        Whose each alternative is, group by group: int32[n].
    rows
        float64[m, D].
    """

    groups: NDArray[np.int64]
    place: NDArray[np.int32]
    rows: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tokened:
    """Alternatives with tokens: what is found by these, and the rows to be decided then.

    Attributes
    ----------
    index
        Of their tokens; its places are those of these arrays.
    place
        Whose each alternative is: int32[n].
    start
        Where its rows begin and end: int64[n + 1].
    rows
        float64[m, D].
    """

    index: FilterIndex
    place: NDArray[np.int32]
    start: NDArray[np.int64]
    rows: NDArray[np.float64]


class AspeIndex:
    """Encrypted filters, indexed; see ``library.FilterIndex``."""

    def __init__(self, dimensions: int, untokened: Untokened, tokened: Tokened) -> None:
        self.dimensions = dimensions
        self._untokened = untokened
        self._epochs = np.ascontiguousarray(untokened.groups[:, 0])
        self._ends = np.cumsum(untokened.groups[:, 2])
        self._row_ends = np.cumsum(untokened.groups[:, 1] * untokened.groups[:, 2])
        self._tokened = tokened
        self._lanes: dict[int, _Lanes] = {}
        self._pairs_room = PAIRS_ROOM
        own = (VECTOR_PATH, EPOCH_PATH) if dimensions else ()
        self.paths: tuple[Path, ...] = tuple(dict.fromkeys((*own, *tokened.index.paths)))

    @property
    def width(self) -> int:
        """See ``library.FilterIndex``."""
        return self.dimensions + self._tokened.index.width

    @property
    def confirms(self) -> bool:
        """Nothing is left to be confirmed."""
        return False

    def find(self, columns: ColumnBatch, start: int, end: int, most: int) -> Candidates:
        """See ``library.FilterIndex``."""
        vectors = vectors_of(columns, self.dimensions)
        here = EventVectors(vectors.epochs[start:end], vectors.numbers[start:end])
        pairs, count = np.empty((self._pairs_room, 2), np.int32), 0
        for epoch in np.unique(here.epochs):
            first, last = (int(np.searchsorted(self._epochs, epoch, side)) for side in ("left", "right"))
            if first == last:
                continue
            events = np.flatnonzero(here.epochs == epoch).astype(np.int32)
            numbers = here.numbers[events]
            for group in range(first, last):
                pairs, count = self._scan(group, events, numbers, pairs, count, most)
        self._pairs_room = max(PAIRS_ROOM, count + (count >> 2))
        more = self._by_tokens(columns, start, end, here, most - count)
        return Candidates(np.concatenate([pairs[:count], more]) if len(more) else pairs[:count])

    def _scan(
        self,
        number: int,
        events: NDArray[np.int32],
        vectors: NDArray[np.float64],
        pairs: NDArray[np.int32],
        count: int,
        most: int,
    ) -> tuple[NDArray[np.int32], int]:
        """Append what a group's alternatives match."""
        lanes = self._lanes.get(number)
        if lanes is None or LEARNT_AGAIN * lanes.learnt_from <= min(SAMPLE, len(events)):
            lanes = self._lanes[number] = _learnt(self._group(number), vectors[:SAMPLE])
        flat = np.zeros((len(events) + EVENTS) * self.dimensions, np.float32)
        flat[: vectors.size] = without_negligible(vectors).reshape(-1)
        floor = np.float32(floor_of(self.dimensions))
        chunk_lanes = LANES * max(1, CHUNK_BYTES // (4 * LANES * lanes.shape[1] * lanes.shape[2]))
        group = 0
        while True:
            group, count = scan(
                lanes.lanes,
                lanes.shape,
                lanes.rows,
                lanes.place,
                flat,
                vectors,
                events,
                floor,
                group,
                pairs,
                count,
            )
            if count > most:
                raise TooManyPairs
            if group == lanes.shape[0]:
                return pairs, count
            # Room for all that the next chunk might find: memory that is not written costs nothing.
            larger = np.empty((2 * count + chunk_lanes * len(events), 2), np.int32)
            larger[:count] = pairs[:count]
            pairs = larger

    def _group(self, number: int) -> LaneGroup:
        epoch, depth, count = self._untokened.groups[number].tolist()
        end, row_end = int(self._ends[number]), int(self._row_ends[number])
        rows = self._untokened.rows[row_end - count * depth : row_end]
        return LaneGroup(epoch, depth, self._untokened.place[end - count : end], rows)

    def _by_tokens(
        self, columns: ColumnBatch, start: int, end: int, here: EventVectors, most: int
    ) -> NDArray[np.int32]:
        """What is found by tokens, and whose rows agree."""
        tokened = self._tokened
        if not len(tokened.place):
            return np.zeros((0, 2), np.int32)
        pairs = single_pairs(tokened.index.find(columns, start, end, most).pairs)
        asked = np.flatnonzero(pairs[:, 1] < 0)
        if len(asked):
            pairs[asked, 1] = ~pairs[asked, 1]
            agreed = tokened.index.confirm(columns, pairs[asked, 0].astype(np.int64) + start, pairs[asked, 1])
            pairs = np.delete(pairs, asked[~agreed], axis=0)
        kept = keep_positive(pairs, tokened.start, tokened.rows, here.numbers, here.epochs > 0)
        pairs = pairs[:kept]
        pairs[:, 1] = tokened.place[pairs[:, 1]]
        return pairs

    def works(self, places: NDArray[np.int32]) -> NDArray[np.int32]:
        """See ``library.FilterIndex``."""
        return np.zeros(len(places), np.int32)

    def work(self, number: int) -> Work:
        """See ``library.FilterIndex``."""
        raise KeyError(number)

    def confirm(
        self, columns: ColumnBatch, events: NDArray[np.int64], places: NDArray[np.int32]
    ) -> NDArray[np.bool_]:
        """See ``library.FilterIndex``."""
        return np.ones(len(events), np.bool_)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """See ``library.FilterIndex``."""
        found: dict[str, NDArray[Any]] = {
            "aspe.groups": self._untokened.groups,
            "aspe.place": self._untokened.place,
            "aspe.rows": self._untokened.rows,
            "aspe.tokened_place": self._tokened.place,
            "aspe.tokened_start": self._tokened.start,
            "aspe.tokened_rows": self._tokened.rows,
        }
        return found | {
            f"{TOKENS_GROUP}{name}": array for name, array in self._tokened.index.arrays().items()
        }

    def meta(self) -> dict[str, Any]:
        """See ``library.FilterIndex``."""
        return {
            "dimensions": self.dimensions,
            "tokens": self._tokened.index.meta(),
        }

    def explain(self) -> AspeExplanation:
        """See ``library.FilterIndex``."""
        sizes = {"rows": 0, "tokens": 0}
        for name, array in self.arrays().items():
            sizes["tokens" if name.startswith(TOKENS_GROUP) else "rows"] += array.nbytes
        in_lanes = len(self._untokened.place)
        return AspeExplanation(sizes, in_lanes, len(self._tokened.place), self.dimensions)

    def explain_filter(self, place: int) -> tuple[AlternativePlace, ...]:
        """See ``library.FilterIndex``."""
        places = np.flatnonzero(self._untokened.place == place)
        groups = self._untokened.groups[np.searchsorted(self._ends, places, "right")]
        found = [AlternativePlace(epoch, depth, by_tokens=False) for epoch, depth, _ in groups.tolist()]
        for at in np.flatnonzero(self._tokened.place == place).tolist():
            depth = int(self._tokened.start[at + 1] - self._tokened.start[at])
            found.append(AlternativePlace(0, depth, by_tokens=True))
        return tuple(found)


def _learnt(group: LaneGroup, sample: NDArray[np.float64]) -> _Lanes:
    """A group in lanes: the row first that lets fewest events through, and those beside one another alike.

    All that it goes by are signs that the service sees anyway. It is kept in memory only.
    """
    count, depth, dimensions = len(group.place), group.depth, group.rows.shape[1]
    rows = group.rows.reshape(count, depth, dimensions)
    passes = np.empty((count, depth, len(sample)), np.bool_)
    for first in range(0, count, LEARNT_AT_ONCE):
        passes[first : first + LEARNT_AT_ONCE] = rows[first : first + LEARNT_AT_ONCE] @ sample.T > 0.0
    order = np.argsort(passes.sum(axis=2), axis=1, kind="stable")
    rows = np.take_along_axis(rows, order[:, :, None], axis=1)
    ones, twos = (
        _words(np.take_along_axis(passes, order[:, [r], None], axis=1)) for r in (0, min(1, depth - 1))
    )
    groups = -(-count // LANES)
    alike = np.lexsort((ones, twos, ones >> np.uint64(SAMPLE - _bits_of_first(groups, depth))))
    rows, place = rows[alike], group.place[alike]
    padded = np.zeros((groups * LANES, depth, dimensions), np.float32)
    padded[:count] = without_negligible(rows)
    lanes = np.ascontiguousarray(padded.reshape(groups, LANES, depth, dimensions).transpose(0, 2, 3, 1))
    shape = (groups, depth, dimensions)
    return _Lanes(len(sample), lanes.reshape(-1), shape, place, rows.reshape(count * depth, dimensions))


def _words(signs: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Signs of a sample as a word each, [n, 1, sample] to [n]: words that begin alike are of rows alike."""
    packed = np.zeros((len(signs), SAMPLE // 8), np.uint8)
    bits = np.packbits(signs[:, 0], axis=1)
    packed[:, : bits.shape[1]] = bits
    found: NDArray[np.uint64] = packed.view(">u8")[:, 0].astype(np.uint64)
    return found


def _bits_of_first(groups: int, depth: int) -> int:
    """By how many signs of the first rows alternatives are told apart before the second rows tell them apart.

    An event cuts the rows of one attribute into three. Groups are to be cut as often by the first as by the
    second.
    """
    return SAMPLE if depth == 1 else min(SAMPLE, max(1, round(math.sqrt(groups) / 8)))


@dataclass(frozen=True, slots=True)
class AspeExplanation:
    """What there is of encrypted filters."""

    size_bytes: Mapping[str, int]
    in_lanes: int
    by_tokens: int
    dimensions: int

    def lines(self) -> list[str]:
        return [
            f"encrypted: {self.in_lanes:,} alternatives in lanes, {self.by_tokens:,} found by tokens,"
            f" {self.dimensions} dimensions"
        ]

    def document(self) -> dict[str, Any]:
        return {"in_lanes": self.in_lanes, "by_tokens": self.by_tokens, "dimensions": self.dimensions}


@dataclass(frozen=True, slots=True)
class AlternativePlace:
    """Where one alternative of an encrypted filter is."""

    epoch: int
    rows: int
    by_tokens: bool

    def __str__(self) -> str:
        found = "found by tokens" if self.by_tokens else f"in lanes, epoch {self.epoch}"
        return f"encrypted: {self.rows} rows, {found}"

    def document(self) -> dict[str, Any]:
        return {"rows": self.rows, "by_tokens": self.by_tokens}
