"""The whole service with its logs in Kafka: publishers, a subscriber, and every process killed once."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.append(str(Path(__file__).parents[1] / "storage"))

import kafka_rig
from service_support import LINES, Api, cloud_event, running_service, until

pytestmark = [pytest.mark.service, pytest.mark.spark, pytest.mark.long]

SUBSCRIPTIONS = {"all": "data.n >= 0", "third": "data.n % 3 = 1", "none": "data.n < 0"}
PUBLISHERS = 3
PAUSE_S = 0.05


class Publisher(threading.Thread):
    """Publishes a few events at a time, each request again until it is acknowledged."""

    def __init__(self, url: str, number: int, enough: threading.Event) -> None:
        super().__init__(daemon=True)
        self._url, self._number, self._enough = url, number, enough
        self.acknowledged: dict[tuple[int, int, int], int] = {}
        """What stands where."""
        self.refused = 0

    def run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=180) as http:
            sequence = 0
            while not self._enough.wait(PAUSE_S):
                sequence += 1
                numbers = [(sequence * PUBLISHERS + self._number) * 10 + i for i in range(1 + sequence % 3)]
                body = b"".join(line(n) for n in numbers)
                place = self._append(http, body, sequence)
                for index, n in enumerate(numbers):
                    self.acknowledged[place["partition"], place["offset"], index] = n

    def _append(self, http: httpx.Client, body: bytes, sequence: int) -> dict[str, Any]:
        headers = {
            **LINES,
            "Fieldfare-Producer": f"p{self._number}",
            "Fieldfare-Sequence": str(sequence),
        }
        until_s = time.monotonic() + 180
        while True:
            assert time.monotonic() < until_s, "nothing is acknowledged any more"
            try:
                answer = http.post("/v1/spaces/default/events", content=body, headers=headers)
                if answer.status_code == 200:
                    return dict(answer.json())
                assert answer.status_code in (429, 503), answer.text
            except httpx.HTTPError:
                pass
            self.refused += 1
            time.sleep(0.1)


def read_on(url: str, id: str, found: dict[str, list[int]], expected: int) -> None:
    """Pull and acknowledge until so many different places came."""
    with httpx.Client(base_url=f"{url}/v1/spaces/default/subscriptions/{id}", timeout=180) as http:

        def enough() -> bool:
            answer = http.post("/pull", json={"wait_s": 0.2, "max": 500})
            if answer.status_code != 200:
                return False
            messages = answer.json()["messages"]
            for message in messages:
                found.setdefault(message["position"], []).append(message["event"]["data"]["n"])
            places = [message["position"] for message in messages]
            if places:
                http.post("/ack", json={"positions": places}).raise_for_status()
            return len(found) >= expected and not messages

        until(enough, why=f"{id}: {len(found)} of {expected}")


def test_every_process_may_die_and_the_broker_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with kafka_rig.own_broker() as broker:
        log = f"kafka://{broker.address}/events?partitions=3"
        with running_service(data, log=log) as service:
            api = Api(service.url)
            api.put_all("default", SUBSCRIPTIONS)
            enough = threading.Event()
            publishers = [Publisher(service.url, number, enough) for number in range(PUBLISHERS)]
            for each in publishers:
                each.start()
            for ends in ("driver", "broker", "gateway", "indexer"):
                have(publishers, 40)
                if ends == "broker":
                    broker.kill()
                    time.sleep(1.0)
                    broker.start_again()
                else:
                    os.kill(getattr(service, ends), signal.SIGKILL)
                have(publishers, 40)
            enough.set()
            for each in publishers:
                each.join(200)
            service.wait_ready()
            check(service.url, publishers, {})
        # The directory knows where its log is.
        with running_service(data) as service:
            answer = Api(service.url).http.post("/v1/spaces/default/events", content=line(1), headers=LINES)
            place = answer.json()
            more = {(place["partition"], place["offset"], 0): 1}
            check(service.url, [], more)


def line(n: int) -> bytes:
    return json.dumps(cloud_event(str(n), {"n": n})).encode() + b"\n"


def have(publishers: list[Publisher], more: int) -> None:
    """Wait until so many events more are acknowledged."""
    before = sum(len(each.acknowledged) for each in publishers)
    until(
        lambda: (
            sum(len(each.acknowledged) for each in publishers) >= before + more
            and all(each.is_alive() for each in publishers)
        )
    )


def check(url: str, publishers: list[Publisher], others: dict[tuple[int, int, int], int]) -> None:
    acknowledged = dict(others)
    for each in publishers:
        assert not acknowledged.keys() & each.acknowledged.keys()
        acknowledged |= each.acknowledged
    for id, matches in (("all", lambda n: True), ("third", lambda n: n % 3 == 1), ("none", lambda n: False)):
        expected = {f"{p}-{o}-{i}": n for (p, o, i), n in acknowledged.items() if matches(n)}
        found: dict[str, list[int]] = {}
        read_on(url, id, found, len(expected))
        assert {place: numbers[0] for place, numbers in found.items()} == expected
        assert all(len(set(numbers)) == 1 for numbers in found.values())
