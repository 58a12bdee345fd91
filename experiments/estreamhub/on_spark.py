"""Table I and Figure 7 on a real Spark cluster: what a slice's move delays events by.

    python experiments/estreamhub/on_spark.py --json

starts a standalone cluster of three workers of a core each, and ``fieldfare serve --elastic 3`` with eight
matchers, all on this machine; then, for each column, stores subscriptions until every slice has so many,
publishes an event every 50 ms, and asks for 25 moves of random slices to random other hosts, one after the
other. Each column goes into results/table_1_on_spark.csv at once, where those that were not measured now
stay; at the end it prints one JSON object with a row for each:

subscriptions_a_slice, matchers, moves
    Of the column: the paper has 12,500 and 50,000 (62,500, if 500,000 in all is right). ``--columns 500000
    --matchers 3`` for the largest slices: so many subscriptions take minutes to be stored.
move_p50_ms, move_p99_ms
    By how much events come later that were sent while a slice moved, from when the move was asked for until
    half a second after its placement took effect: their delays at these percentiles, from sending an event
    to having it, less those of the events that were sent in as long a time before each move.
longest_p50_ms, longest_p99_ms
    Of the longest delay of an event during each move, less the median delay at rest.
rest_longest_p50_ms, rest_longest_p99_ms
    The same of as long a time just before each move, when nothing moved.
delay_p50_ms, delay_p99_ms
    The delays at rest.
took_p50_ms
    From when the manager was asked to when the new place was in effect.
lost, doubled
    Events that did not come, or came more than once.
granted
    The share of tasks that ran on the executor that they asked for.

Figure 7 is drawn from the events of the column of 50,000, by seconds, or of another while there is none.

Scaled: two cores for the paper's 64 to 96, an event every 50 ms for its 100 publications/s, and an event
matches 0.01 % of the subscriptions for its 1 %. Of its three operators only M has slices here: what AP and EP
do is done by tasks that have no place, nor state.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stdout
from random import Random
from typing import Any

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

from fieldfare.runtimes.spark.elastic.record import Move
from fieldfare_lab.feeding import Reader, subscribe_ranges
from fieldfare_lab.spark_cluster import why_no_cluster

MOVES = 25
TABLE, FIGURE = "table_1_on_spark", "figure_7_on_spark"
COLUMNS = (12_500, 50_000, 62_500)
IN_FIGURE = 50_000
WIDTH = 100
PAUSE_S, AFTER_S = 1.5, 0.5
STEADY_MS, MOST_MS = 500, 2000
"""Figure 7, as the paper's text has it: steady state, and below which the largest delays stay."""


def column(
    scene: ElasticScene, subscriptions: int, moves: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Moves with so many subscriptions a slice, under events: the table's row, and the figure's rows."""
    publisher, reader = Publisher(scene.service.url), Reader(scene.service.url, "all")
    publisher.start()
    reader.start()
    time.sleep(5.0)
    before, random, done = scene.loads, Random(subscriptions), []
    for _ in range(moves):
        time.sleep(PAUSE_S)
        configuration = scene.record.configuration
        assert configuration is not None
        name = random.choice(sorted(configuration.places))
        at = configuration.places[name].host
        done.append(scene.move(name, random.choice([host for host in configuration.hosts if host != at])))
    time.sleep(PAUSE_S)
    after = scene.loads
    publisher.stop()
    scene.wait(lambda: len(reader.came) >= len(publisher.sent))
    reader.stop()
    counts = Counter(len(times) for times in reader.came.values())
    events = came_after_ms(publisher, reader.came)
    offset_s = time.time() - time.monotonic()
    spans = [(move.asked_ms / 1000 - offset_s, move.placed_ms / 1000 - offset_s) for move in done]
    assert before is not None
    assert after is not None
    row = {
        "subscriptions_a_slice": subscriptions,
        "matchers": len(after.slices),
        "moves": len(done),
        **delays(events, spans),
        "took_p50_ms": round(statistics.median(move.placed_ms - move.asked_ms for move in done), 1),
        "events": len(publisher.sent),
        "lost": len(publisher.sent.keys() - reader.came.keys()),
        "doubled": sum(count for times, count in counts.items() if times > 1),
        "granted": round((after.granted - before.granted) / max(1, after.asked - before.asked), 4),
    }
    return row, by_seconds(events, spans, done)


def delays(events: list[tuple[float, float]], spans: list[tuple[float, float]]) -> dict[str, Any]:
    """What came late while slices moved, and while they did not."""
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
    """Figure 7: least, mean and most of each second's delays, and which slice began to move in it."""
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
    columns: list[int], moves: int, matchers: int
) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """For each column its row, and its events by seconds."""
    with elastic_scene(str(WORKERS), matchers) as scene:
        stored = 0
        for subscriptions in columns:
            url, wanted = scene.service.url, matchers * subscriptions
            subscribe_ranges(url, stored, wanted, ATTRIBUTES, DOMAIN, WIDTH)
            stored = wanted
            scene.service.wait_until_indexed()
            scene.wait(scene.is_settled)
            yield column(scene, subscriptions, moves)


