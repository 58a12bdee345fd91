"""Moves of a subscription among three sites while events flow and sites stop and start at random moments."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import httpx
import pytest
from federation_support import Site, sites
from gateway_support import until

OF_ONE = "/v1/spaces/default/subscriptions/mine"
PUBLISHED_S = 0.05


class Published:
    """Events of one site, each published once: those whose answer was lost are asked for again."""

    def __init__(self, site: Site, first: int) -> None:
        self.numbers: list[int] = []
        self._site, self._next = site, first
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._publish)

    def _publish(self) -> None:
        while not self._stop.wait(PUBLISHED_S):
            line = b'{"specversion":"1.0","id":"%d","source":"/s","type":"t","data":{"n":%d}}\n'
            headers = {
                "content-type": "application/x-ndjson",
                "fieldfare-producer": self._site.name,
                "fieldfare-sequence": str(self._next),
            }
            with contextlib.suppress(httpx.HTTPError):
                answer = self._site.client.post(
                    "/v1/spaces/default/events", content=line % (self._next, self._next), headers=headers
                )
                if answer.status_code == 200:
                    self.numbers.append(self._next)
                    self._next += 1

    def __enter__(self) -> Published:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Reader:
    """Reads a subscription wherever it is: what was acknowledged is read, however the answer got lost."""

    def __init__(self, found: list[Site]) -> None:
        self.delivered: dict[tuple[str, str], int] = {}
        self.acked: set[tuple[str, str]] = set()
        self.after_ack: list[int] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(site,)) for site in found]

    def _read(self, site: Site) -> None:
        unsure: list[str] = []
        while not self._stop.wait(0.02):
            with contextlib.suppress(httpx.HTTPError, KeyError, ValueError):
                # An ack whose answer was lost is sent again first: it is in effect, or has effect now.
                if unsure and not self._ack(site, unsure):
                    continue
                unsure = []
                body = {"max": 50, "ack_deadline_s": 600}
                for each in site.client.post(f"{OF_ONE}/pull", json=body).json()["messages"]:
                    key = site.name, each["position"]
                    number = int(each["event"]["id"])
                    if key in self.acked:
                        self.after_ack.append(number)
                    self.delivered[key] = number
                    unsure.append(each["position"])
                if unsure and self._ack(site, unsure):
                    unsure = []

    def _ack(self, site: Site, positions: list[str]) -> bool:
        answer = site.client.post(f"{OF_ONE}/ack", json={"positions": positions})
        if answer.status_code not in (200, 410):
            return False
        self.acked.update((site.name, each) for each in positions)
        return True

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()


def home_of(found: list[Site]) -> Site | None:
    """Return the site at which the subscription can be read, if it is at rest there."""
    for site in found:
        with contextlib.suppress(httpx.HTTPError):
            if site.client.get(OF_ONE).status_code == 200:
                moves = site.brokers()["moves"]
                if not set(moves) - {"moved", "here"}:
                    return site
    return None


@pytest.mark.parametrize(
    ("seed", "rounds"),
    [pytest.param(1, 2)] + [pytest.param(seed, 4, marks=pytest.mark.slow) for seed in range(2, 8)],
)
def test_stops_and_starts_at_random_moments_lose_and_double_nothing(
    seed: int, rounds: int, tmp_path: Path
) -> None:
    random = Random(seed)
    with sites(tmp_path, "abc", "ab bc ac") as found:
        a, _, c = found
        a.subscribe("mine", "data.n >= 0")
        revision = a.gateway.registry.revision()
        until(lambda: a.counts(revision, "b", "c"))
        reader = Reader(found)
        with reader.running(), Published(a, 1) as one, Published(c, 1_000_000) as two:
            for _ in range(rounds):
                home = until(lambda: home_of(found))
                to = random.choice([site for site in found if site is not home])
                with contextlib.suppress(httpx.HTTPError):
                    home.client.post(f"{OF_ONE}/move", json={"to": to.name})
                time.sleep(random.uniform(0, 1.5))  # the moment is what is random here
                victim = random.choice(found)
                victim.stop()
                time.sleep(random.uniform(0, 0.5))
                victim.start()
            until(lambda: home_of(found))
        published = Counter(one.numbers + two.numbers)
        rest = Reader(found)
        rest.delivered, rest.acked = reader.delivered, reader.acked
        with rest.running():
            until(lambda: len(rest.delivered) >= len(published))
        delivered = Counter(rest.delivered.values())
        assert delivered == published, {"doubled": delivered - published, "lost": published - delivered}
        assert not reader.after_ack and not rest.after_ack
