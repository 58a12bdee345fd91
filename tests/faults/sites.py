"""Several sites in a line under load, whose processes are killed and whose links are cut and frozen.

Each site publishes events for one site or another, and each has two subscribers: one of the events for its
site, one of all events. In the end everything that was published has come once to each subscriber that wants
it, and nothing else has.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
from accidents import kill, victims_of
from service_support import LINES, RunningService, cloud_event, is_running, until

from fieldfare_lab.link_proxy import LinkProxy
from fieldfare_lab.ports import find_free_port

KINDS = ("gateway", "driver", "task", "java", "indexer", "supervisor")
QUICK_KINDS = ("gateway", "task", "indexer")
READY_S = 600.0
ARRIVAL_S = 600.0
REQUEST_EVENTS_MAX = 4
PULLED_MAX = 1_000
AGAIN_S = 0.2
"""Seconds between two attempts of a client whose service does not answer."""
OUTAGE_MAX_S = 4.0
"""Maximum seconds for which a link is cut or frozen."""
SETTINGS = {"maintenance_s": 1, "heartbeat_s": 1}


@dataclass
class SitesReport:
    """The accidents of a run, and the deliveries that should not have been, or are missing."""

    seed: int
    sites: int
    kills: int = 0
    cuts: int = 0
    freezes: int = 0
    events: int = 0
    deliveries: int = 0
    redeliveries: int = 0
    lost: int = 0
    doubled: int = 0
    foreign: int = 0
    stuck: int = 0
    said: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.doubled or self.foreign or self.stuck)

    def line(self) -> str:
        return json.dumps({name: value for name, value in asdict(self).items() if name != "said"})


class Ledger:
    """What was published, by id: the site that it is for. And what has come to each subscriber."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.published: dict[str, int] = {}
        self.positions: dict[tuple[int, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.redeliveries = 0

    def publish(self, id: str, to: int) -> None:
        with self.lock:
            self.published[id] = to

    def arrive(self, site: int, subscription: str, id: str, position: str) -> None:
        with self.lock:
            positions = self.positions[site, subscription][id]
            self.redeliveries += position in positions
            positions.add(position)

    def wanted(self, site: int, subscription: str) -> set[str]:
        with self.lock:
            return {id for id, to in self.published.items() if subscription == "all" or to == site}

    def has_all(self, site: int, subscription: str) -> bool:
        return self.wanted(site, subscription) <= set(self.positions[site, subscription])

    def judge(self, report: SitesReport) -> None:
        """Count what is missing, what has come at two positions, and what should not have come."""
        report.events, report.redeliveries = len(self.published), self.redeliveries
        for (site, subscription), found in self.positions.items():
            wanted = self.wanted(site, subscription)
            report.deliveries += len(found)
            wrong = {
                "lost": wanted - found.keys(),
                "doubled": {id for id, positions in found.items() if len(positions) > 1},
                "foreign": found.keys() - wanted,
            }
            for name, ids in wrong.items():
                setattr(report, name, getattr(report, name) + len(ids))
                if ids:
                    report.said.append(f"{name} at site {site}, {subscription}: {sorted(ids)[:5]}")


class Sites:
    """The services, the proxies of their links, and the load."""

    def __init__(self, root: Path, count: int, seed: int, pace_s: float, routing: str) -> None:
        self.random = Random(seed)
        self._root, self._pace_s, self._routing = root, pace_s, routing
        self._ports = [find_free_port() for _ in range(count)]
        self.links = [
            (LinkProxy(self._ports[place + 1]), LinkProxy(self._ports[place])) for place in range(count - 1)
        ]
        self.services: list[RunningService] = []
        self.ledger = Ledger()
        self.broken: list[str] = []
        self._publishing, self._reading = threading.Event(), threading.Event()
        self._publishers: list[threading.Thread] = []
        self._readers: list[threading.Thread] = []

    def start(self) -> None:
        """Start all services, subscribe, and begin to publish once all subscriptions count everywhere."""
        for place in range(len(self._ports)):
            self.services.append(self._service(place))
        for service in self.services:
            service.wait_ready(READY_S)
        for place, service in enumerate(self.services):
            for id, filter in (("mine", f"data.to = {place}"), ("all", "data.n >= 0")):
                path = f"{service.url}/v1/spaces/default/subscriptions/{id}"
                httpx.put(path, json={"filter": filter}, timeout=60).raise_for_status()
        until(self._knows_all, READY_S, "(all filters are known)")
        for place in range(len(self.services)):
            self._publishers.append(self._thread(self._publish, place))
            self._readers += [self._thread(self._read, place, id) for id in ("mine", "all")]

    def _knows_all(self) -> bool:
        """Whether each site has the filters of all others; two of each, from whichever neighbour."""
        for place, service in enumerate(self.services):
            state = httpx.get(f"{service.url}/v1/brokers", timeout=60).json()
            others = [each for each in state["brokers"] if each["name"] != f"site{place}"]
            told = all(each["told_revision"] <= each["counts_through"] for each in others)
            if not told or sum(each["filters"] for each in others) != 2 * (len(self.services) - 1):
                return False
        return True

    def _service(self, place: int) -> RunningService:
        peers, clusters = [], []
        for link, end, other in ((place - 1, 1, place - 1), (place, 0, place + 1)):
            if 0 <= link < len(self.links):
                cluster = f"{cluster_of(link)}/" if self._routing == "merc" else ""
                peers.append(f"{cluster}site{other}=http://127.0.0.1:{self.links[link][end].port}")
                clusters.append(cluster.strip("/"))
        return RunningService(
            self._root / f"site{place}",
            port=self._ports[place],
            broker=f"site{place}",
            peers=",".join(peers),
            routing=self._routing,
            clusters=",".join(dict.fromkeys(clusters)),
            **SETTINGS,
        )

    def _thread(self, work: Any, *given: Any) -> threading.Thread:
        def guarded() -> None:
            try:
                work(*given)
            except Exception:
                self.broken.append(traceback.format_exc())

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    def _publish(self, place: int) -> None:
        """Publish requests one after the other; each is repeated until it is answered."""
        random, number, sequence = Random(f"{place}"), 0, 0
        with httpx.Client(base_url=f"http://127.0.0.1:{self._ports[place]}", timeout=20) as client:
            while not self._publishing.wait(self._pace_s):
                events = []
                for _ in range(random.randint(1, REQUEST_EVENTS_MAX)):
                    to = random.randrange(len(self._ports))
                    events.append(cloud_event(f"{place}-{number}", {"n": number, "to": to}))
                    self.ledger.publish(f"{place}-{number}", to)
                    number += 1
                body = "".join(json.dumps(event) + "\n" for event in events).encode()
                headers = LINES | {"fieldfare-producer": "p", "fieldfare-sequence": str(sequence)}
                sequence += 1
                self._ask(client, "/v1/spaces/default/events", content=body, headers=headers)

    def _ask(self, client: httpx.Client, path: str, **request: Any) -> httpx.Response:
        """Send a request until it is answered; an answer that it is wrong is an error."""
        deadline_s = time.monotonic() + READY_S
        while True:
            try:
                answer = client.post(path, **request)
                if answer.status_code == 200:
                    return answer
                assert answer.status_code in (408, 429, 500, 502, 503, 504), answer.text
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline_s, f"{path} is not answered"
            time.sleep(AGAIN_S)

    def _read(self, place: int, id: str) -> None:
        path = f"/v1/spaces/default/subscriptions/{id}"
        with httpx.Client(base_url=f"http://127.0.0.1:{self._ports[place]}", timeout=20) as client:
            while not self._reading.is_set():
                answer = self._ask(client, f"{path}/pull", json={"max": PULLED_MAX, "wait_s": 1})
                messages = answer.json()["messages"]
                for each in messages:
                    self.ledger.arrive(place, id, each["event"]["id"], each["position"])
                if messages:
                    positions = [each["position"] for each in messages]
                    try:
                        client.post(f"{path}/ack", json={"positions": positions})
                    except httpx.TransportError:
                        continue  # They are delivered again.

    def suffer(self, name: str, random: Random, report: SitesReport) -> None:
        """Let an accident happen: ``kill KIND SITE``, ``cut LINK`` or ``freeze LINK``."""
        kind, *where = name.split()
        if kind == "kill":
            self._kill(where[0], int(where[1]))
            with self.ledger.lock:
                report.kills += 1
            return
        for proxy in self.links[int(where[0])]:
            (proxy.cut if kind == "cut" else proxy.freeze)()
        time.sleep(random.uniform(0.1, OUTAGE_MAX_S))
        for proxy in self.links[int(where[0])]:
            proxy.heal()
        report.cuts += kind == "cut"
        report.freezes += kind == "freeze"

    def _kill(self, kind: str, place: int) -> None:
        service = self.services[place]
        if kind == "supervisor":
            children = service.processes("")
            kill([service.process.pid])
            service.process.wait()
            self.services[place] = service = self._service(place)
            until(lambda: not any(map(is_running, children)), 180)
        else:
            kill(victims_of(service, kind))
        service.wait_ready(READY_S)

    def linger(self, seconds: float) -> None:
        """Let events flow; fail if a client has."""
        time.sleep(seconds)
        assert not self.broken, self.broken[0]

    def finish(self) -> None:
        """Stop publishing, and wait until everything has arrived."""
        self._publishing.set()
        for thread in self._publishers:
            thread.join(READY_S)
        subscribers = [(place, id) for place in range(len(self.services)) for id in ("mine", "all")]
        until(lambda: self.broken or all(self.ledger.has_all(*each) for each in subscribers), ARRIVAL_S)
        # What comes a second time would come now.
        self.linger(3.0)
        self._reading.set()
        for thread in self._readers:
            thread.join(60)
        for service in self.services:
            state = httpx.get(f"{service.url}/v1/brokers", timeout=60).json()
            twice = [each["name"] for each in state["brokers"] if each.get("sent_twice")]
            assert not twice, f"{state['broker']} got entries twice from {twice}"

    def close(self) -> None:
        self._publishing.set()
        self._reading.set()
        for service in self.services:
            if service.process.poll() is None:
                service.kill()
        for proxies in self.links:
            for proxy in proxies:
                proxy.close()


def cluster_of(link: int) -> str:
    """Return the cluster of a link, with two links each but the first: every other site is an edge."""
    return f"cluster{(link + 1) // 2}"


def deck_of(sites: int) -> list[str]:
    """Each accident at each site and link; those after which Spark starts again, once."""
    kinds = (*KINDS, *QUICK_KINDS * 2)
    kills = [f"kill {kind} {place}" for place in range(sites) for kind in kinds]
    return kills + [f"{kind} {link}" for link in range(sites - 1) for kind in ("cut", "freeze") * 2]


@contextmanager
def running_sites(
    root: Path, count: int, seed: int, *, pace_s: float = 0.3, routing: str = "ddbr"
) -> Iterator[Sites]:
    sites = Sites(root, count, seed, pace_s, routing)
    try:
        sites.start()
        yield sites
    except BaseException:
        for service in sites.services:
            print(service.console[-1500:])
        raise
    finally:
        sites.close()


def suffer_all(sites: Sites, names: list[str], until_s: float, report: SitesReport) -> None:
    """Let accidents happen until a time, and judge what has come; what is broken is in the report.

    Kills happen in turn, at the odd sites beside those at the even ones, and cuts and frozen links beside
    both, until all have had theirs.
    """
    lanes: list[list[str]] = [[], [], []]
    for name in names:
        lanes[int(name.split()[-1]) % 2 if name.startswith("kill") else 2].append(name)
    name = "the accidents"
    try:
        sites.linger(2.0)
        with ThreadPoolExecutor(len(lanes)) as all_lanes:
            ended = [
                all_lanes.submit(
                    _suffer_in_turn, sites, each, Random(f"{report.seed} {place}"), until_s, report
                )
                for place, each in enumerate(lanes)
            ]
        for lane in ended:
            lane.result()
        name = "the end"
        sites.finish()
    except AssertionError as error:
        report.stuck += 1
        report.said.append(f"seed {report.seed}, {name}: {error}")
        traceback.print_exc()
    sites.ledger.judge(report)


def _suffer_in_turn(
    sites: Sites, names: list[str], random: Random, until_s: float, report: SitesReport
) -> None:
    for name in names:
        if time.monotonic() >= until_s:
            break
        print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
        try:
            sites.suffer(name, random, report)
            sites.linger(random.uniform(0.0, 1.0))
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


def run_sites(sites: int, seed: int, seconds: float, routing: str) -> SitesReport:
    """Run sites in a line for a time, and judge what they have delivered."""
    report = SitesReport(seed, sites)
    until_s = time.monotonic() + seconds
    folder = Path(tempfile.mkdtemp(prefix="fieldfare-sites-"))
    with running_sites(folder, sites, seed, routing=routing) as running:
        names: list[str] = []
        for _ in range(max(1, int(seconds / 30))):
            deck = deck_of(sites)
            running.random.shuffle(deck)
            names += deck
        suffer_all(running, names, until_s, report)
    if report.is_good:
        shutil.rmtree(folder, ignore_errors=True)
    return report
