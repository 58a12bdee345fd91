"""The choice of the derived columns that an index computes for every event.

A column is kept if enough rows use it to make it cheaper than evaluating their filters. A row that loses a
column becomes inexact: its filter must confirm its candidates. A row that keeps all its columns does not need
the predicates on attributes that they imply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.derived import expression_of
from fieldfare.filters.work import looked_into
from fieldfare.matching.plain.building.arrays import Material
from fieldfare.matching.plain.building.gathering import Constants, Gathered, NeedleTexts
from fieldfare.matching.plain.building.gathering_kernels import IMPLIED, NEEDLE_KINDS, NUMBER, ODD, STRING
from fieldfare.matching.plain.layout import starts_of
from fieldfare.model import Path, derived_text

COLUMNS_MAX = 128
"""Maximum derived columns of an index: each takes memory for every event of a batch."""
ROWS_MIN = 16
"""Minimum rows of a column: the filters of fewer, evaluated together and only for candidates, cost no more.
With more rows it pays whatever it costs, as each of their filters costs as much per candidate. For a single
event each column costs some microseconds."""
ROWS_MIN_OF_ARRAYS = 8
"""Minimum rows of a column that reads arrays, which are more expensive for filters."""
CHANCE_OF_RANGE = 0.25
"""Weight of a row whose column implies a range of numbers, bounded on both sides: few events are candidates.
A distance implies two ranges, and often each user asks for a different place."""


def with_columns(material: Material) -> Material:
    """Drop the derived columns that are not worth their cost."""
    gathered = material.gathered
    derived = np.array([derived_text(path) is not None for path in material.paths], bool)
    if not derived.any() and int(gathered.attribute.max(initial=0)) < IMPLIED:
        return material
    attribute = gathered.attribute & (IMPLIED - 1)
    row = np.repeat(np.arange(len(gathered.subscription)), np.diff(gathered.predicate_start))
    ranges = np.bincount(row[_implied_ranges(gathered)], minlength=len(gathered.subscription))
    uses = np.bincount(attribute, CHANCE_OF_RANGE ** ranges[row], minlength=len(derived))
    lost = derived & ~_worth_it(derived, uses, _least(material.paths, derived, uses))
    loses = np.zeros(len(gathered.subscription), bool)
    loses[row[lost[attribute]]] = True
    kept = ~lost[attribute] & ((gathered.attribute < IMPLIED) | loses[row])
    subscription = np.where(
        loses & (gathered.subscription >= 0), ~gathered.subscription, gathered.subscription
    )
    gathered = _with_predicates(
        gathered._replace(subscription=subscription, attribute=attribute.astype(np.int32)), row, kept
    )
    return _with_attributes(material._replace(gathered=gathered))


def _implied_ranges(gathered: Gathered) -> NDArray[np.int64]:
    """Return the predicates that are one range between two numbers and follow from derived columns."""
    is_number = (gathered.kind >> 1 == NUMBER >> 1) | (gathered.kind >> 1 == ODD >> 1)
    found = np.flatnonzero((gathered.attribute >= IMPLIED) & (np.diff(gathered.piece_start) == 1))
    first = 2 * gathered.piece_start[found]
    ranges: NDArray[np.int64] = found[is_number[first] & is_number[first + 1]]
    return ranges


def _least(paths: Sequence[Path], derived: NDArray[np.bool_], uses: NDArray[Any]) -> NDArray[np.int64]:
    """Return the minimum number of rows for each column."""
    least = np.full(len(paths), ROWS_MIN)
    for place in np.flatnonzero(derived & (uses >= ROWS_MIN_OF_ARRAYS) & (uses < ROWS_MIN)).tolist():
        if looked_into(expression_of(paths[place])):
            least[place] = ROWS_MIN_OF_ARRAYS
    return least


def _worth_it(derived: NDArray[np.bool_], uses: NDArray[Any], least: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which derived columns are kept, those with the most uses first."""
    found = np.zeros(len(derived), bool)
    places = np.flatnonzero(derived & (uses >= least))
    found[places[np.argsort(-uses[places], kind="stable")][:COLUMNS_MAX]] = True
    return found


def _with_predicates(gathered: Gathered, row: NDArray[np.int64], kept: NDArray[np.bool_]) -> Gathered:
    """Keep some of the rows' predicates."""
    counts = np.diff(gathered.piece_start)
    ends = np.repeat(np.repeat(kept, counts), 2)
    return gathered._replace(
        predicate_start=starts_of(np.bincount(row[kept], minlength=len(gathered.subscription))),
        attribute=gathered.attribute[kept],
        piece_start=starts_of(counts[kept]),
        kind=gathered.kind[ends],
        value=gathered.value[ends],
    )


def _with_attributes(material: Material) -> Material:
    """Keep only the attributes that some row uses, and their constants."""
    paths, gathered, constants = material.paths, material.gathered, material.constants
    needles = constants.needles
    used = np.zeros(len(paths), bool)
    used[gathered.attribute] = True
    used[needles.code // NEEDLE_KINDS] = True
    place = (np.cumsum(used) - 1).astype(np.int32)
    strings, odd = used[constants.string_attribute], [used[a] for a, _ in constants.odd]
    value = gathered.value.copy()
    for family, chosen in (STRING, strings), (ODD, np.array(odd, bool)):
        ends = np.flatnonzero(gathered.kind >> 1 == family >> 1)
        value[ends] = (np.cumsum(chosen) - 1)[value[ends].astype(np.int64)] if len(ends) else value[ends]
    sizes = np.diff(constants.offset)
    return material._replace(
        paths=tuple(path for path, is_used in zip(paths, used.tolist(), strict=True) if is_used),
        gathered=gathered._replace(attribute=place[gathered.attribute], value=value),
        constants=Constants(
            odd=tuple((int(place[a]), number) for a, number in constants.odd if used[a]),
            string_attribute=place[constants.string_attribute[strings]],
            offset=starts_of(sizes[strings]),
            text=constants.text[np.repeat(strings, sizes)],
            needles=NeedleTexts(
                code=(
                    place[needles.code // NEEDLE_KINDS] * NEEDLE_KINDS + needles.code % NEEDLE_KINDS
                ).astype(np.int32),
                offset=needles.offset,
                text=needles.text,
            ),
        ),
    )
