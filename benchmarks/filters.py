"""How long it takes to compile, encode and evaluate filters. Prints one JSON object.

    PYTHONPATH=src python benchmarks/filters.py

Each figure is the least of many short runs, in microseconds for one call, so that what else runs on
the machine counts little.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from fieldfare.filters import compile_filter, decode_normal_form, encode_normal_form
from fieldfare.filters.filter import Filter

FIVE_PREDICATES = (
    "data.origin = 'JFK' AND data.carrier IN ('AA', 'B6', 'DL') AND data.dep_delay > 30 "
    "AND data.distance BETWEEN 500 AND 1500 AND data.wind_speed >= 12.5"
)
THREE_PREDICATES = "data.origin = 'JFK' AND data.dep_delay > 30 AND data.wind_speed >= 12.5"
MATCHING = {"id": "1", "type": "departure", "data": {"origin": "JFK", "dep_delay": 31, "wind_speed": 13.0}}
OTHER_ORIGIN = {
    "id": "2",
    "type": "departure",
    "data": {"origin": "EWR", "dep_delay": 31, "wind_speed": 13.0},
}

RUNS = 200
CALLS = 100


def least_us(call: Callable[[], Any]) -> float:
    """The least mean time of a call over many runs, in microseconds."""
    least_s = float("inf")
    for _ in range(RUNS):
        started = time.perf_counter()
        for _ in range(CALLS):
            call()
        least_s = min(least_s, (time.perf_counter() - started) / CALLS)
    return round(least_s * 1e6, 2)


def compiled_with_normal_form() -> Filter:
    compiled = compile_filter(FIVE_PREDICATES)
    assert compiled.normal_form.conjunctions
    return compiled


def main() -> None:
    form = compiled_with_normal_form().normal_form
    encoded = encode_normal_form(form)
    three = compile_filter(THREE_PREDICATES)
    assert three.matches(MATCHING) and not three.matches(OTHER_ORIGIN)
    figures = {
        "parse_us": least_us(lambda: compile_filter(FIVE_PREDICATES)),
        "compile_with_normal_form_us": least_us(compiled_with_normal_form),
        "encode_normal_form_us": least_us(lambda: encode_normal_form(form)),
        "decode_normal_form_us": least_us(lambda: decode_normal_form(encoded)),
        "encoded_size_bytes": len(encoded),
        "matches_first_predicate_fails_us": least_us(lambda: three.matches(OTHER_ORIGIN)),
        "matches_all_three_hold_us": least_us(lambda: three.matches(MATCHING)),
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
