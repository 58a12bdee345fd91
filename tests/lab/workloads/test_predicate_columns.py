"""A part built from columns of predicates is the part built from the same predicates' normal forms."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import matching_support as support
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matching_support import Conjunction, NormalForm, columns_of, entry, matches_of
from tests.doses import drawn

from fieldfare.filters.normal_form import path_order
from fieldfare.filters.values import ValueSet, exact_number, greater_than, less_than, points
from fieldfare.matching.index import Index
from fieldfare.matching.part import Part, build_part
from fieldfare_lab.workloads.predicate_columns import (
    RangePredicates,
    ValuePredicates,
    build_part_from_columns,
)

PATHS = support.PATHS
integers = st.one_of(st.integers(-4, 4), st.sampled_from([2**53, 2**53 + 1, -(2**63), 2**63 - 1]))
floats = st.one_of(
    st.sampled_from([0.0, -0.0, 0.1, 1.5, 1e300, -1e300, 5e-324, 1e23, 9007199254740993.0, -2.5]),
    st.floats(allow_nan=False, allow_infinity=False),
)
float_bounds = st.one_of(floats, st.sampled_from([-np.inf, np.inf]))
ranges = (
    st.one_of(  # both bounds of one type, as in a column: a float stands for the decimal that it prints as
        *[st.tuples(st.just("range"), of, of, *2 * [st.booleans()]) for of in (integers, float_bounds)]
    )
)
values = st.one_of(
    st.tuples(st.just("int64"), st.lists(integers, max_size=4)),
    st.tuples(st.just("float64"), st.lists(floats, max_size=4)),
    st.tuples(st.just("strings"), st.lists(support.strings, max_size=4)),
)
subscriptions = st.lists(
    st.dictionaries(st.integers(0, len(PATHS) - 1), st.one_of(ranges, values), max_size=3), max_size=8
)


def _set_of(predicate: tuple[Any, ...]) -> ValueSet:
    if predicate[0] == "range":
        _, low, high, low_closed, high_closed = predicate
        numbers = (
            support.ValueSet(numbers=greater_than(exact_number(low), or_equal=low_closed))
            if (low != -np.inf)
            else ValueSet(numbers=less_than(Decimal(0)).union(greater_than(Decimal(0), or_equal=True)))
        )
        if low == np.inf or high == -np.inf:
            return ValueSet()
        if high != np.inf:
            numbers = numbers.intersection(
                ValueSet(numbers=less_than(exact_number(high), or_equal=high_closed))
            )
        return numbers
    if predicate[0] == "strings":
        return ValueSet(strings=points(predicate[1]))
    return ValueSet(numbers=points([exact_number(number) for number in predicate[1]]))


def _form(subscription: dict[int, tuple[Any, ...]]) -> NormalForm:
    constraints = {PATHS[path]: _set_of(predicate) for path, predicate in subscription.items()}
    if any(found.is_empty for found in constraints.values()):
        return NormalForm(())
    ordered = sorted(constraints.items(), key=lambda constraint: path_order(constraint[0]))
    return NormalForm((Conjunction(tuple(ordered)),))


def _part(subscriptions: list[dict[int, tuple[Any, ...]]], shuffle: Any) -> Part:
    """The predicates in blocks of a kind each, within these in any order."""
    blocks: list[RangePredicates | ValuePredicates] = []
    for kind, dtype in [
        ("range", "int64"),
        ("range", "float64"),
        *((k, "") for k in ("int64", "float64", "strings")),
    ]:
        chosen = [
            (s, path, *predicate[1:])
            for s, subscription in enumerate(subscriptions)
            for path, predicate in subscription.items()
            if predicate[0] == kind and (kind != "range" or _are_integers(predicate) == (dtype == "int64"))
        ]
        shuffle(chosen)
        columns = list(zip(*chosen, strict=True)) or [[] for _ in range(6)]
        if kind == "range":
            low, high = (np.array(column, dtype) for column in columns[2:4])
            closed = [np.array(column, bool) for column in columns[4:6]]
            blocks.append(RangePredicates(columns[0], columns[1], low, high, *closed))
            continue
        flat = [value for each in columns[2] for value in each]
        listed = (
            pa.array(flat, pa.string()).dictionary_encode() if kind == "strings" else np.array(flat, kind)
        )
        start = np.cumsum([0, *map(len, columns[2])])
        blocks.append(ValuePredicates(columns[0], columns[1], listed, start))
    return build_part_from_columns(PATHS, blocks, np.arange(len(subscriptions)))


def _are_integers(predicate: tuple[Any, ...]) -> bool:
    return isinstance(predicate[1], int) and isinstance(predicate[2], int)


@settings(max_examples=drawn(120))
@given(subscriptions, st.lists(support.events, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_columns_and_normal_forms_build_the_same_part(
    subscriptions: list[dict[int, tuple[Any, ...]]], events: list[dict[Any, Any]], random: Any
) -> None:
    forms = [_form(subscription) for subscription in subscriptions]
    part = _part(subscriptions, random.shuffle)
    other = build_part(entry(n, form) for n, form in enumerate(forms))
    offsets = np.zeros(len(events), np.int64)
    found = Index((part,)).match(columns_of(events), offsets).lists()
    assert found == [[n for n, form in enumerate(forms) if matches_of(form, event)] for event in events]
    assert found == Index((other,)).match(columns_of(events), offsets).lists()
    if all(form.conjunctions for form in forms):
        _assert_same(part, other)


def _assert_same(part: Part, other: Part) -> None:
    assert part.paths == other.paths
    assert all(map(np.array_equal, part.versions, other.versions))
    for name, group in part.filters.groups._asdict().items():
        for field, array in group._asdict().items():
            expected = getattr(getattr(other.filters.groups, name), field)
            if field in ("number_offset", "number_text"):  # 1E+20 may be written otherwise
                continue
            assert array.dtype == expected.dtype
            assert array.tobytes() == expected.tobytes(), (name, field)


def test_versions_and_their_validity_can_be_given() -> None:
    part = build_part_from_columns(
        [("a",)],
        [RangePredicates(pa.array([1, 0]), pa.array([0, 0]), pa.array([1, 2]), pa.array([3, 4]))],
        pa.array([70, 80]),
        versions=[9, 5],
        valid_from=[0, 10],
        valid_to=20,
    )
    assert part.versions.version.tolist() == [5, 9]
    events = columns_of([{("a",): 2}] * 3)
    assert Index((part,)).match(events, np.array([5, 15, 20])).lists() == [[70], [70, 80], []]


def test_a_subscription_without_predicates_matches_everything() -> None:
    part = build_part_from_columns([], [], [3])
    assert Index((part,)).match(columns_of([{}]), np.zeros(1, np.int64)).lists() == [[3]]


def _ranges(**changed: Any) -> RangePredicates:
    columns = {"subscription": [0, 1], "path": [0, 0], "low": [1, 2], "high": [3, 4]} | changed
    return RangePredicates(**columns)


@pytest.mark.parametrize(
    ("predicates", "message"),
    [
        (_ranges(path=[0]), "path has 1 rows, expected 2"),
        (_ranges(path=[0, 1]), "path has a place beyond the 1"),
        (_ranges(subscription=[0, 2]), "subscription has a place beyond the 2"),
        (_ranges(subscription=[-1, 0]), "subscription has a place beyond the 2"),
        (_ranges(subscription=[0, 0]), "at place 0 has two predicates on one attribute"),
        (_ranges(low=[1.0, float("nan")]), "low holds a NaN"),
        (_ranges(low=[1.0, 2.0]), "low is of float64 and high of int64"),
        (_ranges(low=["a", "b"]), "low is of"),
        (_ranges(low=pa.array([1, None])), "a column holds a null"),
        (_ranges(low=[1, 2, 3]), "low has 3 rows, expected 2"),
        (ValuePredicates([0], [0], ["x", "y"]), "value_start does not divide the 2 values"),
        (ValuePredicates([0], [0], ["x", "y"], [0, 3]), "value_start does not divide the 2 values"),
        (ValuePredicates([0], [0], pa.array(["x", None]), [0, 2]), "values hold a null"),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    predicates: RangePredicates | ValuePredicates, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build_part_from_columns([("a",)], [predicates], [1, 2])
    with pytest.raises(ValueError, match="a path comes twice"):
        build_part_from_columns([("a",), ("a",)], [], [1])
    with pytest.raises(ValueError, match="a version comes twice"):
        build_part_from_columns([], [], [1, 2], versions=[4, 4])
