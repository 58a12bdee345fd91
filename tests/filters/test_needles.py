"""Needles are necessary for a pattern to match: a string that matches contains its needle."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.filters import compile_filter, decode_normal_form, encode_normal_form
from fieldfare.filters import expression as ast
from fieldfare.filters.drafts import CONJUNCTIONS_MAX
from fieldfare.filters.encoding import FORMAT, NEEDLES_FORMAT
from fieldfare.filters.evaluator import Compiler, event_getter
from fieldfare.filters.needles import (
    AT_END,
    AT_START,
    FOLDED,
    NEEDLE_BYTES_MAX,
    NEEDLES_MAX,
    Needle,
    needle_of,
)
from fieldfare.filters.normal_form import normal_form
from fieldfare.filters.values import STRINGS

from . import naive

many = settings(max_examples=drawn(300))
ANYWHERE = 0


def found(text: str, dialect: str = "sql") -> list[tuple[list[tuple[str, int]], bool]]:
    """Return for each conjunction its needles, without paths, and whether it is exact."""
    form = compile_filter(text, dialect).normal_form
    return [
        ([(text, kind) for _, text, kind in conjunction.needles], conjunction.exact)
        for conjunction in form.conjunctions
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a LIKE '%storm%'", [([("storm", ANYWHERE)], True)]),
        ("a LIKE '%storm'", [([("storm", AT_END)], True)]),
        ("a LIKE 'storm%'", [([], True)]),
        ("a LIKE 'st%storm%x'", [([("storm", ANYWHERE)], False)]),
        ("a LIKE '%ice_storm%'", [([("storm", ANYWHERE)], False)]),
        (r"a LIKE '%50\%\_off%' ESCAPE '\'", [([("50%_off", ANYWHERE)], True)]),
        ("a ILIKE '%Straße%'", [([("strasse", FOLDED)], True)]),
        ("a ILIKE 'Storm Warning%'", [([("storm warning", FOLDED | AT_START)], True)]),
        ("a ILIKE 'storm warning'", [([("storm warning", FOLDED | AT_START | AT_END)], True)]),
        ("LOWER(a) LIKE '%storm%'", [([("storm", FOLDED)], False)]),
        ("LOWER(a) = 'storm warning'", [([("storm warning", FOLDED | AT_START | AT_END)], False)]),
        ("UPPER(a) LIKE '%ICE STORM'", [([("ce storm", FOLDED | AT_END)], False)]),
        ("LOWER(TRIM(a)) LIKE 'storm%'", [([("storm", FOLDED)], False)]),
        ("SUBSTRING(a, 2, 9) LIKE '%storm'", [([("storm", ANYWHERE)], False)]),
        ("CONTAINS(a, 'storm') AND b = 1", [([("storm", ANYWHERE)], True)]),
        ("ENDS_WITH(a, '.png')", [([(".png", AT_END)], True)]),
        ("a LIKE '%ice%' AND a LIKE '%storm%'", [([("ice", ANYWHERE), ("storm", ANYWHERE)], True)]),
        ("a LIKE '%ice%' OR b LIKE '%snow%'", [([("ice", ANYWHERE)], True), ([("snow", ANYWHERE)], True)]),
        ("a LIKE '%ice%' OR a = 'x'", [([("ice", ANYWHERE)], True), ([], True)]),
        ("a NOT LIKE '%storm%'", [([], False)]),
        ("NOT (a LIKE '%storm%')", [([], False)]),
        ("NOT (a NOT LIKE '%storm%')", [([("storm", ANYWHERE)], True)]),
        ("(a LIKE '%storm%') IS NOT FALSE", [([], False)]),
        ("(a LIKE '%storm%') IS TRUE", [([("storm", ANYWHERE)], True)]),
        ("a LIKE '%'", [([], True)]),
        ("CONTAINS(a, '')", [([], True)]),
        ("a LIKE '%_%'", [([], False)]),
        ("CASEFOLD(a) LIKE '%STORM%'", [([], False)]),
        ("CONCAT(a, b) LIKE '%storm%'", [([], False)]),
        ("UPPER(LOWER(a)) LIKE '%STORM%'", [([], False)]),
        ("REPLACE(a, 'x', 'y') LIKE '%storm%'", [([], False)]),
    ],
)
def test_a_pattern_has_a_needle_if_a_text_is_necessary(text: str, expected: Any) -> None:
    assert found(text) == expected


def test_other_dialects_have_needles_too() -> None:
    assert found("subject LIKE '%storm%'", "cesql") == [([("storm", ANYWHERE)], True)]
    assert found(json.dumps({"suffix": {"subject": ".png"}}), "subscriptions") == [([(".png", AT_END)], True)]
    ruler = compile_filter(json.dumps({"detail": {"name": [{"wildcard": "a*storm*b"}]}}), "eventbridge")
    assert [c.needles for c in ruler.normal_form.conjunctions if c.needles] == [
        (Needle(("data", "name"), "storm", ANYWHERE),)
    ]
    assert ruler.matches({"data": {"name": ["no", "a storm b"]}})  # a list has no needle
    assert naive.candidates(ruler.normal_form, {"data": {"name": ["no", "a storm b"]}})
    suffix = json.dumps({"source": [{"suffix": {"equals-ignore-case": ".PnG"}}]})
    assert found(suffix, "eventbridge") == [([(".png", FOLDED | AT_END)], False)]


def test_a_literal_that_is_too_long_is_cut_and_inexact() -> None:
    for pattern, kind in (("%{}%", ANYWHERE), ("%{}", AT_END)):
        [([(text, found_kind)], is_exact)] = found(f"a LIKE '{pattern.format('ж' * 150 + 'end')}'")
        assert len(text.encode()) <= NEEDLE_BYTES_MAX and found_kind == kind and not is_exact
        assert text.endswith("end") == (kind == AT_END)


def test_of_too_many_needles_the_shortest_are_dropped() -> None:
    words = [f"w{'o' * i}rd" for i in range(20)]
    [conjunction] = compile_filter(
        " AND ".join(f"a LIKE '%{word}%'" for word in words)
    ).normal_form.conjunctions
    assert not conjunction.exact
    assert {needle.text for needle in conjunction.needles} == set(words[-NEEDLES_MAX:])


def test_alternatives_beyond_the_bound_drop_their_needles_first() -> None:
    some = " OR ".join(f"a LIKE '%{i}%'" for i in range(10))
    others = " OR ".join(f"(b = {i} AND c = {i})" for i in range(60))
    form = compile_filter(f"({some}) AND ({others})").normal_form
    assert len(form.conjunctions) <= CONJUNCTIONS_MAX
    assert all({("a",), ("b",), ("c",)} == {path for path, _ in c.constraints} for c in form.conjunctions)
    assert not naive.candidates(form, {"a": "5", "b": 3, "c": 4})
    many_words = " OR ".join(f"a LIKE '%{i}%'" for i in range(CONJUNCTIONS_MAX + 1))
    [all_strings] = compile_filter(many_words).normal_form.conjunctions
    assert all_strings.constraints == ((("a",), STRINGS),) and not all_strings.exact


def test_only_forms_with_needles_have_the_newer_format() -> None:
    assert encode_normal_form(compile_filter("a LIKE 'x%'").normal_form)[1] == FORMAT
    form = compile_filter("a.b LIKE '%storm%' OR c[0] = 1").normal_form
    assert encode_normal_form(form)[1] == NEEDLES_FORMAT
    assert decode_normal_form(encode_normal_form(form)) == form


@pytest.mark.long
def test_casefold_equals_that_of_lower_and_upper_case_in_all_of_unicode() -> None:
    characters = [chr(i) for i in range(sys.maxunicode + 1)]
    folded = [character.casefold() for character in characters]
    assert [character.lower().casefold() for character in characters] == folded
    assert [character.casefold() for character in folded] == folded
    unlike = [
        (one, one.upper())
        for one, fold in zip(characters, folded, strict=True)
        if one.upper().casefold() != fold
    ]
    assert unlike == [("ı", "I")]


LETTERS = "aAsSßẞſiIıİ\u0307σςΣkKﬁF.%_é語"
texts = st.text(st.sampled_from(LETTERS), max_size=6)
attribute = ast.Attribute(("a",))


def _called(function: str, text: ast.Expression) -> ast.Expression:
    further = (ast.Literal(2),) if function in ("SUBSTRING", "LEFT", "RIGHT") else ()
    return ast.Call(function, (text, *further))


cases = st.sampled_from(["CASEFOLD", "LOWER", "UPPER"])
shortened = st.sampled_from(["TRIM", "LTRIM", "RTRIM", "SUBSTRING", "LEFT", "RIGHT"])
operands = st.one_of(
    st.just(attribute),
    st.builds(_called, cases, st.just(attribute)),
    st.builds(_called, shortened, st.just(attribute)),
    st.builds(_called, cases, st.builds(_called, shortened, st.just(attribute))),
)
literals = st.text(st.sampled_from(LETTERS), min_size=1, max_size=3)
patterns = st.one_of(
    literals.map(lambda text: (ast.Wild.RUN, text, ast.Wild.RUN)),
    literals.map(lambda text: (ast.Wild.RUN, text)),
    literals.map(lambda text: (text, ast.Wild.RUN)),
    literals.map(lambda text: (text,)),
    st.tuples(literals, st.sampled_from(list(ast.Wild)), literals),
    st.tuples(st.just(ast.Wild.ONE), literals, st.just(ast.Wild.RUN), literals),
)
ignoring = st.builds(
    lambda name, part: ast.Call(f"{name}_IGNORE_CASE", (attribute, ast.Literal(part))),
    st.sampled_from(["EQUALS", "STARTS_WITH", "ENDS_WITH"]),
    literals,
)
predicates = st.one_of(
    st.builds(ast.Like, operands, patterns),
    st.builds(lambda left, text: ast.Comparison("=", left, ast.Literal(text)), operands, literals),
    ignoring,
)


def _versions(text: str) -> list[str]:
    """Return variants of a text that are likely to match if one of them does."""
    return [text, text.lower(), text.upper(), text.casefold(), text.swapcase()]


@many
@given(predicates, texts, texts, st.data())
def test_a_string_without_the_needle_never_matches(
    e: Any, before: str, after: str, data: st.DataObject
) -> None:
    """Every kind of operand and pattern, over letters with unusual case mappings."""
    condition, form = Compiler(event_getter).condition(e), normal_form(e)
    literals = [part for part in getattr(e, "pattern", ()) if isinstance(part, str)]
    literals = literals or [part.value for part in ast.parts_of(e) if isinstance(part, ast.Literal)]
    inner = data.draw(st.sampled_from([*_versions("".join(literals)), "x".join(literals)]))
    for value in {v for text in (inner, before + inner, inner + after) for v in _versions(text)} | {5, None}:
        truth = condition({"a": value})
        needle = needle_of(e)
        if needle is not None:
            assert needle[0].is_in(value) == naive.has_needle(value, needle[0])
            assert needle[0].is_in(value) or truth is not True
            assert truth is True or not (needle[1] and needle[0].is_in(value))
        fitting = naive.candidates(form, {"a": value})
        assert fitting or truth is not True
        assert truth is True or not any(conjunction.exact for conjunction in fitting)
