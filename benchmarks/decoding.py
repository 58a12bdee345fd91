"""Speed of decoding JSON events to columns, on one core.

Each workload is a payload of JSON lines and the paths that filters name. A figure is the best of
several passes over all payloads, in processor time (so that other work on the machine matters little);
events are generated before the measurement::

    python benchmarks/decoding.py            # a table
    python benchmarks/decoding.py --json     # one JSON object
    python benchmarks/decoding.py --arrow    # pyarrow.json instead of fieldfare's decoder
"""

from __future__ import annotations

import argparse
import io
import json
import random
import time
from collections.abc import Callable
from typing import Any

import pyarrow.json

from fieldfare.matching.events.arrow_decoder import columns_from_arrow
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.events.json_decoder import decode_json_lines

Rows = list[dict[str, Any]]
Named = list[tuple[str | int, ...]]

SYMBOLS = [a + b + c for a in "ABCDEFGH" for b in "KLMNOP" for c in "UVWXYZ"]
ATTRIBUTES: Named = [(f"a{k}",) for k in range(20)]


def flat(rng: random.Random) -> dict[str, Any]:
    """An event of about 150 bytes with 10 attributes."""
    return {
        "id": f"{rng.getrandbits(48):012x}",
        "symbol": rng.choice(SYMBOLS),
        "exchange": rng.choice(["XNAS", "XNYS", "XLON"]),
        "price": round(rng.uniform(1, 500), 2),
        "volume": rng.randrange(1, 100_000),
        "bid": round(rng.uniform(1, 500), 2),
        "ask": round(rng.uniform(1, 500), 2),
        "open": rng.random() < 0.5,
        "side": rng.choice(["buy", "sell"]),
        "seq": rng.randrange(10**6),
    }


def unlike(rng: random.Random) -> dict[str, Any]:
    """Like `flat`, but one in twenty has a value of another type, one member fewer, or another order."""
    event = flat(rng)
    kind = rng.randrange(100)
    if kind == 0:
        event["price"] = str(event["price"])
    elif kind == 1:
        event["volume"] = 10**25 + event["volume"]
    elif kind == 2:
        event["symbol"] = "\u00e9\n" + event["symbol"]
    elif kind == 3:
        del event["bid"]
    elif kind == 4:
        return dict(sorted(event.items()))
    return event


def numbers(rng: random.Random) -> dict[str, Any]:
    """W-RANGE: 20 whole numbers below a million."""
    return {f"a{k}": rng.randrange(10**6) for k in range(20)}


def strings(rng: random.Random) -> dict[str, Any]:
    """W-EQ: 20 strings, each one of 100."""
    return {f"a{k}": f"v{rng.randrange(100)}" for k in range(20)}


def floats(rng: random.Random) -> dict[str, Any]:
    """20 floats with 17 digits."""
    return {f"a{k}": rng.random() * 1000 for k in range(20)}


def short(rng: random.Random) -> dict[str, Any]:
    """20 attributes in about 150 bytes."""
    return {chr(97 + k): rng.randrange(100) for k in range(20)}


def cloud_event(rng: random.Random) -> dict[str, Any]:
    """A nested CloudEvent of about 400 bytes: a departure and its weather."""
    return {
        "specversion": "1.0",
        "id": f"{rng.getrandbits(64):016x}",
        "source": "/airports/" + rng.choice(SYMBOLS),
        "type": "org.example.departure",
        "time": f"2013-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}T{rng.randint(0, 23):02}:15:00Z",
        "data": {
            "carrier": rng.choice(["UA", "AA", "B6", "DL"]),
            "flight": rng.randrange(1, 6000),
            "origin": rng.choice(SYMBOLS),
            "dest": rng.choice(SYMBOLS),
            "dep_delay": rng.choice([None, rng.randrange(-20, 300)]),
            "distance": rng.randrange(80, 5000),
            "hour": rng.randrange(24),
            "tailnum": f"N{rng.randrange(10**4, 10**5)}",
            "weather": {
                "temp": round(rng.uniform(0, 100), 2),
                "wind_speed": round(rng.uniform(0, 50), 5),
                "visib": rng.choice([10.0, 9.0, 0.25]),
                "precip": round(rng.random(), 2),
                "pressure": round(rng.uniform(980, 1040), 1),
            },
        },
    }


