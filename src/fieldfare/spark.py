"""fieldfare inside a Spark job: match a DataFrame of events against many standing filters.

>>> from fieldfare.spark import match, save_index                   # doctest: +SKIP
>>> matches = match(events, subscriptions)                          # doctest: +SKIP

``match`` takes a batch or a streaming DataFrame and gives one row for each match; ``save_index`` keeps
compiled subscriptions for the next time; ``Partitioned`` spreads them over a cluster's machines.
"""

from fieldfare.runtimes.spark.compile import SubscriptionsError
from fieldfare.runtimes.spark.match import match, save_index
from fieldfare.runtimes.spark.spread.rows import Partitioned

__all__ = ["Partitioned", "SubscriptionsError", "match", "save_index"]
