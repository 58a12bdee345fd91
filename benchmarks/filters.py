"""Time to compile, encode and evaluate filters.

    python benchmarks/filters.py           # a table
    python benchmarks/filters.py --json    # one JSON object

Figures in microseconds are for one call, the minimum of many short runs, so that other programs on the
machine matter little. Figures by columns are evaluations (one filter on one event) per second of processor
time, on one core, the best of many passes over a batch that was decoded before the measurement.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from fieldfare.filters import compile_filter, decode_normal_form, encode_normal_form
from fieldfare.filters.filter import Filter
from fieldfare.matching.evaluation.batches import BatchFilter
from fieldfare.matching.events.json_decoder import decode_json_lines

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

BY_COLUMNS = {
    "five_predicates": (
        "data.origin = 'JFK' AND data.carrier IN ('AA', 'B6') AND data.dep_delay BETWEEN 30 AND 120 "
        "AND data.distance > 500 AND NOT data.cancelled"
    ),
    "number": "data.distance > 500",
    "string": "data.origin = 'JFK'",
    "two_attributes": "data.high > data.low",
    "arithmetic_decimals": "data.high - data.low > 2",
    "arithmetic_long_floats": "data.x * data.y < 0.25",
    "like_contains": "data.name LIKE '%abc%'",
    "lower_case": "LOWER(data.name) LIKE '%abc%' AND LENGTH(data.name) > 12",
    "or_of_four": "data.origin = 'LGA' OR data.carrier = 'UA' OR data.distance < 100 OR data.cancelled",
    "like_one_character": "data.name LIKE 'a_c%'",
    "any_of_array": "ANY leg IN data.legs SATISFIES (leg > 4900)",
}
"""Filters by the operations that the evaluator performs for them."""
BATCHES = (4096, 65_536)
PASSES = 15

KINDS = {
    "times": {
        "hour_between": "HOUR(time) BETWEEN 9 AND 16",
        "time_of_day": "TIME_OF_DAY(time) >= TIME '21:30' OR TIME_OF_DAY(time) < TIME '05:00'",
        "difference_of_times": "TIMESTAMP(time) - TIMESTAMP(previous) > INTERVAL '10' MINUTE",
        "between_timestamps": (
            "time BETWEEN TIMESTAMP '2026-03-01T00:00:00Z' AND TIMESTAMP '2026-03-15T12:00:00Z'"
        ),
        "weekday_with_offset": "WEEKDAY(time, '+02:00') IN (6, 7)",
        "year_and_month": "YEAR(time) = 2026 AND MONTH(time) <= 6",
    },
    "numbers": {
        "number_of_text": "NUMBER(squawk) >= 7000",
        "floor": "FLOOR(a / 100) = 3",
        "round": "ROUND(low, 1) = 12.5",
        "coalesce": "COALESCE(b, 0) < 10",
        "coalesce_texts": "COALESCE(nick, name) LIKE 'ab%'",
        "arithmetic_of_calls": "ABS(high - low) / NUMBER(squawk) > 0.001",
    },
    "texts": {
        "trim": "TRIM(name) = 'abc'",
        "substring": "SUBSTRING(name, 2, 3) = 'abc'",
        "left_and_right": "LEFT(name, 2) = 'ab' OR RIGHT(name, 2) = 'ab'",
        "position": "POSITION('ab' IN name) > 3",
        "concat": "CONCAT(origin, '-', carrier) = 'JFK-AA'",
        "replace": "REPLACE(name, 'a', 'xx') LIKE '%xxb%'",
        "contains_attribute": "CONTAINS(name, nick)",
        "lower_not_ascii": "LOWER(city) = 'żary'",
        "like_with_one": "name LIKE 'a_c%'",
        "ignoring_case": "EQUALS_IGNORE_CASE(name, origin) OR STARTS_WITH_IGNORE_CASE(name, 'abCde')",
    },
    "places": {
        "distance_km": "DISTANCE_KM(lat, lon, 52.23, 21.01) < 500",
        "within_box": "WITHIN_BOX(lat, lon, 48, 10, 55, 25)",
    },
    "arrays": {
        "any_of_texts": "x = ANY(tags)",
        "any_and_comparison": "x = ANY(tags) AND high > low",
        "any_of_numbers": "ANY leg IN legs SATISFIES (leg > 4900)",
        "all_of_numbers": "ALL leg IN legs SATISFIES (leg BETWEEN 100 AND 4000)",
        "any_of_objects": "ANY item IN items SATISFIES (item.sku = 's7' AND item.count > 2)",
    },
    "others": {
        "in_cidr": "IN_CIDR(ip, '10.0.0.0/12')",
        "in_cidr_of_attribute": "IN_CIDR(ip, block)",
        "cesql_arithmetic": "CESQL_ADD(a, b) > 500",
        "cesql_equal": "CESQL_EQUAL(origin, 'JFK')",
    },
}
"""Filters by family of functions; each is measured over `ROWS` events, all of which it reads."""
ROWS = 10_000


def event(rng: random.Random) -> dict[str, Any]:
    low = round(rng.uniform(1, 100), 2)
    return {
        "origin": rng.choice(["JFK", "LGA", "EWR"]),
        "carrier": rng.choice(["AA", "B6", "UA", "DL"]),
        "dep_delay": rng.randrange(-20, 300),
        "distance": rng.randrange(80, 5000),
        "cancelled": rng.random() < 0.1,
        "low": low,
        "high": round(low + rng.uniform(-5, 5), 2),
        "x": rng.random(),
        "y": rng.random(),
        "name": "".join(rng.choices("abcdefgH", k=rng.randint(5, 30))),
        "legs": [rng.randrange(80, 5000) for _ in range(rng.randrange(4))],
    }


def odd_event(rng: random.Random) -> dict[str, Any]:
    """An event with attributes for every family of functions."""
    instant = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=rng.randrange(180 * 86_400))
    previous = instant - timedelta(seconds=rng.randrange(1200), milliseconds=rng.choice([0, 250]))
    tags = rng.sample(["red", "green", "blue", "rush", "fragile", "heavy"], rng.randrange(4))
    skus = [{"sku": f"s{rng.randrange(20)}", "count": rng.randrange(5)} for _ in range(rng.randrange(4))]
    found = {
        **event(rng),
        "time": instant.isoformat().replace("+00:00", "Z"),
        "previous": previous.isoformat(),
        "squawk": f"{rng.randrange(8000):04}",
        "a": rng.randrange(1000),
        "nick": "".join(rng.choices("abcd", k=2)),
        "city": rng.choice(["Żary", "Łódź", "Gdańsk", "Warszawa", "Kielce"]),
        "lat": round(rng.uniform(40, 60), 4),
        "lon": round(rng.uniform(0, 30), 4),
        "x": rng.choice(["red", "green", "blue"]),
        "tags": tags,
        "items": skus,
        "ip": f"10.{rng.randrange(64)}.{rng.randrange(256)}.{rng.randrange(256)}",
        "block": rng.choice(["10.0.0.0/12", "10.32.0.0/11", "192.168.0.0/16"]),
    }
    if rng.random() < 0.7:
        found["b"] = rng.randrange(1000)
    if rng.random() < 0.3:
        del found["nick"]
    return found


def by_kind() -> dict[str, dict[str, int]]:
    """Microseconds of one filter over `ROWS` events, without the first pass after decoding."""
    rng = random.Random(8)
    lines = [json.dumps(odd_event(rng)).encode() + b"\n" for _ in range(ROWS)]
    return {
        family: {name: round(ROWS / evaluations_per_s(text, lines) * 1e6) for name, text in filters.items()}
        for family, filters in KINDS.items()
    }


def evaluations_per_s(text: str, lines: list[bytes]) -> int:
    """Evaluations of a filter by columns, per second of processor time."""
    filter = compile_filter(text)
    by_columns = BatchFilter(filter)
    batch = decode_json_lines(b"".join(lines), len(lines), sorted(filter.column_paths))
    some = by_columns.matches(batch, np.arange(50)).tolist()
    assert some == [filter.matches(json.loads(line)) for line in lines[:50]]
    best_s = float("inf")
    for _ in range(PASSES):
        started = time.process_time()
        repeats = max(1, 65_536 // len(lines))
        for _ in range(repeats):
            by_columns.matches(replace(batch))  # a new batch, for which nothing was computed
        best_s = min(best_s, (time.process_time() - started) / repeats)
    return round(len(lines) / best_s)


def by_columns() -> dict[str, dict[str, int]]:
    rng = random.Random(7)
    lines = [json.dumps({"data": event(rng)}).encode() + b"\n" for _ in range(max(BATCHES))]
    return {
        name: {f"batch_{size}": evaluations_per_s(text, lines[:size]) for size in BATCHES}
        for name, text in BY_COLUMNS.items()
    }


def least_us(call: Callable[[], Any]) -> float:
    """The minimum, over many runs, of the mean time of a call, in microseconds."""
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    form = compiled_with_normal_form().normal_form
    encoded = encode_normal_form(form)
    three = compile_filter(THREE_PREDICATES)
    assert three.matches(MATCHING) and not three.matches(OTHER_ORIGIN)
    figures = {
        "parse_us": least_us(lambda: compile_filter(FIVE_PREDICATES).expression),
        "compile_for_registry_us": least_us(lambda: compile_filter(FIVE_PREDICATES).compiled),
        "compile_with_normal_form_us": least_us(compiled_with_normal_form),
        "encode_normal_form_us": least_us(lambda: encode_normal_form(form)),
        "decode_normal_form_us": least_us(lambda: decode_normal_form(encoded)),
        "encoded_size_bytes": len(encoded),
        "matches_first_predicate_fails_us": least_us(lambda: three.matches(OTHER_ORIGIN)),
        "matches_all_three_hold_us": least_us(lambda: three.matches(MATCHING)),
    }
    columns, kinds = by_columns(), by_kind()
    if options.json:
        print(json.dumps({**figures, "evaluations_per_s": columns, "us_for_10000": kinds}))
        return
    for name, figure in figures.items():
        print(f"{name:36}{figure:>10,}")
    print(f"{'evaluations/s by columns':36}", *(f"batch {size:,}".rjust(16) for size in BATCHES))
    for name, rates in columns.items():
        print(f"  {name:34}", *(f"{rate:16,}" for rate in rates.values()))
    print(f"one filter over {ROWS:,} events, in microseconds")
    for family, times in kinds.items():
        print(f"  {family}")
        for name, figure in times.items():
            print(f"    {name:32}{figure:>10,}")


if __name__ == "__main__":
    main()
