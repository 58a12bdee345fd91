"""Topic patterns of MQTT, NATS and AMQP against naive matching."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn
from tests.filters.foreign import naive_topics

from fieldfare.filters import FilterError, compile_filter
from fieldfare.filters.foreign.items import Options
from fieldfare.filters.foreign.topics import AMQP, MQTT, NATS, Syntax, convert_topic

many = settings(max_examples=drawn(400))
WORDS = ["a", "b", "ab", "a%", "_", "", "$a", "'", "é"]


def converted(syntax: Syntax, pattern: str) -> Callable[[str], bool]:
    filter = compile_filter(*convert_topic(syntax)(pattern, Options()))
    return lambda topic: filter.matches({"subject": topic})


def texts(words: list[str], separator: str, most: int = 6) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from(words), min_size=1, max_size=most).map(separator.join)


def agrees(syntax: Syntax, naive: Callable[[str, str], bool], pattern: str, topics: list[str]) -> None:
    try:
        matches = converted(syntax, pattern)
    except FilterError:
        return
    for topic in topics:
        assert matches(topic) is naive(pattern, topic), (pattern, topic)


@many
@given(texts([*WORDS, "+", "+", "#"], "/"), st.lists(texts(WORDS, "/").filter(bool), max_size=12))
def test_mqtt_agrees_with_naive_matching(pattern: str, topics: list[str]) -> None:
    agrees(MQTT, naive_topics.mqtt, pattern, topics)


@many
@given(texts([*WORDS, "*", "*", ">"], "."), st.lists(texts([w for w in WORDS if w], "."), max_size=12))
def test_nats_agrees_with_naive_matching(pattern: str, topics: list[str]) -> None:
    agrees(NATS, naive_topics.nats, pattern, topics)


@many
@given(texts([*WORDS, "*", "*", "#", "#", "#"], "."), st.lists(texts(WORDS[:6], "."), max_size=12))
def test_amqp_agrees_with_naive_matching(pattern: str, topics: list[str]) -> None:
    agrees(AMQP, naive_topics.amqp, pattern, topics)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_amqp_agrees_for_all_short_patterns_and_keys(size: int) -> None:
    keys = [".".join(words) for most in range(1, 5) for words in itertools.product("ab", repeat=most)]
    for words in itertools.product(["a", "b", "*", "#"], repeat=size):
        pattern = ".".join(words)
        # A run of * alone, with a # somewhere before it.
        runs = [run for run in re.split("[ab]", pattern.replace(".", "")) if run]
        unsayable = any("#" not in run and "#" in "".join(runs[:at]) for at, run in enumerate(runs))
        if unsayable:
            with pytest.raises(FilterError, match="cannot be converted"):
                converted(AMQP, pattern)
            continue
        matches = converted(AMQP, pattern)
        for key in ["", *keys]:
            assert matches(key) is naive_topics.amqp(pattern, key), (pattern, key)


@pytest.mark.parametrize(
    ("syntax", "pattern", "matching", "others"),
    [
        # MQTT 5.0, 4.7.1
        (
            MQTT,
            "sport/tennis/player1/#",
            ["sport/tennis/player1", "sport/tennis/player1/a/b"],
            ["sport/tennis"],
        ),
        (MQTT, "sport/#", ["sport"], ["sports"]),
        (MQTT, "sport/+", ["sport/"], ["sport", "sport/a/b"]),
        (MQTT, "+/+", ["/finance"], ["finance"]),
        (MQTT, "/+", ["/finance"], ["finance"]),
        (MQTT, "+", ["finance"], ["/finance"]),
        (MQTT, "+/tennis/#", ["a/tennis", "a/tennis/b"], ["a/b/tennis"]),
        (MQTT, "#", ["a/b"], ["$SYS/a"]),
        (MQTT, "+/monitor/Clients", ["a/monitor/Clients"], ["$SYS/monitor/Clients"]),
        (MQTT, "$SYS/#", ["$SYS/a"], ["SYS/a"]),
        # NATS, "Subject-Based Messaging"
        (NATS, "time.*.east", ["time.us.east", "time.eu.east"], ["time.us.east.atlanta", "time.east"]),
        (NATS, "time.us.>", ["time.us.east", "time.us.east.atlanta"], ["time.us"]),
        (NATS, "*.*.east.>", ["time.us.east.atlanta"], ["time.us.east"]),
        # RabbitMQ, tutorial 5
        (
            AMQP,
            "*.orange.*",
            ["quick.orange.rabbit"],
            ["lazy.brown.fox", "orange", "quick.orange.new.rabbit"],
        ),
        (AMQP, "*.*.rabbit", ["lazy.orange.rabbit"], ["rabbit"]),
        (AMQP, "lazy.#", ["lazy", "lazy.orange.new.rabbit"], ["quick.lazy"]),
    ],
)
def test_examples_of_the_documentation(
    syntax: Syntax, pattern: str, matching: list[str], others: list[str]
) -> None:
    matches = converted(syntax, pattern)
    assert [topic for topic in (*matching, *others) if matches(topic)] == matching


@pytest.mark.parametrize(
    ("syntax", "pattern", "message", "column"),
    [
        (MQTT, "", "a topic filter has at least one character", 1),
        (MQTT, "a/b#", "# must be alone between two /", 3),
        (MQTT, "a+/b", "+ must be alone between two /", 1),
        (MQTT, "a/#/b", "# must be the last level", 3),
        (MQTT, "$share/group/a", "this is a shared subscription, not a topic filter", 1),
        (NATS, "a..b", "a subject has no empty tokens", 3),
        (NATS, "a.>.b", "> must be the last token", 3),
        (NATS, "a.b*", "* must be alone between two dots", 3),
        (NATS, "a b", "a subject has no spaces", 1),
    ],
)
def test_a_pattern_that_the_system_refuses_is_refused(
    syntax: Syntax, pattern: str, message: str, column: int
) -> None:
    with pytest.raises(FilterError) as error:
        convert_topic(syntax)(pattern, Options())
    problem = error.value.problems[0]
    assert (problem.message, problem.column) == (message, column)


def test_a_pattern_that_cannot_be_said_is_refused() -> None:
    for pattern in ("#.a.*.c", "a.#..b.#"):
        with pytest.raises(FilterError, match="cannot be converted"):
            convert_topic(AMQP)(pattern, Options())
    with pytest.raises(FilterError, match="at most 4 one-word wildcards"):
        convert_topic(MQTT)("a/" + "+/b/" * 20 + "#", Options())
    assert converted(MQTT, "+/b/" * 4 + "#")("a/b/" * 4 + "c")
    with pytest.raises(FilterError, match="at most 4,000"):
        convert_topic(MQTT)("a/" * 3000, Options())


def test_the_topic_may_be_in_another_attribute() -> None:
    assert convert_topic(NATS)("a.b", Options(topic=("data", "topic"))) == ("data.topic = 'a.b'", "sql")
