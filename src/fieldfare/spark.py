"""fieldfare in a Spark job: match a DataFrame of events against many filters.

>>> from fieldfare.spark import match, save_index                   # doctest: +SKIP
>>> matches = match(events, subscriptions)                          # doctest: +SKIP

``match`` takes a batch or streaming DataFrame and returns one row per match; ``save_index`` saves compiled
subscriptions for later jobs; ``Partitioned`` distributes them over a cluster's machines.
"""

from fieldfare.runtimes.spark.compile import SubscriptionsError
from fieldfare.runtimes.spark.distributed.rows import Partitioned
from fieldfare.runtimes.spark.match import match, save_index

__all__ = ["Partitioned", "SubscriptionsError", "match", "save_index"]
