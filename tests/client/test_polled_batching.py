"""The paper's tuner and the windowed one as policies of a publisher: computed by hand, and over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from client_support import SOON
from faulty_service import Fault, FaultyService
from real_gateway import RealGateway

from fieldfare import AsyncClient, BatchSettings, Client
from fieldfare.client import AutotunedBatching, PolledBatching, PollingPolicy, WindowedBatching
from fieldfare.client.batching import Batch, EventQueue
from fieldfare.client.protocol import PublishAnswer
from fieldfare.client.stored_queue import ANONYMOUS
from fieldfare.effects import Ask, Effect
from fieldfare.model import Position
from fieldfare.publishing.autotuned import AutotunedKnobs
from fieldfare.publishing.machine import BatchAssigned, Message, Poll, Polled, ReadBatch, Setting
from fieldfare.publishing.windowed import WindowedKnobs

TAKEN = PublishAnswer([Position(0, 0, 0)], keeps_order=True)
POLICIES = (AutotunedBatching, WindowedBatching)


class Publisher:
    """A queue with a policy, at times that the test names."""

    def __init__(self, policy: PolledBatching) -> None:
        self.queue = EventQueue(policy, "producer", 1 << 20)
        self.policy = policy

    def add(self, count: int, now_s: float) -> None:
        self.queue.add([b"e"] * count, count, ANONYMOUS, 0, now_s)

    def take(self, now_s: float) -> Batch:
        assert self.queue.due_in_s(now_s) == 0.0
        return self.queue.take()

    def end(self, batch: Batch, started_s: float, ended_s: float) -> None:
        self.queue.finish(batch, TAKEN)
        self.queue.report(batch, started_s, ended_s, 1, True)

    def send(self, now_s: float) -> int:
        """A request that is answered in no time; return its number of events."""
        batch = self.take(now_s)
        self.end(batch, now_s, now_s)
        return len(batch.lines)


def autotuned(**knobs: float) -> Publisher:
    return Publisher(AutotunedBatching(AutotunedKnobs(**knobs)))  # type: ignore[arg-type]


def test_n_messages_are_read_at_a_poll_and_n_grows_by_one() -> None:
    """N is 1 and T_poll 50 ms at first. A round takes no time, so N becomes 2, then 3."""
    publisher = autotuned()
    publisher.add(1, 10.0)
    assert publisher.queue.due_in_s(10.0) == pytest.approx(0.050)
    assert publisher.send(10.050) == 1
    assert publisher.policy.setting().batch_messages == 2
    publisher.add(3, 10.060)
    assert publisher.queue.due_in_s(10.060) == pytest.approx(0.040)
    assert publisher.send(10.100) == 2
    assert publisher.policy.limits().max_events == 3
    assert publisher.queue.due_in_s(10.100) == pytest.approx(0.050)


def test_polls_that_find_too_few_messages_halve_n() -> None:
    """One message waits. Polls at 50, 100, 150 ms: N is 8, 4, 2, 1; the one at 200 ms reads it."""
    publisher = autotuned(first_batch_messages=8, max_wait_s=9.0)
    publisher.add(1, 0.0)
    for now_s, after in ((0.051, 4), (0.101, 2), (0.151, 1)):
        assert publisher.queue.due_in_s(now_s) == pytest.approx(0.049)
        assert publisher.policy.setting().batch_messages == after
    assert publisher.send(0.201) == 1


def test_all_that_waits_is_read_when_t_has_passed() -> None:
    """N = 64 is halved at 50, 100 and 150 ms to 8; at 200 ms T (T_poll^max) is over: 3 of 8 are read."""
    publisher = autotuned(first_batch_messages=64)
    publisher.add(3, 0.0)
    assert publisher.queue.due_in_s(0.190) > 0
    assert publisher.policy.setting().batch_messages == 8
    assert publisher.send(0.201) == 3


def test_a_round_lasts_until_a_request_may_be_sent() -> None:
    """The poll at 100 ms reads 3; they are sent when the request before ends, at 200 ms. T_mpt is 100 ms,
    longer than T_poll: N falls from 3 to 2, T_poll is 1.2 x 100 ms, and the next poll at 100 + 120 ms."""
    publisher = autotuned(first_batch_messages=2)
    publisher.add(2, 0.0)
    first = publisher.take(0.050)
    assert publisher.policy.setting().batch_messages == 3
    publisher.add(3, 0.060)
    assert publisher.queue.due_in_s(0.120) is None  # One request at a time, until the service is known.
    publisher.end(first, 0.050, 0.200)
    assert len(publisher.take(0.200).lines) == 3
    found = publisher.policy.setting()
    assert (found.batch_messages, found.poll_interval_s) == (2, pytest.approx(0.120))
    publisher.add(2, 0.201)
    assert publisher.queue.due_in_s(0.201) == pytest.approx(0.100 + 0.120 - 0.201)


def test_load_and_capacity_are_those_of_the_queue_and_of_requests() -> None:
    """λ: 4 messages in the first 50 ms are 80/s, then none in 50 ms: 0.5 x 80 = 40/s.
    η: a request of 2 takes 100 ms while 2 + 3 are in flight: 5 / 0.1 = 50/s. Then one of 3 takes 50 ms, alone
    at its end: 3 / 0.05 = 60/s, and 0.75 x 50 + 0.25 x 60 = 52.5/s."""
    publisher = autotuned(first_batch_messages=4)
    publisher.add(4, 0.0)
    publisher.end(publisher.take(0.050), 0.050, 0.050)  # It took no time: no sample of the capacity.
    assert publisher.policy.setting().load_per_s == pytest.approx(80.0)
    publisher.add(8, 0.101)
    assert publisher.policy.setting().load_per_s == pytest.approx(40.0)
    first = publisher.take(0.151)
    assert len(first.lines) == 2  # N was 5, halved by the poll that found nothing.
    second = publisher.take(0.201)
    assert len(second.lines) == 3
    publisher.end(first, 0.151, 0.251)
    assert publisher.policy.setting().capacity_per_s == pytest.approx(5 / 0.1)
    publisher.end(second, 0.201, 0.251)
    assert publisher.policy.setting().capacity_per_s == pytest.approx(52.5)
    estimates = publisher.policy.estimates()
    assert estimates.capacity_per_s == pytest.approx(52.5)
    assert estimates.fixed_s is None


def test_a_request_that_is_given_up_is_no_transfer() -> None:
    publisher = autotuned()
    publisher.add(1, 0.0)
    batch = publisher.take(0.050)
    publisher.queue.finish(batch, TAKEN)
    publisher.queue.report(batch, 0.050, 0.090, 3, acknowledged=False)
    assert publisher.policy.setting().capacity_per_s is None


def test_a_flush_sends_all_that_waits_at_once() -> None:
    publisher = autotuned()
    publisher.add(5, 0.0)
    publisher.queue.hurry()
    assert publisher.send(0.001) == 5
    publisher.add(1, 0.002)
    assert publisher.queue.due_in_s(0.002) == pytest.approx(0.048)


def test_an_hour_of_missed_polls_is_skipped_and_the_rhythm_stays() -> None:
    polled_s: list[float] = []

    class Counting:
        def start(self, now: float) -> list[Effect]:
            return [Ask(Poll(now + 0.5))]

        def handle(self, message: Message, now: float) -> list[Effect]:
            if isinstance(message, Polled):
                polled_s.append(now)
                return [Ask(ReadBatch(7) if message.pending_messages else Poll(now + 0.5))]
            return [Ask(Poll(now + 0.5))] if isinstance(message, BatchAssigned) else []

        def setting(self) -> Setting:
            return Setting(7, 0.5)

    publisher = Publisher(PolledBatching(Counting()))
    publisher.add(1, 0.0)
    publisher.send(0.5)
    publisher.add(9, 3600.2)
    assert len(polled_s) == 1 + 256 + 1
    assert polled_s[-1] == 3600.0
    assert publisher.queue.due_in_s(3600.2) == pytest.approx(0.3)
    assert publisher.send(3600.5) == 7


def test_the_windowed_policy_reads_all_that_waits() -> None:
    publisher = Publisher(WindowedBatching())
    publisher.add(700, 0.0)
    assert publisher.queue.due_in_s(0.0) == pytest.approx(0.005)
    assert publisher.send(0.005) == 700


def test_in_congestion_the_windowed_policy_bounds_the_events_in_flight() -> None:
    """100 in flight for 10 ms: 10,000/s. Then 100 for 80 ms, over 4 x 10 ms: congestion; the bandwidth is
    0.75 x 10,000 + 0.25 x 1,250 = 7,812/s. A round takes no time: the window is 2 x 7,812 x 10 ms = 156."""
    poll_s = 1 / 128  # Times without rounding errors.
    knobs = WindowedKnobs(
        min_poll_s=poll_s,
        least_batch_messages=1000,
        most_batch_messages=10_000,
        least_transfers=16,
        most_transfers=50_000,
    )
    publisher = Publisher(WindowedBatching(knobs))
    publisher.add(100, 0.0)
    publisher.end(publisher.take(poll_s), poll_s, poll_s + 0.010)
    assert publisher.policy.setting().most_batch_messages == 50_000
    publisher.add(100, 0.018)
    publisher.end(publisher.take(3 * poll_s), 3 * poll_s, 3 * poll_s + 0.080)
    publisher.add(700, 0.104)
    assert len(publisher.take(14 * poll_s).lines) == 156
    assert publisher.policy.setting().most_batch_messages == 156
    # 156 are in flight: the poll at 15/128 s reads nothing, the next is at 16/128 s.
    assert publisher.queue.due_in_s(0.120) == pytest.approx(0.005)


@pytest.mark.parametrize("policy", POLICIES)
def test_they_are_policies_with_polls_and_fixed_settings_are_not(policy: Callable[[], object]) -> None:
    assert isinstance(policy(), PollingPolicy)
    assert not isinstance(BatchSettings(), PollingPolicy)


def event(number: int) -> dict[str, object]:
    return {"source": "/test", "type": "count", "data": {"n": number}}


def numbers(service: FaultyService) -> list[int]:
    return [each["data"]["n"] for each in service.events()]


@pytest.mark.parametrize("policy", POLICIES)
def test_order_is_kept_through_drops_and_refusals(
    policy: Callable[[], PolledBatching], service: FaultyService, client: Client
) -> None:
    service.fail_next("events", *[Fault("drop_before"), Fault("drop_after"), Fault("status", 503)] * 3)
    with client.publisher(policy(), retry=SOON) as publisher:
        futures = [publisher.publish(event(n)) for n in range(40)]
        futures[0].result(60)
        publisher.publish_many([event(n) for n in range(40, 2000)])
    assert numbers(service) == list(range(2000))
    assert publisher.stats().estimates is not None


@pytest.mark.parametrize("policy", POLICIES)
def test_a_batch_that_is_too_large_is_split(
    policy: Callable[[], PolledBatching], service: FaultyService, client: Client
) -> None:
    service.most_events = 30
    with client.publisher(policy(), retry=SOON) as publisher:
        publisher.publish_many([event(n) for n in range(100)])
        publisher.publish(event(100)).result(60)
    assert numbers(service) == list(range(101))


@pytest.mark.parametrize("policy", POLICIES)
def test_events_in_an_outbox_are_polled_too(
    policy: Callable[[], PolledBatching], service: FaultyService, client: Client, tmp_path: Path
) -> None:
    with client.publisher(policy(), outbox=tmp_path / "outbox") as publisher:
        for n in range(20):
            publisher.publish(event(n))
        publisher.publish(event(20)).result(60)  # Without a flush: polls send it.
    assert numbers(service) == list(range(21))


@pytest.mark.parametrize("policy", POLICIES)
def test_over_a_real_gateway_polls_send_all_events_in_order(
    policy: Callable[[], PolledBatching], gateway: RealGateway
) -> None:
    with Client(gateway.url) as client, client.publisher(policy()) as publisher:
        futures = [publisher.publish(event(n)) for n in range(60)]
        places = [(place.offset, place.index) for place in (future.result(60) for future in futures)]
        stats = publisher.stats()
    assert places == sorted(set(places))
    assert stats.acknowledged_events == 60
    assert stats.requests == len({offset for offset, _ in places}) < 60
    assert stats.estimates is not None and stats.estimates.capacity_per_s is not None


@pytest.mark.parametrize("policy", POLICIES)
def test_the_asyncio_client_has_them_too(policy: Callable[[], PolledBatching], gateway: RealGateway) -> None:
    async def publish() -> tuple[int, int]:
        async with AsyncClient(gateway.url) as client, client.publisher(policy()) as publisher:
            await asyncio.gather(*(publisher.publish(event(n)) for n in range(60)))
            await publisher.publish_many([event(n) for n in range(60, 900)])
            return publisher.stats().acknowledged_events, publisher.stats().requests

    acknowledged, requests = asyncio.run(publish())
    assert acknowledged == 900
    assert requests < 60
