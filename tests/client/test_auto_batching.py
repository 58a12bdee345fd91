"""A publisher that tunes itself, over HTTP: it is the default, gives way to a service in trouble, loses
nothing.
"""

from __future__ import annotations

import asyncio
import logging

import pytest
from client_support import SOON
from faulty_service import Fault, FaultyService

from fieldfare import AsyncClient, AutoBatching, BatchSettings, Client
from fieldfare.client.batching import BatchReport
from fieldfare.publishing.requests import RequestKnobs


def event(number: int) -> dict[str, object]:
    return {"source": "/test", "type": "count", "data": {"n": number}}


def numbers(service: FaultyService) -> list[int]:
    return [each["data"]["n"] for each in service.events()]


def report(events: int, took_s: float, ended_s: float, *, attempts: int = 1, backlog: int = 0) -> BatchReport:
    return BatchReport(events, 100 * events, 0.0, took_s, attempts, True, backlog, ended_s)


def test_a_publisher_tunes_itself_unless_told_otherwise(client: Client) -> None:
    with client.publisher() as publisher:
        assert publisher.stats().estimates is not None
        publisher.publish(event(1)).result(60)
        publisher.flush()
        found = publisher.stats()
        assert found.estimates is not None and found.estimates.fixed_s is not None
    with client.publisher(batch="auto") as publisher:
        assert publisher.stats().limits == BatchSettings(10_000, 4 << 20, linger_ms=0.0)
    settings = BatchSettings(max_events=7, linger_ms=3.0)
    with client.publisher(batch=settings) as publisher:
        publisher.publish_many([event(n) for n in range(20)])
        assert publisher.stats().limits == settings
        assert publisher.stats().estimates is None


def test_an_unknown_policy_is_refused(client: Client) -> None:
    with pytest.raises(ValueError, match="'fast'"):
        client.publisher(batch="fast")  # type: ignore[arg-type]


def test_a_single_event_does_not_linger(service: FaultyService, client: Client) -> None:
    publisher = client.publisher()
    publisher.publish(event(0)).result(60)
    for n in range(1, 6):
        publisher.publish(event(n)).result(60)
    assert [len(record) for record in service.records] == [1] * 6


def test_events_gather_while_a_request_is_under_way(service: FaultyService, client: Client) -> None:
    service.answers_events.clear()
    with client.publisher() as publisher:
        for n in range(300):
            publisher.publish(event(n))
        service.answers_events.set()
    assert numbers(service) == list(range(300))
    assert len(service.records) <= 4
    assert service.most_events_at_once == 1


def test_each_of_many_short_lived_publishers_gets_its_first_answer(service: FaultyService) -> None:
    """Each begins while requests of the one before are under way: that one is closed without a flush."""
    for _ in range(20):
        client = Client(service.url)
        publisher = client.publisher()
        first = publisher.publish(event(0))
        for n in range(1, 300):
            publisher.publish(event(n))
        first.result(60)
        publisher.close(timeout_s=0.001)
        client.close(timeout_s=0.001)


def test_a_refusing_service_gets_smaller_requests_and_every_event_once(
    service: FaultyService, client: Client
) -> None:
    """Ten times 429: the batches shrink; what was published is in the log, once, in order."""
    publisher = client.publisher(retry=SOON)
    publisher.publish_many([event(n) for n in range(50)])
    before = publisher.stats().limits.max_events
    service.fail_next("events", *[Fault("status", 429, {"retry-after": "0.01"})] * 10)
    futures = [publisher.publish(event(n)) for n in range(50, 52)]
    for future in futures:
        future.result(60)
    publisher.flush()
    during = publisher.stats()
    assert during.estimates is not None and during.estimates.throttle < 1.0
    assert during.limits.max_events < before
    assert during.limits.linger_ms > 0
    publisher.publish_many([event(n) for n in range(52, 3000)])
    publisher.close()
    assert numbers(service) == list(range(3000))
    assert publisher.stats().failed_events == 0
    assert publisher.stats().repeated_requests == 10


