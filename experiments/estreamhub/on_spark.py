"""Table I and Figure 7 on a real Spark cluster: the delay of events by a slice's move.

    python experiments/estreamhub/on_spark.py --json
    python experiments/estreamhub/on_spark.py --kind fetched --json
    python experiments/estreamhub/on_spark.py --kind encrypted --columns 12500 --json

starts a standalone cluster of three workers with one core each, and ``fieldfare serve --elastic 3`` with
eight matchers, all on this machine. Then, for each column, it stores subscriptions until every slice has that
number, publishes an event every 50 ms, and requests 25 moves of random slices to random other hosts, one
after another. Each column is written to results/table_1_on_spark.csv at once; columns that were not measured
now are kept there. Prints one JSON object with a row for each column at the end:

kind
    ``shared``: all executors read one folder, whose files are in the page cache, so a move needs no reading.
    ``fetched``: with an index store, a separate cache for each executor, and moves only to executors that
    never had the slice; the index's files are evicted from the page cache before each move. ``encrypted``:
    like ``shared``, with ASPE's filters on four numbers (the paper's filtering).
subscriptions_a_slice, matchers, moves
    Parameters of the column: the paper has 12,500 and 50,000 (62,500, if a total of 500,000 is right). Use
    ``--columns 500000 --matchers 3`` for the largest slices; storing this number of subscriptions takes
    minutes.
move_p50_ms, move_p99_ms
    The additional delay of events sent while a slice moved, that is, from the request for the move until
    half a second after its placement took effect: their delays at these percentiles, from sending to
    receiving, minus those of the events that were sent in an equally long time before each move.
longest_p50_ms, longest_p99_ms
    Percentiles of the longest delay of an event during each move, minus the median delay at rest.
rest_longest_p50_ms, rest_longest_p99_ms
    The same for an equally long time just before each move, when nothing moved.
delay_p50_ms, delay_p99_ms
    The delays at rest.
took_p50_ms
    Time from the request to the manager until the new place was in effect, as in the paper's Table I. Its
    spread is ``took_deviation_ms``.
lost, doubled
    Events that did not arrive, or arrived more than once.
granted
    The share of tasks that ran on the executor that they requested.

Figure 7 is drawn from the events of the shared column of 50,000, by seconds.

Scaled down: two cores for the paper's 64 to 96, an event every 50 ms for its 100 publications/s, and an event
matches 0.01 % of the subscriptions instead of 1 %. Of its three operators only M has slices here: the work of
AP and EP is done by tasks without a place or state.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import altair as alt
import numpy as np
from elastic_runs import COLOUR, RESULTS, as_data
from elastic_service import (
    ATTRIBUTES,
    DOMAIN,
    MATCHERS,
    WORKERS,
    ElasticScene,
    Publisher,
    came_after_ms,
    elastic_scene,
)

from fieldfare.client import Client
from fieldfare.client.encrypting import NO_ENCRYPTION, Encryption
from fieldfare.client.encryption import SpaceKey
from fieldfare.storage.elastic import Move
from fieldfare_lab.feeding import Reader, subscribe_ranges
from fieldfare_lab.spark_cluster import why_no_cluster

MOVES = 25
TABLE, FIGURE = "table_1_on_spark", "figure_7_on_spark"
COLUMNS = (12_500, 50_000, 62_500)
IN_FIGURE = 50_000
WIDTH = 100
PAUSE_S, AFTER_S = 1.5, 0.5
SHARED, FETCHED, ENCRYPTED = "shared", "fetched", "encrypted"
NUMBERS = {f"data.a{i}": (0, DOMAIN, 1) for i in range(ATTRIBUTES)} | {"data.n": (0, 1_000_000, 1)}
STEADY_MS, MS_MAX = 500, 2000
"""Figure 7 according to the paper's text: the steady state, and a bound on the largest delays."""


class Scene(NamedTuple):
    """The service of a kind, its publisher, and the place of its index store."""

    kind: str
    elastic: ElasticScene
    index_store: Path | None
    encryption: Encryption

    @property
    def space(self) -> str:
        return ENCRYPTED if self.kind == ENCRYPTED else "default"

    def forget_index(self) -> None:
        """Evict the index store's files from the page cache."""
        for path in self.index_store.rglob("*") if self.index_store else ():
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def scene_of(kind: str, matchers: int) -> Iterator[Scene]:
    """A cluster and a service of a kind."""
    with TemporaryDirectory(prefix="index-store-") as folder:
        store = Path(folder) if kind == FETCHED else None
        with elastic_scene(str(WORKERS), matchers, index_store=store and store.as_uri()) as elastic:
            encryption: Encryption = NO_ENCRYPTION
            if kind == ENCRYPTED:
                encryption = SpaceKey.generate(NUMBERS)
                with Client(elastic.service.url) as admin:
                    admin.create_space(ENCRYPTED, encrypted=encryption)
            yield Scene(kind, elastic, store, encryption)


