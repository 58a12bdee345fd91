"""Speed of changes to an index: ``python benchmarks/updates.py --subscriptions 1000000 --json``.

Uses one core. A snapshot of W-RANGE subscriptions is built from columns; then

* bulk: adds, replacements and removals, a third each, are applied 20,000 at a time, with their encoded
  normal forms as stored in the registry; and again with texts only;
* single: one change at a time (add, replace, remove), each followed by matching one event against it;
* beside: events are matched with the snapshot alone, and with 1 % of the subscriptions in deltas;
* compaction: a new snapshot of everything is built and put into use.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable, Iterator

import numpy as np

from fieldfare.filters import compile_filter
from fieldfare.matching.events.columns import KIND_INT, Column, ColumnBatch
from fieldfare.matching.index import Applied, Index, LiveIndex
from fieldfare.matching.part import Part, build_part
from fieldfare.model import Change
from fieldfare_lab.workloads.columns import (
    RANGE_ATTRIBUTES,
    RANGE_DOMAIN,
    RANGE_PREDICATES,
    RANGE_WIDTH,
    range_columns,
)
from fieldfare_lab.workloads.predicate_columns import build_part_from_columns
from fieldfare_lab.workloads.synthetic import WORKLOADS

AT_ONCE = 20_000
BATCH_EVENTS = 4096
AFTER_ALL = 1 << 60
"""The stamp of events that are matched against all changes."""


def snapshot(size: int, seed: int) -> Part:
    """A part with W-RANGE subscriptions, numbered from 0; version n + 1 belongs to number n."""
    paths, predicates, _ = range_columns(size, seed)
    return build_part_from_columns(paths, predicates, np.arange(size), versions=np.arange(size) + 1)


def filter_text(rng: np.random.Generator, attributes: int) -> str:
    """A filter of ten ranges."""
    chosen = rng.permutation(attributes)[:RANGE_PREDICATES].tolist()
    lows = rng.integers(0, RANGE_DOMAIN - RANGE_WIDTH, RANGE_PREDICATES).tolist()
    pairs = zip(chosen, lows, strict=True)
    return " AND ".join(f"data.a{a:02d} BETWEEN {low} AND {low + RANGE_WIDTH}" for a, low in pairs)


def changes(size: int, first: int, count: int, seed: int, compiled: bool) -> list[Change]:
    """Adds, replacements and removals, in turn; revisions are counted from `first`."""
    rng = np.random.default_rng(seed)
    numbers = rng.permutation(size)[:count].tolist()
    made = []
    for i in range(count):
        text = None if i % 3 == 2 else filter_text(rng, RANGE_ATTRIBUTES)
        number = first + i if i % 3 == 0 else numbers[i]
        form = compile_filter(text).compiled if text is not None and compiled else None
        made.append(Change(first + i, "default", number, text, "sql", form))
    return made


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Return wall seconds and processor seconds."""
    started, busy = time.perf_counter(), time.thread_time()
    action()
    return time.perf_counter() - started, time.thread_time() - busy


def in_bulk(live: LiveIndex, made: list[Change]) -> Iterator[Applied]:
    for start in range(0, len(made), AT_ONCE):
        yield live.apply(made[start : start + AT_ONCE])


def events_of(size: int, seed: int, attributes: int) -> ColumnBatch:
    values = np.random.default_rng(seed).integers(0, RANGE_DOMAIN, (attributes, size))
    kinds = np.full(size, KIND_INT, np.uint8)
    return ColumnBatch(size, {("data", f"a{i:02d}"): Column(kinds, values[i]) for i in range(attributes)})


