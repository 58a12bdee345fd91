"""Users of a service that loses processes: many subscriptions, a reliable publisher, a reader."""

from __future__ import annotations

import json
import threading
import time
from math import sqrt
from random import Random
from typing import Any

import httpx

from fieldfare.client import Client, NewSubscription
from fieldfare.client.encrypting import NO_ENCRYPTION, Encryption

BULK = 5_000
RARE = 2.3
"""Standard deviations above the mean that about one sum in a hundred exceeds."""


class Feed(threading.Thread):
    """Publishes one event at a time, each repeatedly until it is acknowledged.

    An event has `attributes` attributes `a0`, `a1`, ..., with integers below `domain`.
    """

    def __init__(self, url: str, pause_s: float, attributes: int = 0, domain: int = 1000) -> None:
        super().__init__(daemon=True)
        self._http = httpx.Client(base_url=url, timeout=30)
        self._pause_s = pause_s
        self._attributes, self._domain, self._random = attributes, domain, Random(2)
        self._enough = threading.Event()
        self.stands: dict[str, int] = {}
        """The event's number at each position."""

    def run(self) -> None:
        n = 0
        while not self._enough.wait(self._pause_s):
            n += 1
            self.stands[self._append(n)] = n

    def _append(self, n: int) -> str:
        data = {"n": n, **{f"a{i}": self._random.randrange(self._domain) for i in range(self._attributes)}}
        event = {"specversion": "1.0", "id": str(n), "source": "/feed", "type": "t", "data": data}
        headers = {
            "content-type": "application/x-ndjson",
            "Fieldfare-Producer": "feed",
            "Fieldfare-Sequence": str(n),
        }
        give_up_s = time.monotonic() + 120
        while True:
            assert time.monotonic() < give_up_s, "nothing is acknowledged any more"
            try:
                answer = self._http.post(
                    "/v1/spaces/default/events", content=json.dumps(event) + "\n", headers=headers
                )
                if answer.status_code == 200:
                    place = answer.json()
                    return f"{place['partition']}-{place['offset']}-0"
                assert answer.status_code in (429, 503), answer.text
            except httpx.HTTPError:
                pass
            time.sleep(0.1)

    def stop(self) -> dict[str, int]:
        """Stop, and return the event's number at each position."""
        self._enough.set()
        self.join(150)
        assert not self.is_alive()
        return self.stands


class Reader(threading.Thread):
    """Pulls and acknowledges one subscription's messages, and records when each arrived.

    Encrypted messages are not decrypted.
    """

    def __init__(self, url: str, id: str, space: str = "default") -> None:
        super().__init__(daemon=True)
        self._http = httpx.Client(base_url=f"{url}/v1/spaces/{space}/subscriptions/{id}", timeout=30)
        self._enough = threading.Event()
        self.came: dict[str, list[tuple[int, float]]] = {}
        """By position, the received events' numbers and times."""

    def run(self) -> None:
        while not self._enough.is_set():
            try:
                answer = self._http.post("/pull", json={"wait_s": 0.2, "max": 500})
                messages: list[dict[str, Any]] = answer.json()["messages"] if answer.is_success else []
                now_s = time.monotonic()
                for message in messages:
                    came = self.came.setdefault(message["position"], [])
                    came.append((message["event"]["data"].get("n", 0), now_s))
                if messages:
                    places = [message["position"] for message in messages]
                    self._http.post("/ack", json={"positions": places}).raise_for_status()
            except httpx.HTTPError:
                time.sleep(0.1)

    def stop(self) -> None:
        self._enough.set()
        self.join(60)

    def longest_gap_s(self, from_s: float, to_s: float) -> float:
        """Return the longest time, in seconds, without a message between two moments."""
        times = sorted(when for each in self.came.values() for _, when in each if from_s <= when <= to_s)
        return max(b - a for a, b in zip([from_s, *times], [*times, to_s], strict=True))


def subscribe_ranges(
    url: str,
    first: int,
    count: int,
    attributes: int,
    domain: int,
    width: int,
    space: str = "default",
    encryption: Encryption = NO_ENCRYPTION,
) -> None:
    """Create subscriptions to ranges, numbered from `first` to `count`; with the first one also ``all``."""
    random = Random(first)
    with Client(url, space, timeout_s=120.0, encryption=encryption) as client:
        if not first:
            client.create_subscription("data.n >= 0", "all")
        for start in range(first, count, BULK):
            some = []
            for number in range(start, min(start + BULK, count)):
                lows = [random.randrange(domain - width) for _ in range(attributes)]
                text = " AND ".join(
                    f"data.a{i} BETWEEN {low} AND {low + width}" for i, low in enumerate(lows)
                )
                some.append(NewSubscription(text, f"s{number}"))
            client.create_subscriptions(some)


def subscribe_scores(url: str, count: int, attributes: int, domain: int) -> None:
    """Create subscriptions that must be computed for each event.

    Each one weighs all attributes differently and matches sums that about one event in a hundred has. Nothing
    narrows the search for them: an event's cost grows with their number.
    """
    random = Random(count)
    with Client(url, timeout_s=120.0) as client:
        for start in range(0, count, BULK):
            some = []
            for number in range(start, min(start + BULK, count)):
                weights = [random.randrange(1, 1000) / 1000 for _ in range(attributes)]
                mean, deviation = sum(weights) / 2, sqrt(sum(weight**2 for weight in weights) / 12)
                bound = round(domain * (mean + RARE * deviation))
                text = " + ".join(f"data.a{i} * {weight}" for i, weight in enumerate(weights))
                some.append(NewSubscription(f"{text} > {bound}", f"score{number}"))
            client.create_subscriptions(some)
