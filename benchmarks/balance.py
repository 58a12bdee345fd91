"""Three linked services with all load at the first: how soon they are in balance, and what that costs.

    python benchmarks/balance.py --json

starts three services that balance by themselves, with output bandwidths of 1 to 1 to 2, each with a data
directory and a Spark session of its own, and joins them through proxies on loopback, one for each direction.
Twelve subscriptions are at the first, where events are published, one for each subscription in each request.
It prints one JSON object:

converged_s
    From the first event to the last move, after which nothing has moved and no service was in a session for
    ten measurements.
moved, most_moves
    Subscriptions that have moved, and the most moves of one of them. Goal for the second: 1.
spread_before, spread_after
    Largest difference of output utilisation between two services: once the load shows, and at the end. Goal
    for the second: 0.15.
overhead_percent, overhead_at_rest_percent
    Control messages as a share of all messages, until then and in the minute after it. Control messages are
    PIE messages, letters of sessions, messages of moves and changes of filters, on each link; the others are
    published events, events on each link, and deliveries.
overhead_bytes_percent, overhead_bytes_at_rest_percent
    The share of control messages in the bytes of the links' requests, uncompressed.
lost, doubled
    Events that have not come, and that have come at two places. Goal: 0.
events_per_s, interval_s
    Published events a second, and seconds between two measurements.

Services, proxies and clients share the machine; so CPU and memory do not count as overload here.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

from fieldfare.cli.demo.service import Service, ServicePlaces
from fieldfare.gateway.federation.wire import Events, Lost, decode_batch, encoder
from fieldfare_lab.link_proxy import LinkProxy
from fieldfare_lab.ports import find_free_port
from fieldfare_lab.skewed_load import SkewedLoad

NAMES = ("one", "two", "three")
SHARES = {"one": 1.0, "two": 1.0, "three": 2.0}
SUBSCRIPTIONS, PAUSE_S = 12, 0.1
EVENT_BYTES = 95
UTILISATION = 0.6
"""Output utilisation of the first service with all load, before anything moves."""
REST_MEASUREMENTS, AT_REST_S = 10, 60.0
READY_S, ARRIVAL_S = 600.0, 120.0
SPARK = "spark.driver.memory 512m\n"


@dataclass
class Traffic:
    """Messages of the links' requests, and their bytes, uncompressed."""

    control: int = 0
    events: int = 0
    control_bytes: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, proxies: Mapping[Any, LinkProxy]) -> Traffic:
        """Take what has passed since the last call."""
        found = cls()
        for proxy in proxies.values():
            passed, proxy.requests = proxy.requests, []
            for request in passed:
                found.add(request.body)
        return found

    def add(self, body: bytes) -> None:
        """Count a request."""
        body = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
        batch, entries = decode_batch(body)
        self.bytes += len(body)
        self.control += len(batch.loads) + len(batch.letters)
        self.control_bytes += sum(len(encoder.encode(each)) for each in (*batch.loads, *batch.letters))
        for entry, raw in zip(entries, batch.entries, strict=True):
            if isinstance(entry, Events):
                self.events += entry.count
            elif not isinstance(entry, Lost):
                self.control += 1
                self.control_bytes += len(bytes(raw))


