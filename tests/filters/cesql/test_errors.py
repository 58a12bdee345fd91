"""Error messages and warnings of CESQL filters.

``testdata/errors.txt`` and ``warnings.txt`` contain filters and, after ``----``, their messages. To record
them again after an intended change: ``PYTHONPATH=src python -m tests.filters.cesql.test_errors``;
review the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldfare.filters import FilterError, compile_filter
from fieldfare.filters.errors import display

FOLDER = Path(__file__).parent / "testdata"
BETWEEN_CASES = "\n\n====\n\n"


def cases(name: str) -> list[list[str]]:
    recorded = (FOLDER / f"{name}.txt").read_text().rstrip("\n")
    return [case.split("\n----\n") for case in recorded.split(BETWEEN_CASES)]


def error_of(text: str) -> str:
    with pytest.raises(FilterError) as caught:
        compile_filter(text, "cesql")
    return str(caught.value)


def warnings_of(text: str) -> str:
    return display(text, compile_filter(text, "cesql").warnings) or "(nothing)"


@pytest.mark.parametrize(("text", "expected"), cases("errors"), ids=lambda text: text.split("\n")[0][:50])
def test_a_mistake_is_shown_with_its_place_and_a_hint(text: str, expected: str) -> None:
    assert error_of(text) == expected


@pytest.mark.parametrize(("text", "expected"), cases("warnings"), ids=lambda text: text.split("\n")[0][:50])
def test_probable_mistakes_give_a_warning(text: str, expected: str) -> None:
    assert warnings_of(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the filter is empty\n  hint: write TRUE to match every event"),
        (" \n ", "the filter is empty\n  hint: write TRUE to match every event"),
        (
            "a = '\ud800'",
            "line 1, column 6: this is half of a character (a lone surrogate)\n  a = ' '\n       ^",
        ),
        ("a = 1\x00", "line 1, column 6: unexpected character '\\x00'\n  a = 1\n       ^"),
        (
            "a\xa0= 1",
            "line 1, column 2: this white space is not allowed in CESQL (U+00A0)\n  a = 1\n   ^\n"
            "  hint: write a plain space",
        ),
    ],
)
def test_invisible_characters_are_named(text: str, expected: str) -> None:
    assert error_of(text) == expected


def test_no_more_than_ten_problems_or_warnings_are_reported() -> None:
    with pytest.raises(FilterError) as caught:
        compile_filter(" OR ".join(["a == 1 AND b IS 5"] * 20), "cesql")
    assert len(caught.value.problems) == 10
    assert len(compile_filter(" AND ".join(["(NOT a = 1)"] * 20), "cesql").warnings) == 10


def test_common_filters_give_no_warning() -> None:
    for text in (
        "type = 'com.example.order' AND source LIKE 'https://example.com/%'",
        "type = 'a' OR type = 'b' OR subject IN ('x', 'y')",
        "(firstname = 'Francesco' AND lastname = 'Guardiani') OR subject = 'Francesco Guardiani'",
        "NOT EXISTS subject AND NOT (type = 'a') AND NOT urgent",
        "sequence + 1 > 5 AND LENGTH(subject) * 2 <= 10 AND (sequence + 1) IN (2, 3)",
    ):
        assert warnings_of(text) == "(nothing)"


if __name__ == "__main__":
    for name, say in ("errors", error_of), ("warnings", warnings_of):
        recorded = [f"{text}\n----\n{say(text)}" for text, *_ in cases(name)]
        (FOLDER / f"{name}.txt").write_text(BETWEEN_CASES.join(recorded) + "\n")
