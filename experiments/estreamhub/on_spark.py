"""Table I on a real Spark cluster: what a slice's move delays events by.

    python experiments/estreamhub/on_spark.py --json

starts a standalone cluster of three workers of a core each, and ``fieldfare serve --elastic 3`` with eight
matchers, all on this machine; then, for each column, stores subscriptions until every slice has so many,
publishes an event every 50 ms, and asks for 25 moves of random slices to random other hosts, one after the
other. It writes results/table_1_on_spark.csv, where columns
that were not measured now stay, and prints one JSON object with a row for each column:

subscriptions_a_slice, moves
    Of the column: the paper has 12,500 and 50,000 (62,500, if 500,000 in all is right).
move_p50_ms, move_p99_ms
    What a move delays events by: the longest delay, from sending an event to having it, of those that were
    sent from when the move was asked for until half a second after its placement took effect, less the
    median delay at rest.
rest_p50_ms, rest_p99_ms
    The same of as long a time just before each move, when nothing moved: what there is without moves.
delay_p50_ms
    The median delay at rest.
took_p50_ms
    From when the manager was asked to when the new place was in effect.
lost, doubled
    Events that did not come, or came more than once.
granted
    The share of tasks that ran on the executor that they asked for.

Scaled: two cores for the paper's 64 to 96, an event every 50 ms for its 100 publications/s, and an event
matches 0.01 % of the subscriptions for its 1 %. Of its three operators only M has slices here: what AP and EP
do is done by tasks that have no place, nor state.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from random import Random
from typing import Any

import httpx
import numpy as np
from elastic_runs import RESULTS

from fieldfare.cli.demo.service import Service, ServicePlaces
from fieldfare.elasticity.messages import SliceMove
from fieldfare.runtimes.spark.elastic.record import ElasticLoads, ElasticRecord, Move, wish
from fieldfare_lab.feeding import Reader, subscribe_ranges
from fieldfare_lab.spark_cluster import SparkCluster, why_no_cluster

WORKERS, MATCHERS, MOVES = 3, 8, 25
NAME = "table_1_on_spark"
COLUMNS = (12_500, 50_000, 62_500)
ATTRIBUTES, DOMAIN, WIDTH = 4, 1000, 100
PAUSE_S, AFTER_S, EVENT_S = 1.5, 0.5, 0.05
WITHIN_S = 240.0


class Publisher(threading.Thread):
    """Sends an event at a time; `sent` has when each was, by its place."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._http = httpx.Client(base_url=url, timeout=30)
        self._enough = threading.Event()
        self.sent: dict[str, float] = {}

    def run(self) -> None:
        n, random = 0, Random(2)
        while not self._enough.wait(EVENT_S):
            n += 1
            data = {"n": n, **{f"a{i}": random.randrange(DOMAIN) for i in range(ATTRIBUTES)}}
            event = {"specversion": "1.0", "id": str(n), "source": "/e", "type": "t", "data": data}
            sent_s = time.monotonic()
            answer = self._http.post(
                "/v1/spaces/default/events",
                content=json.dumps(event) + "\n",
                headers={"content-type": "application/x-ndjson"},
            )
            answer.raise_for_status()
            place = answer.json()
            self.sent[f"{place['partition']}-{place['offset']}-0"] = sent_s

    def stop(self) -> None:
        self._enough.set()
        self.join(60)


class Moving:
    """An elastic service whose slices are moved by hand."""

    def __init__(self, service: Service) -> None:
        self.service, self.folder = service, service.folder

    def wait(self, condition: Any) -> Any:
        give_up_s = time.monotonic() + WITHIN_S
        while not (value := condition()):
            if time.monotonic() > give_up_s:
                said = self.folder.log_of("pipeline").read_text()[-3000:]
                raise TimeoutError(f"it did not come true in {WITHIN_S:g} s:\n{said}")
            time.sleep(0.02)
        return value

    def is_settled(self) -> bool:
        """All slices are where the configuration says."""
        loads, record = ElasticLoads.read(self.folder.elastic_loads), ElasticRecord.read(self.folder.elastic)
        if loads is None or record.configuration is None or record.configuration.moves:
            return False
        places = {name: place.host for name, place in record.configuration.places.items()}
        moving = any(place.to or place.is_lost for place in record.configuration.places.values())
        return not moving and {each.slice: each.host for each in loads.slices} == places

    def move(self, random: Random) -> Move:
        """A random slice to a random other host."""
        record = ElasticRecord.read(self.folder.elastic)
        assert record.configuration is not None
        name = random.choice(sorted(record.configuration.places))
        at = record.configuration.places[name].host
        to = random.choice([host for host in record.configuration.hosts if host != at])
        last_ms = record.moves[-1].placed_ms if record.moves else 0.0
        wish(self.folder, SliceMove(name, to))

        def done() -> Move | None:
            moves = ElasticRecord.read(self.folder.elastic).moves
            return moves[-1] if moves and moves[-1].placed_ms > last_ms else None

        found: Move = self.wait(done)
        assert (found.slice, found.to_host) == (name, to)
        return found

    def column(self, subscriptions: int, moves: int) -> dict[str, Any]:
        """Moves with so many subscriptions a slice, under events."""
        publisher, reader = Publisher(self.service.url), Reader(self.service.url, "all")
        publisher.start()
        reader.start()
        time.sleep(5.0)
        random, done = Random(subscriptions), []
        for _ in range(moves):
            time.sleep(PAUSE_S)
            done.append(self.move(random))
        time.sleep(PAUSE_S)
        publisher.stop()
        self.wait(lambda: len(reader.came) >= len(publisher.sent))
        reader.stop()
        return {"subscriptions_a_slice": subscriptions, **delays(publisher, reader, done)}


