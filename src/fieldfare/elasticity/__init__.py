"""Elasticity: a fixed number of operator slices on a number of hosts that follows the load.

Barazzutti et al. 2014 (E-StreamHub). Machines without I/O: ``handle(message, now)`` returns effects; the
runtime sends, waits, stores what must outlive a crash, and adds and releases hosts.

    operators.py       III    the number of slices of each operator, and their names
    executor_hosts.py  -      hosts that are executors of an engine which moves no state
    configuration.py   IV.B   the durable configuration: the operators, and where each slice is
    manager.py         IV.B   collects heartbeats, sends probes, orchestrates Figure 3's moves, resumes them
    rules.py           V      which slices move, and where: subset sum and first fit
    enforcer.py        V      the global rule and the local rule
    bounds.py          -      bounds for the number of hosts, by the time of day
    messages.py        -      messages between hosts, manager, enforcer and runtime

Hosts whose slices have states of their own are in lab/ (``fieldfare_lab.elasticity``): the service has none.
"""

from fieldfare.elasticity.configuration import Configuration
from fieldfare.elasticity.enforcer import ElasticityPolicy, Enforcer
from fieldfare.elasticity.manager import Manager, ManagerSettings
from fieldfare.elasticity.operators import Operators

__all__ = [
    "Configuration",
    "ElasticityPolicy",
    "Enforcer",
    "Manager",
    "ManagerSettings",
    "Operators",
]
