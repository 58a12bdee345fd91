"""BlueDove in simulated time while matchers join, leave and crash: nothing is lost but what a crash takes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import simpy

from fieldfare.forwarding import Adaptive
from fieldfare.partitioning import AttributeSpace
from fieldfare.planning.plans import owners_in_turn
from fieldfare_lab.axes import numeric_axis
from fieldfare_lab.membership import State
from fieldfare_lab.simulation.bluedove import checkers
from fieldfare_lab.simulation.bluedove.members import ElasticService, MembersModel, simulate_members
from fieldfare_lab.simulation.bluedove.model import ServiceModel, arrivals
from fieldfare_lab.simulation.bluedove.service_time import LinearSearch
from fieldfare_lab.simulation.bluedove.system import new_trace
from fieldfare_lab.simulation.bluedove.workload import PATHS, boxes, points

pytestmark = pytest.mark.long

MODEL = ServiceModel(LinearSearch(0.0, 50e-6), dispatch_s=0.02)
AXES = tuple(numeric_axis(path, [200, 400, 600, 800]) for path in PATHS)
FOUNDERS = AttributeSpace(AXES, tuple(owners_in_turn(5, i) for i in range(4)))
STORED = boxes(200, np.random.default_rng(1))
BOX_LISTS = [
    list(zip(low, high, strict=True))
    for low, high in zip(STORED.low.tolist(), STORED.high.tolist(), strict=True)
]
Happenings = list[tuple[float, Callable[[ElasticService], object]]]


def run(events: Happenings, members: MembersModel, seed: int) -> ElasticService:
    """Ninety seconds of thirty messages a second, and then time until nothing is under way."""
    rng = np.random.default_rng(seed)
    arrived_s = arrivals([(90.0, 30.0)], MODEL, rng)
    trace = new_trace(points(len(arrived_s), rng), arrived_s, MODEL)

    def make(environment: simpy.Environment) -> ElasticService:
        return ElasticService(
            environment, FOUNDERS, STORED, MODEL, members, trace, lambda rng: Adaptive(), seed, True
        )

    return simulate_members(make, events, 100.0)


def check(service: ElasticService) -> None:
    trace = service.trace
    assert not checkers.lost_without_reason(trace)
    assert not checkers.matched_wrongly(trace, BOX_LISTS)
    assert not checkers.out_of_order(trace)
    assert not checkers.moments_out_of_order(trace)


def lost_s(service: ElasticService) -> list[float]:
    trace = service.trace
    return trace.arrived_s[np.isnan(trace.delivered_s)].tolist()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_joins_and_leaves_under_load_lose_nothing_and_match_exactly(seed: int) -> None:
    """Scaling out in the morning and in at noon: two servers come, two go, the stream never stops."""
    events: Happenings = [
        (10.0, ElasticService.join),
        (12.0, ElasticService.join),
        (30.0, lambda service: service.leave(1)),
        (50.0, lambda service: service.leave(4)),
    ]
    service = run(events, MembersModel(), seed)
    check(service)
    assert not lost_s(service)
    assert [service.members[name].row.state for name in ("m001", "m004", "m005")] == [
        State.LEFT,
        State.LEFT,
        State.UP,
    ]
    assert {5, 6} <= set(service.trace.matcher.tolist())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_after_a_crash_messages_are_lost_until_dispatchers_know_of_it(seed: int) -> None:
    """Li et al. 2011, section IV.E: losses end within 17.5 seconds on average; here within a pull more."""
    service = run([(20.0, lambda service: service.crash(2))], MembersModel(), seed)
    check(service)
    lost = lost_s(service)
    assert lost and max(lost) < 20.0 + 17.5 + 10.0 + 2.0
    assert set(service.trace.matcher[np.isnan(service.trace.delivered_s)].tolist()) == {2}
    assert not math.isnan(service.trace.delivered_s[-1])


def test_with_failing_connections_only_the_dead_matchers_queue_is_lost() -> None:
    service = run([(20.0, lambda service: service.crash(2))], MembersModel(connections_fail=True), 1)
    check(service)
    assert all(19.0 < moment_s <= 20.0 for moment_s in lost_s(service))


def test_a_run_with_members_repeats_by_its_seed() -> None:
    events: Happenings = [(10.0, ElasticService.join), (30.0, lambda service: service.crash(0))]
    one, same = (run(events, MembersModel(), 7) for _ in range(2))
    assert np.array_equal(one.trace.delivered_s, same.trace.delivered_s, equal_nan=True)
