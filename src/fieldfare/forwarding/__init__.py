"""Performance-aware forwarding: selects one of an event's candidate slices, by reported loads.

Li et al. 2011 (BlueDove), section III.B. Pure: the time and the random generator are arguments.
"""

from fieldfare.forwarding.dispatch import Forwarded, forward_batch
from fieldfare.forwarding.load import LoadMeter, LoadReport, LoadTable
from fieldfare.forwarding.policies import (
    POLICIES,
    Adaptive,
    Balanced,
    ForwardingPolicy,
    Random,
    ResponseTime,
    SubscriptionCount,
    policy_of,
)

__all__ = [
    "POLICIES",
    "Adaptive",
    "Balanced",
    "Forwarded",
    "ForwardingPolicy",
    "LoadMeter",
    "LoadReport",
    "LoadTable",
    "Random",
    "ResponseTime",
    "SubscriptionCount",
    "forward_batch",
    "policy_of",
]
