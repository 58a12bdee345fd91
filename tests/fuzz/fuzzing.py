"""What must hold for any input: nothing is raised but a FilterError, and nothing takes long."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.yardstick import slowness

from fieldfare.filters import (
    FilterError,
    compile_filter,
    decode_normal_form,
    encode_normal_form,
    format_expression,
)

from .inputs import sources_of

LIMIT_S = 0.05
"""How long compiling (normal form included), or one evaluation, may take: processor time."""

EVENTS: list[dict[str, Any]] = [
    {},
    {
        "a": 1,
        "b": "Abc",
        "time": "2026-01-31T12:00:00Z",
        "data": {"x": [1, "a", None], "items": [{"y": 5}], "odd name": True, "tags": ["red", "A", 2.5]},
    },
    {"a": [1e-300, 2**70, "a" * 50], "b": None, "i": {"x": 1}, "data": {"x": -0.0, "tags": []}},
]


@dataclass
class Report:
    """What a run did: inputs, how many were valid filters, and what went wrong."""

    inputs: int = 0
    valid: int = 0
    slowest_s: float = 0.0
    failures: list[tuple[str, str]] = field(default_factory=list)


def steps(text: str, dialect: str) -> Iterator[Callable[[], object]]:
    """Everything that is done with a filter's text, in steps of which each is to be quick."""
    compiled: Any = None

    def compile_it() -> None:
        nonlocal compiled
        try:
            compiled = compile_filter(text, dialect)
        except FilterError as error:
            assert 1 <= len(error.problems) <= 10
            str(error).encode()
            return
        assert decode_normal_form(encode_normal_form(compiled.normal_form)) == compiled.normal_form

    yield compile_it
    if compiled is None:
        return
    for event in EVENTS:
        yield lambda event=event: compiled.matches(event)
        yield lambda event=event: compiled.evaluate(event)

    def write_it() -> None:
        with suppress(FilterError):
            format_expression(compiled.expression)

    yield write_it


def slowest_step_s(text: str, dialect: str) -> tuple[float, bool]:
    """The longest time of a step, and whether the text is a filter."""
    slowest, count = 0.0, 0
    for step in steps(text, dialect):
        started = time.process_time()
        step()
        slowest = max(slowest, time.process_time() - started)
        count += 1
    return slowest, count > 1


def check(text: str, dialect: str, report: Report) -> str:
    """What is wrong with an input, or ""."""
    try:
        limit_s = LIMIT_S
        slowest, valid = slowest_step_s(text, dialect)
        for _ in range(5):  # a machine with other work is not a slow parser
            if slowest <= limit_s:
                break
            limit_s = LIMIT_S * slowness()
            slowest = min(slowest, slowest_step_s(text, dialect)[0])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    report.slowest_s = max(report.slowest_s, slowest)
    report.valid += valid
    return f"took {slowest:.3f} s" if slowest > limit_s else ""


def fuzz(dialect: str, inputs: int, seed: int, until: Callable[[], bool] = lambda: False) -> Report:
    """Check so many inputs, or until told to stop; at most five failures, each as short as it gets."""
    rng, sources, report = random.Random(seed), sources_of(dialect), Report()
    while report.inputs < inputs and not until() and len(report.failures) < 5:
        text = rng.choice(sources)(rng)
        report.inputs += 1
        problem = check(text, dialect, report)
        if problem:
            report.failures.append((problem, shortened(text, dialect)))
    return report


TRIES_MAX = 500
"""How many shorter texts are tried for one that fails; each may be slow."""


def shortened(text: str, dialect: str) -> str:
    """A shorter input that fails too: parts are left out as long as it does."""
    size, tries = len(text) // 2, 0
    while size:
        start = 0
        while start < len(text) and tries < TRIES_MAX:
            tries += 1
            shorter = text[:start] + text[start + size :]
            if check(shorter, dialect, Report()):
                text = shorter
            else:
                start += size
        size //= 2
    return text
