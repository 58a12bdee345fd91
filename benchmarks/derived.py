"""Cost of a derived column compared with an attribute: ``python benchmarks/derived.py --json``.

The workload is W-RANGE, except that one of the 20 attributes is an hour, from 0 to 23, with ranges of ten
hours. On one side filters contain ``hour BETWEEN 7 AND 16``, on the other ``HOUR(time) BETWEEN 7 AND 16``;
everything else is equal, and so are the matches. Both parts are in one process and match the same batches
alternately, on one thread. The figures are processor time, the best of `--runs`.

events_per_s_attribute, events_per_s_derived
    Times come from Arrow and are read as text; the derived column is computed once for each batch.
derived_over_attribute
    The time with the derived column divided by the time with the attribute. Goal: 1.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import pyarrow as pa

from fieldfare.filters import compile_filter
from fieldfare.matching.events.arrow_decoder import columns_from_arrow
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.index import Index
from fieldfare.matching.part import Part
from fieldfare.model import Path, derived_text
from fieldfare_lab.workloads.columns import range_columns
from fieldfare_lab.workloads.predicate_columns import RangePredicates, build_part_from_columns
from fieldfare_lab.workloads.synthetic import WORKLOADS

BATCH_EVENTS = 4096
HOURS = 10
"""Width of a range in hours: about the same share of a day as W-RANGE's ranges have of their axis."""
ATTRIBUTE: Path = ("hour",)


def derived() -> Path:
    """The derived column of ``HOUR(time)``."""
    (conjunction,) = compile_filter("HOUR(time) < 7").normal_form.conjunctions
    return next(path for path, _ in conjunction.constraints if derived_text(path) is not None)


def part_of(count: int, seed: int, hour: Path) -> Part:
    """A part whose first attribute is an hour."""
    paths, predicates, _ = range_columns(count, seed)
    rng = np.random.default_rng(seed)
    changed = []
    for block in predicates:
        assert isinstance(block, RangePredicates)
        mine = np.asarray(block.path) == 0
        first = rng.integers(0, 24 - HOURS + 1, int(mine.sum()))
        low, high = np.array(block.low), np.array(block.high)
        low[mine], high[mine] = first, first + HOURS - 1
        changed.append(RangePredicates(block.subscription, block.path, low, high))
    return build_part_from_columns((hour, *paths[1:]), changed, np.arange(count, dtype=np.uint32))


def events_of(count: int, seed: int) -> list[pa.RecordBatch]:
    """Events with a time, and with its hour as an attribute."""
    drawn = WORKLOADS["range"].events(count, seed)
    rng = np.random.default_rng(seed)
    seconds = rng.integers(0, 86_400, count)
    columns = {str(path[-1]): column.words for path, column in drawn.columns.items()}
    data = pa.StructArray.from_arrays([pa.array(each) for each in columns.values()], list(columns))
    moments = np.datetime64("2026-03-02", "us") + seconds.astype("timedelta64[s]")
    times = pa.array(moments, pa.timestamp("us", "UTC"))
    table = pa.RecordBatch.from_pydict({"data": data, "hour": seconds // 3600, "time": times})
    return [table.slice(start, BATCH_EVENTS) for start in range(0, count, BATCH_EVENTS)]


def time_matching(part: Part, batches: list[ColumnBatch]) -> tuple[float, int]:
    """Return the processor time in seconds, and the matches."""
    started = time.process_time()
    index = Index((part,))
    matches = sum(len(index.match(batch, np.zeros(batch.size, np.int64)).subscriptions) for batch in batches)
    return time.process_time() - started, matches


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--subscriptions", type=int, default=1_000_000, help="(default: %(default)s)")
    parser.add_argument("--events", type=int, default=16_384, help="(default: %(default)s)")
    parser.add_argument(
        "--runs", type=int, default=7, help="runs of each side, alternating (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    options = parser.parse_args()
    events = events_of(options.events, options.seed + 1)
    sides = []
    for hour in (ATTRIBUTE, derived()):
        part = part_of(options.subscriptions, options.seed, hour)
        sides.append((part, [columns_from_arrow(batch, part.paths) for batch in events]))
    taken: list[list[float]] = [[], []]
    matches = {time_matching(*side)[1] for side in sides}
    assert len(matches) == 1, "both sides have the same matches"
    for _ in range(options.runs):
        for seconds, side in zip(taken, sides, strict=True):
            seconds.append(time_matching(*side)[0])
    figures = {
        "subscriptions": options.subscriptions,
        "matches_per_event": round(matches.pop() / options.events, 1),
        "events_per_s_attribute": round(options.events / min(taken[0])),
        "events_per_s_derived": round(options.events / min(taken[1])),
        "derived_over_attribute": round(min(taken[1]) / min(taken[0]), 3),
        "seed": options.seed,
    }
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:>24}  {value:,}")


if __name__ == "__main__":
    main()
