"""Filters that differ in their constants only match together what they match one by one."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.filters import compile_filter
from fieldfare.filters import expression as ast
from fieldfare.filters.filter import Filter, Parsed
from fieldfare.matching.evaluation.shapes import shape_of
from fieldfare.matching.events.event_columns import columns_of_events
from fieldfare.matching.plain.search import confirm
from fieldfare.matching.plain.search.confirm import Confirmer

from . import strategies as some


def other_constants(e: ast.Expression, turn: int) -> ast.Expression:
    """The expression with other constants, of other types at times."""
    scalars = [*some.NUMBERS, *some.STRINGS, 5, Decimal("2.5")]

    def change(part: ast.Expression) -> ast.Expression:
        if isinstance(part, ast.Literal) and not isinstance(part.value, bool | None):
            place = scalars.index(part.value) if part.value in scalars else 0
            return ast.Literal(scalars[(place + turn) % len(scalars)])
        if isinstance(part, ast.Call):  # the types of its constants were checked
            return part
        if isinstance(part, ast.Like):
            texts = ["a", "b", "ab", "c" * (80 if turn == 3 else 1)]
            pattern = tuple(texts[turn % 4] if isinstance(p, str) else p for p in part.pattern)
            return ast.Like(change(part.operand), pattern)
        return ast.with_parts(part, change)

    return change(e)


def assert_same(filters: list[Filter], events: list[dict[str, Any]]) -> None:
    columns = columns_of_events(events, {path for condition in filters for path in condition.paths})
    confirmer = Confirmer(len(filters), filters.__getitem__)
    pairs = [(event, place) for event in range(len(events)) for place in range(len(filters))]
    expected = [filters[place].matches(events[event]) for event, place in pairs]
    chosen, places = np.array(pairs, np.int64).T
    for start in 0, len(pairs) // 2, 0:
        found = confirmer.confirm(columns, chosen[start:].copy(), places[start:].copy())
        assert found.tolist() == expected[start:]


@settings(max_examples=drawn(250), derandomize=True, deadline=None)
@given(
    st.lists(some.expressions, min_size=1, max_size=3),
    st.lists(some.events, min_size=1, max_size=5),
)
def test_pairs_are_confirmed_together_as_they_are_one_by_one(
    expressions: list[ast.Expression], events: list[dict[str, Any]]
) -> None:
    filters = [
        Filter(f"{place} {turn}", "sql", Parsed(other_constants(e, turn)))
        for place, e in enumerate(expressions)
        for turn in range(4)
    ]
    with pytest.MonkeyPatch.context() as patch:
        for pairs_min, pairs_max in (1, 1 << 20), (confirm.PAIRS_MIN, 7):
            patch.setattr(confirm, "PAIRS_MIN", pairs_min)
            patch.setattr(confirm, "PAIRS_MAX", pairs_max)
            assert_same(filters, events)


@pytest.mark.parametrize(
    ("text", "other", "same"),
    [
        ("data.a = 'x' AND data.high - data.low > 2", "data.a = '' AND data.high - data.low > -0.5", True),
        ("name LIKE '%abc%'", "name LIKE '%d%'", True),
        ("name LIKE 'abc%'", "STARTS_WITH(name, 'b')", True),
        ("name LIKE 'abc'", "name = 'b'", True),
        ("a = 5", "a = 'five'", True),
        ("a IN (1, 2)", "a IN (3, 4)", True),
        ("a IN (1, 2)", "a IN (1, 2, 3)", False),
        ("a = TRUE", "a = FALSE", False),
        ("a > 1", "b > 1", False),
        ("a > 1", "a >= 1", False),
        ("name LIKE '%abc%'", "name LIKE 'abc%'", False),
        ("name LIKE '%a_c%'", "name LIKE '%b_c%'", False),
    ],
)
def test_filters_have_one_shape_if_they_differ_in_constants_only(text: str, other: str, same: bool) -> None:
    shapes = [shape_of(compile_filter(condition).expression)[0] for condition in (text, other)]
    assert (shapes[0] == shapes[1]) is same
