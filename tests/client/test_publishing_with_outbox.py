"""Publishers with an outbox: events stay on disk until they are sent, if need be by the next publisher."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from client_support import SOON
from faulty_service import Fault, FaultyService, wait_until

from fieldfare import (
    ApiError,
    AsyncClient,
    BatchSettings,
    Client,
    OutboxSettings,
    PublishError,
    RetrySettings,
)
from fieldfare.client import KeptInOutbox, Outbox, OutboxError, OutboxFull
from fieldfare.client import dispatch as dispatching

NOW = BatchSettings(linger_ms=0)
TROUBLE = Fault("status", 503)


def event(number: int) -> dict[str, object]:
    return {"source": "/test", "type": "count", "data": {"n": number}}


def numbers(service: FaultyService) -> list[int]:
    return [each["data"]["n"] for each in service.events()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox"


def test_unsent_events_are_sent_first_by_the_next_publisher(
    service: FaultyService, client: Client, path: Path
) -> None:
    """The service is away until the program has ended; the next one sends the old events before its own."""
    service.fail_next("events", *[TROUBLE] * 1000)
    publisher = client.publisher(BatchSettings(max_events=10, linger_ms=0), SOON, outbox=path)
    futures = [publisher.publish(event(n)) for n in range(95)]
    publisher.close()
    for future in futures:
        with pytest.raises(KeptInOutbox, match=f"it is kept in {path} and will be sent"):
            future.result(0)
    assert publisher.stats().failed_events == 0
    service.faults["events"].clear()
    with client.publisher(NOW, SOON, outbox=path) as successor:
        assert successor.publish(event(95)).result(60)
        assert successor.stats().acknowledged_events == 96
    assert numbers(service) == list(range(96))


def test_an_outbox_that_is_only_opened_is_emptied(service: FaultyService, client: Client, path: Path) -> None:
    service.fail_next("events", *[TROUBLE] * 1000)
    client.publisher(NOW, SOON, outbox=path).store([event(n) for n in range(1200)])
    client.close()
    service.faults["events"].clear()
    with Client(service.url) as again, again.publisher(outbox=str(path)) as publisher:
        publisher.flush(10)
        assert publisher.outbox is not None and publisher.outbox.stats().waiting_events == 0
    assert numbers(service) == list(range(1200))


def test_a_request_whose_answer_was_lost_is_repeated_as_it_was(
    service: FaultyService, client: Client, path: Path
) -> None:
    """Appended, answer lost, program gone; more events come meanwhile and must not slip into the request."""
    service.fail_next("events", Fault("drop_after"), *[TROUBLE] * 1000)
    publisher = client.publisher(NOW, RetrySettings(5.0, 5.0), outbox=path)
    publisher.store([event(n) for n in range(3)])
    service.wait_for(lambda: len(service.records) == 1)
    publisher.store([event(n) for n in range(3, 6)])
    publisher.close()
    service.faults["events"].clear()
    with client.publisher(NOW, SOON, outbox=path) as successor:
        successor.flush(10)
    assert numbers(service) == list(range(6))
    assert service.duplicates == 1


def test_events_wait_beyond_the_deadline(service: FaultyService, client: Client, path: Path) -> None:
    service.fail_next("events", *[TROUBLE] * 1000)
    with client.publisher(NOW, RetrySettings(0.01, 0.02, deadline_s=0.05), outbox=path) as publisher:
        future = publisher.publish(event(1))
        service.wait_for(lambda: len(service.requests) >= 20)
        found = publisher.stats()
        assert not future.done() and found.trouble == "Trouble: told to fail"
        assert found.outbox is not None and found.outbox.waiting_events == 1
        service.faults["events"].clear()
        assert future.result(60)
        assert publisher.stats().trouble is None
    assert numbers(service) == [1]


def test_a_space_that_is_missing_is_waited_for_and_the_log_says_so(
    service: FaultyService, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(service.url, space="nowhere") as client:
        publisher = client.publisher(NOW, SOON, outbox=path)
        future = publisher.publish(event(1))
        service.wait_for(lambda: len(service.requests) >= 3)
        publisher.close()
    assert isinstance(future.exception(0), KeptInOutbox)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert told == [f"events wait in the outbox {path}: Unknown space: there is no space ['nowhere']"]


def test_an_event_that_is_refused_is_kept_aside_with_the_reason(
    service: FaultyService, client: Client, path: Path
) -> None:
    with client.publisher(NOW, SOON, outbox=path) as publisher:
        with pytest.raises(PublishError):
            publisher.publish_many([event(0), b"{oops", event(2)])
        publisher.publish(event(3)).result(60)
        stats = publisher.stats()
        assert (stats.acknowledged_events, stats.failed_events) == (3, 1)
        assert publisher.outbox is not None
        (refused,) = publisher.outbox.refused()
        assert refused.raw == b"{oops" and refused.reason.startswith("not JSON")
        assert stats.outbox is not None and stats.outbox.refused_events == 1
    assert numbers(service) == [0, 2, 3]
    with Outbox(path) as outbox:
        assert outbox.refused() == [refused]


def test_a_whole_request_that_is_refused_does_not_hold_up_the_next(
    service: FaultyService, client: Client, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service.fail_next("events", Fault("status", 422))
    with client.publisher(NOW, SOON, outbox=path) as publisher:
        with pytest.raises(ApiError, match="told to fail"):
            publisher.publish_many([event(0), event(1)])
        publisher.publish(event(2)).result(60)
        assert publisher.outbox is not None
        assert [each.event["data"]["n"] for each in publisher.outbox.refused()] == [0, 1]
    assert numbers(service) == [2]
    assert f"the service refused 2 events for good; they are kept in the outbox {path}" in caplog.text


@pytest.mark.parametrize("with_outbox", [False, True])
def test_batches_that_the_service_finds_too_large_become_smaller(
    service: FaultyService, client: Client, path: Path, with_outbox: bool
) -> None:
    """The service takes 30 events a request and says 413 to more; every event arrives, in order."""
    service.most_events = 30
    with client.publisher(NOW, SOON, outbox=path if with_outbox else None) as publisher:
        positions = publisher.publish_many([event(n) for n in range(1000)])
        assert publisher.stats().failed_events == 0
    assert numbers(service) == list(range(1000)) and positions == sorted(positions)
    assert service.most_taken <= 30
    assert len(service.requests) - len(service.records) <= 6, "it has not learned what is too large"


def test_an_event_that_is_too_large_by_itself_is_set_aside(
    service: FaultyService, client: Client, path: Path
) -> None:
    service.most_events = 0
    with client.publisher(NOW, SOON, outbox=path) as publisher:
        with pytest.raises(ApiError, match="Too many"):
            publisher.publish_many([event(0), event(1)])
        assert publisher.outbox is not None
        assert [each.event["data"]["n"] for each in publisher.outbox.refused()] == [0, 1]


def test_a_full_outbox_makes_publishing_wait(service: FaultyService, client: Client, path: Path) -> None:
    service.fail_next("events", *[TROUBLE] * 1000)
    line = b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":{"n":1}}'
    settings = OutboxSettings(path, max_bytes=5 * len(line))
    publisher = client.publisher(BatchSettings(max_events=1, linger_ms=0), SOON, outbox=settings)
    done = threading.Event()

    def publish_all() -> None:
        for _ in range(40):
            publisher.publish(line)
        done.set()

    threading.Thread(target=publish_all, daemon=True).start()
    wait_until(lambda: publisher.stats().queued_events == 4)  # and one under way
    assert not done.wait(0.1)
    service.faults["events"].clear()
    assert done.wait(60)
    publisher.close()
    assert len(service.events()) == 40


def test_closing_in_time_leaves_a_slow_request_to_the_next_publisher(
    service: FaultyService, client: Client, path: Path
) -> None:
    service.events_delay_s = 0.5
    publisher = client.publisher(NOW, SOON, outbox=path)
    publisher.store([event(n) for n in range(5)])
    service.wait_for(lambda: service.events_at_once == 1)
    late = publisher.publish(event(5))
    publisher.close(timeout_s=0.05)
    assert isinstance(late.exception(0), KeptInOutbox)
    service.events_delay_s = 0.0
    with client.publisher(NOW, SOON, outbox=path) as successor:
        successor.flush(10)
    assert numbers(service) == list(range(6))


def test_batches_survive_a_power_failure(
    service: FaultyService, client: Client, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk holds only what was synced. Power fails when the first request was appended, not answered."""
    after_failure = path.with_name("after-failure")

    def sync(descriptor: int) -> None:
        os.fsync(descriptor)
        if not service.records:
            for suffix in ("", "-wal"):
                shutil.copyfile(f"{path}{suffix}", f"{after_failure}{suffix}")

    class System:
        fsync = staticmethod(sync)

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

    monkeypatch.setattr("fieldfare.client.outbox.os", System())
    service.fail_next("events", Fault("drop_after"), *[TROUBLE] * 1000)
    publisher = client.publisher(NOW, RetrySettings(5.0, 5.0), outbox=path)
    publisher.publish(event(0))
    service.wait_for(lambda: len(service.records) == 1)
    publisher.close()
    monkeypatch.undo()
    service.faults["events"].clear()
    with client.publisher(NOW, SOON, outbox=after_failure) as successor:
        successor.flush(10)
    assert numbers(service) == [0]
    assert service.duplicates == 1


