"""For any filter and event: help never fails, and never says anything that the evaluator does not."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.doses import drawn
from tests.filters.naive import condition
from tests.filters.strategies import events, expressions, sql_expressions

from fieldfare.filters import format_expression
from fieldfare.filters.evaluator import Compiler, event_getter
from fieldfare.filters.expression import AndThen, Attribute, Comparison, Expression, Literal, Or, OrElse, walk
from fieldfare.filters.filter import Filter, Parsed
from fieldfare.filters.help import check, explain, trace
from fieldfare.filters.help.cautions import always, never
from fieldfare.filters.help.conversion import in_sql, laid_out, simplest
from fieldfare.filters.help.tracing import tree_lines
from fieldfare.filters.sql.parser import parse_sql

quick = settings(
    max_examples=drawn(300), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


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
def test_a_filter_that_is_said_never_to_match_never_does(expression, event):
    value = condition(expression, event)
    assert not (never(expression) and value is True)
    assert not (always(expression) and value is not True)
    matches = explain(as_filter(expression)).matches
    assert matches != ("always" if value is not True else "never")


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
def test_guards_that_are_left_out_are_not_missed(expression, event):
    converted = simplest(in_sql(expression))
    assert (condition(converted, event) is True) is (condition(expression, event) is True)