def next_move(scene: Scene, random: Random, visited: set[tuple[str, str]]) -> tuple[str, str] | None:
    """A random slice and a host to move it to; None when the slices have been at all allowed hosts."""
    configuration = scene.elastic.record.configuration
    assert configuration is not None
    visited |= {(name, place.host) for name, place in configuration.places.items()}
    pairs = [
        (name, host)
        for name, place in sorted(configuration.places.items())
        for host in configuration.hosts
        if host != place.host and (scene.kind != FETCHED or (name, host) not in visited)
    ]
    return random.choice(pairs) if pairs else None


def column(scene: Scene, subscriptions: int, moves: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Moves while events arrive, with a number of subscriptions per slice: rows of table and figure."""
    url, elastic = scene.elastic.service.url, scene.elastic
    publisher = Publisher(url, space=scene.space, encryption=scene.encryption)
    reader = Reader(url, "all", scene.space)
    publisher.start()
    reader.start()
    time.sleep(5.0)
    before, random, done = elastic.loads, Random(subscriptions), []
    visited: set[tuple[str, str]] = set()
    while len(done) < moves and (move := next_move(scene, random, visited)) is not None:
        time.sleep(PAUSE_S)
        scene.forget_index()
        done.append(elastic.move(*move))
    time.sleep(PAUSE_S)
    after = elastic.loads
    publisher.stop()
    elastic.wait(lambda: len(reader.came) >= len(publisher.sent))
    reader.stop()
    counts = Counter(len(times) for times in reader.came.values())
    events = came_after_ms(publisher, reader.came)
    offset_s = time.time() - time.monotonic()
    spans = [(move.asked_ms / 1000 - offset_s, move.placed_ms / 1000 - offset_s) for move in done]
    assert before is not None
    assert after is not None
    took_ms = [move.placed_ms - move.asked_ms for move in done]
    row = {
        "kind": scene.kind,
        "subscriptions_a_slice": subscriptions,
        "matchers": len(after.slices),
        "moves": len(done),
        **delays(events, spans),
        "took_p50_ms": round(statistics.median(took_ms), 1),
        "took_mean_ms": round(statistics.mean(took_ms), 1),
        "took_deviation_ms": round(statistics.pstdev(took_ms), 1),
        "events": len(publisher.sent),
        "lost": len(publisher.sent.keys() - reader.came.keys()),
        "doubled": sum(count for times, count in counts.items() if times > 1),
        "granted": round((after.granted - before.granted) / max(1, after.asked - before.asked), 4),
    }
    return row, by_seconds(events, spans, done)


def delays(events: list[tuple[float, float]], spans: list[tuple[float, float]]) -> dict[str, Any]:
    """The delays of events while slices moved, and while they did not."""
    sent_s, delay_ms = np.array(events).T

    def within(spans: list[tuple[float, float]]) -> list[Any]:
        return [delay_ms[(sent_s >= start) & (sent_s < end)] for start, end in spans]

    during = [(start, end + AFTER_S) for start, end in spans]
    moving, resting = within(during), within([(2 * start - end - 0.1, start - 0.1) for start, end in during])
    both = [np.percentile(np.concatenate(some), (50, 99)) for some in (moving, resting)]
    median_ms = float(both[1][0])
    longest = [[float(each.max()) - median_ms for each in some if len(each)] for some in (moving, resting)]
    values = {
        "move_p50_ms": both[0][0] - both[1][0],
        "move_p99_ms": both[0][1] - both[1][1],
        "longest_p50_ms": statistics.median(longest[0]),
        "longest_p99_ms": np.percentile(longest[0], 99),
        "rest_longest_p50_ms": statistics.median(longest[1]),
        "rest_longest_p99_ms": np.percentile(longest[1], 99),
        "delay_p50_ms": median_ms,
        "delay_p99_ms": both[1][1],
    }
    return {name: round(float(value), 1) for name, value in values.items()}


def by_seconds(
    events: list[tuple[float, float]], spans: list[tuple[float, float]], moves: list[Move]
) -> list[dict[str, Any]]:
    """Figure 7: minimum, mean and maximum of each second's delays, and the slice that began to move in it."""
    sent_s, delay_ms = np.array(events).T
    first_s = spans[0][0] - 5.0
    moved = {int(start - first_s): move.slice for (start, _), move in zip(spans, moves, strict=True)}
    rows = []
    for second in range(int(spans[-1][1] - first_s) + 2):
        inside = delay_ms[(sent_s >= first_s + second) & (sent_s < first_s + second + 1)]
        if len(inside):
            shares = {"min": inside.min(), "mean": inside.mean(), "max": inside.max()}
            named = {f"delay_{name}_ms": round(float(value), 1) for name, value in shares.items()}
            rows.append({"time_s": second, **named, "moved": moved.get(second, "")})
    return rows


def measure(
    kind: str, columns: list[int], moves: int, matchers: int
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return for each column its row, and its events by seconds."""
    with scene_of(kind, matchers) as scene:
        stored, elastic = 0, scene.elastic
        for subscriptions in columns:
            wanted = matchers * subscriptions
            subscribe_ranges(
                elastic.service.url, stored, wanted, ATTRIBUTES, DOMAIN, WIDTH, scene.space, scene.encryption
            )
            stored = wanted
            elastic.settle()
            yield column(scene, subscriptions, moves)


def keep(row: dict[str, Any]) -> None:
    """Put a column's row into the table, replacing an existing one."""
    kept = RESULTS.read(TABLE) if (RESULTS.path / f"{TABLE}.csv").exists() else []

    def key(each: dict[str, Any]) -> tuple[Any, ...]:
        return each["kind"], each["subscriptions_a_slice"]

    others = [each for each in kept if each.keys() == row.keys() and key(each) != key(row)]
    RESULTS.write(
        TABLE,
        sorted(
            [*others, row],
            key=lambda each: (
                (SHARED, FETCHED, ENCRYPTED).index(each["kind"]),
                each["subscriptions_a_slice"],
            ),
        ),
    )


def draw(rows: list[dict[str, Any]]) -> None:
    """Figure 7."""
    x = alt.X("time_s:Q", title="time, s", scale=alt.Scale(nice=False))
    base = alt.Chart(as_data(rows), width=640, height=240).encode(x=x)
    top_ms = max(row["delay_max_ms"] for row in rows)
    scale = alt.Scale(domain=[0, 1.1 * max(top_ms, STEADY_MS)])
    y = alt.Y("delay_min_ms:Q", title="delay, ms: least, mean, most", scale=scale)
    moved = [row for row in rows if row["moved"]]
    named = [{**row, "slice": row["moved"].removeprefix("M:")} for row in moved]
    moves = alt.Chart(as_data(named)).encode(x=x)
    said = [{"ms": STEADY_MS, "words": f"the paper, at rest; during moves less than {MS_MAX} ms"}]
    steady = alt.Chart(as_data(said)).encode(y="ms:Q")
    chart = (
        base.mark_area(opacity=0.25).encode(y=y, y2="delay_max_ms:Q")
        + base.mark_line().encode(y="delay_mean_ms:Q")
        + moves.mark_rule(strokeDash=[4, 4], color="gray")
        + moves.mark_text(dx=3, align="left", color="gray", fontSize=8).encode(y=alt.value(6), text="slice:N")
        + steady.mark_rule(color=COLOUR)
        + steady.mark_text(color=COLOUR, dy=-6, dx=-310, align="left").encode(text="words:N")
    )
    title = "Figure 7 on Spark: delays while slices (grey: which) move between three executors, 20 events/s"
    RESULTS.draw(FIGURE, chart.properties(title=title))


def main() -> None:
    parser = argparse.ArgumentParser(description="Table I and Figure 7 on a real Spark cluster.")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.add_argument("--draw", action="store_true", help="only draw the results of an earlier run")
    parser.add_argument("--columns", default=",".join(map(str, COLUMNS)), help="subscriptions per slice")
    parser.add_argument("--kind", choices=(SHARED, FETCHED, ENCRYPTED), default=SHARED)
    parser.add_argument("--moves", type=int, default=MOVES, help="moves per column")
    parser.add_argument("--matchers", type=int, default=MATCHERS, help="total number of slices")
    options = parser.parse_args()
    if options.draw:
        draw(RESULTS.read(FIGURE))
        return
    if (reason := why_no_cluster()) is not None:
        sys.exit(f"there can be no Spark cluster here: {reason}")
    columns = [int(text) for text in options.columns.split(",")]
    rows = []
    with redirect_stdout(sys.stderr if options.json else sys.stdout):
        for row, seconds in measure(options.kind, columns, options.moves, options.matchers):
            print(row)
            keep(row)
            rows.append(row)
            if options.kind == SHARED and row["subscriptions_a_slice"] == IN_FIGURE:
                RESULTS.write(FIGURE, seconds)
                draw(seconds)
    if options.json:
        print(json.dumps({"workers": WORKERS, "columns": rows}))


if __name__ == "__main__":
    main()
