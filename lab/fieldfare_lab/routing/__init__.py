"""Brokers that route by filter (FBR), by destination (D-DBR) and by cluster (MERC).

Ji et al. 2013, "Towards Scalable Publish/Subscribe Systems". Machines without I/O, over the topology of
`fieldfare.routing`; in reading order: `messages`, `links` and `multicast` (the multicasting layer),
`text_filter`, `destinations`, `tables`, `covering`, `state`, `strategy`, `matching` (the matching layer),
`ddbr`, `fbr`, `merc`, `checking`, `broker`.
"""

from fieldfare_lab.routing.broker import Broker, BrokerSettings, new_state
from fieldfare_lab.routing.ddbr import Ddbr
from fieldfare_lab.routing.fbr import Fbr
from fieldfare_lab.routing.merc import ClusterTree, Merc
from fieldfare_lab.routing.text_filter import TextFilter

__all__ = ["Broker", "BrokerSettings", "ClusterTree", "Ddbr", "Fbr", "Merc", "TextFilter", "new_state"]
