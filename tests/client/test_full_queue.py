"""A publisher that may not wait: its queue is full, and it raises or drops."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from typing import Any, Literal

import pytest
from client_support import SOON
from faulty_service import FaultyService

from fieldfare import AsyncClient, BatchSettings, Client, QueueSettings
from fieldfare.client import QueueFull
from fieldfare.client.dispatch import PublisherQueue
from fieldfare.client.encoding import encode_event

ONE_BY_ONE = BatchSettings(max_events=1, linger_ms=0)


def event(number: int) -> dict[str, object]:
    fixed = {"id": f"{number:04}", "time": "2026-01-01T00:00:00Z"}  # all of one size
    return {"source": "/test", "type": "count", "data": {}} | fixed


def numbers(service: FaultyService) -> list[int]:
    return [int(each["id"]) for each in service.events()]


@pytest.mark.parametrize("bound", [{"max_events": 3}, {"max_bytes": 3 * len(encode_event(event(0)))}])
def test_when_full_raise_raises_queue_full(
    service: FaultyService, client: Client, bound: dict[str, int]
) -> None:
    """A request handler of a web page has no second to spare: it answers that it is busy."""
    service.answers_events.clear()  # however slow the machine: what comes meanwhile waits
    publisher = client.publisher(ONE_BY_ONE, queue=QueueSettings(**bound, when_full="raise"))  # type: ignore[arg-type]
    taken = [publisher.publish(event(0))]
    until_in_flight(publisher)
    for number in range(1, 4):
        taken.append(publisher.publish(event(number)))
    for number in range(4, 9):
        with pytest.raises(
            QueueFull, match=r"^the queue is full \(3 events, \d+ bytes\); this event is not sent"
        ):
            publisher.publish(event(number))
    assert not taken[0].done()  # nothing waited for the answer
    service.answers_events.set()
    assert [future.result(60).offset for future in taken] == [0, 1, 2, 3]
    publisher.publish(event(9)).result(60)  # there is room again
    assert numbers(service) == [0, 1, 2, 3, 9]
    assert publisher.stats().dropped_events == 0
    publisher.close()


def until_in_flight(publisher: Any) -> None:
    until_s = time.monotonic() + 180
    while not publisher.stats().in_flight_events:
        assert time.monotonic() < until_s
        time.sleep(0.001)


def test_events_are_dropped_and_counted_when_the_queue_is_full(
    service: FaultyService, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    service.answers_events.clear()  # however slow the machine: what comes meanwhile waits
    publisher = client.publisher(ONE_BY_ONE, queue=QueueSettings(max_events=2, when_full="drop"))
    futures = [publisher.publish(event(0))]
    until_in_flight(publisher)
    futures += [publisher.publish(event(number)) for number in range(1, 101)]
    assert publisher.stats().dropped_events == 98
    for dropped in futures[3:]:
        assert isinstance(dropped.exception(0), QueueFull)
    service.answers_events.set()
    publisher.close()
    assert numbers(service) == [0, 1, 2]
    stats = publisher.stats()
    assert (stats.acknowledged_events, stats.failed_events, stats.dropped_events) == (3, 0, 98)
    told = [record.getMessage() for record in caplog.records if "dropped" in record.getMessage()]
    assert len(told) == 1, "not a line for each"


def test_publish_many_sends_all_events_through_a_full_queue(service: FaultyService, client: Client) -> None:
    """`publish_many` waits for its events anyway."""
    settings = QueueSettings(max_events=1, when_full="drop")
    with client.publisher(BatchSettings(max_events=50, linger_ms=0), SOON, queue=settings) as publisher:
        assert len(publisher.publish_many(event(number) for number in range(2000))) == 2000
    assert sorted(numbers(service)) == list(range(2000))


def test_when_full_block_waits_for_room(service: FaultyService, client: Client) -> None:
    service.answers_events.clear()  # however slow the machine: what comes meanwhile waits
    publisher = client.publisher(ONE_BY_ONE, queue=QueueSettings(max_events=1))
    publisher.publish(event(0))
    until_in_flight(publisher)
    publisher.publish(event(1))
    waits = threading.Thread(target=publisher.publish, args=(event(2),))
    waits.start()
    assert publisher.stats().queued_events == 1
    assert waits.is_alive()
    service.answers_events.set()
    waits.join(60)
    publisher.close()
    assert numbers(service) == [0, 1, 2]


@pytest.mark.parametrize("when_full", ["raise", "drop"])
def test_an_asyncio_program_too(
    service: FaultyService, caplog: pytest.LogCaptureFixture, when_full: Literal["raise", "drop"]
) -> None:
    """Nothing waits there, so without this the queue has no bound; and asyncio tells of no drop."""
    caplog.set_level(logging.ERROR)

    async def work() -> None:
        settings = QueueSettings(max_events=5, when_full=when_full)
        async with AsyncClient(service.url, batch=ONE_BY_ONE, queue=settings) as client:
            turned_away = 0
            for number in range(50):
                try:
                    client.publish(event(number))
                except QueueFull:
                    turned_away += 1
            stats = client._default_publisher().stats()
            assert stats.queued_events == 5
            assert (turned_away, stats.dropped_events) == ((45, 0) if when_full == "raise" else (0, 45))
        gc.collect()

    asyncio.run(work())
    assert numbers(service) == list(range(5))
    assert not caplog.records


def test_invalid_settings_are_refused(tmp_path: Any, client: Client) -> None:
    for wrong in ({"max_events": 0}, {"max_bytes": 0}, {"when_full": "panic"}):
        with pytest.raises(ValueError):
            QueueSettings(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a publisher with an outbox has no queue"):
        client.publisher(outbox=tmp_path / "outbox", queue=QueueSettings())
    assert not (tmp_path / "outbox").exists()


def test_drops_are_logged_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    queue = PublisherQueue("http://x", "s", "auto", None, None, QueueSettings(max_events=1, when_full="drop"))
    for now_s in (0.0, 5.0, 9.9, 10.0, 12.0, 20.5):
        queue.refuse_when_full(now_s)
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "events dropped since the start: 1",
        "events dropped since the start: 4",
        "events dropped since the start: 6",
    ]
