"""What quotas count of a filter."""

from __future__ import annotations

from hypothesis import given, settings
from tests.doses import drawn
from tests.filters.test_simple import filters

from fieldfare.filters import compile_filter
from fieldfare.filters.costs import EVERY_EVENT, LOOP, cost_of
from fieldfare.filters.normal_form import Conjunction, NormalForm
from fieldfare.filters.sql.simple import read_simple


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


@settings(max_examples=drawn(200))
@given(filters)
def test_a_filter_read_without_the_parser_costs_about_the_same(text: str) -> None:
    """Never less: what the parser puts together, as two bounds of one attribute, its text has apart."""
    simple = read_simple(text)
    if simple is not None:
        parsed = compile_filter(f"({text})")
        assert simple.cost() >= cost_of(parsed.expression, parsed.normal_form) >= 1
