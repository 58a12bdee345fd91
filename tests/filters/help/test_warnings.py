"""Warnings about filters that are valid, but have another meaning in other databases."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis.strategies import floats

from fieldfare.filters import compile_filter
from fieldfare.filters.help import check


def warned(text: str) -> str:
    found = check(text)
    assert found.is_valid, text
    return "\n".join(f"{warning.message} -> {warning.hint}" for warning in found.warnings)


@pytest.mark.parametrize("pattern", [r"'50\%'", r"'a\_b'", r"'C:\%'"])
def test_a_backslash_before_a_wildcard_gives_a_warning(pattern: str) -> None:
    """Spark, PostgreSQL and MySQL read `50\\%` as the text `50%`; SQL's standard and this dialect do not."""
    for keyword in ("LIKE", "ILIKE", "NOT LIKE"):
        assert "there is no escape character" in warned(f"a {keyword} {pattern}")
    assert rf"LIKE {pattern} ESCAPE '\'" in warned(f"a LIKE {pattern}")


def test_escape_and_other_backslashes_give_no_warning() -> None:
    r"""With ESCAPE the meaning is clear; and the backslash in `C:\dir` is not followed by a wildcard."""
    for text in (
        r"a LIKE '50\%' ESCAPE '\'",
        r"a LIKE 'C:\dir%'",
        r"STARTS_WITH(a, 'C:\')",
        r"a LIKE 'x!!\%' ESCAPE '!'",
    ):
        assert warned(text) == "", text


@pytest.mark.parametrize(
    "text",
    [
        *(
            "LEFT(a, -1) = 'x'",
            "RIGHT(a, -2) = b",
            "SUBSTRING(a, 1, -1) LIKE 'x%'",
            "SUBSTRING(a, 1.5) = 'x'",
        ),
        *("LENGTH(LEFT(a, -1)) > 2", "LEFT(a, -1) IN ('x', 'y')", "a / 0 > 1", "a % 0 = b", "b - 1 / 0 = 2"),
        *("NOT a / 0 > 1", "ABS(a / 0.0) < 5", "ROUND(a, 200) = 1", "a / 0 BETWEEN 1 AND 2"),
    ],
)
def test_expressions_without_a_value_give_a_warning(text: str) -> None:
    """`LEFT(name, -1)` drops the last character in PostgreSQL; here it has no value."""
    found = warned(text)
    assert "this filter can never match" in found
    assert "has no value" in found


@pytest.mark.parametrize(
    "name", ["CURRENT_DATE", "current_timestamp", "LOCALTIME", "NaN", "nan", "Infinity", "None", "undefined"]
)
def test_constants_of_other_languages_give_a_warning(name: str) -> None:
    """`time > CURRENT_DATE` matches only events with an attribute of that name."""
    for text in (f"time > {name}", f"{name} = 5", f"a IN (1, {name})", f"b AND a BETWEEN {name} AND 5"):
        assert f"{name} is the name of an attribute here" in warned(text)
    for text in (f'a = ("{name}")', f"data.{name} = 5", f"{name}.x = 5"):
        assert "name of an attribute" not in warned(text)


def test_timestamps_as_texts_give_a_warning() -> None:
    """`time >= '...12:00:00Z'` excludes 12:00:00.5, because `.` is below `Z`."""
    found = warned("time >= '2026-01-01T12:00:00Z'")
    assert "compares texts" in found and "write time >= TIMESTAMP '2026-01-01T12:00:00Z'" in found
    assert "compares texts" in warned("time BETWEEN '2026-01-01T00:00:00Z' AND '2026-01-02T00:00:00Z'")
    for text in (
        "time >= TIMESTAMP '2026-01-01T12:00:00Z'",
        "day >= '2026-01-01'",
        "time = '2026-01-01T12:00:00Z'",
    ):
        assert warned(text) == "", text


def test_negative_positions_give_a_warning() -> None:
    """SUBSTRING(a, -2) is the last two characters in Spark and DuckDB, and the whole text in the standard."""
    assert "write RIGHT(a, 2)" in warned("SUBSTRING(a, -2) = 'xy'")
    assert warned("SUBSTRING(a, 0, 2) = 'x'") == ""


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("sql", "data.x = {}"),
        ("sql", "data.x <> {}"),
        ("sql", "data.x IN (1, {})"),
        ("sql", "data.x BETWEEN 1 AND {}"),
        ("sql", "data.x <= {} AND type = 't'"),
        ("sql", "ANY i IN data.x SATISFIES (i = {})"),
        ("eventbridge", '{{"data": {{"x": [{}]}}}}'),
        ("eventbridge", '{{"data": {{"x": [{{"numeric": ["<=", {}]}}]}}}}'),
        ("subscriptions", '{{"exact": {{"x": "{}"}}}}'),
    ],
)
@pytest.mark.parametrize("number", ["9.8066499999999994", "-0.10000000000000001", "51.477928000000002"])
def test_numbers_with_more_digits_than_a_double_give_a_warning(dialect: str, text: str, number: str) -> None:
    """C, R and GPS loggers write 17 digits: a filter with a number copied from an event did not match it."""
    found = check(text.format(number), dialect)
    kept = repr(float(number))
    assert found.is_valid
    (caution,) = [each for each in found.warnings if "more digits" in each.message]
    assert f"`{number}`" in caution.message and f"write {kept}," in caution.hint
    assert "more digits" not in str(check(text.format(kept), dialect)), "what the hint says is taken"


@given(floats(-1.7e308, 1.7e308))
def test_numbers_copied_from_an_event_match_it_or_give_a_warning(number: float) -> None:
    """For all common formats of doubles."""
    event = {"source": "/s", "type": "t", "id": "1", "data": {"x": number}}
    for text in (repr(number), f"{number:.17g}", f"{number:.17e}", f"{number:.16g}"):
        value = json.loads(text)
        copied = {**event, "data": {"x": value}}
        filter = f"data.x = {text}"
        if not compile_filter(filter).matches(copied):
            assert "more digits" in warned(filter)
            assert compile_filter(f"data.x = {value!r}").matches(copied)


def test_numbers_that_a_double_keeps_give_no_warning() -> None:
    for text in ("9007199254740993", "12345678901234567890", "0.1", "0.30000000000000004", "1e400", "5.00"):
        assert "more digits" not in warned(f"data.x = {text}"), text
