"""Elasticity: a fixed number of operator slices on a number of hosts that follows the load.

Barazzutti et al. 2014 (E-StreamHub). Machines without I/O: ``handle(message, now)`` gives effects; whoever
runs them sends, waits, keeps what must outlive a crash, and adds and releases hosts.

    operators.py     III    access points, matchers and exit points: what a slice does with what it gets
    slices.py        IV.A   a slice: queues by origin, a vector of what is processed, outputs until
    acknowledged host.py          IV.A   one host's part: runs slices, makes and takes copies of them, says
    what they cost configuration.py IV.B   what is kept durably: the operators, and where each slice is
    manager.py       IV.B   heartbeats in, probes out; orchestrates Figure 3's moves; goes on after its
    death rules.py         V      which slices move, and where: subset sum and first fit enforcer.py      V
    the global rule and the local rule forecast.py      -      beyond the paper: tomorrow is like yesterday,
    scaled by today so far
"""

from fieldfare.elasticity.configuration import Configuration
from fieldfare.elasticity.enforcer import ElasticityPolicy, Enforcer
from fieldfare.elasticity.forecast import Forecast, PredictiveEnforcer
from fieldfare.elasticity.host import SliceHost
from fieldfare.elasticity.manager import Manager, ManagerSettings
from fieldfare.elasticity.operators import Operators, operator_of

__all__ = [
    "Configuration",
    "ElasticityPolicy",
    "Enforcer",
    "Forecast",
    "Manager",
    "ManagerSettings",
    "Operators",
    "PredictiveEnforcer",
    "SliceHost",
    "operator_of",
]
