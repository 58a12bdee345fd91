"""Routing between brokers: filter-based (FBR), destination-based (D-DBR) and clustered (MERC).

Ji et al. 2013, "Towards Scalable Publish/Subscribe Systems". Machines without I/O; in reading order:
`messages`, `text_filter`, `overlay`, `links`, `multicast` (the multicasting layer), `tables`, `covering`,
`state`, `strategy`, `matching` (the matching layer), `ddbr`, `fbr`, `merc`, `checking`, `broker`.
"""

from fieldfare.routing.broker import Broker, BrokerSettings, new_state
from fieldfare.routing.ddbr import Ddbr
from fieldfare.routing.fbr import Fbr
from fieldfare.routing.merc import ClusterTree, Merc
from fieldfare.routing.text_filter import TextFilter

__all__ = ["Broker", "BrokerSettings", "ClusterTree", "Ddbr", "Fbr", "Merc", "TextFilter", "new_state"]
