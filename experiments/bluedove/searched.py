"""Without simulated time: subscriptions that the busiest matcher searches per event of the system.

W-BLUEDOVE, 40,000 subscriptions, even cuts; each event counts as 20 additional subscriptions. Then plans for
two matchers, and the cost of deciding.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from systems import MATCHERS, PATHS, POLICIES, SUBSCRIPTIONS, bluedove, peer_to_peer, write_csv

from fieldfare.forwarding import Balanced, ForwardingPolicy, LoadReport, LoadTable, forward_batch
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.partitioning import Extents, Partitioning, Replicated, extents_of
from fieldfare.planning.plans import PlanSettings, plan
from fieldfare_lab.workloads.synthetic import WORKLOADS

EVENT_COST = 20
SAMPLE_EVENTS = 20_000
MANY_EVENTS = 1_000_000


def loads_of(sizes: np.ndarray) -> LoadTable:
    """A service time of one microsecond per searched subscription."""
    loads = LoadTable(len(sizes))
    rates = enumerate((1e6 / (EVENT_COST + sizes)).tolist())
    loads.take(LoadReport(i, 0.0, 0, 0.0, rate, int(sizes[i])) for i, rate in rates)
    return loads


def holders_of(space: Partitioning) -> np.ndarray:
    return np.array([part.matcher for part in space.slices], np.int32)


def searched(
    space: Partitioning, policy: ForwardingPolicy, extents: Extents, events: ColumnBatch
) -> dict[str, float]:
    """Subscriptions searched by the busiest matcher per event, and copies stored per subscription."""
    placement = space.place(extents)
    sizes = placement.sizes
    routes = space.route(events)
    chosen = forward_batch(policy, routes, loads_of(sizes), 0.0).chosen
    visits = np.bincount(chosen, minlength=len(sizes)).astype(float)
    visits[routes.always] += events.size
    work = np.bincount(holders_of(space), visits * (sizes + EVENT_COST))
    return {
        "searched": round(float(work.max()) / events.size),
        "copies": round(int(sizes.sum()) / len(extents), 1),
    }


def of_systems(extents: Extents, events: ColumnBatch) -> list[dict[str, Any]]:
    space = bluedove()
    rng = np.random.default_rng(3)
    policies = {name: made(rng) for name, made in POLICIES.items() if name != "response time"}
    policies["Balanced"] = Balanced(holders_of(space))
    rows: list[dict[str, Any]] = [
        {"system": "BlueDove", "policy": name, **searched(space, policy, extents, events)}
        for name, policy in policies.items()
    ]
    others: dict[str, tuple[Partitioning, str]] = {
        "P2P": (peer_to_peer(), "adaptive"),
        "full replication": (Replicated(MATCHERS), "random"),
    }
    for name, (other, policy) in others.items():
        rows.append({"system": name, "policy": policy, **searched(other, policies[policy], extents, events)})
    for segments in (1, 4, 16):
        settings = PlanSettings(segments_per_matcher=segments)
        found = plan(extents, events, 2, settings)
        assert found is not None
        row = searched(found.partitioning, policies["adaptive"], extents, events)
        rows.append({"system": f"2 matchers, {segments} segments each", "policy": "adaptive", **row})
    return rows


def costs(extents: Extents, events: ColumnBatch) -> list[dict[str, Any]]:
    """Seconds, on one core."""
    space = bluedove()
    sizes, routes = space.place(extents).sizes, space.route(events)
    policy = POLICIES["adaptive"](np.random.default_rng(3))
    forwarded = forward_batch(policy, routes, loads_of(sizes), 0.0)
    sample = WORKLOADS["bluedove"].events(SAMPLE_EVENTS // 5, 2)
    work: dict[str, Callable[[], Any]] = {
        "place": lambda: space.place(extents),
        "route": lambda: space.route(events),
        "forward": lambda: forward_batch(policy, routes, loads_of(sizes), 0.0),
        "sort by slice": lambda: forwarded.by_slice(routes, len(sizes)),
        "plan": lambda: plan(extents, sample, MATCHERS),
    }
    rows = []
    for name, done in work.items():
        started = time.perf_counter()
        done()
        rows.append({"work": name, "seconds": round(time.perf_counter() - started, 2)})
    return rows


def main() -> None:
    workload = WORKLOADS["bluedove"]
    forms = list(workload.normal_forms(SUBSCRIPTIONS, 1))
    started = time.perf_counter()
    extents = extents_of(enumerate(forms), PATHS)
    print({"work": "extents", "seconds": round(time.perf_counter() - started, 2)}, flush=True)
    rows = of_systems(extents, workload.events(SAMPLE_EVENTS, 2))
    for row in [*rows, *costs(extents, workload.events(MANY_EVENTS, 2))]:
        print(row, flush=True)
    write_csv("searched", rows)


if __name__ == "__main__":
    main()
