"""The texts of help.

``testdata/*.txt`` contain filters (a first line ``(DIALECT)`` names another dialect than sql) and, after
``----``, the output: explanations, explanations with SAMPLE, traces of each event of SAMPLE,
conversions, checks. To record them again after an intended change:
``PYTHONPATH=src python -m tests.filters.help.test_texts``; review the diff.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fieldfare.filters import Filter, compile_filter
from fieldfare.filters.filter import DIALECTS
from fieldfare.filters.help import check, convert, explain, trace

FOLDER = Path(__file__).parent / "testdata"
BETWEEN_CASES = "\n\n====\n\n"

SAMPLE = [
    {"id": "1", "type": "quote", "data": {"symbol": "YHOO", "price": 17.25, "items": [{"price": 5}]}},
    {"id": "2", "type": "quote", "data": {"symbol": "YHOO", "price": 20, "items": []}},
    {"id": "3", "type": "trade", "data": {"symbol": "IBM", "price": "17.25", "items": {"price": 100}}},
    {"id": "4", "type": "trade", "data": {"symbol": None, "open": True}},
]

OUTPUTS: dict[str, Callable[[Filter], str]] = {
    "explanations": lambda filter: str(explain(filter)),
    "explanations_of_samples": lambda filter: str(explain(filter, SAMPLE)),
    "traces": lambda filter: "\n".join(f"{n}: {trace(filter, event)}" for n, event in enumerate(SAMPLE, 1)),
    "conversions": convert,
}


def split(case: str) -> tuple[str, str]:
    """Return a case's dialect and filter."""
    named = re.match(r"\((\w+)\)\n", case)
    return (named[1], case[named.end() :]) if named else ("sql", case)


def output_of(name: str, case: str) -> str:
    dialect, text = split(case)
    if name == "checks":
        return str(check(text, dialect))
    return OUTPUTS[name](compile_filter(text, dialect))


def cases(name: str) -> list[list[str]]:
    recorded = (FOLDER / f"{name}.txt").read_text().rstrip("\n")
    return [case.split("\n----\n") for case in recorded.split(BETWEEN_CASES)]


def all_cases() -> Iterator[tuple[str, str, str]]:
    for name in (*OUTPUTS, "checks"):
        for case, expected in cases(name):
            if split(case)[0] in DIALECTS:
                yield name, case, expected


@pytest.mark.parametrize(
    ("name", "case", "expected"), list(all_cases()), ids=lambda text: text.split("\n")[0][:50]
)
def test_texts_are_as_recorded(name: str, case: str, expected: str) -> None:
    assert output_of(name, case) == expected


def _record() -> None:
    for name in (*OUTPUTS, "checks"):
        recorded = [
            f"{case}\n----\n{output_of(name, case) if split(case)[0] in DIALECTS else old[0]}"
            for case, *old in cases(name)
        ]
        (FOLDER / f"{name}.txt").write_text(BETWEEN_CASES.join(recorded) + "\n")


if __name__ == "__main__":
    _record()
