"""One filter over one event and over many, by the evaluator of single events and by that of columns.

    python benchmarks/evaluators.py --json

prints for each of some filters the microseconds an event:

one_us
    `Filter.matches`: the event as a dict.
column_of_one_us
    `BatchFilter.matches` of a batch with one event, columns included.
evaluated_column_of_one_us
    Of this, the evaluation alone: the columns are there.
columns_us
    `BatchFilter.matches` of columns with 4,096 events, by event; the columns are there.

Medians of five rounds, in one process.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from random import Random
from statistics import median
from typing import Any

from fieldfare.filters import compile_filter
from fieldfare.matching.evaluation.batches import BatchFilter
from fieldfare.matching.events.event_columns import columns_of_events

FILTERS = (
    "data.price < 18.5",
    "data.price BETWEEN 10 AND 20 AND data.symbol IN ('A', 'B', 'C') AND type = 'quote'",
    "data.title LIKE '%storm%' OR LOWER(data.symbol) = 'b'",
    "ROUND(data.price * 1.2, 1) > 20 AND LENGTH(data.title) > 10",
)
EVENTS, ROUNDS, ROUND_S = 4_096, 5, 0.2


def events_of(count: int, seed: int = 1) -> list[dict[str, Any]]:
    """Return quotes with a price, a symbol and a title."""
    random = Random(seed)
    words = ("storm", "calm", "sea", "wind", "north")
    return [
        {
            "specversion": "1.0",
            "id": str(number),
            "source": "/evaluators",
            "type": "quote",
            "data": {
                "price": round(random.uniform(5, 40), 2),
                "symbol": random.choice("ABCDEFGH"),
                "title": " ".join(random.choices(words, k=4)),
            },
        }
        for number in range(count)
    ]


def call_us(call: Callable[[], object]) -> float:
    """Return the median time of a call in microseconds."""
    call()
    rounds = []
    for _ in range(ROUNDS):
        calls, began_s = 0, time.perf_counter()
        while (took_s := time.perf_counter() - began_s) < ROUND_S:
            call()
            calls += 1
        rounds.append(took_s / calls * 1e6)
    return median(rounds)


def measure(text: str, events: list[dict[str, Any]]) -> dict[str, float]:
    filter = compile_filter(text)
    by_columns = BatchFilter(filter)
    first = events[:1]
    one, many = (columns_of_events(some, filter.column_paths) for some in (first, events))
    expected = [filter.matches(event) for event in events]
    if by_columns.matches(many).tolist() != expected:
        raise RuntimeError(f"the evaluators differ: {text}")
    return {
        "one_us": round(call_us(lambda: filter.matches(first[0])), 2),
        "column_of_one_us": round(call_us(lambda: by_columns.matches(first)), 2),
        "evaluated_column_of_one_us": round(call_us(lambda: by_columns.matches(one)), 2),
        "columns_us": round(call_us(lambda: by_columns.matches(many)) / len(events), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else on stdout"
    )
    options = parser.parse_args()
    events = events_of(EVENTS)
    figures = {text: measure(text, events) for text in FILTERS}
    if options.json:
        print(json.dumps(figures))
        return
    for text, found in figures.items():
        print(text)
        for name, value in found.items():
            print(f"    {name:28} {value}")


if __name__ == "__main__":
    main()
