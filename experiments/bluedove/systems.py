"""Common parts of the figures: the paper's three systems, their workload, and files for results.

The unit of time is the paper's: ``PAPER`` is its linear search, with the one figure that determines its
speed. The fixed cost of a message is that of searching 20 subscriptions. ``engine()`` is fieldfare's own
index, as measured in batches on one core, so its matchers have one core, while the paper's have four.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[1]))

from results_folder import ResultsFolder

from fieldfare.forwarding import Adaptive, Random, ResponseTime, SubscriptionCount
from fieldfare.partitioning import AttributeSpace, Partitioning, Placement, Replicated
from fieldfare.planning.plans import owners_in_turn
from fieldfare_lab.axes import numeric_axis, single_attribute
from fieldfare_lab.replicas import ReplicatedSpace
from fieldfare_lab.simulation.bluedove.model import ServiceModel, Trace, arrivals
from fieldfare_lab.simulation.bluedove.saturation import saturation_rate
from fieldfare_lab.simulation.bluedove.service_time import LinearSearch, ServiceTime, measured_search
from fieldfare_lab.simulation.bluedove.system import PolicyFactory, simulate
from fieldfare_lab.simulation.bluedove.workload import LENGTH, PATHS, Boxes, boxes, points

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
FOLDER = ResultsFolder(RESULTS)
keep, read_csv, write_csv = FOLDER.keep, FOLDER.read, FOLDER.write
SUBSCRIPTIONS = 40_000
MATCHERS = 20
SUBSCRIPTION_S = 40.7e-9
"""Chosen so that BlueDove with 20 matchers saturates at the rate of the paper's Figure 5, 114,000 messages
per second: depending on seed and bundle, at 105,000 to 114,000."""
PAPER = LinearSearch(20 * SUBSCRIPTION_S, SUBSCRIPTION_S)
POLICIES: dict[str, PolicyFactory] = {
    "adaptive": lambda rng: Adaptive(),
    "response time": lambda rng: ResponseTime(),
    "subscription amount": lambda rng: SubscriptionCount(),
    "random": Random,
}


def engine() -> ServiceTime:
    """The service time that ``calibrate.py`` measured."""
    return measured_search(json.loads((HERE / "calibration.json").read_text())["engine"])


@cache
def subscriptions(count: int = SUBSCRIPTIONS, deviation: float = 250.0, cut_off: bool = False) -> Boxes:
    """The paper's subscriptions, from a fixed seed."""
    return boxes(count, np.random.default_rng([1, count]), deviation, cut_off)


def bluedove(matchers: int = MATCHERS, dimensions: int = 4) -> ReplicatedSpace:
    """Even cuts, with one segment per matcher and attribute."""
    axes = [numeric_axis(path, [LENGTH * i / matchers for i in range(1, matchers)]) for path in PATHS]
    owners = tuple(owners_in_turn(matchers, i) for i in range(dimensions))
    return ReplicatedSpace(tuple(axes[:dimensions]), owners)


def peer_to_peer(matchers: int = MATCHERS) -> AttributeSpace:
    """One attribute."""
    return single_attribute(bluedove(matchers).axes[0], range(matchers))


SYSTEMS: dict[str, tuple[Callable[[int], Partitioning], PolicyFactory]] = {
    "BlueDove": (bluedove, POLICIES["adaptive"]),
    "P2P": (peer_to_peer, POLICIES["adaptive"]),
    "full replication": (Replicated, POLICIES["random"]),
}


def run_at(
    rate_per_s: float,
    duration_s: float,
    partitioning: Partitioning,
    policy: PolicyFactory,
    model: ServiceModel,
    stored: Boxes,
    placement: Placement,
    skewed: int = 0,
    seed: int = 1,
) -> Trace:
    """A run at one rate, without computing matches."""
    rng = np.random.default_rng([seed, int(rate_per_s)])
    arrived_s = arrivals([(duration_s, rate_per_s)], model, rng)
    values = points(len(arrived_s), rng, skewed)
    return simulate(
        partitioning, stored, policy, model, values, arrived_s, duration_s, placement=placement, seed=seed
    )


def mean_time_s(partitioning: Partitioning, placement: Placement, service: ServiceTime) -> float:
    """The mean matching time over all slices."""
    return float(np.mean([service.time_s(size) for size in placement.sizes[placement.sizes > 0].tolist()]))


def saturation(
    partitioning: Partitioning,
    policy: PolicyFactory,
    service: ServiceTime = PAPER,
    stored: Boxes | None = None,
    skewed: int = 0,
    duration_s: float = 30.0,
    messages: int = 20_000,
    competition_counts: bool = True,
    seed: int = 1,
) -> float:
    """The saturation rate in messages per second.

    Parameters
    ----------
    messages
        Approximate number of messages that are simulated in a run; if there are more, they are bundled.
    """
    stored = subscriptions() if stored is None else stored
    placement = partitioning.place(stored.extents)
    matchers = len({part.matcher for part in partitioning.slices})
    guess_per_s = matchers / mean_time_s(partitioning, placement, service)

    def run(rate_per_s: float) -> Trace:
        bundle = max(1.0, rate_per_s * duration_s / messages)
        model = ServiceModel(service, bundle_messages=bundle, competition_counts=competition_counts)
        return run_at(rate_per_s, duration_s, partitioning, policy, model, stored, placement, skewed, seed)

    return saturation_rate(run, guess_per_s)


def draw(name: str, chart: alt.TopLevelMixin) -> None:
    """Store a picture in ``results/``."""
    RESULTS.mkdir(exist_ok=True)
    chart.save(RESULTS / f"{name}.png", scale_factor=2)
    chart.save(RESULTS / f"{name}.svg")


def table(rows: Sequence[dict[str, Any]]) -> alt.InlineData:
    """Rows, for a chart."""
    return alt.InlineData(values=list(rows))
