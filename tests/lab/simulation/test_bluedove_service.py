"""BlueDove in simulated time: tiny systems, checked by checkers that know only the trace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fieldfare.forwarding import Adaptive, Random, ResponseTime, SubscriptionCount
from fieldfare.partitioning import Partitioning, Replicated
from fieldfare.planning.plans import owners_in_turn
from fieldfare_lab.axes import numeric_axis, single_attribute
from fieldfare_lab.replicas import ReplicatedSpace
from fieldfare_lab.simulation.bluedove import checkers
from fieldfare_lab.simulation.bluedove.model import ServiceModel, Trace, arrivals
from fieldfare_lab.simulation.bluedove.saturation import saturation_rate
from fieldfare_lab.simulation.bluedove.service_time import LinearSearch, MeasuredSearch
from fieldfare_lab.simulation.bluedove.system import PolicyFactory, simulate
from fieldfare_lab.simulation.bluedove.workload import PATHS, Boxes, boxes, points

pytestmark = pytest.mark.long

MODEL = ServiceModel(LinearSearch(0.0, 50e-6))
AXES = tuple(numeric_axis(path, [200, 400, 600, 800]) for path in PATHS)
SYSTEMS: dict[str, Partitioning] = {
    "bluedove": ReplicatedSpace(AXES, tuple(owners_in_turn(5, i) for i in range(4))),
    "p2p": single_attribute(AXES[0], range(5)),
    "replicated": Replicated(5),
}
POLICIES: dict[str, PolicyFactory] = {
    "adaptive": lambda rng: Adaptive(),
    "response time": lambda rng: ResponseTime(),
    "subscription amount": lambda rng: SubscriptionCount(),
    "random": Random,
}


@pytest.fixture(scope="module")
def stored() -> Boxes:
    return boxes(200, np.random.default_rng(1))


def as_box_lists(stored: Boxes) -> list[list[tuple[int, int]]]:
    return [
        list(zip(low, high, strict=True))
        for low, high in zip(stored.low.tolist(), stored.high.tolist(), strict=True)
    ]


def run(
    partitioning: Partitioning, policy: PolicyFactory, stored: Boxes, rate_per_s: float = 500, seed: int = 1
) -> Trace:
    """Five seconds of messages, and then time until nothing is under way."""
    rng = np.random.default_rng(seed)
    arrived_s = arrivals([(5.0, rate_per_s)], MODEL, rng)
    values = points(len(arrived_s), rng)
    return simulate(partitioning, stored, policy, MODEL, values, arrived_s, 60.0, seed=seed, searches=True)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_message_reaches_exactly_its_subscribers_and_queues_keep_their_order(
    system: str, policy: str, stored: Boxes
) -> None:
    trace = run(SYSTEMS[system], POLICIES[policy], stored)
    assert len(trace.matches) == len(trace.arrived_s) > 2000
    assert not checkers.lost_without_reason(trace)
    assert not checkers.matched_wrongly(trace, as_box_lists(stored))
    assert not checkers.out_of_order(trace)
    assert not checkers.moments_out_of_order(trace)


def test_the_same_seed_gives_the_same_run(stored: Boxes) -> None:
    one, same, other = (run(SYSTEMS["bluedove"], Random, stored, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(one.delivered_s, same.delivered_s)
    assert not np.array_equal(one.delivered_s[:100], other.delivered_s[:100])


def test_checkers_find_what_they_are_for(stored: Boxes) -> None:
    """A checker that never complains is no checker."""
    trace = run(SYSTEMS["p2p"], Random, stored, rate_per_s=100)
    trace.matches[3] = [*trace.matches[3], 999]
    trace.delivered_s[5] = np.nan
    assert checkers.matched_wrongly(trace, as_box_lists(stored)) == [3]
    assert checkers.lost_without_reason(trace) == [5]
    trace.crashed_s[int(trace.matcher[5])] = 1.0
    assert not checkers.lost_without_reason(trace)
    trace.delivered_s[0] = 50.0
    assert checkers.out_of_order(trace)
    trace.delivered_s[0] = 0.0
    assert checkers.moments_out_of_order(trace) == [0]


def test_a_bundle_of_messages_takes_as_long_as_all_of_them(stored: Boxes) -> None:
    """Scale: with ten messages in one, the matchers are as busy, and a tenth of the events is simulated."""
    busy_s, counts = [], []
    for bundle in (1.0, 10.0):
        model = replace(MODEL, bundle_messages=bundle)
        rng = np.random.default_rng(3)
        arrived_s = arrivals([(20.0, 400.0)], model, rng)
        values = points(len(arrived_s), rng)
        trace = simulate(SYSTEMS["bluedove"], stored, POLICIES["adaptive"], model, values, arrived_s, 30.0)
        busy_s.append(sum(trace.busy_s.values()))
        counts.append(len(arrived_s))
    assert busy_s[0] == pytest.approx(busy_s[1], rel=0.1)
    assert counts[0] == pytest.approx(10 * counts[1], rel=0.1)


def test_one_matcher_saturates_where_its_service_time_says(stored: Boxes) -> None:
    """The oracle is a division: 200 subscriptions of 50 microseconds are 10 ms, so 100 messages a second."""

    def at(rate_per_s: float) -> Trace:
        rng = np.random.default_rng(int(rate_per_s))
        arrived_s = arrivals([(30.0, rate_per_s)], MODEL, rng)
        values = points(len(arrived_s), rng)
        return simulate(Replicated(1), stored, Random, MODEL, values, arrived_s, 30.0)

    assert saturation_rate(at, 30.0) == pytest.approx(100, rel=0.08)


def test_service_times_follow_their_models() -> None:
    assert LinearSearch(1.0, 0.5).time_s(4) == 3.0
    measured = MeasuredSearch(((0, 1.0), (10, 2.0), (20, 6.0)))
    assert [measured.time_s(size) for size in (0, 5, 10, 15, 40)] == [1.0, 1.5, 2.0, 4.0, 12.0]
    with pytest.raises(ValueError, match="ascending from 0"):
        MeasuredSearch(((5, 1.0), (3, 2.0)))
