"""The synthetic workloads' filters in other forms: as text, and as columns of predicates."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

import numpy as np

from fieldfare.filters import NormalForm
from fieldfare.filters.sql.paths import format_path
from fieldfare.filters.values import BEFORE, Ranges, ValueSet
from fieldfare.model import Path
from fieldfare_lab.workloads.predicate_columns import RangePredicates, ValuePredicates

Columns = tuple[list[Path], list[RangePredicates | ValuePredicates], int]
"""The input of `build_part_from_columns`: paths, predicates, and the number of subscriptions."""

RANGE_WIDTH, RANGE_DOMAIN, RANGE_ATTRIBUTES, RANGE_PREDICATES = 400_000, 1_000_000, 20, 10
_DRAWN_BATCH_SIZE = 65_536


def range_columns(count: int, seed: int) -> Columns:
    """Return W-RANGE as columns, drawn directly: ten million subscriptions take seconds."""
    rng = np.random.default_rng(seed)
    path = np.empty((count, RANGE_PREDICATES), np.int32)
    for start in range(0, count, _DRAWN_BATCH_SIZE):
        drawn = rng.random((min(_DRAWN_BATCH_SIZE, count - start), RANGE_ATTRIBUTES), np.float32)
        path[start : start + _DRAWN_BATCH_SIZE] = drawn.argpartition(RANGE_PREDICATES, axis=1)[
            :, :RANGE_PREDICATES
        ]
    low = rng.integers(0, RANGE_DOMAIN - RANGE_WIDTH, path.size, np.int32)
    subscription = np.repeat(np.arange(count, dtype=np.int32), RANGE_PREDICATES)
    predicates = RangePredicates(subscription, path.ravel(), low, low + np.int32(RANGE_WIDTH))
    return [("data", f"a{i:02d}") for i in range(RANGE_ATTRIBUTES)], [predicates], count


def columns_of(forms: Iterable[NormalForm]) -> Columns:
    """Filters that are one conjunction of ranges of numbers and lists of strings, as columns."""
    paths: dict[Path, int] = {}
    ranges: list[tuple[int, int, float, float, bool, bool]] = []
    listed: list[tuple[int, int, int]] = []
    strings: list[str] = []
    count = 0
    for form in forms:
        (conjunction,) = form.conjunctions
        for path, values in conjunction.constraints:
            place = paths.setdefault(path, len(paths))
            if values.numbers.cuts:
                ranges.append((count, place, *_bounds(values.numbers)))
            else:
                texts = _points(values.strings)
                strings += texts
                listed.append((count, place, len(texts)))
        count += 1
    numbers = list(zip(*ranges, strict=True)) or [()] * 6
    lists = np.array(listed, np.int64).reshape(-1, 3)
    bounds = [np.array(column, np.float64) for column in numbers[2:4]]
    closed = [np.array(column, bool) for column in numbers[4:]]
    return (
        list(paths),
        [
            RangePredicates(numbers[0], numbers[1], *bounds, *closed),
            ValuePredicates(lists[:, 0], lists[:, 1], strings, np.cumsum([0, *lists[:, 2]])),
        ],
        count,
    )


def _bounds(ranges: Ranges) -> tuple[float, float, bool, bool]:
    """Return the bounds of the only range, and whether it contains them."""
    cuts = ([(Decimal("-Infinity"), BEFORE)] if ranges.starts_inside else []) + list(ranges.cuts)
    (low, low_side), (high, high_side) = [*cuts, (Decimal("Infinity"), BEFORE)][:2]
    return float(low), float(high), low_side == BEFORE, high_side != BEFORE


def _points(ranges: Ranges) -> list[str]:
    return [value for value, side in ranges.cuts if side == BEFORE]


def text_of(form: NormalForm) -> str:
    """Return a filter of the ``sql`` dialect with this normal form, if `columns_of` can express it."""
    (conjunction,) = form.conjunctions
    return " AND ".join(_predicate(format_path(path), values) for path, values in conjunction.constraints)


def _predicate(name: str, values: ValueSet) -> str:
    if not values.numbers.cuts:
        texts = [f"'{text}'" for text in _points(values.strings)]
        return f"{name} = {texts[0]}" if len(texts) == 1 else f"{name} IN ({', '.join(texts)})"
    cuts = values.numbers.cuts
    if len(cuts) == 2:
        return f"{name} BETWEEN {cuts[0][0]} AND {cuts[1][0]}"
    ((constant, side),) = cuts
    operator = (
        ("<" if side == BEFORE else "<=")
        if values.numbers.starts_inside
        else (">=" if side == BEFORE else ">")
    )
    return f"{name} {operator} {constant}"
