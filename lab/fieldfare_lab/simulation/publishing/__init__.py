"""The publisher, broker and subscriber of Balasubramanian et al., sections III and V, in simulated time."""

from fieldfare_lab.simulation.publishing.arrivals import poisson_times, profile_times
from fieldfare_lab.simulation.publishing.model import (
    FAST_SUBSCRIBER,
    Message,
    PublisherModel,
    SubscriberModel,
    SystemModel,
)
from fieldfare_lab.simulation.publishing.system import PollRecord, Run, simulate

__all__ = [
    "FAST_SUBSCRIBER",
    "Message",
    "PollRecord",
    "PublisherModel",
    "Run",
    "SubscriberModel",
    "SystemModel",
    "poisson_times",
    "profile_times",
    "simulate",
]
