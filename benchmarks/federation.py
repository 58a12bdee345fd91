"""A line of linked services: how soon events arrive, what a broker between takes, and how fast a link is.

    python benchmarks/federation.py --json

starts five services in a line, each with a data directory and a Spark session of its own on one core, and
joins neighbours through proxies on loopback, one for each direction. Neighbours share a core: of two cores,
the first three services use the first. It prints one JSON object:

ddbr_p50_ms, ddbr_p99_ms
    From publishing an event at the first site to its arrival at a subscriber of the last one. 50 events a
    second, each a request of its own, for 20 seconds.
fbr_p50_ms, merc_p50_ms
    The same with ``--routing fbr``, and with ``merc``, where the site in the middle is the edge between two
    clusters; with services of their own. Goals: twice ddbr_p50_ms or more, and between both.
local_p50_ms
    The same as ddbr_p50_ms for a subscriber of the first site, at the same time: the part that has nothing to
    do with links.
transit_p50_ms, transit_p99_ms
    What a broker between takes: from the last byte of a request that it receives to the last byte of the
    request with which it sends the event on, as the proxies see them. All brokers between together. Goals: 5
    and 20.
link_copies
    How many times an event crosses a link on its way to subscribers at all other sites, the maximum over the
    links; counted in the requests that passed the proxies. Goal: 1.
link_events_per_s
    A link after an interruption: events that wait in an outbox, in records of 500 events of 230 bytes, from
    the first request with some of them until all are in the neighbour's log. Goal: 50,000.
link_bytes_per_event
    What crossed the link for each of these events.
forwarded_events_per_s
    From the match log to the outbox: events a second, while they are published, matched and forwarded.
sites
    Number of services.

    python benchmarks/federation.py --relay --json

starts a relay (`fieldfare relay`) and plays both of its neighbours: it sends one event a request, 200 a
second, and takes what comes out. It needs no Spark. It prints relay_p50_ms and relay_p99_ms (goals: 5 and
20), from the begin of a request to the relay to the last byte of the one with which it sends the event on;
relay_ready_s, from the start of the process to its first answer (goal: 1.5); and relay_pss_mb, its memory.

Services, proxies and clients share the machine.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from fieldfare.cli.demo.service import Service, ServicePlaces
from fieldfare.client import Client
from fieldfare_lab.link_proxy import LinkProxy
from fieldfare_lab.ports import find_free_port
from fieldfare_lab.relay_hop import RelayHop

RATE_PER_S, WARM_S, SECONDS = 50, 4.0, 20.0
RELAY_RATE_PER_S = 200
COPIED = 500
BULK_EVENTS, BULK_BATCH_SIZE = 200_000, 500
PAD = "x" * 120
WAIT_S = 240.0
LINES = {"content-type": "application/x-ndjson"}
SPARK = "spark.driver.memory 512m\n"
_MARK = re.compile(rb'"mark-(\d+)"')


class Line:
    """Services in a line, and the proxies between them.

    Attributes
    ----------
    apis
        A client for each service.
    there, back
        The proxies from each service to the next one, and from the next one back.
    """

    def __init__(self, folder: Path, sites: int, routing: str) -> None:
        self._routing = routing
        self.names = [f"site{number}" for number in range(sites)]
        self.ports = [find_free_port() for _ in self.names]
        self.there = [LinkProxy(port) for port in self.ports[1:]]
        self.back = [LinkProxy(port) for port in self.ports[:-1]]
        self.apis = [httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) for port in self.ports]
        self._folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Line:
        properties = self._folder / "spark.conf"
        properties.write_text(SPARK)
        cores = sorted(os.sched_getaffinity(0))
        with self._stack:
            for place, name in enumerate(self.names):
                peers = {self.names[place + 1]: self.there[place].port} if place + 1 < len(self.names) else {}
                if place:
                    peers[self.names[place - 1]] = self.back[place - 1].port
                clusters = self._clusters(place)
                environment = {
                    "FIELDFARE_BROKER": name,
                    "FIELDFARE_PEERS": ",".join(
                        f"{self._prefix(place, other)}{other}=http://127.0.0.1:{port}"
                        for other, port in peers.items()
                    ),
                    "FIELDFARE_ROUTING": self._routing,
                    "FIELDFARE_CLUSTERS": ",".join(clusters),
                    "FIELDFARE_SPARK_PROPERTIES": str(properties),
                }
                service = Service(self._folder / name, ServicePlaces(port=self.ports[place]))
                with _surroundings(environment, {cores[place * len(cores) // len(self.names)]}):
                    self._stack.enter_context(service)
                service.wait_until_ready()
            self._stack = self._stack.pop_all()
        return self

    def _clusters(self, place: int) -> list[str]:
        """The clusters of a site: the one in the middle has both."""
        middle = len(self.names) // 2
        if self._routing != "merc":
            return []
        return [name for name, is_in in (("north", place <= middle), ("south", place >= middle)) if is_in]

    def _prefix(self, place: int, other: str) -> str:
        shared = [name for name in self._clusters(self.names.index(other)) if name in self._clusters(place)]
        return f"{shared[0]}/" if shared else ""

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        for proxy in (*self.there, *self.back):
            proxy.close()

    def subscribe(self, place: int, id: str, filter: str) -> None:
        """Create a subscription, and wait until it counts for the events of all other sites."""
        with Client(str(self.apis[place].base_url), timeout_s=60) as client:
            revision = client.create_subscription(filter, id).revision
        if self._routing != "ddbr":
            # A site knows only what its neighbours or cluster tell, the first one last.
            _until(lambda: place == 0 or self._filters_at_first(), f"{id} to count at the first site")
            return
        for other, name in enumerate(self.names):
            if other != place:
                _until(
                    lambda other=other: self.broker(place, other).get("counts_through", -1) >= revision,
                    f"{id} to count at {name}",
                )

    def _filters_at_first(self) -> int:
        return sum(each.get("filters", 0) for each in self.state(0)["brokers"])

    def state(self, place: int) -> dict[str, Any]:
        """Return what a service says of its links."""
        return dict(self.apis[place].get("/v1/brokers").raise_for_status().json())

    def broker(self, at: int, place: int) -> dict[str, Any]:
        """Return what a service says of another one."""
        name = self.names[place]
        return next((each for each in self.state(at)["brokers"] if each["name"] == name), {})

    def has_forwarded(self) -> bool:
        """Whether all events of the first site that others want are in its outboxes."""
        ends = [self.apis[0].get("/v1/stats").raise_for_status().json()["log_end"]]
        return bool(self.state(0)["forwarded_to"] == ends)

    def has_all(self, place: int) -> bool:
        """Whether a site has stored all events of the first one that it wants."""
        if not self.has_forwarded():
            return False
        return bool(self.broker(0, place)["events_sent"] == self.broker(place, 0)["events_received"])

    def publish(self, place: int, events: list[dict[str, Any]]) -> None:
        body = "".join(json.dumps(event) + "\n" for event in events).encode()
        path = "/v1/spaces/default/events"
        self.apis[place].post(path, content=body, headers=LINES).raise_for_status()


@contextmanager
def _surroundings(environment: Mapping[str, str], cores: set[int]) -> Iterator[None]:
    """What a process that is started here inherits."""
    before = os.sched_getaffinity(0)
    os.environ.update(environment)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        for name in environment:
            del os.environ[name]


def _until(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"waited {WAIT_S:.0f} s for {what}")
        time.sleep(0.05)


class Arrivals:
    """A subscriber on a thread: when each event has come, by its number."""

    def __init__(self, url: str, id: str) -> None:
        self.came_s: dict[int, float] = {}
        self._client = Client(url, timeout_s=60)
        self._subscriber = self._client.subscribe(id, auto_ack=True)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        for message in self._subscriber:
            self.came_s.setdefault(message.event["data"]["number"], time.monotonic())


def event(number: int, kind: str, **data: Any) -> dict[str, Any]:
    head = {"specversion": "1.0", "id": f"mark-{number}", "source": "/federation", "type": kind}
    return head | {"data": {"number": number, **data}}


def measure_latency(line: Line, routing: str, options: argparse.Namespace) -> dict[str, Any]:
    """Publish at the first site at a steady pace, and look at the proxies and at both ends."""
    last = len(line.names) - 1
    line.subscribe(0, "home", "type = 'paced'")
    line.subscribe(last, "far", "type = 'paced'")
    home, far = (Arrivals(str(line.apis[each].base_url), id) for each, id in ((0, "home"), (last, "far")))
    for proxy in line.there:
        proxy.is_keeping = True
    warm, count = int(WARM_S * RATE_PER_S), int((WARM_S + options.seconds) * RATE_PER_S)
    sent_s: list[float] = []
    begun_s = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, begun_s + number / RATE_PER_S - time.monotonic()))
        sent_s.append(time.monotonic())
        line.publish(0, [event(number, "paced")])
    _until(lambda: len(far.came_s) >= count and len(home.came_s) >= count, "all events to arrive")
    passed = [_passed(proxy) for proxy in line.there]
    for proxy in line.there:
        proxy.is_keeping = False
        proxy.requests.clear()
    transits = [
        leaving[number][1] - arriving[number][1]
        for arriving, leaving in pairwise(passed)
        for number in range(warm, count)
    ]
    numbers = range(warm, count)
    far_ms = [1000 * (far.came_s[number] - sent_s[number]) for number in numbers]
    home_ms = [1000 * (home.came_s[number] - sent_s[number]) for number in numbers]
    return {
        f"{routing}_p50_ms": _quantile(far_ms, 0.5),
        f"{routing}_p99_ms": _quantile(far_ms, 0.99),
        "local_p50_ms": _quantile(home_ms, 0.5),
        "transit_p50_ms": _quantile([1000 * each for each in transits], 0.5),
        "transit_p99_ms": _quantile([1000 * each for each in transits], 0.99),
    }


def _quantile(values: list[float], share: float) -> float:
    return round(float(np.quantile(values, share)), 2)


def _events_in(body: bytes) -> list[int]:
    if body[:2] == b"\x1f\x8b":
        body = gzip.decompress(body)
    return [int(found) for found in _MARK.findall(body)]


def _passed(proxy: LinkProxy) -> dict[int, tuple[float, float]]:
    """When the first request with each event passed."""
    found: dict[int, tuple[float, float]] = {}
    for request in list(proxy.requests):
        for number in _events_in(request.body):
            found.setdefault(number, (request.begun_s, request.ended_s))
    return found


def measure_copies(line: Line) -> dict[str, Any]:
    """Publish events that all other sites want, and count them on each link."""
    for place in range(1, len(line.names)):
        line.subscribe(place, "copied", "type = 'copied'")
    proxies = (*line.there, *line.back)
    for proxy in proxies:
        proxy.is_keeping = True
    for number in range(COPIED):
        line.publish(0, [event(number, "copied")])
    for place in range(1, len(line.names)):
        _until(lambda place=place: line.has_all(place), "all copies")
    counts = [Counter(n for each in list(proxy.requests) for n in _events_in(each.body)) for proxy in proxies]
    for proxy in proxies:
        proxy.is_keeping = False
        proxy.requests.clear()
    if any(len(count) != COPIED for count in counts[: len(line.there)]):
        raise RuntimeError("an event did not cross a link")
    most = max(max(count.values(), default=0) for count in counts)
    back = sum(count.total() for count in counts[len(line.there) :])
    return {"link_copies": most, "copies_back": back}


def measure_link(line: Line, options: argparse.Namespace) -> dict[str, Any]:
    """Let events wait for the first link, and let them through."""
    line.subscribe(1, "bulk", "type = 'bulk'")
    for proxy in (line.there[0], line.back[0]):
        proxy.cut()
    _until(lambda: not line.state(0)["links"][0]["is_up"], "the link to be down")
    begun_s = time.monotonic()
    for first in range(0, options.events, BULK_BATCH_SIZE):
        some = range(first, first + BULK_BATCH_SIZE)
        line.publish(0, [event(number, "bulk", pad=PAD) for number in some])
    _until(line.has_forwarded, "all events to be forwarded")
    forwarded_s = time.monotonic() - begun_s
    bytes_before = line.there[0].bytes_there
    line.there[0].is_keeping = True
    for proxy in (line.there[0], line.back[0]):
        proxy.heal()
    _until(lambda: line.has_all(1), "all events to arrive")
    ended_s = time.monotonic()
    line.there[0].is_keeping = False
    begun_s = next(each.begun_s for each in line.there[0].requests if _events_in(each.body))
    return {
        "link_events_per_s": round(options.events / (ended_s - begun_s)),
        "link_bytes_per_event": round((line.there[0].bytes_there - bytes_before) / options.events, 1),
        "forwarded_events_per_s": round(options.events / forwarded_s),
    }


def measure(routing: str, options: argparse.Namespace) -> dict[str, Any]:
    with (
        tempfile.TemporaryDirectory(prefix="fieldfare-federation-") as folder,
        Line(Path(folder), options.sites, routing) as line,
    ):
        _until(lambda: all(_is_joined(line, place) for place in range(options.sites)), "the sites to join")
        figures = measure_latency(line, routing, options)
        if routing != "ddbr":
            return {f"{routing}_p50_ms": figures[f"{routing}_p50_ms"]}
        figures |= measure_copies(line)
        figures |= measure_link(line, options)
        twice = [
            each.get("sent_twice", 0)
            for place in range(options.sites)
            for each in line.state(place)["brokers"]
        ]
    return {**figures, "sent_twice": sum(twice), "sites": options.sites}


def measure_relay(options: argparse.Namespace) -> dict[str, Any]:
    """Send events over a relay at a steady pace."""
    count = int((WARM_S + options.seconds) * RELAY_RATE_PER_S)
    with tempfile.TemporaryDirectory(prefix="fieldfare-relay-") as folder, RelayHop(Path(folder)) as hop:
        transits_ms = hop.run(count, RELAY_RATE_PER_S)[int(WARM_S * RELAY_RATE_PER_S) :]
        return {
            "relay_p50_ms": _quantile(transits_ms, 0.5),
            "relay_p99_ms": _quantile(transits_ms, 0.99),
            "relay_ready_s": round(hop.ready_s, 2),
            "relay_pss_mb": hop.pss_mb(),
        }


def _is_joined(line: Line, place: int) -> bool:
    state = line.state(place)
    others = [each for each in state["brokers"] if each["name"] != line.names[place]]
    has_all = state["routing"] != "ddbr" or len(others) == len(line.names) - 1
    return (
        has_all and all(each["is_up"] for each in state["links"]) and all(each["next_hop"] for each in others)
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object and nothing else on stdout"
    )
    parser.add_argument("--sites", type=int, default=5, help="services in the line (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="of paced events (default: %(default)s)"
    )
    parser.add_argument(
        "--events", type=int, default=BULK_EVENTS, help="for the rate of a link (default: %(default)s)"
    )
    parser.add_argument(
        "--routings", nargs="+", default=["ddbr", "fbr", "merc"], choices=["ddbr", "fbr", "merc"], metavar="R"
    )
    parser.add_argument("--relay", action="store_true", help="measure a relay instead, without Spark")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    if options.relay:
        options.routings = []
        figures = measure_relay(options)
    for routing in options.routings:
        figures |= measure(routing, options)
    if options.json:
        print(json.dumps(figures))
    else:
        for name, figure in figures.items():
            print(f"{name:24} {figure}")
    return 0 if figures.get("link_copies", 1) == 1 and not figures.get("sent_twice") else 1


if __name__ == "__main__":
    sys.exit(main())