def keep(row: dict[str, Any]) -> None:
    """Put a column's row in the table, in the place of the one that was there."""
    kept = RESULTS.read(TABLE) if (RESULTS.path / f"{TABLE}.csv").exists() else []
    number = "subscriptions_a_slice"
    others = [each for each in kept if each[number] != row[number] and each.keys() == row.keys()]
    RESULTS.write(TABLE, sorted([*others, row], key=lambda each: each[number]))


def draw(rows: list[dict[str, Any]]) -> None:
    """Figure 7."""
    x = alt.X("time_s:Q", title="time, s", scale=alt.Scale(nice=False))
    base = alt.Chart(as_data(rows), width=640, height=240).encode(x=x)
    y = alt.Y("delay_min_ms:Q", title="delay, ms: least, mean, most", scale=alt.Scale(domain=[0, 600]))
    moves = alt.Chart(as_data([row for row in rows if row["moved"]])).encode(x=x)
    said = [{"ms": STEADY_MS, "words": f"the paper, at rest; during moves less than {MOST_MS} ms"}]
    steady = alt.Chart(as_data(said)).encode(y="ms:Q")
    chart = (
        base.mark_area(opacity=0.25, clip=True).encode(y=y, y2="delay_max_ms:Q")
        + base.mark_line(clip=True).encode(y="delay_mean_ms:Q")
        + moves.mark_rule(strokeDash=[4, 4], color="gray")
        + moves.mark_text(dy=-112, dx=3, align="left", color="gray", fontSize=8).encode(text="moved:N")
        + steady.mark_rule(color=COLOUR)
        + steady.mark_text(color=COLOUR, dy=-6, dx=-310, align="left").encode(text="words:N")
    )
    title = "Figure 7 on Spark: delays while slices move between three executors (20 events/s)"
    RESULTS.draw(FIGURE, chart.properties(title=title))


def main() -> None:
    parser = argparse.ArgumentParser(description="Table I and Figure 7 on a real Spark cluster.")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.add_argument("--draw", action="store_true", help="only draw what was measured before")
    parser.add_argument("--columns", default=",".join(map(str, COLUMNS)), help="subscriptions a slice")
    parser.add_argument("--moves", type=int, default=MOVES, help="moves for each")
    parser.add_argument("--matchers", type=int, default=MATCHERS, help="slices in all")
    options = parser.parse_args()
    if options.draw:
        draw(RESULTS.read(FIGURE))
        return
    if (reason := why_no_cluster()) is not None:
        sys.exit(f"there can be no Spark cluster here: {reason}")
    columns = [int(text) for text in options.columns.split(",")]
    rows = []
    with redirect_stdout(sys.stderr if options.json else sys.stdout):
        for row, seconds in measure(columns, options.moves, options.matchers):
            print(row)
            keep(row)
            rows.append(row)
            if row["subscriptions_a_slice"] == IN_FIGURE or not (RESULTS.path / f"{FIGURE}.csv").exists():
                RESULTS.write(FIGURE, seconds)
                draw(seconds)
    if options.json:
        print(json.dumps({"workers": WORKERS, "columns": rows}))


if __name__ == "__main__":
    main()
