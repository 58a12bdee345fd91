"""Error messages of filters that cannot be used.

``testdata/errors.txt`` contains filters and, after ``----``, their messages. To record them again
after an intended change: ``PYTHONPATH=src python -m tests.filters.test_errors``; review the diff.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from fieldfare.filters import FilterError, Problem, compile_filter, parse_path
from fieldfare.filters.filter import DIALECTS

RECORDED = Path(__file__).parent / "testdata" / "errors.txt"
BETWEEN_CASES = "\n\n====\n\n"


def cases() -> list[list[str]]:
    return [case.split("\n----\n") for case in RECORDED.read_text().rstrip("\n").split(BETWEEN_CASES)]


def error_of(text: str, dialect: str = "sql") -> str:
    with pytest.raises(FilterError) as caught:
        compile_filter(text, dialect)
    return str(caught.value)


@pytest.mark.parametrize(("text", "expected"), cases(), ids=lambda text: text.split("\n")[0][:50])
def test_a_mistake_is_shown_with_its_place_and_a_hint(text: str, expected: str) -> None:
    assert error_of(text) == expected


def test_problems_have_lines_and_columns_from_one() -> None:
    with pytest.raises(FilterError) as caught:
        compile_filter("data.a = 1\r\n  AND data.é == 'x'")
    (problem,) = caught.value.problems
    assert problem == Problem("'==' is not an operator", 2, 14, "write = to test for equality", 2)
    assert caught.value.text == "data.a = 1\r\n  AND data.é == 'x'"


def test_an_empty_filter_has_a_hint_how_to_match_everything() -> None:
    assert error_of(" \n ") == "the filter is empty\n  hint: write TRUE to match every event"


def test_an_unknown_dialect_is_refused_with_the_nearest_one() -> None:
    assert error_of("a", "sqll") == "there is no dialect 'sqll'\n  hint: did you mean sql?"
    hint = f"the dialects are: {', '.join(DIALECTS)}"
    assert error_of("a", "xpath") == f"there is no dialect 'xpath'\n  hint: {hint}"


def test_no_more_than_ten_problems_are_reported() -> None:
    with pytest.raises(FilterError) as caught:
        compile_filter(" OR ".join(["data.a == 1 AND data.b IS 5"] * 20))
    assert len(caught.value.problems) == 10


def test_a_long_line_is_shown_around_the_place() -> None:
    text = "data.a = 1 OR " * 100 + "data.a ~ 1" + " OR data.a = 1" * 100
    line, carets = error_of(text).split("\n")[1:3]
    assert len(line) < 120
    assert line[carets.index("^")] == "~"
    assert line.startswith("  ... ") and line.endswith(" ...")


def test_unprintable_characters_are_replaced() -> None:
    assert error_of("data.a = \x00\x1b[31m 'x'").isprintable() is False  # it has line breaks...
    assert all(line.isprintable() for line in error_of("data.a = \x00\x1b[31m 'x'").split("\n"))
    error_of("data.a = '\ud800'").encode()


def test_an_error_survives_pickling() -> None:
    with pytest.raises(FilterError) as caught:
        compile_filter("data.a == 1")
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert again.problems == caught.value.problems


@pytest.mark.parametrize(
    "text", ["", "a.", "a b", "[0]", "a[x]", "a..b", "'a'", "in", "a[99999999999]", "a == b"]
)
def test_invalid_names_of_attributes_are_rejected(text: str) -> None:
    with pytest.raises(FilterError):
        parse_path(text)


def _record() -> None:
    RECORDED.write_text(BETWEEN_CASES.join(f"{text}\n----\n{error_of(text)}" for text, *_ in cases()) + "\n")


if __name__ == "__main__":
    _record()
