"""Comparison of this dialect with event-ruler, the library behind EventBridge, on random patterns and events.

Needs Java and the peer of benchmarks/peers/event_ruler, which the slow test builds with Maven.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from fieldfare.filters import FilterError, compile_filter

from . import differences, peer
from .generators import Generator

SEED = 20261121

needs_peer = pytest.mark.skipif(not peer.is_built(), reason="no Java, or the peer is not built")


@pytest.fixture(scope="module")
def built() -> None:
    if not peer.build():
        pytest.skip("no Java or Maven, or Maven could not fetch event-ruler")


def compare(seed: int, patterns: int, events: int) -> tuple[int, int, int]:
    """Return the numbers of pairs compared, of matches, and of pairs with a known difference."""
    print(f"seed {seed}")
    generator = Generator(random.Random(seed), nested_lists=False)
    questions = [(generator.pattern(), [generator.event() for _ in range(events)]) for _ in range(patterns)]
    compared = matched = known = 0
    for (pattern, sample), (refusal, answers) in zip(questions, peer.answers(questions), strict=True):
        assert not refusal, (refusal, pattern)
        compiled = compile_filter(pattern, "eventbridge")
        for event, answer in zip(sample, answers, strict=True):
            if differences.is_known(pattern, event):
                known += 1
                continue
            assert compiled.matches(event) is answer, json.dumps({"pattern": pattern, "event": event})
            compared += 1
            matched += answer
    return compared, matched, known


@needs_peer
def test_a_few_patterns_get_the_same_answers() -> None:
    compared, matched, known = compare(SEED, patterns=300, events=20)
    assert compared > 5_000
    assert matched > 300
    assert known < 600


@pytest.mark.slow
@pytest.mark.parametrize("part", range(6))
@pytest.mark.usefixtures("built")
def test_a_hundred_thousand_pairs_get_the_same_answers(part: int) -> None:
    compared, matched, known = compare(SEED + 1 + part, patterns=1_000, events=20)
    assert compared > 18_000
    assert matched > 1_000
    assert known < 2_000


@needs_peer
def test_every_documented_difference_is_one() -> None:
    questions = [(pattern, [event]) for _, pattern, event, _, _ in differences.CASES]
    for case, (refusal, answers) in zip(differences.CASES, peer.answers(questions), strict=True):
        reason, pattern, event, _, there = case
        assert (refusal, answers) == ("", [there]), (reason, pattern, event)


@pytest.mark.parametrize(("reason", "pattern", "event", "here", "_there"), differences.CASES)
def test_a_documented_difference_is_as_documented(
    reason: str, pattern: Any, event: Any, here: bool, _there: bool
) -> None:
    if isinstance(event, str):
        event = json.loads(event)
    assert compile_filter(pattern, "eventbridge").matches(event) is here


@needs_peer
def test_every_documented_difference_of_accepted_patterns_is_one() -> None:
    patterns = [pattern for _, pattern in (*differences.TAKEN_THERE, *differences.TAKEN_HERE)]
    refusals = [refusal for refusal, _ in peer.answers([(pattern, []) for pattern in patterns])]
    assert [bool(refusal) for refusal in refusals] == [False] * len(differences.TAKEN_THERE) + [True] * len(
        differences.TAKEN_HERE
    )
    for _, pattern in differences.TAKEN_HERE:
        compile_filter(pattern, "eventbridge")
    for _, pattern in differences.TAKEN_THERE:
        with pytest.raises(FilterError):
            compile_filter(pattern, "eventbridge")


WRONG: list[Any] = [
    *(
        "x",
        5,
        None,
        True,
        [],
        {},
        [[1]],
        ["x"],
        ["=", 1],
        ["<", 5, ">", 1],
        [">", 5, "<", 1],
        [">=", 5, "<=", 5],
    ),
    *([">", 1, 2], ["<>", 1], ["="], [">", "1"], "a**b", "a\\b", "10.0.0.1/32", "::1/128", "1.2.3/8"),
    *({"prefix": "a", "suffix": "b"}, {"foo": "a"}, {"prefix": ["a"]}, {"prefix": {"wildcard": "a"}}),
    *({"anything-but": []}, {"anything-but": {"prefix": []}}, {"anything-but": None}, {"exists": "true"}),
    *({"anything-but": {"numeric": ["=", 1]}}, {"$or": [{"a": [1]}, {"b": [1]}]}, {"$or": {"a": [1]}}),
    *({"$or": [{"prefix": "a"}, {"b": [1]}]}, {"$or": [{"a": [1]}]}, {"a": [1]}, [{"exists": True}]),
]
"""Values that are inserted into a pattern to make it invalid in most cases."""


def invalidated(generator: Generator) -> Any:
    """Return a pattern with a value replaced, or a name changed to one with a special meaning."""
    pattern = generator.pattern()
    places: list[tuple[Any, Any]] = []
    waiting: list[Any] = [pattern]
    while waiting:
        container = waiting.pop()
        keys = container if isinstance(container, dict) else range(len(container))
        places += [(container, key) for key in keys]
        waiting += [container[key] for key in keys if isinstance(container[key], dict | list)]
    container, key = generator.random.choice(places)
    if isinstance(container, dict) and generator.chance(0.3):
        container[generator.random.choice(["$or", "prefix", "numeric", "anything-but"])] = container.pop(key)
    else:
        container[key] = generator.random.choice(WRONG)
    return pattern


@needs_peer
def test_both_reject_the_same_patterns() -> None:
    """Except for a field named $or, an empty list of prefixes, and blocks of a single address."""
    generator = Generator(random.Random(SEED))
    patterns = [invalidated(generator) for _ in range(3_000)]
    refused = 0
    for pattern, (there, _) in zip(patterns, peer.answers([(p, []) for p in patterns]), strict=True):
        try:
            compile_filter(pattern, "eventbridge")
            assert not there or "mask bits must be <" in there, (there, pattern)
        except FilterError as error:
            refused += 1
            message = error.problems[0].message
            written = json.dumps(pattern)
            assert there or "$or" in message or '{"anything-but": {"prefix": []}}' in written, written
    assert 1_000 < refused < 2_900
