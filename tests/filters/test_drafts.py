"""Products and unions of disjunctions are never too small, for any budget."""

from __future__ import annotations

from decimal import Decimal
from itertools import product as pairs
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.filters import values as sets
from fieldfare.filters.drafts import CONJUNCTIONS_MAX, Budget, Disjunction, Draft, product, union
from fieldfare.filters.values import ValueSet

PATHS = [("a",), ("b",), ("c",)]
EVENTS = [dict(zip(PATHS, values, strict=True)) for values in pairs((0, 1, 2, "x"), repeat=3)]

numbers = st.sets(st.integers(0, 2).map(Decimal), min_size=1, max_size=3).map(sets.points)
some_values = st.builds(ValueSet, numbers=numbers | numbers.map(lambda ranges: ranges.complement()))
drafts = st.builds(Draft, st.dictionaries(st.sampled_from(PATHS), some_values, max_size=3), st.booleans())
parts = st.lists(st.lists(drafts, max_size=4), min_size=1, max_size=7)


def fits(draft: Draft, event: dict[Any, Any]) -> bool:
    return all(event[path] in values for path, values in draft.sets.items())


def verdict(found: Disjunction, event: dict[Any, Any]) -> tuple[bool, bool]:
    """Return whether an event may match, and whether it certainly does."""
    fitting = [draft for draft in found if fits(draft, event)]
    return bool(fitting), any(draft.exact for draft in fitting)


@settings(max_examples=drawn(40))
@given(parts, st.sampled_from([0, 3, 20, 100, 12_000]))
def test_the_budget_decides_only_the_size_of_a_superset(given: list[Disjunction], left: int) -> None:
    """If the result certainly matches, so do the parts; if the parts may match, so may the result."""
    for combine, over in (product, all), (union, any):
        budget = Budget()
        budget.left = left
        found = combine(given, budget)
        assert len(found) <= CONJUNCTIONS_MAX
        assert budget.left >= 0
        for event in EVENTS:
            may, surely = verdict(found, event)
            answers = [verdict(part, event) for part in given]
            assert may or not over(answer[0] for answer in answers)
            assert over(answer[1] for answer in answers) or not surely
