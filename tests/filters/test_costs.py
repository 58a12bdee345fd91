"""The cost of a filter, which quotas count."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from tests.doses import drawn
from tests.filters.test_simple import filters

from fieldfare.filters import compile_filter
from fieldfare.filters.costs import EVERY_EVENT, LOOP, cost_of
from fieldfare.filters.normal_form import Conjunction, NormalForm
from fieldfare.filters.sql.simple import read_simple
from fieldfare.model import COST_MAX


def cost(text: str) -> int:
    return compile_filter(text).cost


def test_what_a_filter_costs() -> None:
    assert cost("data.x = 1") == cost("data.x BETWEEN 1 AND 2") == cost("1 = 2") == 1
    assert cost("data.x = 1 AND type = 'a'") == cost("data.x = 1 OR type = 'a'") == 2
    assert cost(f"data.x IN ({', '.join(map(str, range(101)))})") == 51
    checked = cost("data.x LIKE '%a_b%'")
    assert 1 < checked < LOOP
    assert cost("data.x LIKE '%a_b%' AND type = 'a'") > checked
    in_loop = cost("ANY item IN data.items SATISFIES (item.price > data.least AND item.name LIKE '%a_b%')")
    assert in_loop > LOOP
    form = NormalForm((Conjunction((), exact=False),))
    expression = compile_filter("data.x LIKE '%a_b%'").expression
    assert cost_of(expression, form) >= EVERY_EVENT, "every event is a candidate"


@pytest.mark.parametrize("levels", [13, 14, 15, 45, 90])
def test_the_cost_of_arrays_inside_of_arrays_saturates(levels: int) -> None:
    """14 levels cost 4.8e18: the sum of three such costs overflowed, and 15 levels did not fit a row."""
    pattern: object = ["x"]
    for _ in range(levels):
        pattern = {"a": pattern}
    assert compile_filter(pattern, "eventbridge").cost == COST_MAX


@settings(max_examples=drawn(200))
@given(filters)
def test_a_simple_filter_costs_about_as_much_as_a_parsed_one(text: str) -> None:
    """It is never less: the parser merges two bounds of one attribute, which count separately in the text."""
    simple = read_simple(text)
    if simple is not None:
        parsed = compile_filter(f"({text})")
        assert simple.cost() >= cost_of(parsed.expression, parsed.normal_form) >= 1
