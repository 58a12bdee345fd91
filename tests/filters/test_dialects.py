"""For each dialect, all evaluators give the same answer for a filter and an event.

Random filters of the dialects' grammars and random events over the same few names and values are evaluated by
the evaluator, by the evaluator by columns and by the index; a naive interpreter, written from the
specification, gives the expected answers.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_library import BOTH
from tests.doses import drawn
from tests.filters import naive
from tests.filters.eventbridge import naive as naive_eventbridge
from tests.filters.eventbridge.generators import Generator
from tests.fuzz.grammars import CESQL, SQL, SUBSCRIPTIONS, text_of

from fieldfare.filters import Filter, FilterError, compile_filter
from fieldfare.filters.evaluator import event_getter
from fieldfare.matching.evaluation.batches import BatchFilter
from fieldfare.matching.events.json_decoder import decode_json_lines
from fieldfare.matching.index import Index
from fieldfare.matching.part import build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END

Event = dict[str, Any]

FILTERS, EVENTS = 8, 10
"""Filters, and events, per example."""

few = settings(max_examples=drawn(10))

STRINGS = [
    "a",
    "",
    "A",
    "a'b",
    "AxB",
    "xx",
    "STRASSE",
    "straße",
    "b",
    "Abc",
    "2026-01-31T12:00:00Z",
    "1",
    "true",
]
TIMES = [
    "2026-01-31T12:00:00Z",
    "2026-02-28T09:30:00+02:00",
    "2026-01-31T12:05:00.5Z",
    "2026-02-28T00:00:00Z",
]
NUMBERS = [0, 1, -1, 5, 2.5, 1000, 0.1, 1e-300, 2**53 + 1, 99999999999999999999, 40.7, -74, 179.5, -0.0]


def sql_event(rng: random.Random) -> Event:
    def scalar() -> Any:
        return rng.choice(rng.choice([STRINGS, TIMES, NUMBERS, NUMBERS, [True, False, None]]))

    def value() -> Any:
        kind = rng.randrange(10)
        if kind == 0:
            return [scalar() for _ in range(rng.randrange(4))]
        return {"x": scalar()} if kind == 1 else scalar()

    event: Event = {name: value() for name in ("a", "b", "i", "j") if rng.random() < 0.8}
    if rng.random() < 0.8:
        event["time"] = rng.choice(TIMES) if rng.random() < 0.8 else value()
    if rng.random() < 0.9:
        event["data"] = {name: value() for name in ("x", "odd name", "tags") if rng.random() < 0.8}
        event["data"]["items"] = [{"y": value()} for _ in range(rng.randrange(3))]
    return event


def text_event(rng: random.Random) -> Event:
    names = ("a", "b", "type", "source", "subject", "time")
    return {name: rng.choice([*STRINGS, 1, 5, True, -7]) for name in names if rng.random() < 0.8}


def subscriptions_hold(document: Any, event: Event) -> bool:
    """Evaluate a filter by section 3.2.4.1 of the Subscriptions API."""
    if isinstance(document, list):
        return all(subscriptions_hold(each, event) for each in document)
    [(kind, what)] = document.items()
    if kind in ("all", "any"):
        answers = [subscriptions_hold(each, event) for each in what]
        return all(answers) if kind == "all" else any(answers)
    if kind == "not":
        return not subscriptions_hold(what, event)
    if kind in ("sql", "cesql"):
        return is_true(compile_filter(what, "cesql"), event)
    tests: dict[str, Callable[[str, str], bool]] = {
        "exact": str.__eq__,
        "prefix": str.startswith,
        "suffix": str.endswith,
    }
    return all(name in event and tests[kind](as_text(event[name]), part) for name, part in what.items())


def as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def is_true(compiled: Filter, event: Event) -> bool:
    evaluation = compiled.evaluate(event)
    return evaluation.value is True and not evaluation.errors


Case = tuple[
    Callable[[random.Random], str], Callable[[random.Random], Event], Callable[[Filter, Event], bool]
]

CASES: dict[str, Case] = {
    "sql": (
        lambda rng: text_of(SQL, rng),
        sql_event,
        lambda compiled, event: naive.condition(compiled.expression, event) is True,
    ),
    "cesql": (lambda rng: text_of(CESQL, rng), text_event, is_true),
    "subscriptions": (
        lambda rng: text_of(SUBSCRIPTIONS, rng),
        text_event,
        lambda compiled, event: subscriptions_hold(json.loads(compiled.text), event),
    ),
    "eventbridge": (
        lambda rng: json.dumps(Generator(rng).pattern()),
        lambda rng: Generator(rng).event(),
        lambda compiled, event: naive_eventbridge.matches(json.loads(compiled.text), event),
    ),
}


def made(dialect: str, rng: random.Random) -> tuple[list[Filter], list[Event]]:
    write, event_of, _ = CASES[dialect]
    filters: list[Filter] = []
    while len(filters) < FILTERS:
        try:
            filters.append(compile_filter(write(rng), dialect))
        except FilterError:  # a place beyond the poles, say
            continue
    return filters, [event_of(rng) for _ in range(EVENTS)]


@pytest.mark.long
@pytest.mark.parametrize("dialect", CASES)
@few
@given(st.integers(0, 2**32))
def test_all_evaluators_agree(dialect: str, seed: int) -> None:
    filters, events = made(dialect, random.Random(seed))
    expected = [[CASES[dialect][2](compiled, event) for event in events] for compiled in filters]
    for compiled, answers in zip(filters, expected, strict=True):
        assert [compiled.matches(event) for event in events] == answers, compiled.text
        by_lookup = [compiled.decides(lambda path, e=event: event_getter(path)(e)) for event in events]
        assert by_lookup == answers, compiled.text
        assert BatchFilter(compiled).matches(events).tolist() == answers, compiled.text
        for event, answer in zip(events, answers, strict=True):
            fitting = naive.candidates(compiled.normal_form, event)
            assert fitting or not answer, compiled.text
            assert answer or not any(conjunction.exact for conjunction in fitting), compiled.text
    entries = [
        IndexEntry(n, n, 0, OPEN_END, found.normal_form, found.text, dialect)
        for n, found in enumerate(filters)
    ]
    lines = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    for library in BOTH.values():
        part = build_part(entries, library)
        columns = decode_json_lines(lines, len(events), part.paths)
        matched = Index((part,)).match(columns, np.zeros(len(events), np.int64)).lists()
        assert matched == [
            [n for n, answers in enumerate(expected) if answers[i]] for i in range(len(events))
        ]
