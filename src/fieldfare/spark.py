"""fieldfare inside a Spark job: match a DataFrame of events against many standing filters.

>>> from fieldfare.spark import match, save_index                   # doctest: +SKIP
>>> matches = match(events, subscriptions)                          # doctest: +SKIP

``match`` takes a batch or a streaming DataFrame and gives one row for each match; ``save_index`` keeps
compiled subscriptions for the next time.
"""

from fieldfare.runtimes.spark.compile import SubscriptionsError
from fieldfare.runtimes.spark.match import match, save_index

__all__ = ["SubscriptionsError", "match", "save_index"]
