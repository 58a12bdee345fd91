"""Stock quotes as events, and subscriptions to them, for routing experiments.

Real daily quotes (Yahoo! Finance, from github eliangcs/pystock-data, CC BY-SA 4.0). As in PADRES's
evaluations, two fifths of the subscriptions name a symbol, and the others also bound one of its numbers.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from fieldfare.filters import FilterRegion, compile_filter, covers, intersects, region_of

QUOTES = "yahoo_daily_top500_2015-03_2017-03.csv.gz"
NUMBERS = ("open", "high", "low", "close", "volume")
SYMBOL_ONLY_SHARE = 0.4


@dataclass(frozen=True, slots=True)
class StockFilter:
    """A compiled filter that knows which events of a workload it matches.

    Brokers examine entry after entry, and all of them evaluate the same filters for the same events; here the
    result is looked up.

    Attributes
    ----------
    matched
        The numbers of the events that match, found with `Filter.matches`.
    """

    region: FilterRegion
    matched: frozenset[int]

    def matches(self, event: int) -> bool:
        """Return whether the event with this number matches."""
        return event in self.matched

    def intersects(self, other: Any) -> bool:
        """Return False only if no event can match both filters."""
        return not isinstance(other, StockFilter) or intersects(self.region, other.region)

    def covers(self, other: Any) -> bool:
        """Return True only if every event that matches the other filter matches this one."""
        return isinstance(other, StockFilter) and covers(self.region, other.region)


@dataclass(frozen=True, slots=True)
class Workload:
    """Events, by number, and subscriptions with the places of their subscribers.

    Attributes
    ----------
    subscriptions
        (place, filter) of each; a place is between 0 and 1, to be multiplied with the number of brokers.
    stocks, nothing
        The advertisements of brokers with and without a publisher.
    """

    events: list[dict[str, Any]]
    subscriptions: list[tuple[float, StockFilter]]
    stocks: StockFilter
    nothing: StockFilter


def read_quotes(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the quotes of each symbol."""
    quotes: dict[str, list[dict[str, Any]]] = {}
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            quote: dict[str, Any] = {"class": row["class"], "symbol": row["symbol"]}
            quote |= {name: float(row[name]) for name in NUMBERS}
            quotes.setdefault(row["symbol"], []).append(quote)
    return quotes


def stock_workload(
    quotes: dict[str, list[dict[str, Any]]], symbols: int, subscriptions: int, events: int, rng: Random
) -> Workload:
    """Draw subscriptions to, and quotes of, the first symbols; fewer symbols: more matches for each event."""
    names = sorted(quotes)[:symbols]
    drawn = [rng.choice(quotes[rng.choice(names)]) for _ in range(events)]
    published = [{"data": quote} for quote in drawn]
    texts = []
    for _ in range(subscriptions):
        symbol = rng.choice(names)
        text = f"data.class = 'STOCK' AND data.symbol = '{symbol}'"
        if rng.random() > SYMBOL_ONLY_SHARE:
            name, bound = rng.choice(NUMBERS), rng.choice(quotes[symbol])
            text += f" AND data.{name} {rng.choice('<>')} {bound[name]:f}"
        texts.append(text)
    filters = [_filter(text, published) for text in texts]
    stocks = _filter("data.class = 'STOCK'", published)
    nothing = _filter("FALSE", published)
    return Workload(published, [(rng.random(), each) for each in filters], stocks, nothing)


def _filter(text: str, events: Sequence[dict[str, Any]]) -> StockFilter:
    compiled = compile_filter(text)
    matched = frozenset([number for number, event in enumerate(events) if compiled.matches(event)])
    return StockFilter(region_of(compiled), matched)
