"""docs/filters.md is true: its examples run, and its numbers are the code's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fieldfare.filters import FilterError, compile_filter
from fieldfare.filters.drafts import MAX_CONJUNCTIONS
from fieldfare.filters.exact import MAX_BITS
from fieldfare.filters.expression import MAX_DEPTH
from fieldfare.filters.patterns import MAX_PATTERN_CHARACTERS
from fieldfare.filters.sql.lexer import KEYWORDS
from fieldfare.filters.sql.literals import MAX_DIGITS
from fieldfare.filters.sql.parser import MAX_TEXT_BYTES
from fieldfare.filters.sql.paths import MAX_INDEX, MAX_STEPS

TEXT = (Path(__file__).parents[2] / "docs" / "filters.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("example", [line for block in blocks("sql") for line in block.splitlines()])
def test_the_examples_are_filters(example: str) -> None:
    compile_filter(example)


def test_the_python_example_runs() -> None:
    for block in blocks("python"):
        exec(block, {})


def test_the_error_is_shown_as_documented() -> None:
    (shown,) = blocks("text")
    with pytest.raises(FilterError) as caught:
        compile_filter("data.symbol == 'YHOO' AND data.price IN (1 2)")
    assert str(caught.value) + "\n" == shown


def test_the_limits_and_keywords_are_the_documented_ones() -> None:
    for row in (
        f"| length of a filter | {MAX_TEXT_BYTES:,} bytes",
        f"| {MAX_DEPTH} levels |",
        f"| {MAX_DIGITS:,}; between 1e-{MAX_DIGITS} and 1e{MAX_DIGITS} |",
        f"| `LIKE` pattern | {MAX_PATTERN_CHARACTERS:,} characters |",
        f"| {MAX_STEPS}; {MAX_INDEX:,} |",
        f"more than {MAX_BITS:,} bits",
        f"at most {MAX_CONJUNCTIONS} conjunctions",
        " ".join(sorted(KEYWORDS)),
    ):
        assert row in " ".join(TEXT.split()), row
