"""Random filters over random events: evaluator, naive interpreter and normal form agree."""

from __future__ import annotations

import pickle
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.filters import (
    compile_filter,
    decode_normal_form,
    encode_normal_form,
    format_expression,
    format_path,
    parse_path,
)
from fieldfare.filters import expression as ast
from fieldfare.filters.derived import base_paths
from fieldfare.filters.drafts import CONJUNCTIONS_MAX
from fieldfare.filters.evaluator import Compiler, event_getter, lookup_getter
from fieldfare.filters.normal_form import NormalForm, normal_form
from fieldfare.filters.patterns import matcher_of
from fieldfare.filters.predicate_sets import SETS

from . import naive
from . import strategies as some

many = settings(max_examples=drawn(250))


@many
@given(some.expressions, st.lists(some.events, min_size=1, max_size=4))
def test_the_evaluator_agrees_with_the_naive_interpreter(e: ast.Expression, events: list[Any]) -> None:
    condition, matcher = Compiler(event_getter).condition(e), Compiler(event_getter).matcher(e)
    by_lookup = Compiler(lookup_getter).condition(e)
    for event in events:
        expected = naive.condition(e, event)
        assert condition(event) is expected
        assert bool(matcher(event)) is (expected is True)
        assert by_lookup(lambda path, event=event: naive.read(event, path)) is expected


@many
@given(some.expressions, st.lists(some.events, min_size=1, max_size=4))
def test_the_normal_form_contains_all_matches_and_only_these_if_exact(
    e: ast.Expression, events: list[Any]
) -> None:
    form = normal_form(e)
    for event in events:
        fitting = naive.candidates(form, event)
        if naive.condition(e, event) is True:
            assert fitting
        assert not any(conjunction.exact for conjunction in fitting) or naive.condition(e, event) is True


@many
@given(some.expressions)
def test_a_normal_form_is_tidy_and_bounded_and_survives_encoding(e: ast.Expression) -> None:
    form = normal_form(e)
    assert len(form.conjunctions) <= CONJUNCTIONS_MAX
    for conjunction in form.conjunctions:
        paths = [path for path, _ in conjunction.constraints]
        assert len(set(paths)) == len(paths)
        # The form may constrain elements of an array, and parts of elements.
        read = set().union(*map(base_paths, paths))
        known = ast.attribute_paths(e)
        assert all(any(path[: len(each)] == each for each in known) for path in read)
        assert not any(values.is_empty or values.is_full for _, values in conjunction.constraints)
    assert decode_normal_form(encode_normal_form(form)) == form


single_attribute_tests = st.one_of(
    st.builds(ast.Comparison, some.operators, some.attributes, some.literals),
    st.builds(ast.Comparison, some.operators, some.literals, some.attributes),
    st.builds(ast.Between, some.attributes, some.literals, some.literals),
    st.builds(ast.In, some.attributes, st.lists(some.literals, min_size=1, max_size=4).map(tuple)),
    st.builds(ast.Exists, some.attributes),
    st.builds(ast.IsNull, some.attributes),
    some.attributes,
)


@settings(many, max_examples=drawn(150))
@given(single_attribute_tests, st.sampled_from([True, False, None]), st.booleans())
def test_every_predicate_on_one_attribute_is_exact_under_not_and_is(
    e: ast.Expression, truth: bool | None, negated: bool
) -> None:
    """A Comparison of two literals reads no attribute; it is constant, and exact too."""
    wanted: ast.Expression = ast.IsTruth(e, truth)
    form = normal_form(ast.Not(wanted) if negated else wanted)
    assert all(conjunction.exact for conjunction in form.conjunctions)
    assert len(form.conjunctions) <= 1


@many
@given(some.sql_expressions)
def test_the_text_of_an_expression_parses_to_it_again(e: ast.Expression) -> None:
    text = format_expression(e)
    parsed = compile_filter(text).expression
    assert parsed == e
    assert format_expression(parsed) == text


@settings(many, max_examples=drawn(150))
@given(some.patterns, some.texts)
def test_patterns_match_as_in_the_naive_interpreter(pattern: ast.Pattern, text: str) -> None:
    assert matcher_of(pattern)(text) is naive.fits(tuple(naive.pattern_characters(pattern)), text)


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


@settings(many, max_examples=drawn(150))
@given(names, st.lists(names | st.integers(0, 2**31 - 1), max_size=4))
def test_the_text_of_a_path_parses_to_it_again(first: str, rest: list[str | int]) -> None:
    path = (first, *rest)
    assert parse_path(format_path(path)) == path


@settings(many, max_examples=drawn(150))
@given(some.sql_expressions)
def test_a_filter_survives_pickling(e: ast.Expression) -> None:
    compiled = compile_filter(format_expression(e))
    again = pickle.loads(pickle.dumps(compiled))
    assert again == compiled
    assert again.expression == compiled.expression
    assert again.paths == ast.attribute_paths(e)


def test_every_predicate_has_a_case_here() -> None:
    assert set(SETS) == {ast.Comparison, ast.Between, ast.In, ast.Like, ast.Attribute, ast.Exists, ast.IsNull}
    assert normal_form(ast.Literal(None)) == NormalForm(())