DEPARTURE: Named = [
    ("data", name)
    for name in ("carrier", "flight", "origin", "dest", "dep_delay", "distance", "hour", "tailnum")
]
WEATHER: Named = [("data", "weather", name) for name in ("temp", "wind_speed", "visib", "precip")]

WORKLOADS: dict[str, tuple[Callable[[random.Random], dict[str, Any]], Named]] = {
    "flat_4_of_10": (flat, [("symbol",), ("price",), ("volume",), ("exchange",)]),
    "unlike_4_of_10": (unlike, [("symbol",), ("price",), ("volume",), ("exchange",)]),
    "short_20_of_20": (short, [(chr(97 + k),) for k in range(20)]),
    "numbers_20_of_20": (numbers, ATTRIBUTES),
    "strings_20_of_20": (strings, ATTRIBUTES),
    "floats_20_of_20": (floats, ATTRIBUTES),
    "cloudevents_12_nested": (cloud_event, DEPARTURE + WEATHER),
}


def decode_with_arrow(payload: bytes, size: int, paths: Named) -> ColumnBatch:
    """Decode the same columns with ``pyarrow.json``, on one thread; its errors are not corrected."""
    block = pyarrow.json.ReadOptions(use_threads=False, block_size=len(payload) + 1)
    table = pyarrow.json.read_json(io.BytesIO(payload), read_options=block)
    (batch,) = table.combine_chunks().to_batches()
    return columns_from_arrow(batch, paths)


def measure(make: Callable[[random.Random], dict[str, Any]], paths: Named, args: argparse.Namespace) -> Any:
    rng = random.Random(args.seed)
    payloads = []
    for _ in range(max(1, args.events // args.batch)):
        lines = (json.dumps(make(rng), separators=(",", ":")) for _ in range(args.batch))
        payloads.append("".join(line + "\n" for line in lines).encode())
    events = args.batch * len(payloads)
    decode = decode_with_arrow if args.arrow else decode_json_lines
    decode(payloads[0], args.batch, paths)
    best_s = float("inf")
    for _ in range(args.passes):
        start = time.process_time()
        for payload in payloads:
            decode(payload, args.batch, paths)
        best_s = min(best_s, time.process_time() - start)
    size = sum(map(len, payloads))
    return {
        "events_per_s": round(events / best_s),
        "mb_per_s": round(size / best_s / 1e6),
        "bytes_per_event": round(size / events),
        "paths": len(paths),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=4096, help="events decoded per call")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--workload", choices=WORKLOADS, action="append")
    parser.add_argument("--arrow", action="store_true", help="decode with pyarrow.json, for comparison")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    names = args.workload or list(WORKLOADS)
    figures = {name: measure(*WORKLOADS[name], args) for name in names}
    small = argparse.Namespace(**{**vars(args), "batch": 5, "events": 5000})
    call = measure(*WORKLOADS["cloudevents_12_nested"], small)
    overhead_us = round(5e6 / call["events_per_s"], 1)
    if args.json:
        print(json.dumps({**figures, "call_of_5_events_us": overhead_us, "seed": args.seed}))
        return
    for name, figure in figures.items():
        print(
            f"{name:24}{figure['events_per_s']:>12,} events/s{figure['mb_per_s']:>7} MB/s"
            f"{figure['bytes_per_event']:>6} bytes/event{figure['paths']:>4} paths"
        )
    print(f"{'a call of 5 events':24}{overhead_us:>12} us")


if __name__ == "__main__":
    main()
