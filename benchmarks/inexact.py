"""Matching speed of filters that the index cannot decide: ``python benchmarks/inexact.py --json``.

Uses one core. The filters of each workload have a normal form that matches more events than the filter, so
every candidate is evaluated: by columns, and together with filters of the same shape if it has few
candidates. ``one_by_one`` is the same without columns. Figures are the best of several passes, in processor
time.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable

import numpy as np

from fieldfare.filters import compile_filter
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.events.json_decoder import decode_json_lines
from fieldfare.matching.index import Index
from fieldfare.matching.part import Part, build_part
from fieldfare.matching.plain.search import confirm
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END

LETTERS = "abcdefgh"


def word(rng: random.Random, length: int) -> str:
    return "".join(rng.choices(LETTERS, k=length))


def spread(rng: random.Random) -> str:
    """About 20 candidates per event."""
    return f"data.a = 'x{rng.randrange(500)}' AND data.high - data.low > {rng.randrange(90)}"


def pattern_of_some(rng: random.Random) -> str:
    """About 100 candidates per event."""
    return (
        f"data.a IN ('x{rng.randrange(500)}', 'y{rng.randrange(100)}') AND data.name LIKE '%{word(rng, 3)}%'"
    )


def pattern(rng: random.Random) -> str:
    """Every filter is a candidate for every event."""
    return f"data.name LIKE '%{word(rng, 4)}%'"


def rare(rng: random.Random) -> str:
    """Few candidates per filter."""
    return f"data.id = {rng.randrange(20_000)} AND data.high - data.low > {rng.randrange(90)}"


WORKLOADS: dict[str, tuple[Callable[[random.Random], str], int]] = {
    "arithmetic": (spread, 8192),
    "pattern_of_some": (pattern_of_some, 8192),
    "pattern_alone": (pattern, 256),
    "few_candidates": (rare, 8192),
}
"""Return the filters, and the number of events to match."""


def event(rng: random.Random) -> dict[str, object]:
    low = round(rng.uniform(1, 100), 2)
    return {
        "a": rng.choice(["x", "y"]) + str(rng.randrange(500)),
        "id": rng.randrange(20_000),
        "name": word(rng, rng.randint(5, 30)),
        "low": low,
        "high": round(low + rng.uniform(0, 50), 2),
    }


def best_s(part: Part, batch: ColumnBatch, passes: int) -> tuple[float, int]:
    """Return the processor seconds for one batch, and its number of matches."""
    offsets, least_s, matches = np.zeros(batch.size, np.int64), float("inf"), 0
    for _ in range(passes):
        started = time.process_time()
        matches = len(Index((part,)).match(batch, offsets).subscriptions)
        least_s = min(least_s, time.process_time() - started)
    return least_s, matches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--filters", type=int, default=10_000)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--workload", choices=WORKLOADS, action="append")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    figures = {}
    for name in options.workload or WORKLOADS:
        make, events = WORKLOADS[name]
        rng = random.Random(options.seed)
        texts = [make(rng) for _ in range(options.filters)]
        entries = [
            IndexEntry(n, n, 0, OPEN_END, compile_filter(text).normal_form, text, "sql")
            for n, text in enumerate(texts)
        ]
        part = build_part(entries)
        lines = [json.dumps({"data": event(rng)}).encode() + b"\n" for _ in range(events)]
        batch = decode_json_lines(b"".join(lines), events, part.paths)
        busy_s, matches = best_s(part, batch, options.passes)
        confirm.PAIRS_MIN, pairs_min = 1 << 62, confirm.PAIRS_MIN
        alone_s, same = best_s(part, batch, 1)
        confirm.PAIRS_MIN = pairs_min
        assert same == matches
        figures[name] = {
            "filters": options.filters,
            "events_per_cpu_s": round(events / busy_s),
            "one_by_one_events_per_cpu_s": round(events / alone_s),
            "matches_per_event": round(matches / events, 2),
        }
    if options.json:
        print(json.dumps(figures))
        return
    for name, figure in figures.items():
        print(f"{name:16}", *(f"{key} {value:,}" for key, value in figure.items()))


if __name__ == "__main__":
    main()