def test_a_failing_disk_is_retried(
    service: FaultyService, client: Client, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatching, "DISK_RETRY_S", 0.01)
    publisher = client.publisher(NOW, SOON, outbox=path)
    assert publisher.outbox is not None
    cut, failures = publisher.outbox.cut, [OutboxError(path, "cannot be used: I/O error")] * 3

    def cut_badly(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return cut(*arguments)

    monkeypatch.setattr(publisher.outbox, "cut", cut_badly)
    publisher.publish(event(1)).result(60)
    assert not failures
    publisher.close()
    assert numbers(service) == [1]


def test_a_publisher_that_cannot_store_says_so(
    service: FaultyService, client: Client, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client.publisher(NOW, SOON, outbox=path) as publisher:
        assert publisher.outbox is not None
        add = publisher.outbox.add

        def add_some(lines: list[bytes], size_bytes: int) -> None:
            if len(lines) < 500:
                raise OutboxError(path, "cannot be used: disk is full")
            add(lines, size_bytes)

        monkeypatch.setattr(publisher.outbox, "add", add_some)
        with pytest.raises(OutboxError, match="disk is full"):
            publisher.publish(event(0))
        with pytest.raises(PublishError, match="100 of 600 events were not acknowledged") as caught:
            publisher.publish_many([event(n) for n in range(600)])
        assert len(caught.value.accepted) == 500 and list(caught.value.unknown) == list(range(500, 600))
    assert numbers(service) == list(range(500))


def test_only_the_process_that_opened_it_writes(
    client: Client, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client.publisher(outbox=path) as publisher:
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(OutboxError, match="forked"):
            publisher.publish(event(0))
        monkeypatch.undo()


def test_without_an_outbox_nothing_can_be_stored(client: Client) -> None:
    with pytest.raises(ValueError, match="this publisher has no outbox"):
        client.publisher().store([event(1)])


def test_a_program_that_ends_without_closing_leaves_no_event_unsent(
    service: FaultyService, path: Path
) -> None:
    program = (
        "from fieldfare import Client, BatchSettings\n"
        f"client, path = Client({service.url!r}), {str(path)!r}\n"
        "publisher = client.publisher(BatchSettings(linger_ms=60000), outbox=path)\n"
        "for n in range(100): publisher.publish({'source': 's', 'type': 't', 'data': {'n': n}})\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=180)
    assert numbers(service) == list(range(100))


def run_async(service: FaultyService, path: Path, steps: Any) -> None:
    """Run the steps with an async client and its publisher."""

    async def run() -> None:
        async with asyncio.timeout(60), AsyncClient(service.url) as client:
            publisher = client.publisher(NOW, RetrySettings(0.01, 0.05), outbox=path)
            await steps(publisher)
            await publisher.close()

    task: Coroutine[Any, Any, None] = run()
    asyncio.run(asyncio.wait_for(task, 60))


def test_the_async_publisher_leaves_and_finds_events_too(service: FaultyService, path: Path) -> None:
    service.fail_next("events", Fault("drop_after"), *[TROUBLE] * 1000)
    kept: list[BaseException | None] = []

    async def leave(publisher: Any) -> None:
        assert await publisher.store([event(n) for n in range(600)]) == 600
        futures = [publisher.publish(event(n)) for n in range(600, 650)]
        while not service.records:
            await asyncio.sleep(0.005)
        await publisher.close()
        kept.extend(future.exception() for future in futures)

    run_async(service, path, leave)
    assert {type(error) for error in kept} == {KeptInOutbox}
    service.faults["events"].clear()

    async def find(publisher: Any) -> None:
        await publisher.flush(10)
        positions = await publisher.publish_many([event(n) for n in range(650, 700)])
        assert len(positions) == 50

    run_async(service, path, find)
    assert numbers(service) == list(range(700))
    assert service.duplicates >= 1


def test_the_async_publisher_waits_beyond_the_deadline_and_says_when_it_is_full(
    service: FaultyService, path: Path
) -> None:
    service.fail_next("events", *[TROUBLE] * 30)

    async def overfill(publisher: Any) -> None:
        publisher.outbox.max_bytes = 300
        first = publisher.publish(event(0))
        with pytest.raises(OutboxFull):
            for n in range(1, 100):
                publisher.publish(event(n))
        await asyncio.wait_for(publisher.drain(), 60)
        assert await first
        assert len(service.requests) > 30

    run_async(service, path, overfill)
    assert numbers(service) == list(range(len(numbers(service))))


def test_a_cancelled_task_of_a_closing_publisher_keeps_its_events(service: FaultyService, path: Path) -> None:
    service.events_delay_s = 10.0

    async def close_in_time(publisher: Any) -> None:
        future = publisher.publish(event(0))
        while not service.events_at_once:
            await asyncio.sleep(0.005)
        started_s = time.monotonic()
        await publisher.close(timeout_s=0.05)
        assert time.monotonic() - started_s < 8
        assert isinstance(future.exception(), KeptInOutbox)

    run_async(service, path, close_in_time)
    service.events_delay_s = 0.0

    async def find(publisher: Any) -> None:
        await publisher.flush(10)

    run_async(service, path, find)
    assert numbers(service) == [0]
