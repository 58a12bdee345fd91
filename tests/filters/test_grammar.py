"""The grammar in docs/filter-grammar.md and the parser agree."""

from __future__ import annotations

import random
import re

import pytest
from tests.doses import drawn

from fieldfare.filters import FilterError, compile_filter

from . import railroad, test_errors
from .grammar import PAGE, TERMINALS, read_grammar

GRAMMAR = read_grammar(PAGE.read_text())

BEYOND = re.compile(
    "|".join(
        (
            *("this is .*, not a condition", "arithmetic needs numbers", "there is no result of"),
            *(r"\|\| joins strings", "LIKE tests strings", "cannot be compared with"),
            *("takes .* values?, found", "needs .*, this is", "must be a literal"),
            *(
                "takes no (timestamp|interval)",
                "is not a timestamp",
                "takes a number of days",
                "has at most 38 digits",
            ),
            *("which continues the CASE", r"\[-0\] is not an element"),
            *(
                "the values of .* are of one type",
                "this is not an? ",
                "an interval needs a unit",
                "lies between",
            ),
            *("the escape character is", "after the escape character", "double quotes name an attribute"),
            *("'007' is not a number", "nested too deeply", "too large", "too much work"),
        )
    )
)
"""Messages of restrictions beyond the grammar, which the page lists below it."""


def joined(rng: random.Random, tokens: list[str]) -> str:
    """Join tokens to a text, with white space where necessary, and at random elsewhere."""
    text = ""
    for token in tokens:
        before = text[-1:]
        runs_together = before and (
            (before.isalnum() or before in "_.'\"") and (token[0].isalnum() or token[0] in "_.'\"")
        )
        if runs_together or rng.random() < 0.5 or before in "-<>=|!" or token[0] in "-<>=|!":
            text += rng.choice((" ", " ", "\n", "\t "))
        text += token
    return text


def refusals(text: str) -> list[str]:
    try:
        compile_filter(text)
    except FilterError as error:
        return [problem.message for problem in error.problems]
    return []


@pytest.mark.long
def test_generated_filters_are_rejected_only_for_other_restrictions() -> None:
    rng = random.Random(41)
    words = _words_of_the_grammar()
    taken = 0
    for _ in range(7_000):
        tokens = list(GRAMMAR.derive(rng))
        if len(tokens) > 60:
            continue
        text = joined(rng, tokens)
        found = refusals(text)
        assert all(BEYOND.search(message) for message in found), (text, found)
        taken += not found
        words -= {token.upper() for token in tokens}
    assert taken > 600
    assert not words


def _words_of_the_grammar() -> set[str]:
    found = set()
    waiting = list(GRAMMAR.rules.values())
    while waiting:
        node = waiting.pop()
        waiting += node.parts
        if node.kind == "text":
            found.add(node.text)
    return found


@pytest.mark.long
def test_filters_outside_the_grammar_are_rejected() -> None:
    """Filters of the grammar with a token removed, doubled, swapped or moved."""
    rng = random.Random(42)
    pieces = sorted(_words_of_the_grammar()) + [s for each in TERMINALS.values() for s in each.samples]
    outside = inside = 0
    changed = drawn(4_000)
    for _ in range(changed):
        tokens = list(GRAMMAR.derive(rng))
        if not 1 < len(tokens) < 40:
            continue
        place = rng.randrange(len(tokens))
        change = rng.randrange(4)
        if change == 0:
            del tokens[place]
        elif change == 1:
            tokens.insert(place, tokens[place])
        elif change == 2:
            tokens[place] = rng.choice(pieces)
        else:
            tokens.insert(rng.randrange(len(tokens)), tokens.pop(place))
        text = joined(rng, tokens)
        found = refusals(text)
        if GRAMMAR.allows(tokens):
            inside += 1
            assert all(BEYOND.search(message) for message in found), (text, found)
        else:
            outside += 1
            assert found, text
    assert inside > changed * 0.075
    assert outside > changed * 0.25


def test_recorded_mistakes_are_not_in_the_grammar() -> None:
    pattern = re.compile(r"\"[^\"]*\"|'(?:[^']|'')*'|[\d.]+(?:[eE][+-]?\d+)?\w*|\w+|<=|>=|<>|!=|\|\||\S")
    for text, _ in test_errors.cases():
        tokens = pattern.findall(text)
        if GRAMMAR.allows(tokens):
            assert any(BEYOND.search(message) for message in refusals(text)), text


@pytest.mark.parametrize("name", sorted(GRAMMAR.rules))
def test_every_rule_is_used_and_every_name_has_a_rule(name: str) -> None:
    waiting = list(GRAMMAR.rules.values())
    used = {"filter"}
    while waiting:
        node = waiting.pop()
        waiting += node.parts
        if node.kind == "rule":
            used.add(node.text)
    assert name in used
    assert used <= {*GRAMMAR.rules, *TERMINALS}


def test_the_diagram_of_the_grammar_is_up_to_date() -> None:
    assert railroad.PICTURE.read_text() == railroad.picture_of(GRAMMAR)
    assert f"images/{railroad.PICTURE.name}" in PAGE.read_text()
