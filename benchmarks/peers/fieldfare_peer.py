"""fieldfare, run in the same way as the other engines: ``WORKLOAD SUBSCRIPTIONS EVENTS SECONDS``.

Filters are texts of the sql dialect; events are JSON lines, and decoding them is timed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from fieldfare.filters import compile_filter
from fieldfare.matching.events.json_decoder import decode_json_lines
from fieldfare.matching.index import Index
from fieldfare.matching.part import Part, build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END

BATCH_EVENTS = 4096


def filter_text(fields: list[str], is_range: bool) -> str:
    """A subscription as a filter."""
    if is_range:
        predicates = zip(fields[::3], fields[1::3], fields[2::3], strict=True)
        return " AND ".join(f"data.{name} BETWEEN {low} AND {high}" for name, low, high in predicates)
    return " AND ".join(
        f"data.{name} = '{value}'" for name, value in zip(fields[::2], fields[1::2], strict=True)
    )


def entries(file: Path, is_range: bool) -> Iterator[IndexEntry]:
    with file.open() as lines:
        for number, line in enumerate(lines):
            text = filter_text(line.rstrip("\n").split("\t"), is_range)
            yield IndexEntry(number, number, 0, OPEN_END, compile_filter(text).compiled, text, "sql")


def json_lines(lines: list[str], is_range: bool) -> bytes:
    """Events as their publishers send them."""
    made = []
    for line in lines:
        values: list[str | int] = list(line.split("\t"))
        if is_range:
            values = [int(value) for value in values]
        made.append(json.dumps({"data": {f"a{a:02d}": value for a, value in enumerate(values)}}))
    return "".join(line + "\n" for line in made).encode()


def match(part: Part, payload: bytes, size: int) -> list[int]:
    """The number of subscriptions that each event matches; their ids are written."""
    columns = decode_json_lines(payload, size, part.paths)
    return np.diff(Index((part,)).match(columns, np.zeros(size, np.int64)).indptr).tolist()


def main() -> None:
    workload, subscriptions, events, limit_s = sys.argv[1:]
    is_range = workload == "range"
    lines = Path(events).read_text().splitlines()
    warm = build_part(islice(entries(Path(subscriptions), is_range), 5000))  # kernels are compiled once
    match(warm, json_lines(lines[:8], is_range), 8)
    started = time.perf_counter()
    part = build_part(entries(Path(subscriptions), is_range))
    build_s = time.perf_counter() - started
    counts: list[int] = []
    elapsed_s = 0.0
    for at in range(0, len(lines), BATCH_EVENTS):
        batch = lines[at : at + BATCH_EVENTS]
        payload = json_lines(batch, is_range)
        started = time.perf_counter()
        counts += match(part, payload, len(batch))
        elapsed_s += time.perf_counter() - started
        if elapsed_s > float(limit_s):
            break
    figures = {"build_s": build_s, "elapsed_s": elapsed_s, "events": len(counts), "matches": sum(counts)}
    print(json.dumps({**figures, "counts": counts[:1000]}))


if __name__ == "__main__":
    main()
