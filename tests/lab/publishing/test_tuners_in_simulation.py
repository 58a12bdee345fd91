"""
The two tuners in the simulated system, in doses that are quick; experiments/autotuned has the full ones.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable
from functools import cache
from statistics import mean

import pytest

from fieldfare.publishing.autotuned import AutotunedKnobs, AutotunedPublisher
from fieldfare.publishing.machine import PublishingMachine
from fieldfare.publishing.windowed import WindowedKnobs, WindowedPublisher
from fieldfare_lab.publishing import FixedPublisher
from fieldfare_lab.simulation.publishing import (
    Run,
    SubscriberModel,
    SystemModel,
    poisson_times,
    profile_times,
    simulate,
)

pytestmark = pytest.mark.long

DOSES = [(1.75, 300.0), (17.5, 60.0), (35.0, 60.0), (55.0, 60.0)]
WARM_UP_S = 10.0
GOOD_BATCH_MESSAGES = {1.75: (1, 2), 17.5: (4, 5, 6, 8), 35.0: (8, 10, 12, 15), 55.0: (12, 15, 20, 30)}
"""Around the best fixed N of the full sweep, whose best T_poll is 50 ms at each of these loads."""


def publish(machine: PublishingMachine, rate_per_s: float, duration_s: float) -> Run:
    return simulate(machine, poisson_times(rate_per_s, duration_s, 7), duration_s, seed=7)


def latency_s(run: Run) -> float:
    return mean(run.latencies_s(WARM_UP_S))


@cache
def windowed(rate_per_s: float, duration_s: float) -> Run:
    return publish(WindowedPublisher(), rate_per_s, duration_s)


@pytest.mark.parametrize(("rate_per_s", "duration_s"), DOSES)
def test_latency_and_throughput_are_at_least_those_of_the_best_fixed_setting(
    rate_per_s: float, duration_s: float
) -> None:
    run = windowed(rate_per_s, duration_s)
    fixed = [
        publish(FixedPublisher(batch_messages, 0.050), rate_per_s, duration_s)
        for batch_messages in GOOD_BATCH_MESSAGES[rate_per_s]
    ]
    assert latency_s(run) <= 1.05 * min(map(latency_s, fixed))
    best = max(each.delivered(WARM_UP_S, duration_s) for each in fixed)
    assert run.delivered(WARM_UP_S, duration_s) >= 0.95 * best


@pytest.mark.parametrize(("rate_per_s", "duration_s"), DOSES)
def test_latency_is_lower_than_with_the_papers_tuner(rate_per_s: float, duration_s: float) -> None:
    paper = publish(AutotunedPublisher(), rate_per_s, duration_s)
    assert latency_s(windowed(rate_per_s, duration_s)) < 0.85 * latency_s(paper)


@pytest.mark.parametrize(("rate_per_s", "duration_s"), DOSES)
def test_no_queue_grows_below_capacity(rate_per_s: float, duration_s: float) -> None:
    run = windowed(rate_per_s, duration_s)
    half = len(run.polls) // 2
    early = mean(poll.pending_messages for poll in run.polls[:half])
    late = mean(poll.pending_messages for poll in run.polls[half:])
    assert late <= early + 1.0
    assert max(poll.pending_messages for poll in run.polls) <= 40
    assert run.dropped == 0


@pytest.mark.parametrize(("before_per_s", "after_per_s"), [(1.75, 55.0), (55.0, 17.5), (17.5, 35.0)])
def test_a_step_of_the_load_is_settled_within_5_polls(before_per_s: float, after_per_s: float) -> None:
    """Table II's steps: messages that come from the fifth poll after the step to the tenth are as quick as
    those of the steady state."""
    soon: list[float] = []
    steady: list[float] = []
    for seed in range(12):
        times = profile_times([(0, 5, before_per_s), (5, 15, after_per_s)], seed)
        run = simulate(WindowedPublisher(), times, 17, seed=seed)
        polls = [poll.now_s for poll in run.polls if poll.now_s >= 5]
        steady += run.latencies_s(10, 15)
        after = [message for message in run.messages if message.arrived_s >= 5]
        fifth_to_tenth = [message for message in after if 5 <= bisect(polls, message.arrived_s) < 10]
        soon += [message.latency_s for message in fifth_to_tenth if message.latency_s is not None]
    assert mean(soon) == pytest.approx(mean(steady), rel=0.07)


@pytest.mark.parametrize("first", [1, 10, 50])
def test_figure_9_the_papers_tuner_ends_at_the_same_latency_wherever_n_begins(first: int) -> None:
    machine = AutotunedPublisher(AutotunedKnobs(first_batch_messages=first))
    run = publish(machine, 35.0, 100.0)
    assert latency_s(run) == pytest.approx(0.59, rel=0.07)


@pytest.mark.parametrize(("rate_per_s", "too_small", "good"), [(17.5, 1, 5), (35.0, 4, 10), (55.0, 8, 15)])
def test_figure_8_a_small_fixed_n_cannot_carry_a_high_load(
    rate_per_s: float, too_small: int, good: int
) -> None:
    small = publish(FixedPublisher(too_small, 0.050), rate_per_s, 60)
    large = publish(FixedPublisher(50, 0.050), rate_per_s, 60)
    fitting = publish(FixedPublisher(good, 0.050), rate_per_s, 60)
    assert latency_s(small) > 5 * latency_s(fitting)
    assert latency_s(large) > latency_s(fitting)


def slow_subscriber(make: Callable[[], PublishingMachine], *, receive_first: bool) -> Run:
    model = SystemModel(
        subscriber=SubscriberModel(read_s=1 / 25, vacation_s=5.0),
        broker_buffer=50,
        receive_first=receive_first,
    )
    return simulate(make(), poisson_times(17.5, 120, 2), 120, model=model, seed=2)


def test_a_slow_subscriber_costs_no_request_with_our_tuner() -> None:
    """Section V.B.3. The broker takes less than comes: the rest waits in the data store, none is dropped, and
    about as much is delivered as without tuning, where requests find all workers held up."""
    untuned = slow_subscriber(lambda: FixedPublisher(10, 0.050), receive_first=False)
    tuned = slow_subscriber(WindowedPublisher, receive_first=True)
    assert untuned.dropped > 100
    assert tuned.dropped == 0
    assert tuned.delivered(0, 120) >= 0.9 * untuned.delivered(0, 120)
    assert tuned.left_messages > 100


@pytest.mark.parametrize("rate_per_s", [1.75, 17.5, 55.0])
def test_a_bound_on_latency_is_kept_with_fewer_rounds(rate_per_s: float) -> None:
    duration_s = 60.0
    bounded = publish(WindowedPublisher(WindowedKnobs(latency_bound_s=1.0)), rate_per_s, duration_s)
    ages = [m.acknowledged_s - m.arrived_s for m in bounded.messages if m.acknowledged_s is not None]
    assert sum(age_s <= 1.0 for age_s in ages) >= 0.98 * len(ages)

    def rounds(run: Run) -> int:
        return sum(poll.pending_messages > 0 for poll in run.polls)

    unbounded = publish(WindowedPublisher(), rate_per_s, duration_s)
    assert rounds(bounded) < 0.9 * rounds(unbounded)
