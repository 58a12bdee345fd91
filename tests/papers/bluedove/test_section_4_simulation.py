"""Li et al. 2011 (BlueDove), section IV, in simulated time: what its figures claim, in tiny doses.

The figures themselves, at the paper's scale, are made by experiments/bluedove; here are a twentieth of the
subscriptions, eight matchers, and runs of a few seconds, so differences are asked for with room to spare.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import simpy

pytestmark = pytest.mark.long

EXPERIMENTS = Path(__file__).parents[3] / "experiments" / "bluedove"
sys.path.append(str(EXPERIMENTS))

import systems  # noqa: E402

from fieldfare.partitioning import Partitioning  # noqa: E402
from fieldfare_lab.simulation.bluedove.members import (  # noqa: E402
    ElasticService,
    MembersModel,
    simulate_members,
)
from fieldfare_lab.simulation.bluedove.model import ServiceModel, arrivals  # noqa: E402
from fieldfare_lab.simulation.bluedove.saturation import grows  # noqa: E402
from fieldfare_lab.simulation.bluedove.system import PolicyFactory, new_trace  # noqa: E402
from fieldfare_lab.simulation.bluedove.workload import boxes, points  # noqa: E402

STORED = boxes(2000, np.random.default_rng(1))
MATCHERS = 8


def saturation(partitioning: Partitioning, policy: PolicyFactory, skewed: int = 0) -> float:
    return systems.saturation(
        partitioning, policy, stored=STORED, skewed=skewed, duration_s=12.0, messages=3000
    )


@pytest.fixture(scope="module")
def bluedove_per_s() -> float:
    return saturation(systems.bluedove(MATCHERS), systems.POLICIES["adaptive"])


def test_figure_5_response_times_stay_below_saturation_and_grow_above_it(bluedove_per_s: float) -> None:
    """Section IV.B: constant at 100,000 messages a second, growing linearly at 150,000, of 114,000."""
    space = systems.bluedove(MATCHERS)
    placement = space.place(STORED.extents)
    model = ServiceModel(systems.PAPER, bundle_messages=bluedove_per_s * 12 / 3000)
    growth = [
        grows(
            systems.run_at(
                share * bluedove_per_s, 20.0, space, systems.POLICIES["adaptive"], model, STORED, placement
            )
        )
        for share in (0.7, 1.4)
    ]
    assert growth[0] < 0.03
    assert growth[1] > 0.15


def test_figure_6_bluedove_saturates_later_than_both_others(bluedove_per_s: float) -> None:
    """Section IV.C: several times P2P's rate, and more than that of full replication's."""
    for name in ("P2P", "full replication"):
        make, policy = systems.SYSTEMS[name]
        assert bluedove_per_s > 3 * saturation(make(MATCHERS), policy)


@pytest.mark.slow
def test_figure_7_any_performance_aware_policy_is_far_better_than_chance(bluedove_per_s: float) -> None:
    """Section IV.D: even the subscription amount policy has three times the rate of the random one."""
    space = systems.bluedove(MATCHERS)
    chance = saturation(space, systems.POLICIES["random"])
    assert bluedove_per_s > 2 * chance
    assert saturation(space, systems.POLICIES["subscription amount"]) > 2 * chance


@pytest.mark.slow
def test_figure_11_more_dimensions_help_and_adverse_messages_hurt(bluedove_per_s: float) -> None:
    """Section IV.F."""
    adaptive = systems.POLICIES["adaptive"]
    assert bluedove_per_s > 2 * saturation(systems.bluedove(MATCHERS, 1), adaptive)
    assert bluedove_per_s > 1.2 * saturation(systems.bluedove(MATCHERS), adaptive, skewed=4)


def test_figure_10_a_crash_loses_about_a_matchers_share_for_less_than_half_a_minute() -> None:
    """Section IV.E: "around 5%" with 20 matchers, back to 0% after 17.5 seconds on average."""
    rng = np.random.default_rng(1)
    model = ServiceModel(systems.PAPER, bundle_messages=1000.0, dispatch_s=0.02)
    arrived_s = arrivals([(70.0, 100_000.0)], model, rng)
    trace = new_trace(points(len(arrived_s), rng), arrived_s, model)

    def make(environment: simpy.Environment) -> ElasticService:
        return ElasticService(
            environment,
            systems.bluedove(MATCHERS),
            STORED,
            model,
            MembersModel(),
            trace,
            systems.POLICIES["adaptive"],
            1,
        )

    simulate_members(make, [(20.0, lambda service: service.crash(3))], 75.0)
    lost = np.isnan(trace.delivered_s)
    after = (arrived_s > 20) & (arrived_s < 30)
    assert 0.03 < lost[after].mean() < 0.35
    assert not lost[arrived_s > 50].any()
