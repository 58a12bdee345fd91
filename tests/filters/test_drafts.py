"""Products and unions of disjunctions: never less than they should be, whatever may still be done."""

from __future__ import annotations

from decimal import Decimal
from itertools import product as pairs
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.filters import values as sets
from fieldfare.filters.drafts import MAX_CONJUNCTIONS, Budget, Disjunction, Draft, product, union
from fieldfare.filters.values import ValueSet

PATHS = [("a",), ("b",), ("c",)]
EVENTS = [dict(zip(PATHS, values, strict=True)) for values in pairs((0, 1, 2, "x"), repeat=3)]

numbers = st.sets(st.integers(0, 2).map(Decimal), min_size=1, max_size=3).map(sets.points)
some_values = st.builds(ValueSet, numbers=numbers | numbers.map(lambda ranges: ranges.complement()))
drafts = st.builds(Draft, st.dictionaries(st.sampled_from(PATHS), some_values, max_size=3), st.booleans())
parts = st.lists(st.lists(drafts, max_size=4), min_size=1, max_size=7)


def fits(draft: Draft, event: dict[Any, Any]) -> bool:
    return all(event[path] in values for path, values in draft.sets.items())


def said(found: Disjunction, event: dict[Any, Any]) -> tuple[bool, bool]:
    """Whether an event may match, and whether it surely does."""
    fitting = [draft for draft in found if fits(draft, event)]
    return bool(fitting), any(draft.exact for draft in fitting)


@settings(max_examples=drawn(40), derandomize=True, deadline=None)
@given(parts, st.sampled_from([0, 3, 20, 100, 12_000]))
def test_what_is_left_to_do_decides_only_how_near_a_superset_is(given: list[Disjunction], left: int) -> None:
    """What is sure of the result is sure of the parts; what may be of the parts may be of the result."""
    for combine, over in (product, all), (union, any):
        budget = Budget()
        budget.left = left
        found = combine(given, budget)
        assert len(found) <= MAX_CONJUNCTIONS
        assert budget.left >= 0
        for event in EVENTS:
            may, surely = said(found, event)
            answers = [said(part, event) for part in given]
            assert may or not over(answer[0] for answer in answers)
            assert over(answer[1] for answer in answers) or not surely
