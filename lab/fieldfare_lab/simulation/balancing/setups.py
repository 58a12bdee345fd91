"""The set-ups of sections 6.2 and 6.3.

Figure 5b's capacities of the global set-up's edge brokers are not in the text. Chosen: 200 MHz, 64 MB and
1.2 Mbps for the first, twice that for the second of each cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from random import Random

from fieldfare_lab.simulation.balancing.edge_engine import Machine
from fieldfare_lab.simulation.balancing.head import HeadSettings
from fieldfare_lab.simulation.balancing.offload import offload
from fieldfare_lab.simulation.balancing.stock_market import Quotes, open_market
from fieldfare_lab.simulation.balancing.system import BalancedBrokers, Cluster

B1 = Machine(100, 64, 0.6)
SCALED = Machine(500, 128, 3)
"""An edge broker of Figures 6g and 8d."""


def times(machine: Machine, factor: float) -> Machine:
    """Return a machine with a multiple of the performance."""
    return Machine(machine.mhz * factor, machine.memory_mb * factor, machine.mbps * factor)


LOCAL = (Cluster("B0", {"B1": B1, "B2": times(B1, 2), "B3": times(B1, 4), "B4": times(B1, 10)}),)
FIRST, SECOND = Machine(200, 64, 1.2), Machine(400, 128, 2.4)
GLOBAL = tuple(
    Cluster(f"B{number}0", {f"B{number}1": FIRST, f"B{number}2": SECOND}) for number in (1, 2, 3, 4)
)


def star(edges: int) -> tuple[Cluster, ...]:
    """Return one cluster of equal edge brokers (Figure 6g)."""
    return (Cluster("B0", {f"B{number}": SCALED for number in range(1, edges + 1)}),)


def chain(clusters: int) -> tuple[Cluster, ...]:
    """Return a chain of clusters with two equal edge brokers each (Figure 8d)."""
    return tuple(
        Cluster(f"B{number}0", {f"B{number}1": SCALED, f"B{number}2": SCALED})
        for number in range(1, clusters + 1)
    )


PAPER = HeadSettings(
    offload=offload, overload_span_s=0.0, sheds_backlog=True, hold_s=0.0, rest_s=0.0, migration_timeout_s=1.0
)
"""The paper's settings, without what is added here."""
OURS = HeadSettings(
    samples=100_000,
    from_log=True,
    rest_s=600.0,
    improvement=0.03,
    unstable_s=0.0,
    lasting_s=30.0,
    follow_s=90.0,
    cluster_hops=8,
)
"""The paper's thresholds; PRESS from the log over the window of the load, joint plans, differences that last,
held pairs, subscribers that rest, and no wait for growing loads."""


@dataclass(frozen=True, slots=True)
class SetUp:
    """An experiment: brokers, subscribers, and when what happens.

    Parameters
    ----------
    joins_s
        The span in which the subscribers join.
    step_s, until_s
        When half the publishers double their rates, and the end.
    scale
        Share of the subscribers that take part, for small runs.
    """

    clusters: tuple[Cluster, ...]
    first_broker: str
    joins_s: tuple[float, float]
    silent_share: float
    step_s: float
    until_s: float
    settings: HeadSettings = OURS
    subscribers: int = 2_000
    publishers: int = 40
    is_balancing: bool = True
    is_calibrated: bool = False
    starts_s: Mapping[str, float] = field(default_factory=dict)

    def build(self, quotes: Quotes, seed: int) -> BalancedBrokers:
        """Return the brokers of a seed, ready to run."""
        rng = Random(f"balancing {seed}")
        market = open_market(quotes, self.publishers, self.subscribers, self.silent_share, rng)
        brokers = BalancedBrokers(
            self.clusters,
            market,
            self.first_broker,
            self.settings,
            rng,
            self.is_balancing,
            self.is_calibrated,
            self.starts_s,
        )
        brokers.open(5.0, self.joins_s)
        brokers.double(0.5, self.step_s)
        return brokers


LOCAL_SET_UP = SetUp(LOCAL, "B1", (10.0, 1010.0), 0.25, 3000.0, 4000.0)
GLOBAL_SET_UP = SetUp(GLOBAL, "B11", (10.0, 10.5), 0.20, 8000.0, 10_000.0)


def with_settings(set_up: SetUp, settings: HeadSettings) -> SetUp:
    """Return a set-up with other settings."""
    return replace(set_up, settings=settings)
