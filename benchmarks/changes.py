"""How soon a changed filter counts, beside a steady load.

    python benchmarks/changes.py --json

runs a service with 100,000 subscriptions; 200 single events are published per second. Ten times per second
the filter of one subscription, whose stream is open, is replaced. As soon as the change is answered, two
events are published at the same moment: one that only the new filter matches, and one that the filter of
another subscription has always matched. Prints one JSON object:

counts_p50_ms, counts_p99_ms
    From the answer to the change until the delivery of the event that the new filter matches, less the same
    for the other event: the delay that the change itself causes. Goal for p99: 20.
changed_p50_ms, changed_p99_ms, other_p50_ms, other_p99_ms
    From the publish call to the delivery, of the event that the new filter matches and of the other one.
put_p50_ms, put_p99_ms
    Time of the request that changes the filter.
changes
    The number of changes; each event must be delivered exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from live import register

from fieldfare.cli.demo.service import Service
from fieldfare.client import AsyncClient, BatchSettings

EVENTS_PER_S = 200
CHANGES_PER_S = 10
WARM_S = 5.0
ARRIVAL_WAIT_S = 30.0
AT_ONCE = BatchSettings(linger_ms=0, max_in_flight=16)


def event_of(number: int, **data: int) -> dict[str, Any]:
    kind, id = next(iter(data)), str(number)
    return {"specversion": "1.0", "id": f"{kind}-{id}", "source": "/changes", "type": kind, "data": data}


class Measurement:
    """The times of changes and deliveries, in seconds."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ends = False
        self.arrived_s: dict[str, float] = {}
        self.doubled = 0
        self.put_s: list[float] = []
        self.sent_s: list[float] = []

    async def load(self) -> None:
        async with AsyncClient(self._url) as client, client.publisher(AT_ONCE) as publisher:
            begin_s, number = time.monotonic(), 0
            while not self._ends:
                await asyncio.sleep(max(0.0, begin_s + number / EVENTS_PER_S - time.monotonic()))
                publisher.publish(event_of(number, load=number))
                number += 1

    async def receive(self, id: str, filter: str) -> None:
        async with AsyncClient(self._url) as client, client.subscribe(id, filter, auto_ack=True) as messages:
            async for message in messages:
                name = message.event["id"]
                self.doubled += name in self.arrived_s
                self.arrived_s[name] = time.monotonic()

    async def change(self, seconds: float) -> None:
        async with AsyncClient(self._url) as client, client.publisher(AT_ONCE) as publisher:
            begin_s = time.monotonic()
            for number in range(int(seconds * CHANGES_PER_S)):
                await asyncio.sleep(max(0.0, begin_s + number / CHANGES_PER_S - time.monotonic()))
                asked_s = time.monotonic()
                await client.replace_subscription("changed", f"data.changed = {number}")
                self.put_s.append(time.monotonic() - asked_s)
                self.sent_s.append(time.monotonic())
                both = [
                    publisher.publish(event_of(number, **{kind: number})) for kind in ("changed", "other")
                ]
                await asyncio.gather(*both)  # Before the next change, which would leave the event unmatched.

    async def run(self, seconds: float) -> None:
        receiving = [
            asyncio.ensure_future(self.receive("changed", "data.changed = -1")),
            asyncio.ensure_future(self.receive("other", "type = 'other'")),
        ]
        loading = asyncio.ensure_future(self.load())
        await asyncio.sleep(WARM_S)
        await self.change(seconds)
        until_s = time.monotonic() + ARRIVAL_WAIT_S
        while len(self.arrived_s) < 2 * len(self.sent_s) and time.monotonic() < until_s:
            await asyncio.sleep(0.05)
        self._ends = True
        for task in receiving:
            task.cancel()
        await asyncio.gather(loading, *receiving, return_exceptions=True)

    def figures(self) -> dict[str, Any]:
        """The quantiles, in milliseconds; RuntimeError if an event did not arrive once."""
        if len(self.arrived_s) != 2 * len(self.sent_s) or self.doubled:
            raise RuntimeError(f"{len(self.arrived_s)} of {2 * len(self.sent_s)}, {self.doubled} doubled")
        changed_s, other_s = (
            np.array([self.arrived_s[f"{kind}-{number}"] for number in range(len(self.sent_s))])
            for kind in ("changed", "other")
        )
        sent_s = np.array(self.sent_s)
        named = {
            "counts": changed_s - other_s,
            "changed": changed_s - sent_s,
            "other": other_s - sent_s,
            "put": np.array(self.put_s),
        }
        return {
            f"{name}_p{share}_ms": round(float(np.quantile(values_s, share / 100)) * 1000, 2)
            for name, values_s in named.items()
            for share in (50, 99)
        } | {"changes": len(sent_s)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--subscriptions", type=int, default=100_000, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="(default: %(default)s)")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="fieldfare-changes-") as folder,
        Service(Path(folder) / "data") as service,
    ):
        service.wait_until_ready()
        register(service.url, options.subscriptions)
        service.wait_until_indexed()
        measurement = Measurement(service.url)
        asyncio.run(measurement.run(options.seconds))
    figures = measurement.figures() | {"subscriptions": options.subscriptions}
    if options.json:
        print(json.dumps(figures))
    else:
        for name, figure in figures.items():
            print(f"{name:16} {figure}")


if __name__ == "__main__":
    main()