def single_changes_ms(live: LiveIndex, count: int, attributes: int, first: int = 0) -> dict[str, float]:
    """Time to apply a change and match one event against it: median and 95th percentile.

    Adds, replacements and removals in turn, of numbers from `first` on, each with another event.
    """
    rng = np.random.default_rng(5)
    events = events_of(count, 6, attributes)
    stamp = np.full(1, AFTER_ALL)
    applied, matched, seen = [], [], []
    for i in range(count):
        revision = live.revision + 1
        text = None if i % 3 == 2 else filter_text(rng, attributes)
        change = Change(revision, "default", revision if i % 3 == 0 else first + i, text)
        columns = {
            path: Column(column.kinds[i : i + 1], column.words[i : i + 1])
            for path, column in events.columns.items()
        }
        one = ColumnBatch(1, columns)
        started = time.perf_counter()
        index = live.apply([change]).index
        ready = time.perf_counter()
        index.match(one, stamp)
        done = time.perf_counter()
        applied.append(ready - started)
        matched.append(done - ready)
        seen.append(done - started)
    times = {"applied": applied, "matched_after": matched, "visible": seen}
    return {
        f"{name}_{which}_ms": round(float(np.quantile(found, share)) * 1000, 3)
        for name, found in times.items()
        for which, share in (("median", 0.5), ("p95", 0.95))
    }


def events_per_cpu_s(index: Index, batches: list[ColumnBatch]) -> float:
    """Events per second of processor time, on which other load has little effect."""
    started = time.thread_time()
    for batch in batches:
        index.match(batch, np.full(batch.size, AFTER_ALL))
    return sum(batch.size for batch in batches) / (time.thread_time() - started)


def beside(before: Index, after: Index, rounds: int) -> dict[str, float]:
    """Matching without and with deltas, alternately, so that both run under the same conditions."""
    batches = [WORKLOADS["range"].events(BATCH_EVENTS, 90 + i) for i in range(2)]
    for index in (before, after):
        events_per_cpu_s(index, batches[:1])
    rates = [(events_per_cpu_s(before, batches), events_per_cpu_s(after, batches)) for _ in range(rounds)]
    alone, together = (float(np.median(found)) for found in zip(*rates, strict=True))
    ratio = float(np.median([b / a for a, b in rates]))
    return {
        "events_per_cpu_s_snapshot_alone": round(alone),
        "events_per_cpu_s_with_deltas": round(together),
        "speed_with_deltas": round(ratio, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subscriptions", type=int, default=1_000_000)
    parser.add_argument("--changes", type=int, default=60_000, help="changes in bulk")
    parser.add_argument("--singles", type=int, default=200, help="changes one at a time")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    options = parser.parse_args()
    size = options.subscriptions
    warm = LiveIndex(snapshot(5000, 2), 5000)
    list(in_bulk(warm, changes(5000, 5001, 3000, 3, True)))
    warm.index.match(events_of(64, 1, RANGE_ATTRIBUTES), np.zeros(64, np.int64))
    build_part([])

    part = snapshot(size, options.seed)
    figures: dict[str, float] = {"subscriptions": size, "changes": options.changes}
    for name, compiled in (("encoded", True), ("texts", False)):
        live = LiveIndex(part, size)
        made = changes(size, size + 1, options.changes, options.seed, compiled)
        elapsed_s, busy_s = timed(lambda: list(in_bulk(live, made)))  # noqa: B023
        figures[f"bulk_{name}_changes_per_s"] = round(len(made) / elapsed_s)
        figures[f"bulk_{name}_changes_per_cpu_s"] = round(len(made) / busy_s)
    live = LiveIndex(part, size)
    list(in_bulk(live, changes(size, size + 1, size * 3 // 200, options.seed, True)))
    figures |= {"in_deltas": live.delta_size, "parts": len(live.index.parts)}
    figures |= beside(Index((part,)), live.index, options.rounds)
    figures |= single_changes_ms(live, options.singles, RANGE_ATTRIBUTES, size // 2)
    wide = LiveIndex()
    wide.apply([Change(1, "default", 1, " AND ".join(f"data.a{i:02d} > {i}" for i in range(250)))])
    figures |= {f"500_attributes_{k}": v for k, v in single_changes_ms(wide, options.singles, 500).items()}
    compacted = snapshot(size, options.seed)
    figures["rebase_s"] = round(timed(lambda: live.rebase(compacted, size))[0], 3)
    figures["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    figures["seed"] = options.seed
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:>40}  {value:,}")


if __name__ == "__main__":
    main()
