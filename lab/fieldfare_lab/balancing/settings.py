"""Settings of a balancer that migrates subscriptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fieldfare.balancing.plans import Plan
from fieldfare.balancing.settings import BalancingSettings, Triggers

Offload = Callable[..., Plan]
"""An algorithm of the paper.

It is called with the metric, the overloaded resource or None, both loads, the offloading broker's poset and
profile, the number of subscribers that may move by key, the other broker's CSS, and the settings.
"""


@dataclass(frozen=True, slots=True)
class MigratingSettings(BalancingSettings):
    """The settings of migration, too. Times are in seconds.

    Parameters
    ----------
    global_
        Triggering thresholds between clusters.
    samples
        N of PRESS. More samples: better estimates, and longer sessions.
    from_log
        Whether PRESS reads the last `samples` events, at most `sampling_s` old, from the log of matches at
        once, in place of waiting for new ones. Not in the paper.
    retry_s
        Time until an unanswered message is sent again.
    offload
        The algorithm that halves one difference between two brokers, as in the paper, in place of a plan that
        brings all three metrics toward the mean of all brokers at once. Not in the paper: None. Simulations
        compare both.
    """

    global_: Triggers = field(default_factory=lambda: Triggers(0.15, 0.15, 0.15))
    samples: int = 50
    from_log: bool = False
    retry_s: float = 2.0
    offload: Offload | None = None

    @property
    def joint(self) -> bool:
        """Whether plans bring all metrics toward the mean of all brokers."""
        return self.offload is None