def delays(publisher: Publisher, reader: Reader, moves: list[Move]) -> dict[str, Any]:
    """What came late while slices moved, and while they did not."""
    offset_s = time.time() - time.monotonic()
    came = {place: times[0][1] for place, times in reader.came.items()}
    events = sorted(
        (sent_s, 1000 * (came[place] - sent_s)) for place, sent_s in publisher.sent.items() if place in came
    )
    sent_s, delay_ms = np.array(events).T

    def during(from_s: float, to_s: float) -> Any:
        return delay_ms[(sent_s >= from_s) & (sent_s < to_s)]

    spans = [(move.asked_ms / 1000 - offset_s, move.placed_ms / 1000 - offset_s + AFTER_S) for move in moves]
    spans_at_rest = [(start - (end - start) - 0.1, start - 0.1) for start, end in spans]
    at_rest_ms = float(np.median(np.concatenate([during(*span) for span in spans_at_rest])))
    moving, resting = (
        [max(0.0, float(during(*span).max()) - at_rest_ms) for span in some if len(during(*span))]
        for some in (spans, spans_at_rest)
    )
    took_ms = [move.placed_ms - move.asked_ms for move in moves]
    counts = Counter(len(times) for times in reader.came.values())
    return {
        "moves": len(moves),
        "move_p50_ms": round(statistics.median(moving), 1),
        "move_p99_ms": round(float(np.percentile(moving, 99)), 1),
        "rest_p50_ms": round(statistics.median(resting), 1),
        "rest_p99_ms": round(float(np.percentile(resting, 99)), 1),
        "delay_p50_ms": round(at_rest_ms, 1),
        "took_p50_ms": round(statistics.median(took_ms), 1),
        "events": len(publisher.sent),
        "lost": len(publisher.sent.keys() - reader.came.keys()),
        "doubled": sum(count for times, count in counts.items() if times > 1),
    }


def measure(columns: list[int], moves: int) -> list[dict[str, Any]]:
    os.environ |= {
        "FIELDFARE_MATCHERS": str(MATCHERS),
        "FIELDFARE_PARTITIONING": "hash",
        "FIELDFARE_ELASTIC": str(WORKERS),
    }
    rows = []
    with (
        tempfile.TemporaryDirectory(prefix="on-spark-") as folder,
        SparkCluster(WORKERS) as cluster,
        Service(Path(folder) / "data", ServicePlaces(master=cluster.address)) as service,
    ):
        service.wait_until_ready()
        moving, stored = Moving(service), 0
        for subscriptions in columns:
            subscribe_ranges(service.url, stored, MATCHERS * subscriptions, ATTRIBUTES, DOMAIN, WIDTH)
            stored = MATCHERS * subscriptions
            service.wait_until_indexed()
            moving.wait(moving.is_settled)
            before = ElasticLoads.read(moving.folder.elastic_loads)
            row = moving.column(subscriptions, moves)
            after = ElasticLoads.read(moving.folder.elastic_loads)
            assert before is not None
            assert after is not None
            row["granted"] = round((after.granted - before.granted) / max(1, after.asked - before.asked), 4)
            rows.append(row)
            print(row, file=sys.stderr)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Table I on a real Spark cluster.")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.add_argument("--columns", default=",".join(map(str, COLUMNS)), help="subscriptions a slice")
    parser.add_argument("--moves", type=int, default=MOVES, help="moves for each")
    options = parser.parse_args()
    if (reason := why_no_cluster()) is not None:
        sys.exit(f"there can be no Spark cluster here: {reason}")
    columns = [int(text) for text in options.columns.split(",")]
    rows = measure(columns, options.moves)
    kept = RESULTS.read(NAME) if (RESULTS.path / f"{NAME}.csv").exists() else []
    others = [row for row in kept if row["subscriptions_a_slice"] not in columns]
    with redirect_stdout(sys.stderr if options.json else sys.stdout):
        RESULTS.write(NAME, sorted(others + rows, key=lambda row: row["subscriptions_a_slice"]))
    if options.json:
        print(json.dumps({"workers": WORKERS, "matchers": MATCHERS, "columns": rows}))


if __name__ == "__main__":
    main()
