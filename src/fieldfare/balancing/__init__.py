"""Balancing load between brokers (Cheung and Jacobsen 2006, PADRES): subscribers move to brokers with room.

Machines without I/O, for a runtime that moves subscriptions by itself. In reading order: `load`, `settings`,
`detection`, `press`, `plans`, `joint` (which subscribers move, toward the mean of all brokers), `messages`,
`state`, `claims` (how far others are believed), `offloader`, `acceptor`, `edge` (the balancer of an edge
broker). `advice` is for an operator. The paper's migration of subscribers, its cluster-heads and its offload
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
