"""The steps of filters (``filters.work``) for events as columns.

Most events are far from any limit, as the lengths of their texts show; the exact number of steps is counted
only where these lengths allow too many.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.functions.numbers import NUMERAL_CHARACTERS_MAX
from fieldfare.filters.functions.table import CHARACTERS_MAX
from fieldfare.filters.measuring import MeasuredEvent
from fieldfare.filters.weights import TEXT_CHARACTERS
from fieldfare.filters.work import (
    LONG_NUMERAL,
    NUMERAL_STEPS,
    STEPS_MAX,
    VALUES_A_STEP,
    Loop,
    Reading,
    Work,
)
from fieldfare.matching.events.columns import (
    KIND_MISSING,
    KIND_OTHER,
    KIND_STRING,
    REMEMBERED,
    ColumnBatch,
)
from fieldfare.model import Path

_MEASURED = "measured"
"""The key in a batch's ``kept`` of the measures of events."""

Rows = NDArray[np.int64]
Steps = NDArray[np.float64]


def most_steps(batch: ColumnBatch, work: Work, rows: Rows) -> Steps:
    """Return an upper bound of the number of steps for each row: float64[n]."""
    sizes: dict[Path, Steps] = {}

    def size(path: Path) -> Steps:
        if path not in sizes:
            sizes[path] = _bytes(batch, path, rows)
        return sizes[path]

    def read(readings: tuple[Reading, ...]) -> Steps:
        return sum(map(text, readings), none)

    def text(each: Reading) -> Steps:
        characters = size(each.of.root)
        if each.growth > 1:
            characters = np.maximum(characters, np.minimum(characters * each.growth, CHARACTERS_MAX))
        cast = 0 if each.word is None else NUMERAL_STEPS * (1 + NUMERAL_CHARACTERS_MAX // LONG_NUMERAL)
        return characters * each.weight / TEXT_CHARACTERS + cast

    def loop(each: Loop) -> Steps:
        once = each.parts + each.extra + each.calculation.most_steps
        element = once + read(each.readings) + sum(map(loop, each.loops), none)
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
    """Return where some array may have more elements than those that take no steps."""
    many = np.zeros(len(rows), bool)
    for root, steps in work.through:
        beyond = (*root, *steps, work.few)
        if work.few < 0 or not (beyond in batch.columns or beyond in batch.asked):
            return ~many
        if beyond in batch.columns:
            many |= batch.columns[beyond].kinds[rows] != KIND_MISSING
    return many


def _bytes(batch: ColumnBatch, path: Path, rows: Rows) -> Steps:
    """Return the size in bytes of the text of strings, arrays and objects; 0 for other values."""
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


def measured(batch: ColumnBatch, event: int) -> MeasuredEvent:
    """Return the measures of an event of a batch; those of the last few events are kept for other filters."""
    known: dict[int, MeasuredEvent] = batch.kept.setdefault(_MEASURED, {})
    if event not in known:
        if len(known) == REMEMBERED:
            known.pop(next(iter(known)))
        source = replace(batch)  # without ``kept``: the batch must not refer to itself
        known[event] = MeasuredEvent(lambda path: source.value(path, event))
    return known[event]


def count_steps(batch: ColumnBatch, work: Work, rows: Rows) -> NDArray[np.int64]:
    """Count the steps for each row, STEPS_MAX + 1 for more: int64[n]. Each event is counted once."""
    events, place = np.unique(rows, return_inverse=True)
    steps = [work.steps(measured(batch, event)) for event in events.tolist()]
    return np.array(steps, np.int64)[place] if steps else np.zeros(0, np.int64)


def fitting(
    batch: ColumnBatch,
    work: Work,
    rows: Rows | None,
    matches: Callable[[ColumnBatch, Rows | None], NDArray[np.bool_]],
) -> NDArray[np.bool_]:
    """Evaluate a filter for the rows within the work limit; the others do not match."""
    chosen = np.arange(batch.size) if rows is None else rows
    large = np.flatnonzero(most_steps(batch, work, chosen) > STEPS_MAX)
    if not len(large):
        return matches(batch, rows)
    fits = np.ones(len(chosen), bool)
    fits[large] = count_steps(batch, work, chosen[large]) <= STEPS_MAX
    found = np.zeros(len(chosen), bool)
    found[fits] = matches(batch, chosen[fits])
    return found