@contextmanager
def services(
    folder: Path, options: argparse.Namespace
) -> Iterator[tuple[dict[str, str], Mapping[Any, LinkProxy]]]:
    """Start the services; yield their URLs and the proxies between them."""
    ports = {name: find_free_port() for name in NAMES}
    proxies = {(one, other): LinkProxy(ports[other]) for one, other in permutations(NAMES, 2)}
    properties = folder / "spark.conf"
    properties.write_text(SPARK)
    unit = SUBSCRIPTIONS / PAUSE_S * EVENT_BYTES / UTILISATION
    started = []
    with ExitStack() as stack:
        for name in NAMES:
            peers = [
                f"{other}=http://127.0.0.1:{proxies[name, other].port}" for other in NAMES if other != name
            ]
            environment = {
                "FIELDFARE_BROKER": name,
                "FIELDFARE_PEERS": ",".join(peers),
                "FIELDFARE_BALANCE": "1",
                "FIELDFARE_BALANCE_INTERVAL_S": str(options.interval),
                "FIELDFARE_BALANCE_OVERLOAD": "input,output",
                "FIELDFARE_OUTPUT_BYTES_PER_S": str(unit * SHARES[name]),
                "FIELDFARE_SPARK_PROPERTIES": str(properties),
            }
            service = Service(folder / name, ServicePlaces(port=ports[name]))
            with _surroundings(environment):
                started.append(stack.enter_context(service))
        for service in started:
            service.wait_until_ready()
        try:
            yield {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}, proxies
        finally:
            for proxy in proxies.values():
                proxy.close()


@contextmanager
def _surroundings(environment: Mapping[str, str]) -> Iterator[None]:
    """Set the environment that a process inherits."""
    os.environ.update(environment)
    try:
        yield
    finally:
        for name in environment:
            del os.environ[name]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the services until they are in balance, and for a minute more."""
    with (
        tempfile.TemporaryDirectory(prefix="fieldfare-balance-") as folder,
        services(Path(folder), options) as (urls, proxies),
    ):
        load = SkewedLoad(urls, SUBSCRIPTIONS, PAUSE_S)
        load.subscribe(READY_S)
        for proxy in proxies.values():
            proxy.is_keeping = True
        with load.running(ARRIVAL_S):
            begun_s = time.monotonic()
            before = dict.fromkeys(NAMES, 0.0)
            while before["one"] < UTILISATION / 4:
                before = load.ratios()
            converged_s = load.converge(REST_MEASUREMENTS * options.interval, options.seconds)
            figures = _shares(load, Traffic.of(proxies), 0, "")
            ratios, published = load.ratios(), len(load.ledger.published)
            events_per_s = published / (time.monotonic() - begun_s)
            time.sleep(AT_REST_S)
            figures |= _shares(load, Traffic.of(proxies), published, "_at_rest")
        if load.failures:
            raise RuntimeError(load.failures[0])
        moves = load.ledger.moves.values()
        return {
            "converged_s": round(converged_s, 1),
            "moved": sum(each > 0 for each in moves),
            "most_moves": max(moves),
            "spread_before": round(max(before.values()) - min(before.values()), 3),
            "spread_after": round(max(ratios.values()) - min(ratios.values()), 3),
            **figures,
            "lost": len(load.ledger.lost()),
            "doubled": len(load.ledger.doubled()),
            "events_per_s": round(events_per_s, 1),
            "interval_s": options.interval,
        }


def _shares(load: SkewedLoad, traffic: Traffic, published_before: int, suffix: str) -> dict[str, float]:
    """Return the share of control messages since an event, and of their bytes."""
    published = len(load.ledger.published) - published_before
    messages = (
        traffic.control + traffic.events + 2 * published
    )  # Each event is published, and delivered once.
    return {
        f"overhead{suffix}_percent": round(100 * traffic.control / messages, 3),
        f"overhead_bytes{suffix}_percent": round(100 * traffic.control_bytes / traffic.bytes, 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else on stdout"
    )
    parser.add_argument(
        "--interval", type=float, default=10.0, help="seconds between measurements (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=900.0,
        help="maximum until they are in balance (default: %(default)s)",
    )
    figures = measure(options := parser.parse_args())
    if options.json:
        print(json.dumps(figures))
    else:
        for name, figure in figures.items():
            print(f"{name:32} {figure}")
    is_good = figures["most_moves"] <= 1 and figures["spread_after"] <= 0.15
    return 0 if is_good and not figures["lost"] and not figures["doubled"] else 1


if __name__ == "__main__":
    sys.exit(main())
