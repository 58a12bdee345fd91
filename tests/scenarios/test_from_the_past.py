"""A subscription that begins in the past, with the whole service, killed in the middle of it."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from service_support import Api, cloud_event, running_service, until

pytestmark = [pytest.mark.service, pytest.mark.timeout(1200)]

RECORDS, EVENTS = 300, 400


def test_the_past_and_the_present_come_once_and_in_order_though_the_driver_is_killed(tmp_path: Path) -> None:
    """A new consumer begins at the first event while others publish; the pipeline dies twice meanwhile."""
    stop = threading.Event()
    published: list[tuple[int, list[int]]] = []

    def publish(api: Api, first: int, count: int) -> None:
        numbers = [*range(first, first + count)]
        offset = api.publish("default", [cloud_event(str(n), {"n": n}) for n in numbers])
        published.append((offset, numbers))

    with running_service(tmp_path, maintenance_s=0.5) as service:
        api = Api(service.url)
        for record in range(RECORDS):
            publish(api, record * EVENTS, EVENTS)

        def go_on() -> None:
            mine, n = Api(service.url), RECORDS * EVENTS
            while not stop.wait(0.02):
                publish(mine, n, 3)
                n += 3

        publisher = threading.Thread(target=go_on)
        publisher.start()
        begun = "/v1/spaces/default/subscriptions/s"
        try:
            body = {"filter": "data.n % 10 = 3", "start": "earliest"}
            answer = api.http.put(begun, json=body).raise_for_status().json()
            assert answer["start"] == "0-0-0"
            given: list[str] = []

            def pull() -> list[str]:
                some = api.http.post(f"{begun}/pull", json={"max": 5000, "wait_s": 1}).raise_for_status()
                places = [each["position"] for each in some.json()["messages"]]
                if places:
                    api.http.post(f"{begun}/ack", json={"positions": places}).raise_for_status()
                return places

            for _ in range(2):
                os.kill(service.driver, signal.SIGKILL)
                service.wait_ready()
                given += pull()
            replay: dict[str, Any] = until(
                lambda: (found := api.http.get(begun).json()["past"])["is_matched"] and found
            )
            assert replay["kept_from"] == "0-0-0" and replay["matched_to"] == replay["to"]
        finally:
            stop.set()
            publisher.join()
        expected = [
            f"0-{offset}-{index}"
            for offset, numbers in sorted(published)
            for index, n in enumerate(numbers)
            if n % 10 == 3
        ]
        until(lambda: given.extend(pull()) or len(given) >= len(expected))
        assert given == expected
        assert pull() == []
