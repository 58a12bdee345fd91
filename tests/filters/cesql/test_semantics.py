"""Random CESQL filters over random events: all evaluators agree with the specification."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn
from tests.filters import naive as internal
from tests.filters.cesql import naive
from tests.filters.cesql import strategies as some

from fieldfare.filters import Filter, compile_filter
from fieldfare.filters.values import ABSENT
from fieldfare.matching.events.json_decoder import decode_json_lines
from fieldfare.matching.index import Index
from fieldfare.matching.part import build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END

many = settings(max_examples=drawn(150))
events = st.lists(some.events, min_size=3, max_size=6)


@many
@given(some.filters(), events)
def test_the_evaluator_agrees_with_the_specification(found: tuple[Any, str], events: list[Any]) -> None:
    tree, text = found
    compiled = compile_filter(text, "cesql")
    for event in events:
        expected, error = naive.evaluate(tree, event)
        evaluation = compiled.evaluate(event)
        assert evaluation.errors == (() if error is None else (error,))
        if error is None:
            assert (type(evaluation.value), evaluation.value) == (type(expected), expected)


@settings(max_examples=drawn(300))
@given(some.filters(some.sums | some.rows), some.events)
def test_precedence_agrees_with_the_specification(found: tuple[Any, str], event: dict[str, Any]) -> None:
    tree, text = found
    compiled = compile_filter(text, "cesql")
    expected, error = naive.evaluate(tree, event)
    evaluation = compiled.evaluate(event)
    assert evaluation.errors == (() if error is None else (error,))
    assert evaluation.value == expected or error
    assert compiled.matches(event) is naive.matches(tree, event)


@many
@given(some.filters(), events)
def test_the_internal_expression_matches_the_events_of_the_specification(
    found: tuple[Any, str], events: list[Any]
) -> None:
    tree, text = found
    compiled = compile_filter(text, "cesql")
    for event in events:
        expected = naive.matches(tree, event)
        assert compiled.matches(event) is expected
        assert compiled.decides(lambda path, event=event: event.get(path[0], ABSENT)) is expected


@many
@given(some.filters(), events)
def test_the_internal_expression_is_false_or_unknown_for_false_or_an_error(
    found: tuple[Any, str], events: list[Any]
) -> None:
    """Below a NOT, or before an OR, false must be distinguished from an error."""
    tree, text = found
    negation, before_true = (
        compile_filter(f"NOT ({text})", "cesql"),
        compile_filter(f"({text}) OR true", "cesql"),
    )
    for event in events:
        assert negation.matches(event) is naive.matches(("not", tree), event)
        alternative = ("binary", "OR", tree, ("boolean", True))
        assert before_true.matches(event) is naive.matches(alternative, event)


@many
@given(some.filters(), events)
def test_the_normal_form_contains_all_matches_and_only_these_if_exact(
    found: tuple[Any, str], events: list[Any]
) -> None:
    tree, text = found
    form = compile_filter(text, "cesql").normal_form
    for event in events:
        fitting = internal.candidates(form, event)
        expected = naive.matches(tree, event)
        assert fitting or not expected
        assert expected or not any(conjunction.exact for conjunction in fitting)


@settings(max_examples=drawn(60))
@given(st.lists(some.filters(), min_size=1, max_size=8), st.lists(some.json_events, min_size=1, max_size=8))
def test_the_index_finds_the_events_of_the_specification(
    found: list[tuple[Any, str]], events: list[dict[str, Any]]
) -> None:
    filters: list[Filter] = [compile_filter(text, "cesql") for _, text in found]
    part = build_part(
        IndexEntry(number, number, 0, OPEN_END, compiled.normal_form, compiled.text, "cesql")
        for number, compiled in enumerate(filters)
    )
    payload = "".join(json.dumps(event) + "\n" for event in events).encode()
    columns = decode_json_lines(payload, len(events), part.paths)
    matched = Index((part,)).match(columns, np.zeros(len(events), np.int64)).lists()
    assert matched == [
        [number for number, (tree, _) in enumerate(found) if naive.matches(tree, event)] for event in events
    ]


LITERALS = [("string", text) for text in some.STRINGS] + [("integer", number) for number in some.INTEGERS]
LITERALS += [("boolean", True), ("boolean", False)]
FEW = [("string", text) for text in ("a", "5", "true", "FALSE", "1.5", "-0", "Infinity", "10000000000")]
FEW += [("integer", 0), ("integer", 1), ("integer", 5), ("boolean", True), ("boolean", False)]
A = ("attribute", "a")


def single_predicates() -> Iterator[Any]:
    """Yield all filters of one predicate on one attribute, with every constant, and two for IN."""
    yield from (A, ("exists", "a"), ("not", A), ("binary", "AND", A, ("boolean", True)))
    for literal in LITERALS:
        yield from (("binary", operator, A, literal) for operator in ("=", "<>", "<", ">="))
        yield "binary", "=", literal, A
    for pattern in some.PATTERNS:
        yield from (("like", A, pattern, negated) for negated in (False, True))
    for pair in product(FEW, FEW):
        yield from (("in", A, list(pair), negated) for negated in (False, True))
    for x, y in product(FEW, FEW):
        yield "binary", "OR", ("binary", "=", A, x), ("binary", "=", A, y)
        yield "binary", "OR", ("in", A, [x], False), ("binary", "=", A, y)


@pytest.mark.long
def test_every_predicate_on_one_attribute_is_right_for_every_value() -> None:
    events = [{}] + [{"a": value} for value in (*some.VALUES, *some.UNWRITABLE)]
    always_exact = 0
    for tree in single_predicates():
        text = some.Printer(lambda below: below - 1).text(tree)
        for meant, written in (tree, text), (("not", tree), f"NOT ({text})"):
            compiled = compile_filter(written, "cesql")
            form = compiled.normal_form
            always_exact += all(conjunction.exact for conjunction in form.conjunctions)
            for event in events:
                expected = naive.matches(meant, event)
                fitting = internal.candidates(form, event)
                assert compiled.matches(event) is expected, (written, event)
                assert fitting or not expected, (written, event)
                assert expected or not any(conjunction.exact for conjunction in fitting), (written, event)
    assert always_exact > 700
