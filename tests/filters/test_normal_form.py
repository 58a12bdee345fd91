"""Normal forms: exactness, merging, bounds, and encoding."""

from __future__ import annotations

import msgspec
import pytest

from fieldfare.filters import (
    Conjunction,
    NormalForm,
    compile_filter,
    decode_normal_form,
    encode_normal_form,
    format_path,
)
from fieldfare.filters.drafts import CONJUNCTIONS_MAX, CUTS_MAX
from fieldfare.filters.encoding import DERIVED_FORMAT
from fieldfare.model import derived_text

from . import naive


def form_of(text: str) -> NormalForm:
    return compile_filter(text).normal_form


def shape(text: str) -> list[tuple[list[str], bool]]:
    """Return for each conjunction the attributes that it constrains, and whether it is exact."""
    return [
        ([format_path(path) for path, _ in conjunction.constraints], conjunction.exact)
        for conjunction in form_of(text).conjunctions
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("NOT (a < 5 OR b = 'x')", "a >= 5 AND b <> 'x'"),
        ("NOT (a < 5 AND a > 1)", "a >= 5 OR a <= 1"),
        ("NOT a BETWEEN 1 AND 5", "a < 1 OR a > 5"),
        ("a = 1 OR a = 2 OR a = 3", "a IN (3, 2, 1)"),
        ("a > 1 AND a <= 5 AND a <> 3", "a > 1 AND a < 3 OR a > 3 AND a <= 5"),
        ("a LIKE 'ab%' AND a LIKE 'abc%'", "a LIKE 'abc%'"),
        ("a LIKE 'ab'", "a = 'ab'"),
        ("a = 1 AND b = 2 OR a = 1 AND b = 3", "b IN (2, 3) AND a = 1"),
        ("a IS NOT NULL OR a IS NULL", "TRUE"),
        ("EXISTS(a) OR NOT EXISTS(a)", "TRUE"),
        ("a > 5 AND a < 3", "FALSE"),
        ("a = 1 AND a = 'x'", "NULL"),
        ("a >= ''", "a LIKE '%'"),
        ("a < ''", "FALSE"),
        ("a = 1 OR TRUE", "TRUE"),
        ("(a = 1) IS NOT TRUE", "NOT ((a = 1) IS TRUE)"),
        ("'x' = 'x'", "TRUE"),
    ],
)
def test_different_texts_of_the_same_events_have_the_same_normal_form(one: str, other: str) -> None:
    assert form_of(one) == form_of(other)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1 AND b LIKE 'x%'", [(["a", "b"], True)]),
        ("a = 1 AND b LIKE 'x%y'", [(["a", "b"], False)]),
        ("a LIKE 'x%y' OR b LIKE 'x_'", [(["a"], False), (["b"], False)]),
        ("NOT UPPER(a) LIKE 'x%y' AND c = 1", [(["a", "c"], False)]),
        (
            "ANY x IN a SATISFIES (x + 1 > 2)",
            [(["ANY x IN a SATISFIES (x + 1 > 2)", "a", "a[32]"], True), (["a", "a[32]"], False)],
        ),
        (
            "ANY x IN a SATISFIES (x = b)",
            [(["ANY x IN a SATISFIES (x = b)", "a", "b"], True), (["a"], False)],
        ),
        ("a[0] = 1 AND a.b = 2 AND a = 3", [(["a", "a[0]", "a.b"], True)]),
        (f"a IN ({', '.join(f'b{i}' for i in range(100))})", [(["a"], False)]),
        ("TRUE", [([], True)]),
        ("FALSE", []),
        ("a IS UNKNOWN", [(["a"], True)]),
        ("(a LIKE 'x%y') IS UNKNOWN", [(["a"], True)]),
    ],
)
def test_predicates_without_a_value_set_are_not_exact(
    text: str, expected: list[tuple[list[str], bool]]
) -> None:
    assert shape(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1 AND b + 1 > c", [(["c < b + 1", "a", "b", "c"], True)]),
        ("a = b", [(["a = b", "a", "b"], True)]),
        ("b <> a", [(["a = b", "a", "b"], True)]),
        ("a = 1 OR b + c > 2", [(["a"], True), (["b + c", "b", "c"], True)]),
        ("NOT (a + b > 2)", [(["a + b", "a", "b"], True)]),
        ("(a + b > 2) IS UNKNOWN AND c = 1", [(["a + b", "c"], True)]),
        ("a IN (1, b, b)", [(["a"], True), (["a = b", "a", "b"], True)]),
        ("(UPPER(a) LIKE 'x%y') IS UNKNOWN AND c = 1", [(["UPPER(a)", "c"], True)]),
        ("COALESCE(a, 0) < 20 AND COALESCE(a, 0) > 3", [(["COALESCE(a, 0)"], True)]),
        ("a + 1 > 5 AND a + 1 < 2", []),
    ],
)
def test_a_computed_value_is_a_column_with_implied_sets(
    text: str, expected: list[tuple[list[str], bool]]
) -> None:
    assert shape(text) == expected


