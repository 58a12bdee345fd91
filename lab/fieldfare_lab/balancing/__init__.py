"""The brokers of PADRES (Cheung and Jacobsen 2006) with their own migration of subscribers, as machines.

They extend the machines of `fieldfare.balancing`, whose runtime moves subscriptions by itself. In reading
order: `poset`, `messages`, `state`, `offloader`, `acceptor`, `edge`.
"""

from fieldfare_lab.balancing.edge import MigratingBalancer
from fieldfare_lab.balancing.state import MigratingState

__all__ = ["MigratingBalancer", "MigratingState"]