def test_a_service_that_turns_slow_gets_a_smaller_load(service: FaultyService, client: Client) -> None:
    publisher = client.publisher()
    for n in range(20):
        publisher.publish(event(n)).result(60)
    service.events_delay_s = 1.0
    publisher.publish(event(20)).result(60)
    publisher.flush()
    slow = publisher.stats()
    assert slow.estimates is not None and slow.estimates.throttle == 0.5
    service.events_delay_s = 0.0
    for n in range(21, 30):
        publisher.publish(event(n)).result(60)
    publisher.close()
    after = publisher.stats()
    assert after.estimates is not None and after.estimates.throttle == 1.0
    assert numbers(service) == list(range(30))


def test_order_is_kept_through_drops_and_refusals(service: FaultyService, client: Client) -> None:
    service.fail_next("events", *[Fault("drop_before"), Fault("drop_after"), Fault("status", 503)] * 5)
    with client.publisher(retry=SOON) as publisher:
        for n in range(2000):
            publisher.publish(event(n))
    assert numbers(service) == list(range(2000))
    assert service.most_events_at_once == 1


@pytest.mark.long
def test_several_requests_are_under_way_only_where_order_is_given_up(
    service: FaultyService, client: Client
) -> None:
    service.events_delay_s = 0.1
    policy = AutoBatching(max_in_flight=4)
    with client.publisher(policy, SOON) as publisher:
        publisher.publish_many(event(n) for n in range(60_000))  # more than requests can take at once
    assert sorted(numbers(service)) == list(range(60_000))
    assert 2 <= service.most_events_at_once <= 4


def test_senders_in_surplus_wait_when_a_policy_takes_back_what_it_allowed(
    service: FaultyService, client: Client
) -> None:
    """Four senders have been started; from then on one request at a time."""

    class Shrinking:
        def __init__(self) -> None:
            self.now = BatchSettings(max_events=1, linger_ms=0, max_in_flight=4)

        def limits(self) -> BatchSettings:
            return self.now

        def observe(self, report: BatchReport) -> None:
            pass

    policy = Shrinking()
    service.events_delay_s = 0.01
    publisher = client.publisher(policy)
    for n in range(12):
        publisher.publish(event(n))  # Each call may start one sender more.
    publisher.flush()
    assert service.most_events_at_once > 1
    policy.now = BatchSettings(max_events=1, linger_ms=0, max_in_flight=1)
    service.most_events_at_once = 0
    publisher.publish_many([event(n) for n in range(12, 24)])
    assert service.most_events_at_once == 1
    publisher.close(10)
    assert numbers(service)[12:] == list(range(12, 24))


def test_its_decisions_are_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    policy = AutoBatching()
    with caplog.at_level(logging.DEBUG, "fieldfare.client"):
        policy.observe(report(100, 0.004, 1.0))
        policy.observe(report(100, 0.004, 1.1, attempts=2, backlog=7))
    told = [record.getMessage() for record in caplog.records]
    assert "throttle 0.50" in told[-1]
    assert "100 events in 4.0 ms (2 attempts), 7 wait" in told[-1]


def test_a_bound_on_latency_is_given_in_milliseconds() -> None:
    policy = AutoBatching(latency_bound_ms=100)
    for number in range(20):
        policy.observe(report(1, 0.002, number * 0.1))
    assert policy.limits().linger_ms == pytest.approx(96.0)
    with pytest.raises(ValueError):
        AutoBatching(latency_bound_ms=0)


def test_every_knob_can_be_set() -> None:
    policy = AutoBatching(max_in_flight=3, knobs=RequestKnobs(most_events=700, least_events=10))
    assert policy.limits().max_events == 700
    with pytest.raises(ValueError, match="max_events must be 1 to 10,000"):
        AutoBatching(knobs=RequestKnobs(most_events=20_000))


async def publish_async(url: str) -> tuple[int, bool]:
    async with AsyncClient(url, retry=SOON) as client:
        publisher = client.publisher()
        await publisher.publish_many([event(n) for n in range(1500)])
        found = publisher.stats()
        return found.acknowledged_events, found.estimates is not None


def test_the_async_publisher_tunes_itself_too(service: FaultyService) -> None:
    service.fail_next("events", Fault("status", 429), Fault("drop_after"))
    assert asyncio.run(publish_async(service.url)) == (1500, True)
    assert numbers(service) == list(range(1500))
