"""Settings of balancing. Defaults are the paper's; those that it does not give say so."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fieldfare.balancing.load import NORMALISATION_S, Metric, Resource


@dataclass(frozen=True, slots=True)
class Ratios:
    """A bound for each utilisation ratio, 0 to 1."""

    input: float
    output: float
    cpu: float
    memory: float

    @classmethod
    def all(cls, bound: float) -> Ratios:
        """Return one bound for all ratios."""
        return cls(bound, bound, bound, bound)

    def of(self, resource: Resource) -> float:
        """Return the bound of a ratio."""
        return float(getattr(self, resource.value))


@dataclass(frozen=True, slots=True)
class Triggers:
    """Differences between two brokers from which on they balance; the delay's is a share (equation 1)."""

    input: float
    output: float
    delay: float

    def of(self, metric: Metric) -> float:
        """Return the threshold of a metric."""
        return float(getattr(self, metric.value))

    def scaled(self, share: float) -> Triggers:
        """Return a share of all thresholds."""
        return Triggers(self.input * share, self.output * share, self.delay * share)


@dataclass(frozen=True, slots=True)
class BalancingSettings:
    """The settings of a broker's balancer. Times are in seconds.

    Parameters
    ----------
    lower_overload
        Ratios above which a broker accepts no load (state N/A). Lower: more room for peaks.
    higher_overload
        Ratios above which a broker sheds load at once. Between the two it neither accepts nor sheds.
    local
        Triggering thresholds between brokers of a cluster. Lower: more even loads, and more moves.
    normalisation_s
        N_f of equation 1. Lower: small differences of delay count for more.
    balance
        Difference at which two brokers count as balanced while subscriptions are chosen.
    stabilise_s, stabilise_change
        Time after a session in which a broker takes part in no other one, and the change between two
        detections up to which its load is stable then. Shorter: decisions on loads that still move.
    unstable_s
        Time after that in which a load that still changes keeps a broker STABILIZING. Not in the paper, where
        it has no end. Longer: a load that grows steadily is balanced only once it is an overload.
    sampling_s
        T of PRESS: time that the other broker is given to choose subscriptions.
    migration_timeout_s
        Time for each migrating subscriber to connect. Not in the paper: 1 s.
    detection_s
        Time between two detections. Not in the paper: 5 s.
    pie_s, pie_change
        A PIE message is published when the state changes or a metric changes by this, and at the latest
        after this time. Not in the paper: 60 s and 0.02. Shorter: more messages.
    lasting_s
        Time for which a difference must last before it is balanced: as long as the window over which loads
        are measured, so that a plan does not rest on rates from before a change. Not in the paper: 0.
        Longer: later sessions.
    follow_s, follow_share
        For this time after a session that moved something, thresholds are this share of the triggering ones:
        once subscriptions move, they move on to well below the thresholds, and the next change of the rates
        does not cross them at once. Not in the paper: 0 s. Longer, or a lower share: more sessions now, and
        fewer later.
    stale_s
        Age at which a PIE message is ignored. Not in the paper: 3 x 60 s.
    overload_span_s
        Time over which a load must be measured, after a session, before it counts as overload. The paper has
        none, and there an overloaded broker gives away all its subscriptions while it works off its queue.
    sheds_backlog
        Whether CPU that works off a queue counts as overload although I_r is below its bound. The paper's
        broker does so. False: only what arrives counts.
    reply_s
        Time to wait for the answer to a request.
    hold_s
        Time for which a broker and a metric with which nothing could be improved are not tried again, unless
        one of the two loads changes by `stabilise_change`. Not in the paper.
    rest_s
        Time for which a subscriber that has moved is moved no further, unless its broker is overloaded. Not
        in the paper: 0. Longer: fewer moves, and slower balancing of what moves often.
    improvement
        A joint plan that lowers the difference by less than this is dropped. Not in the paper: 0.
    session_moves_max, moves_per_min
        Maximum subscriptions of one session, and in each minute; 0 means no limit. A broker whose runtime
        moves subscriptions keeps to both, whatever loads other brokers claim to have. Not in the paper.
    """

    lower_overload: Ratios = field(default_factory=lambda: Ratios.all(0.9))
    higher_overload: Ratios = field(default_factory=lambda: Ratios.all(0.95))
    local: Triggers = Triggers(0.1, 0.1, 0.1)
    normalisation_s: float = NORMALISATION_S
    balance: float = 0.005
    stabilise_s: float = 30.0
    stabilise_change: float = 0.05
    unstable_s: float = math.inf
    sampling_s: float = 30.0
    migration_timeout_s: float = 1.0
    detection_s: float = 5.0
    pie_s: float = 60.0
    pie_change: float = 0.02
    lasting_s: float = 0.0
    follow_s: float = 0.0
    follow_share: float = 0.5
    stale_s: float = 180.0
    overload_span_s: float = 10.0
    sheds_backlog: bool = False
    reply_s: float = 5.0
    hold_s: float = 300.0
    rest_s: float = 0.0
    improvement: float = 0.0
    session_moves_max: int = 0
    moves_per_min: int = 0
