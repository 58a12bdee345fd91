"""Balancing load between brokers (Cheung and Jacobsen 2006, PADRES): subscribers move to brokers with room.

Machines without I/O. In reading order: `load`, `settings`, `detection`, `press`, `poset`, `plans`, `joint`
(which subscribers move, toward the mean of all brokers), `messages`, `state`, `offloader`, `claims` (how far
others are believed), `delegating` (for a runtime that moves subscriptions by itself), `acceptor`, `edge` (the
balancer of an edge broker). `advice` is for an operator. Cluster-heads, subscribers and the paper's offload
algorithms are in `lab/`.
"""

from fieldfare.balancing.edge import EdgeBalancer
from fieldfare.balancing.load import Load, MatchingCost, Metric, Resource
from fieldfare.balancing.settings import BalancingSettings
from fieldfare.balancing.state import EdgeState

__all__ = [
    "BalancingSettings",
    "EdgeBalancer",
    "EdgeState",
    "Load",
    "MatchingCost",
    "Metric",
    "Resource",
]
