"""Watch a publisher adapt: the load goes up and down, and a table shows the batching.

python examples/adapting_publisher.py [SECONDS]      # the service of FIELDFARE_URL, else
http://127.0.0.1:7737
"""

from __future__ import annotations

import sys
import time

from rich.live import Live
from rich.table import Table

from fieldfare import Client
from fieldfare.client import Publisher, PublisherStats

LOADS_PER_S = (20, 5000, 200, 20_000, 20)
LOOK_S = 0.25


def show(load_per_s: int, before: PublisherStats, now: PublisherStats, passed_s: float) -> Table:
    """Return a table of the publisher's throughput since the last update, and its current limits."""
    events = now.acknowledged_events - before.acknowledged_events
    requests = now.requests - before.requests
    found = now.estimates
    table = Table("", "", title="a publisher that tunes itself", show_header=False)
    table.add_row("load", f"{load_per_s:,} events/s")
    table.add_row("durable", f"{events / passed_s:,.0f} events/s in {requests / passed_s:,.0f} requests/s")
    table.add_row("events in a request", f"{events / requests:,.1f}" if requests else "-")
    table.add_row("waiting", f"{now.queued_events:,}")
    table.add_row("at most", f"{now.limits.max_events:,} events, linger {now.limits.linger_ms:.1f} ms")
    if found is not None and found.fixed_s is not None and found.each_s is not None:
        table.add_row(
            "a request takes", f"{1e3 * found.fixed_s:.1f} ms + {1e6 * found.each_s:.1f} µs an event"
        )
    return table


def publish(publisher: Publisher, load_per_s: int, seconds: float, live: Live) -> None:
    """Publish at a constant rate for some seconds."""
    started_s = looked_s = time.monotonic()
    count, before = 0, publisher.stats()
    while (now_s := time.monotonic()) < started_s + seconds:
        due = int((now_s - started_s) * load_per_s)
        for _ in range(count, due):
            publisher.publish({"source": "/example", "type": "tick", "data": {"at": now_s}})
        count = due
        if now_s - looked_s >= LOOK_S:
            after = publisher.stats()
            live.update(show(load_per_s, before, after, now_s - looked_s))
            looked_s, before = now_s, after
        time.sleep(0.002)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    with Client() as client, client.publisher() as publisher:
        with Live(refresh_per_second=8) as live:
            for load_per_s in LOADS_PER_S:
                publish(publisher, load_per_s, seconds / len(LOADS_PER_S), live)
        publisher.flush()
        done = publisher.stats()
    print(
        f"\n{done.acknowledged_events} events durable, {done.failed_events} failed, {done.requests} requests"
    )


if __name__ == "__main__":
    main()
