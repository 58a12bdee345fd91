"""The pages on filters are correct: their examples run, and their numbers and tables are those of the code.

tests/docs runs its commands; test_grammar.py tests its grammar.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fieldfare.filters import FilterError, compile_filter
from fieldfare.filters.cesql.builtins import RESULT_CHARACTERS_MAX
from fieldfare.filters.drafts import CONJUNCTIONS_MAX
from fieldfare.filters.errors import Problem
from fieldfare.filters.eventbridge.parser import TESTS
from fieldfare.filters.eventbridge.translate import CONDITIONS_MAX
from fieldfare.filters.exact import BITS_MAX
from fieldfare.filters.expression import DEPTH_MAX
from fieldfare.filters.filter import DIALECTS
from fieldfare.filters.functions import FUNCTIONS
from fieldfare.filters.functions.geography import RADIUS_KM
from fieldfare.filters.functions.numbers import NUMERAL_CHARACTERS_MAX, ROUNDED_DIGITS_MAX
from fieldfare.filters.functions.table import CHARACTERS_MAX, OPERANDS_MAX
from fieldfare.filters.functions.times import FRACTION_DIGITS_MAX
from fieldfare.filters.patterns import PATTERN_CHARACTERS_MAX
from fieldfare.filters.sql.cursor import COMPUTED_SIZE, QUANTIFIED_SIZE, WORK_MAX
from fieldfare.filters.sql.lexer import KEYWORDS
from fieldfare.filters.sql.literals import INTERVAL_UNITS
from fieldfare.filters.sql.operands import ALIASES
from fieldfare.filters.sql.paths import INDEX_MAX, STEPS_MAX
from fieldfare.filters.text import DIGITS_MAX, PROBLEMS_MAX, SIZE_MAX, TEXT_BYTES_MAX

from .eventbridge import differences
from .test_limits import COMPILE_S, EVALUATE_S

PAGES = ("filters", "filter-languages", "filter-functions", "filter-grammar", "filter-tools")
"""The pages on filters, in the order in which their examples run."""
TEXT = "".join((Path(__file__).parents[2] / "docs" / f"{name}.md").read_text() for name in PAGES)
ONE_LINE = " ".join(TEXT.split())


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def run_python(programs: list[str]) -> dict[str, Any]:
    """Run programs in sequence and return the variables after the last."""
    variables: dict[str, Any] = {}
    for program in programs:
        exec(program, variables)
    return variables


EVENT: dict[str, Any] = run_python(blocks("python")[:1])["event"]
"""The event of the pages."""


def section(heading: str) -> str:
    """Return the text below a heading, up to the next heading of its level or above."""
    level = heading.index(" ")
    found = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{level}}} |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert found, heading
    return found[1]


def rows(text: str) -> list[list[str]]:
    """Return the rows of a section's tables as texts of their cells."""
    return [
        [cell.replace(r"\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in text.splitlines()
        if line.startswith("|")
    ]


@pytest.mark.parametrize("example", [line for block in blocks("sql") for line in block.splitlines()])
def test_the_examples_are_filters(example: str) -> None:
    assert not compile_filter(example).warnings


def test_the_python_examples_run() -> None:
    run_python(blocks("python"))


def test_the_error_is_shown_as_documented() -> None:
    shown, *_ = blocks("text")
    with pytest.raises(FilterError) as caught:
        compile_filter("data.symbol == 'YHOO' AND data.price IN (1 2)")
    assert str(caught.value) + "\n" == shown


FUNCTION_ROWS = [row for row in rows(section("## Functions")) if row[0].startswith("`")]


def test_the_tables_of_functions_agree_with_the_code() -> None:
    page = section("## Functions")
    shown = [
        (
            re.findall(r"^### (.*)$", page[: page.index(f"| {call} |")], re.MULTILINE)[-1],
            call,
            result,
            summary,
        )
        for call, result, summary, _ in FUNCTION_ROWS
    ]
    ours = [f for f in FUNCTIONS.values() if f.group and not f.name.startswith("CESQL_")]
    expected = [(f.group, f"`{f.signature}`", f.result.value, f.summary) for f in ours]
    assert sorted(shown) == sorted(expected)
    assert f"radius {RADIUS_KM} km" in page


@pytest.mark.parametrize("row", FUNCTION_ROWS, ids=lambda row: row[0])
def test_the_examples_of_functions_are_true_for_the_example_event(row: list[str]) -> None:
    call, _, _, example = row
    compiled = compile_filter(example.strip("`"))
    assert call.strip("`").split("(")[0] + "(" in compiled.text
    assert not compiled.warnings
    assert compiled.matches(EVENT)


def test_the_functions_of_cesql_are_described() -> None:
    paragraph = section("### CESQL's functions")
    named = re.findall(r"`(CESQL_\w+)`", paragraph)
    assert len(named) >= 3
    assert set(named) <= set(FUNCTIONS)


def test_aliases_of_functions_and_units_agree_with_the_code() -> None:
    page = section("## Functions")
    for alias, name in ALIASES.items():
        assert f"`{alias}`" in page
        assert f"`{name}`" in page
    units = section("## Time stamps and intervals")
    assert {unit for unit in INTERVAL_UNITS if not unit.endswith("S")} <= set(
        re.findall(r"`([A-Z]+)`", units)
    )


def is_true(filter: str, event: dict[str, Any]) -> bool | None:
    return compile_filter(filter).evaluate(event).value  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("claim", "filter", "event", "value"),
    [
        ("`'5' = 5` is unknown, and so is `'5' <> 5`", "a = 5", {"a": "5"}, None),
        ("`'5' = 5` is unknown, and so is `'5' <> 5`", "a <> 5", {"a": "5"}, None),
        ('`1 = ANY(a)` is unknown for `["x", 2]`', "1 = ANY(a)", {"a": ["x", 2]}, None),
        ('true for `["x", 1]`', "1 = ANY(a)", {"a": ["x", 1]}, True),
        ("true for an empty array", "5 < ALL(a)", {"a": []}, True),
        ("(so does null)", "ANY x IN a SATISFIES (x IS NULL)", {"a": None}, True),
        ("if the attribute is missing both are unknown", "1 = ANY(a)", {}, None),
        ("if the attribute is missing both are unknown", "1 = ALL(a)", {}, None),
        ("`'Straße' ILIKE 'STRASSE'`", "a ILIKE 'STRASSE'", {"a": "Straße"}, True),
        ("`'Straße' ILIKE 'stra__e'`", "a ILIKE 'stra__e'", {"a": "Straße"}, True),
        ("`data.rate LIKE '50!%' ESCAPE '!'`", "a LIKE '50!%' ESCAPE '!'", {"a": "50%"}, True),
        ("`1 / 3 * 3 = 1`", "1 / 3 * 3 = 1", {}, True),
        ("`-7 % 3 = -1`", "-7 % 3 = -1", {}, True),
        ("`'Z' < 'a'`", "a < 'a'", {"a": "Z"}, True),
        (
            "Two spellings of one moment are equal",
            "a = DATE '2026-03-02'",
            {"a": "2026-03-02T01:00:00+01:00"},
            True,
        ),
        (
            "is the same moment as the second after it",
            "a = DATE '2017-01-01'",
            {"a": "2016-12-31T23:59:60Z"},
            True,
        ),
        ("Without an offset it is in UTC", "HOUR(a) = 1", {"a": "2026-03-02T01:00:00"}, True),
        ("is its midnight in UTC", "a = TIMESTAMP '2026-03-02T00:00:00Z'", {"a": "2026-03-02"}, True),
        (
            "Text in any other form is not a timestamp",
            "a < DATE '2027-01-01'",
            {"a": "2026-03-02T01:00"},
            None,
        ),
        ("Arrays, objects and NaN are equal to nothing", "a IS DISTINCT FROM a", {"a": [1]}, True),
        ("if only one side has a value", "a IS DISTINCT FROM b", {"a": 1}, True),
        ("the sides have different types", "a IS DISTINCT FROM b", {"a": 1, "b": "1"}, True),
        ("`CAST(1.0 AS STRING)` is `'1'`", "CAST(a AS STRING) = '1'", {"a": 1.0}, True),
        ("of `'5.7'`", "CAST(a AS BIGINT) IS NULL AND CAST(5.7 AS BIGINT) = 5", {"a": "5.7"}, True),
        ("`data.items[-1]` counts from the end", "a[-1] = 2 AND ELEMENT_AT(a, -1) = 2", {"a": [1, 2]}, True),
        ("date, `T` or a space", "a < DATE '2027-01-01'", {"a": "2026-03-02 01:00:00Z"}, True),
        ("arithmetic of numbers", "a - b = 1", {"a": 3, "b": 2}, True),
        (
            "compared with an interval",
            "a - b = INTERVAL '1' SECOND",
            {"a": "2026-03-02T00:00:01Z", "b": "2026-03-02T00:00:00Z"},
            True,
        ),
    ],
)
def test_statements_in_the_text_are_true(claim: str, filter: str, event: dict[str, Any], value: Any) -> None:
    assert claim in ONE_LINE
    assert is_true(filter, event) is value


@pytest.mark.parametrize(
    ("claim", "filter"),
    [
        ("`LENGTH(5)`", "LENGTH(5) = 1"),
        ("`a + 'x'`", "a + 'x' = 1"),
        ("`5 LIKE 'x'`", "5 LIKE 'x'"),
        ("`LOWER(a) OR b`", "LOWER(a) OR b"),
        ("`1 < a < 5` is refused", "1 < a < 5"),
        ("`'Europe/Berlin'` is refused", "HOUR(time, 'Europe/Berlin') = 1"),
        ("(`NOW()` is refused)", "time < NOW()"),
        ("A month or a year has no fixed length", "INTERVAL '1' MONTH < a - b"),
        ("`TRIM(BOTH ... FROM ...)` is not accepted", "TRIM(BOTH 'x' FROM a) = ''"),
        ("the only implicit conversion", "TIMESTAMP(a) > 5"),
        ("an interval against an attribute alone", "data.wait_s > INTERVAL '1' HOUR"),
        ("All other arithmetic over time is refused", "a = TIMESTAMP(b) + TIMESTAMP(c)"),
        ("(`007`)", "a = 007"),
        ("or two minus signs", "a = --1"),
    ],
)
def test_filters_documented_as_invalid_are_rejected(claim: str, filter: str) -> None:
    assert claim in ONE_LINE
    with pytest.raises(FilterError):
        compile_filter(filter)


def test_comparing_constants_of_two_types_gets_a_warning() -> None:
    (warning,) = compile_filter("LENGTH(a) = '5'").warnings
    assert isinstance(warning, Problem)


def test_statements_about_cesql_are_true() -> None:
    page = section("## CESQL")
    for filter in ("EXISTS a AND a = 1", "a = 1 AND EXISTS a", "a OR b AND c", "NOT a = 1"):
        assert f"`{filter}`" in page
    assert compile_filter("EXISTS a AND a = 1", "cesql").evaluate({}).errors == ()
    errors = compile_filter("a = 1 AND EXISTS a", "cesql").evaluate({}).errors
    assert set(errors) <= set(re.findall(r"`(\w+)`", page))
    assert errors
    assert compile_filter("a OR b AND c", "cesql").warnings
    assert compile_filter("NOT a = 1", "cesql").warnings
    event = {"a": True, "b": True, "c": False}
    assert not compile_filter("a OR b AND c", "cesql").matches(event)


def test_an_empty_filter_of_the_subscriptions_api_matches_every_event() -> None:
    assert "An empty array, and an empty text, match every event" in section("## Subscriptions API").replace(
        "\n", " "
    )
    assert compile_filter([], "subscriptions").matches(EVENT)
    assert compile_filter("", "subscriptions").matches({})
    assert compile_filter({"exact": {"priority": "5"}}, "subscriptions").matches(EVENT)


def test_every_difference_from_event_ruler_is_explained() -> None:
    cases = {case[0] for case in (*differences.CASES, *differences.TAKEN_THERE, *differences.TAKEN_HERE)}
    page = section("## EventBridge")
    assert {row[0].replace("`", "") for row in rows(page)[2:]} == cases
    assert set(re.findall(r"`([a-z-]+)`", page)) >= set(TESTS)


def test_the_dialects_and_keywords_are_the_documented_ones() -> None:
    assert {re.findall(r"`(\w+)`", row[0])[0] for row in rows(section("## The four languages"))[2:6]} == set(
        DIALECTS
    )
    assert " ".join(sorted(KEYWORDS)) in ONE_LINE


def test_the_limits_are_the_documented_ones() -> None:
    for limit in (
        f"| length of a filter, in every dialect | {TEXT_BYTES_MAX:,} bytes",
        f"`INTERVAL` counts {COMPUTED_SIZE} more (not in `cesql`); literals and commas count 0",
        f"literals and commas count 0 | {SIZE_MAX:,} |",
        f"counts {QUANTIFIED_SIZE} times, and {QUANTIFIED_SIZE} times again",
        f"outer array | {WORK_MAX:,} |",
        f"nesting of JSON | {DEPTH_MAX} levels |",
        f"| {DIGITS_MAX:,}; between 1e-{DIGITS_MAX} and 1e{DIGITS_MAX} |",
        f"| `LIKE` pattern | {PATTERN_CHARACTERS_MAX:,} characters |",
        f"| {STEPS_MAX}; {INDEX_MAX:,} |",
        f"chain of `\\|\\|` | {OPERANDS_MAX} |",
        f"`REPLACE` | {CHARACTERS_MAX:,} characters",
        f"make no string longer than {CHARACTERS_MAX:,} characters",
        f"| {BITS_MAX:,} bits; a longer one has no value |",
        f"more than {BITS_MAX:,} bits",
        f"| {NUMERAL_CHARACTERS_MAX:,}; {ROUNDED_DIGITS_MAX}; {FRACTION_DIGITS_MAX} |",
        f"pattern is converted | {CONDITIONS_MAX:,};",
        f"| {RESULT_CHARACTERS_MAX:,} characters; a longer result is an error |",
        f"| problems that are reported at once | {PROBLEMS_MAX} |",
        f"at most {CONJUNCTIONS_MAX} conjunctions",
        f"a filter is compiled within {COMPILE_S * 1000:g} ms",
        f"evaluated for a small event within {EVALUATE_S * 1000:g} ms",
    ):
        assert limit in ONE_LINE, limit
