"""All subscriptions and publishers at the first of several linked sites, and a ledger of what comes where.

Tests and benchmarks of balancing use it, with sites in this process or services. Sites may be killed
meanwhile: clients repeat what was not answered.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec

SUBSCRIPTIONS = "/v1/spaces/default/subscriptions"
LINES = {"content-type": "application/x-ndjson"}
LOOK_S = 0.2
"""Seconds between two looks at all sites, and between two attempts of a client."""


class Ledger:
    """What was published, and where each event has come: site, subscription, position."""

    def __init__(self) -> None:
        self.published: list[int] = []
        self.arrived: dict[int, set[tuple[str, str, str]]] = defaultdict(set)
        self.homes: dict[str, list[str]] = {}
        """By subscription, the sites at which it was read, in order."""
        self.moved_s = time.monotonic()
        """When a subscription was first read at another site, the last time."""
        self._lock = threading.Lock()

    def arrive(self, site: str, id: str, position: str, number: int) -> None:
        """Note a message."""
        with self._lock:
            self.arrived[number].add((site, id, position))

    def read(self, site: str, id: str) -> None:
        """Note that a subscription can be read at a site."""
        with self._lock:
            homes = self.homes.setdefault(id, [])
            if not homes or homes[-1] != site:
                homes.append(site)
                self.moved_s = time.monotonic()

    @property
    def moves(self) -> dict[str, int]:
        """By subscription, how many times it has moved."""
        with self._lock:
            return {id: len(homes) - 1 for id, homes in self.homes.items()}

    @property
    def has_all(self) -> bool:
        """Whether all that was published has come."""
        return len(self.arrived) >= len(self.published)

    def lost(self) -> list[int]:
        """Return the events that have not come."""
        return sorted(set(self.published) - set(self.arrived))

    def doubled(self) -> dict[int, set[tuple[str, str, str]]]:
        """Return the events that have come at two places; a redelivery has the same place."""
        return {number: places for number, places in self.arrived.items() if len(places) > 1}


class SkewedLoad:
    """The clients of several sites: one publisher at the first site, and a reader at each.

    Parameters
    ----------
    urls
        The sites by name; all subscriptions begin at the first.
    count
        Number of subscriptions; each matches one event of each request.
    pause_s
        Seconds between two requests of `count` events.
    """

    def __init__(self, urls: Mapping[str, str], count: int = 12, pause_s: float = 0.1) -> None:
        self.urls = dict(urls)
        self.ledger = Ledger()
        self.failures: list[str] = []
        self._count, self._pause_s = count, pause_s
        self._first = next(iter(urls))
        self._publishing, self._reading = threading.Event(), threading.Event()
        self._started_s = 0.0

    @property
    def ids(self) -> list[str]:
        """The subscriptions."""
        return [f"s{number}" for number in range(self._count)]

    def subscribe(self, deadline_s: float) -> None:
        """Create the subscriptions, and wait until they count for the events of all sites."""
        with self._client(self._first) as client:
            for number, id in enumerate(self.ids):
                body = {"filter": f"data.n % {self._count} = {number}"}
                answer = client.put(f"{SUBSCRIPTIONS}/{id}", json=body).raise_for_status()
            revision = answer.json()["revision"]

            def counts() -> bool:
                brokers = client.get("/v1/brokers").json()["brokers"]
                others = [each for each in brokers if each["name"] != self._first]
                through = [each.get("counts_through", -1) for each in others]
                return len(others) == len(self.urls) - 1 and all(each >= revision for each in through)

            wait(counts, deadline_s, "the subscriptions to count everywhere")

    @contextmanager
    def running(self, arrival_s: float = 60.0) -> Iterator[None]:
        """Publish and read; in the end wait until everything has come."""
        publisher = self._thread(self._publish, self._first)
        readers = [self._thread(self._read, name) for name in self.urls]
        self._started_s = self.ledger.moved_s = time.monotonic()
        try:
            yield
            self._publishing.set()
            publisher.join(arrival_s)
            wait(lambda: self.failures or self.ledger.has_all, arrival_s, "all events to come")
            time.sleep(1.0)  # A second copy would come now.
        finally:
            self._publishing.set()
            self._reading.set()
            for thread in (publisher, *readers):
                thread.join(arrival_s)

    def converge(self, rest_s: float, deadline_s: float) -> float:
        """Wait until nothing has moved for `rest_s`; return the seconds from the start to the last move.

        At least one subscription has moved then, all sites are OK, and none moves.
        """
        since_s = time.monotonic()

        def has_rested() -> bool:
            nonlocal since_s
            if self.failures:
                raise RuntimeError(self.failures[0])
            now_s = time.monotonic()
            if not self.is_at_rest():
                since_s = now_s
            rested_s = now_s - max(since_s, self.ledger.moved_s)
            return any(self.ledger.moves.values()) and rested_s > rest_s

        wait(has_rested, deadline_s, "the load to come into balance", LOOK_S)
        return self.ledger.moved_s - self._started_s

    def is_at_rest(self) -> bool:
        """Return whether all sites are OK, and no subscription is moving."""
        try:
            return all(map(self._is_at_rest, self.urls))
        except (httpx.HTTPError, KeyError):
            return False

    def _is_at_rest(self, name: str) -> bool:
        with self._client(name) as client:
            moves = client.get("/v1/brokers").raise_for_status().json()["moves"]
            text = client.get("/metrics").raise_for_status().text
        return 'fieldfare_balancing_state{state="OK"} 1.0' in text and not set(moves) - {"moved", "here"}

    def balance(self, name: str) -> dict[str, Any]:
        """Return what a site says of its load and of balancing."""
        with self._client(name) as client:
            return dict(client.get("/v1/balance").raise_for_status().json())

    def ratios(self, ratio: str = "output") -> dict[str, float]:
        """Return a utilisation ratio of each site, as it measures it itself now."""
        found = {}
        for name in self.urls:
            rows = {each["name"]: each for each in self.balance(name)["brokers"]}
            found[name] = float(rows[name][ratio])
        return found

    def at_homes(self) -> Counter[str]:
        """Return the number of subscriptions that were last read at each site."""
        return Counter(homes[-1] for homes in self.ledger.homes.values())

    def _client(self, name: str) -> httpx.Client:
        return httpx.Client(base_url=self.urls[name], timeout=20)

    def _thread(self, work: Callable[[str], None], name: str) -> threading.Thread:
        def guarded() -> None:
            try:
                work(name)
            except Exception:
                self.failures.append(traceback.format_exc())

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    def _publish(self, name: str) -> None:
        """Publish requests one after the other; each is repeated until it is answered."""
        sequence = 0
        with self._client(name) as client:
            while not self._publishing.wait(self._pause_s):
                numbers = range(sequence * self._count, (sequence + 1) * self._count)
                lines = [
                    {"specversion": "1.0", "id": str(n), "source": "/skewed", "type": "t", "data": {"n": n}}
                    for n in numbers
                ]
                body = b"".join(msgspec.json.encode(each) + b"\n" for each in lines)
                headers = LINES | {"fieldfare-producer": "skewed", "fieldfare-sequence": str(sequence)}
                while not self._has_published(client, body, headers):
                    if self._reading.wait(LOOK_S):
                        return
                self.ledger.published.extend(numbers)
                sequence += 1

    def _has_published(self, client: httpx.Client, body: bytes, headers: dict[str, str]) -> bool:
        try:
            answer = client.post("/v1/spaces/default/events", content=body, headers=headers)
        except httpx.HTTPError:
            return False
        if answer.status_code not in (200, 408, 429, 500, 502, 503, 504):
            raise RuntimeError(f"an event was refused: {answer.text}")
        return answer.status_code == 200

    def _read(self, name: str) -> None:
        unsure: dict[str, list[str]] = {}
        with self._client(name) as client:
            while not self._reading.wait(LOOK_S):
                try:
                    page = client.get(SUBSCRIPTIONS).raise_for_status().json()
                    for id in [each["id"] for each in page["subscriptions"]]:
                        self._read_one(client, name, id, unsure)
                except (httpx.HTTPError, KeyError, ValueError):
                    continue  # It is down, or the subscription is on its way.

    def _read_one(self, client: httpx.Client, name: str, id: str, unsure: dict[str, list[str]]) -> None:
        # An ack without an answer is sent again first: it is in effect, or has effect now.
        if unsure.get(id) and not self._has_acked(client, id, unsure[id]):
            return
        unsure[id] = []
        answer = client.post(f"{SUBSCRIPTIONS}/{id}/pull", json={"max": 1_000, "ack_deadline_s": 600})
        if answer.status_code != 200:
            return
        self.ledger.read(name, id)
        messages = answer.json()["messages"]
        for each in messages:
            self.ledger.arrive(name, id, each["position"], int(each["event"]["id"]))
        unsure[id] = [each["position"] for each in messages]
        if unsure[id] and self._has_acked(client, id, unsure[id]):
            unsure[id] = []

    def _has_acked(self, client: httpx.Client, id: str, positions: list[str]) -> bool:
        answer = client.post(f"{SUBSCRIPTIONS}/{id}/ack", json={"positions": positions})
        return answer.status_code in (200, 410)


def wait(condition: Callable[[], object], deadline_s: float, what: str, every_s: float = 0.05) -> None:
    """Wait for a condition; raise RuntimeError when it does not come true in time."""
    until_s = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > until_s:
            raise RuntimeError(f"waited {deadline_s:g} s for {what}")
        time.sleep(every_s)
