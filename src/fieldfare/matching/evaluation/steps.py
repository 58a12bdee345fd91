"""The steps of filters (``filters.work``) for events as columns.

Most events are far from any limit, and the lengths of their texts tell that much: only where these allow too
many steps are they counted one by one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.work import STEPS_MAX, TEXT_CHARACTERS, VALUES_A_STEP, Loop, Reading, Work
from fieldfare.matching.events.columns import KIND_MISSING, KIND_OTHER, KIND_STRING, ColumnBatch
from fieldfare.model import Path

Rows = NDArray[np.int64]
Steps = NDArray[np.float64]


def most_steps(batch: ColumnBatch, work: Work, rows: Rows) -> Steps:
    """A number of steps for each of some rows that is never exceeded: float64[n]."""
    sizes: dict[Path, Steps] = {}

    def size(path: Path) -> Steps:
        if path not in sizes:
            sizes[path] = _bytes(batch, path, rows)
        return sizes[path]

    def read(readings: tuple[Reading, ...]) -> Steps:
        return sum((size(each.of.root) * each.weight / TEXT_CHARACTERS for each in readings), none)

    def loop(each: Loop) -> Steps:
        element = each.parts + read(each.readings) + sum(map(loop, each.loops), none)
        return 1 + np.maximum(1, size(each.array.root) / 2) * element

    none = np.zeros(len(rows))
    whole = sum((size(path) / VALUES_A_STEP for path in work.arrays), none)
    steps = whole + read(work.readings) + sum(map(loop, work.loops), none)
    if work.reads_much:
        return steps
    columns = [batch.columns[path] for path in work.arrays if path in batch.columns]
    counts = sum((column.kinds[rows] == KIND_OTHER for column in columns), none)
    return np.where((counts > 0) & _may_be_many(batch, work, rows), steps, 0.0)


def _may_be_many(batch: ColumnBatch, work: Work, rows: Rows) -> NDArray[np.bool_]:
    """Where some array may have more elements than those that take no steps."""
    many = np.zeros(len(rows), bool)
    for root, steps in work.through:
        beyond = (*root, *steps, work.few)
        if work.few < 0 or not (beyond in batch.columns or beyond in batch.asked):
            return ~many
        if beyond in batch.columns:
            many |= batch.columns[beyond].kinds[rows] != KIND_MISSING
    return many


def _bytes(batch: ColumnBatch, path: Path, rows: Rows) -> Steps:
    """How long the text of a string, an array or an object is; 0 for all else."""
    column = batch.columns.get(path)
    if column is None:
        return np.zeros(len(rows))
    kinds, words = column.kinds[rows], column.words[rows]
    lengths = (words & 0xFFFFFFFF).astype(np.float64)
    elsewhere = np.flatnonzero((kinds == KIND_OTHER) & (words == 0))
    if len(elsewhere):
        others = batch.others
        lengths[elsewhere] = 0 if others is None else others.text_sizes(path, rows[elsewhere])
    lengths[(kinds != KIND_OTHER) & (kinds != KIND_STRING)] = 0
    return lengths


def count_steps(batch: ColumnBatch, work: Work, rows: Rows) -> NDArray[np.int64]:
    """The steps for each of some rows, STEPS_MAX + 1 for more: int64[n]. Each event is counted once."""
    events, place = np.unique(rows, return_inverse=True)
    steps = [work.steps(lambda path, event=event: batch.value(path, event)) for event in events.tolist()]  # type: ignore[misc]
    return np.array(steps, np.int64)[place] if steps else np.zeros(0, np.int64)


def fitting(
    batch: ColumnBatch,
    work: Work,
    rows: Rows | None,
    matches: Callable[[ColumnBatch, Rows | None], NDArray[np.bool_]],
) -> NDArray[np.bool_]:
    """What a filter says of the rows for which it is not too much work; the others do not match."""
    chosen = np.arange(batch.size) if rows is None else rows
    large = np.flatnonzero(most_steps(batch, work, chosen) > STEPS_MAX)
    if not len(large):
        return matches(batch, rows)
    fits = np.ones(len(chosen), bool)
    fits[large] = count_steps(batch, work, chosen[large]) <= STEPS_MAX
    found = np.zeros(len(chosen), bool)
    found[fits] = matches(batch, chosen[fits])
    return found
