"""For any filter and event, help does not fail, and agrees with the evaluator."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.doses import drawn
from tests.filters.naive import condition
from tests.filters.strategies import events, expressions, sql_expressions

from fieldfare.filters import format_expression
from fieldfare.filters.evaluator import Compiler, event_getter
from fieldfare.filters.expression import (
    And,
    AndThen,
    Attribute,
    Comparison,
    Expression,
    Literal,
    Or,
    OrElse,
    walk,
)
from fieldfare.filters.filter import Filter, Parsed
from fieldfare.filters.help import check, explain, trace
from fieldfare.filters.help.cautions import _is_always_true, _is_open, always, never
from fieldfare.filters.help.conversion import in_sql, laid_out, simplest
from fieldfare.filters.help.tracing import tree_lines
from fieldfare.filters.sql.parser import parse_sql

quick = settings(max_examples=drawn(300), suppress_health_check=[HealthCheck.too_slow])


def as_filter(expression: Expression, dialect: str = "internal") -> Filter:
    return Filter("(made by a test)", dialect, Parsed(expression))


@quick
@given(expressions, st.lists(events, max_size=5))
def test_any_filter_can_be_explained(expression, sample):
    explanation = explain(as_filter(expression), sample)
    shown = str(explanation)
    assert all(line.isprintable() for line in shown.split("\n"))
    assert explanation.sample is not None
    assert explanation.sample.matches == sum(as_filter(expression).matches(event) for event in sample)
    assert explanation.sample.matches <= explanation.sample.candidates <= explanation.sample.events
    for use in explanation.conjunctions:
        assert use.sample_fits is not None
        assert all(use.sample_fits <= predicate.sample_fits for predicate in use.predicates)
    assert str(explain(as_filter(expression)))


@quick
@given(expressions, events)
def test_a_filter_reported_as_never_matching_never_matches(expression, event):
    value = condition(expression, event)
    assert not (never(expression) and value is True)
    assert not (always(expression) and value is not True)
    matches = explain(as_filter(expression)).matches
    assert matches != ("always" if value is not True else "never")


@quick
@given(expressions)
def test_parts_that_skip_the_normal_form_can_be_true_and_false(expression):
    """Warnings doubled the time of a PUT; what a part's form says must be what its normal form says."""
    for part in walk(expression):
        assert not (_is_open(part) and (never(part, True) or never(part, False)))


@quick
@given(st.lists(st.sampled_from([1, 2, "a", "b", True, False]), min_size=2, max_size=5), st.booleans())
def test_a_choice_of_equal_values_is_no_tautology(constants, wanted):
    """All values of a boolean can be named; of a text or a number there is always another one."""
    name = Attribute(("a",))
    parts = tuple(Comparison("=" if wanted else "<>", name, Literal(constant)) for constant in constants)
    choice = Or(parts) if wanted else And(parts)
    others = {constant for constant in constants if isinstance(constant, bool)}
    assert _is_always_true(choice, wanted) is (len(others) == len({*map(repr, constants)}) == 2)


@quick
@given(expressions, events)
def test_a_trace_has_the_evaluators_value_at_its_root_and_at_each_part(expression, event):
    found = trace(as_filter(expression), event)
    assert found.root.value is Compiler(event_getter).condition(expression)(event)
    assert found.root.value is condition(expression, event)
    assert found.matches is (found.root.value is True)
    assert bool(found.failures) is not found.matches
    assert all(line.isprintable() for line in [*str(found).split("\n"), *tree_lines(found.root)])


@quick
@given(sql_expressions)
def test_any_sql_can_be_checked(expression):
    assert check(format_expression(expression)).is_valid
    assert str(check(format_expression(expression)))


@quick
@given(expressions, events)
def test_a_converted_expression_is_true_for_the_same_events(expression, event):
    converted = in_sql(expression)
    assert not any(isinstance(part, AndThen | OrElse) for part in walk(converted))
    wanted = condition(expression, event) is True
    assert (condition(converted, event) is True) is wanted
    simple = simplest(converted)
    assert (condition(simple, event) is True) is wanted
    again = parse_sql(laid_out(simple))
    assert (condition(again, event) is True) is wanted


short = st.builds(
    Comparison,
    st.sampled_from(["=", "<>", "<"]),
    st.sampled_from([Attribute(("a",)), Attribute(("b",)), Attribute(("c",))]),
    st.builds(Literal, st.sampled_from([1, 2, "x"])),
)
ordered = st.recursive(
    short,
    lambda inner: st.one_of(
        *(
            st.builds(kind, st.lists(inner, min_size=2, max_size=5).map(tuple))
            for kind in (AndThen, OrElse, Or)
        )
    ),
    max_leaves=12,
)
few = st.sampled_from([1, 2, 3, "x", "y", None])


@quick
@given(ordered, st.fixed_dictionaries({}, optional={"a": few, "b": few, "c": few}))
def test_omitted_guards_are_unnecessary(expression, event):
    converted = simplest(in_sql(expression))
    assert (condition(converted, event) is True) is (condition(expression, event) is True)
