"""Filters that are allowed, and most likely mean something else elsewhere: each gets a word."""

from __future__ import annotations

import pytest

from fieldfare.filters.help import check


def warned(text: str) -> str:
    found = check(text)
    assert found.is_valid, text
    return "\n".join(f"{warning.message} -> {warning.hint}" for warning in found.warnings)


@pytest.mark.parametrize("pattern", [r"'50\%'", r"'a\_b'", r"'C:\%'"])
def test_a_backslash_before_a_wildcard_is_pointed_at(pattern: str) -> None:
    """Spark, PostgreSQL and MySQL read `50\\%` as the text `50%`; SQL's standard, and this, do not."""
    for keyword in ("LIKE", "ILIKE", "NOT LIKE"):
        assert "no character escapes another" in warned(f"a {keyword} {pattern}")
    assert rf"LIKE {pattern} ESCAPE '\'" in warned(f"a LIKE {pattern}")


def test_a_named_escape_and_other_backslashes_are_left_alone() -> None:
    r"""Who writes ESCAPE knows; and `C:\dir` has a backslash that nobody takes for an escape."""
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
def test_what_never_has_a_value_is_named(text: str) -> None:
    """`LEFT(name, -1)` drops the last character in PostgreSQL; the filter stood for weeks."""
    found = warned(text)
    assert "this filter can never match" in found
    assert "has no value" in found


@pytest.mark.parametrize(
    "name", ["CURRENT_DATE", "current_timestamp", "LOCALTIME", "NaN", "nan", "Infinity", "None", "undefined"]
)
def test_a_constant_of_another_language_is_the_name_of_an_attribute_and_said_to_be(name: str) -> None:
    """`time > CURRENT_DATE` waits for events with an attribute of that name, for ever."""
    for text in (f"time > {name}", f"{name} = 5", f"a IN (1, {name})", f"b AND a BETWEEN {name} AND 5"):
        assert f"{name} is the name of an attribute here" in warned(text)
    for text in (f'a = ("{name}")', f"data.{name} = 5", f"{name}.x = 5"):
        assert "name of an attribute" not in warned(text)


def test_a_moment_written_as_a_text_is_pointed_at() -> None:
    """`time >= '...12:00:00Z'` leaves out 12:00:00.5, since `.` is below `Z`."""
    found = warned("time >= '2026-01-01T12:00:00Z'")
    assert "compares texts" in found and "write time >= TIMESTAMP '2026-01-01T12:00:00Z'" in found
    assert "compares texts" in warned("time BETWEEN '2026-01-01T00:00:00Z' AND '2026-01-02T00:00:00Z'")
    for text in (
        "time >= TIMESTAMP '2026-01-01T12:00:00Z'",
        "day >= '2026-01-01'",
        "time = '2026-01-01T12:00:00Z'",
    ):
        assert warned(text) == "", text


def test_a_place_from_the_end_is_pointed_at() -> None:
    """SUBSTRING(a, -2) is the last two characters in Spark and DuckDB, and the whole text in the standard."""
    assert "write RIGHT(a, 2)" in warned("SUBSTRING(a, -2) = 'xy'")
    assert warned("SUBSTRING(a, 0, 2) = 'x'") == ""
