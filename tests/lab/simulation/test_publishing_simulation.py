"""The simulated publisher, broker and subscriber: every message is accounted for, and seeds repeat runs."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import mean

import pytest

from fieldfare.publishing.autotuned import AutotunedPublisher
from fieldfare_lab.publishing import FixedPublisher
from fieldfare_lab.simulation.publishing import (
    PublisherModel,
    Run,
    SubscriberModel,
    SystemModel,
    poisson_times,
    profile_times,
    simulate,
)

STEADY = SystemModel(
    publisher=PublisherModel(receive_work_s=1e-9, publish_work_s=1e-9),
    subscriber=SubscriberModel(read_s=1e-9, vacation_s=1e-4),
    least_round_trip_s=0.140,
    broker_s=1e-9,
)
"""A system whose times hardly vary, for sums by hand."""


def moments(run: Run) -> list[tuple[float | None, ...]]:
    return [(m.arrived_s, m.stored_s, m.acknowledged_s, m.delivered_s) for m in run.messages]


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    runs = [simulate(AutotunedPublisher(), poisson_times(35, 10, seed), 12, seed=seed) for seed in (1, 1, 2)]
    assert moments(runs[0]) == moments(runs[1])
    assert moments(runs[0]) != moments(runs[2])


def test_one_message_takes_the_sum_of_its_steps() -> None:
    """Arrives at 60 ms, is written within 1 ms, polled at 100 ms, read for 152 ms, travels 70 ms to the
    broker and is read there at once; the acknowledgement is back after 140 ms."""
    run = simulate(FixedPublisher(1, 0.050), [0.060], 1.0, model=STEADY)
    (message,) = run.messages
    assert message.stored_s == pytest.approx(0.061, abs=1e-6)
    assert message.acknowledged_s == pytest.approx(0.100 + 0.152 + 0.140, abs=1e-6)
    assert message.delivered_s == pytest.approx(0.100 + 0.152 + 0.070, abs=1e-3)
    assert message.latency_s == pytest.approx(0.262, abs=1e-3)


def test_a_write_waits_for_the_read_that_runs_but_goes_before_the_next() -> None:
    """The read runs from 50 to 202 ms; the second message comes in between, so it is stored 1 ms
    after that."""
    run = simulate(FixedPublisher(1, 0.050), [0.010, 0.100], 1.0, model=STEADY)
    assert run.messages[1].stored_s == pytest.approx(0.203, abs=1e-6)


def test_every_request_is_delivered_once_the_load_ends() -> None:
    run = simulate(AutotunedPublisher(), poisson_times(55, 20, 3), 40, seed=3)
    assert len(run.messages) > 1000
    assert all(m.delivered_s is not None for m in run.messages)
    assert run.left_messages == run.dropped == 0
    for m in run.messages:
        assert m.stored_s is not None and m.acknowledged_s is not None and m.delivered_s is not None
        assert m.arrived_s < m.stored_s < m.delivered_s
        assert m.stored_s < m.acknowledged_s


def test_a_full_broker_holds_transfers_back() -> None:
    """The subscriber sleeps: the broker takes 5 messages and not one more."""
    asleep = replace(SystemModel(), subscriber=SubscriberModel(0.001, 1e6), broker_buffer=5)
    run = simulate(FixedPublisher(5, 0.050), poisson_times(20, 5, 1), 10, model=asleep)
    assert sum(m.acknowledged_s is not None for m in run.messages) == 5
    assert not any(m.delivered_s for m in run.messages)


def test_requests_are_dropped_only_when_the_buffer_is_full() -> None:
    """One worker, busy for ever with a message that the broker does not take: 3 requests wait, others go."""
    model = SystemModel(
        publisher=PublisherModel(workers=1, receive_buffer=3),
        subscriber=SubscriberModel(0.001, 1e6),
        broker_buffer=1,
    )
    times = [0.01, 0.02, *(2.0 + 0.1 * number for number in range(10))]
    run = simulate(FixedPublisher(1, 0.050), times, 10, model=model)
    assert [m.dropped for m in run.messages] == [False] * 5 + [True] * 7
    assert run.dropped == 7


def test_poisson_arrivals_have_their_rate() -> None:
    times = list(poisson_times(50, 200, 4))
    assert times == sorted(times)
    assert times[0] > 0 and times[-1] < 200
    assert len(times) == pytest.approx(10_000, rel=0.04)
    gaps = [after - before for before, after in pairwise(times)]
    assert mean(gap * gap for gap in gaps) == pytest.approx(2 / 50**2, rel=0.1)  # Exponential: 2 / rate².


def test_a_profile_changes_the_rate_at_its_steps() -> None:
    times = list(profile_times([(0, 100, 2.0), (100, 200, 50.0)], 1))
    assert times == sorted(times)
    assert sum(t < 100 for t in times) == pytest.approx(200, rel=0.25)
    assert sum(t >= 100 for t in times) == pytest.approx(5000, rel=0.06)
