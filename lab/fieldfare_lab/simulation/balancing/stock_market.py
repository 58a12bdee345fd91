"""Section 6.1: publishers of closing prices, and subscribers by the paper's templates.

Real daily quotes (Yahoo! Finance, from github eliangcs/pystock-data, CC BY-SA 4.0) stand for the paper's.

Where the text is open: the 5 % template has no symbol; its volume is that of a random published stock. A
subscription with zero traffic is one to a symbol without a publisher.
"""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

QUOTES = "yahoo_daily_top500_2015-03_2017-03.csv.gz"
NUMBERS = ("open", "high", "low", "close", "volume")
TEMPLATES = (("high", 0.20), ("low", 0.20), ("volume", 0.20), ("symbol", 0.34), ("any volume", 0.05))
"""The templates with their shares; the rest, 1 %, are subscriptions to the class alone."""
RATE_MAX_PER_MIN = 60.0


class StockRegion(NamedTuple):
    """A filter of the paper's templates. ``high`` and ``volume`` have a lower bound, ``low`` an upper one."""

    symbol: str | None = None
    attribute: str | None = None
    bound: float = 0.0

    @property
    def key(self) -> StockRegion:
        """The filter itself."""
        return self

    def covers(self, other: StockRegion, /) -> bool:
        """Return whether every quote that the other filter matches also matches this one."""
        if self.symbol is not None and self.symbol != other.symbol:
            return False
        if self.attribute is None:
            return True
        if self.attribute != other.attribute:
            return False
        return self.bound >= other.bound if self.attribute == "low" else self.bound <= other.bound

    def text(self) -> str:
        """Return the filter in fieldfare's language."""
        parts = ["class = 'STOCK'"]
        if self.symbol is not None:
            parts.append(f"symbol = '{self.symbol}'")
        if self.attribute is not None:
            parts.append(f"{self.attribute} {'<' if self.attribute == 'low' else '>'} {self.bound:f}")
        return " AND ".join(parts)


@dataclass(frozen=True, slots=True)
class Quotes:
    """All quotes, symbol by symbol.

    Attributes
    ----------
    columns
        The numbers of each quote, by attribute.
    symbols
        By symbol, its first quote and the one after its last.
    sizes
        Bytes of each quote as the paper writes a publication.
    """

    columns: dict[str, Any]
    symbols: dict[str, tuple[int, int]]
    sizes: Any


def read_quotes(path: Path) -> Quotes:
    """Read the quotes."""
    rows: dict[str, list[dict[str, str]]] = {}
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            rows.setdefault(row["symbol"], []).append(row)
    symbols, ordered = {}, list[dict[str, str]]()
    for symbol in sorted(rows):
        symbols[symbol] = len(ordered), len(ordered) + len(rows[symbol])
        ordered += sorted(rows[symbol], key=lambda row: row["date"])
    columns = {name: np.array([float(row[name]) for row in ordered]) for name in NUMBERS}
    return Quotes(columns, symbols, np.array([len(publication(row)) for row in ordered], dtype=np.int64))


def made_quotes(symbols: int, days: int, seed: int) -> Quotes:
    """Return random walks in place of quotes, for tests."""
    rng = np.random.default_rng(seed)
    count = symbols * days
    close = 20 + np.abs(rng.normal(0, 1, (symbols, days)).cumsum(axis=1)).reshape(-1)
    columns = {"open": close, "close": close, "high": close * 1.02, "low": close * 0.98}
    columns["volume"] = rng.integers(1_000, 1_000_000, count).astype(float)
    places = {f"S{number:03}": (number * days, (number + 1) * days) for number in range(symbols)}
    return Quotes(columns, places, np.full(count, 130))


def publication(row: dict[str, str]) -> str:
    """Return a quote as section 6.1 writes it."""
    parts = [f"[class, '{row['class']}']", f"[symbol, '{row['symbol']}']"]
    parts += [f"[{name}, {row[name]}]" for name in NUMBERS]
    return ", ".join([*parts, f"[date, '{row['date']}']"])


@dataclass(frozen=True, slots=True)
class Market:
    """Publishers, subscribers, and which quotes match which of them.

    Attributes
    ----------
    published
        The range of quotes of each publisher.
    intervals_s
        Seconds between two publications of each publisher.
    regions
        The filter of each subscriber.
    unique
        The unique filters; their columns in `matched`.
    matched
        Boolean array, quotes x unique filters.
    subscriber_columns
        The unique filter of each subscriber.
    """

    quotes: Quotes
    published: tuple[tuple[int, int], ...]
    intervals_s: tuple[float, ...]
    regions: tuple[StockRegion, ...]
    unique: dict[StockRegion, int]
    matched: Any
    subscriber_columns: Any


def open_market(
    quotes: Quotes, publishers: int, subscribers: int, silent_share: float, rng: Random
) -> Market:
    """Draw the companies, rates and subscriptions of an experiment."""
    names = sorted(quotes.symbols)
    published = rng.sample(names, publishers)
    silent = [name for name in names if name not in set(published)]
    rates = [max(1.0, rng.uniform(0, RATE_MAX_PER_MIN)) for _ in published]
    silent_ids = set(rng.sample(range(subscribers), round(silent_share * subscribers)))
    regions = tuple(
        [
            _drawn(quotes, silent if id in silent_ids else published, id in silent_ids, rng)
            for id in range(subscribers)
        ]
    )
    unique = {region: column for column, region in enumerate(dict.fromkeys(regions))}
    quotes = _only(quotes, published)
    return Market(
        quotes,
        tuple(quotes.symbols[name] for name in published),
        tuple(60 / rate for rate in rates),
        regions,
        unique,
        _matches(quotes, published, unique),
        np.array([unique[region] for region in regions]),
    )


def _only(quotes: Quotes, names: list[str]) -> Quotes:
    """Return the quotes of some symbols."""
    rows = np.concatenate([np.arange(*quotes.symbols[name]) for name in names])
    columns = {name: values[rows] for name, values in quotes.columns.items()}
    symbols, at = dict[str, tuple[int, int]](), 0
    for name in names:
        start, end = quotes.symbols[name]
        symbols[name] = at, at + end - start
        at += end - start
    return Quotes(columns, symbols, quotes.sizes[rows])


def _drawn(quotes: Quotes, names: list[str], is_silent: bool, rng: Random) -> StockRegion:
    """Draw a subscription; a silent one names a symbol in any case."""
    symbol = rng.choice(names)
    chance = rng.random() * (0.94 if is_silent else 1.0)
    for template, share in TEMPLATES:
        chance -= share
        if chance < 0:
            return _of_template(quotes, template, symbol, rng)
    return StockRegion(symbol) if is_silent else StockRegion()


def _of_template(quotes: Quotes, template: str, symbol: str, rng: Random) -> StockRegion:
    if template == "symbol":
        return StockRegion(symbol)
    attribute = "volume" if template == "any volume" else template
    bound = float(quotes.columns[attribute][rng.randrange(*quotes.symbols[symbol])])
    return StockRegion(None if template == "any volume" else symbol, attribute, bound)


def _matches(quotes: Quotes, published: list[str], unique: dict[StockRegion, int]) -> Any:
    count = len(quotes.sizes)
    found = np.zeros((count, len(unique)), dtype=bool)
    for name in published:
        start, end = quotes.symbols[name]
        for region, column in unique.items():
            if region.symbol not in (None, name):
                continue
            if region.attribute is None:
                found[start:end, column] = True
                continue
            values = quotes.columns[region.attribute][start:end]
            found[start:end, column] = (
                values < region.bound if region.attribute == "low" else values > region.bound
            )
    return found