@pytest.mark.parametrize(
    ("text", "implied"),
    [
        ("a + b > 2", ["a", "b"]),
        ("a + b > 2 AND a < 7", ["b"]),
        ("a + b > 2 AND b + c > 2", ["a", "b", "c"]),
        ("a + b > 2 OR a + b < 1", ["a", "b"]),
        ("a = 1 AND (a + b > 2 OR a + c > 2)", ["b", "c"]),
        ("a + b > 2 OR a + b <= 2", ["a", "b"]),
        ("a = 1 AND COALESCE(a, b) = 2", []),
    ],
)
def test_sets_that_follow_from_a_column_are_marked(text: str, implied: list[str]) -> None:
    found = {path for conjunction in form_of(text).conjunctions for path in conjunction.implied}
    assert sorted(map(format_path, found)) == implied
    form = form_of(text)
    assert decode_normal_form(encode_normal_form(form)) == form


def test_without_columns_a_conjunction_has_attributes_only() -> None:
    (conjunction,) = form_of("a + b > 2 AND c = 1").conjunctions
    plain = conjunction.without_derived()
    assert [format_path(path) for path, _ in plain.constraints] == ["a", "b", "c"]
    assert not plain.exact and not plain.derives and not plain.implied


def test_equal_conditions_of_two_attributes_are_one_column() -> None:
    texts = ["a < b", "b > a", "NOT (a >= b)", "NOT (b <= a)", "a < b IS TRUE"]
    assert len({form_of(text) for text in texts}) == 1
    assert form_of("NOT (a < b)") == form_of("a >= b") == form_of("b <= a")


def test_a_filter_has_few_columns_of_short_names() -> None:
    """Hostile filters of many expressions, or of a long one, do not have a long normal form."""
    many = form_of(" OR ".join(f"a + {i} > b * {i}" for i in range(100)))
    named = {path for conjunction in many.conjunctions for path, _ in conjunction.constraints}
    assert len([path for path in named if derived_text(path) is not None]) <= 64
    long = form_of(" + ".join(f"a{i:0200}" for i in range(3)) + " > 5")
    assert not any(conjunction.derives for conjunction in long.conjunctions)


def test_beyond_the_bound_conjunctions_are_replaced_by_hulls() -> None:
    form = form_of(" OR ".join(f"(a = {i} AND b = {i})" for i in range(500)))
    assert len(form.conjunctions) == CONJUNCTIONS_MAX
    assert not any(conjunction.exact for conjunction in form.conjunctions)
    for i in (0, 250, 499):
        assert naive.candidates(form, {"a": i, "b": i})
    assert not naive.candidates(form, {"a": 0, "b": 499})
    assert not naive.candidates(form, {"a": 501, "b": 501})


def test_a_product_beyond_the_bound_keeps_some_parts() -> None:
    text = " AND ".join(f"(a{i} = 1 OR b{i} = 2)" for i in range(20))
    form = form_of(f"c = 5 AND {text}")
    assert len(form.conjunctions) == CONJUNCTIONS_MAX
    assert all("c" in dict(shape_of(conjunction)) for conjunction in form.conjunctions)


def shape_of(conjunction: Conjunction) -> list[tuple[str, object]]:
    return [(format_path(path), values) for path, values in conjunction.constraints]


def test_long_lists_are_not_multiplied() -> None:
    numbers = ", ".join(map(str, range(8000)))
    others = " OR ".join(f"(y = {i} AND z = {i})" for i in range(64))
    form = form_of(f"x IN ({numbers}) AND ({others})")
    cuts = sum(len(v.numbers.cuts) for c in form.conjunctions for _, v in c.constraints)
    assert cuts <= CUTS_MAX + 2 * 8000
    assert naive.candidates(form, {"x": 7999, "y": 5, "z": 5})


def test_another_format_or_corrupt_bytes_are_rejected() -> None:
    data = encode_normal_form(form_of("data.a = 1.5 AND data.b[0] = 'x'"))
    with pytest.raises(ValueError, match="format 4"):
        decode_normal_form(msgspec.msgpack.encode([DERIVED_FORMAT + 1, []]))
    for broken in (b"", data[:-1], data + b"\0", msgspec.msgpack.encode({"a": 1}), b"\xff" * 10):
        with pytest.raises(ValueError):
            decode_normal_form(broken)


def test_equal_normal_forms_have_equal_bytes() -> None:
    forms = [form_of("a = 1.50 AND b = 1e2"), form_of("b = 100 AND a = 1.5")]
    assert encode_normal_form(forms[0]) == encode_normal_form(forms[1])


def test_numbers_beyond_64_bits_survive_encoding() -> None:
    form = form_of("a IN (9223372036854775808, -9223372036854775809, 1e300, 1e-300, 0.1, -5)")
    assert decode_normal_form(encode_normal_form(form)) == form


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_conjunctions_merged_to_all_values_do_not_constrain_the_attribute(order) -> None:
    """If `a` may be anything where b = 1, it is still constrained where b = 7."""
    parts = ["a = 1 AND b = 1", "(a = 1) IS NOT TRUE AND b = 1", "a = 5 AND b = 7"]
    form = form_of(" OR ".join(parts[place] for place in order))
    assert sorted(len(conjunction.constraints) for conjunction in form.conjunctions) == [1, 2]
    assert naive.candidates(form, {"a": 5, "b": 7}) and naive.candidates(form, {"a": 2, "b": 1})
    assert not naive.candidates(form, {"a": 1, "b": 7})
