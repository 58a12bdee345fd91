"""Performance-aware forwarding: which of its candidates an event is sent to, from reported loads.

Li et al. 2011 (BlueDove), section III.B. Pure: time is passed in, and so is the random generator.
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
