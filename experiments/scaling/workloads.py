"""Two kinds of alerts; each event matches two subscriptions on average, for any number of subscriptions.

* *keys*: a device by name and a threshold, ``data.device = 'd00000017' AND data.value > 731205``. The number
  of
  devices grows with the number of subscriptions: four subscriptions watch each device.
* *boxes*: four ranges of numbers and no name; they become narrower as the number of subscriptions grows.

Both use the same events: CloudEvents of about 210 bytes with a device and five numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fieldfare.model import Path
from fieldfare_lab.workloads.columns import Columns
from fieldfare_lab.workloads.predicate_columns import RangePredicates, ValuePredicates

DOMAIN = 1_000_000
WATCHED_BY = 4
MATCHES_AN_EVENT = 2
NUMBERS = ["a", "b", "c", "d"]
DEVICE, VALUE = ("data", "device"), ("data", "value")


def devices(subscriptions: int) -> int:
    """The number of devices."""
    return max(1, subscriptions // WATCHED_BY)


def width(subscriptions: int) -> int:
    """The width of a box's sides, such that an event is in two of the boxes on average."""
    return int(DOMAIN * min(0.5, MATCHES_AN_EVENT / max(1, subscriptions)) ** 0.25)


def keys(subscriptions: int, seed: int) -> Columns:
    """Subscriptions to devices, as columns."""
    rng = np.random.default_rng([seed, subscriptions])
    number = np.arange(subscriptions, dtype=np.int32)
    names = [f"d{device:08d}" for device in range(devices(subscriptions))]
    watched = [names[i] for i in (rng.permutation(subscriptions) % len(names)).tolist()]
    threshold = rng.integers(0, DOMAIN, subscriptions).astype(np.float64)
    above = RangePredicates(
        number, np.ones(subscriptions, np.int32), threshold, np.full(subscriptions, np.inf)
    )
    return (
        [DEVICE, VALUE],
        [ValuePredicates(number, np.zeros(subscriptions, np.int32), watched), above],
        subscriptions,
    )


def boxes(subscriptions: int, seed: int) -> Columns:
    """Subscriptions to boxes, as columns."""
    rng = np.random.default_rng([seed, subscriptions])
    side, count = width(subscriptions), len(NUMBERS)
    low = rng.integers(0, DOMAIN - side + 1, subscriptions * count)
    predicates = RangePredicates(
        np.repeat(np.arange(subscriptions, dtype=np.int32), count),
        np.tile(np.arange(count, dtype=np.int32), subscriptions),
        low,
        low + side,
    )
    return [("data", name) for name in NUMBERS], [predicates], subscriptions


WORKLOADS: dict[str, Callable[[int, int], Columns]] = {"keys": keys, "boxes": boxes}
PATHS: dict[str, list[Path]] = {"keys": [DEVICE, VALUE], "boxes": [("data", name) for name in NUMBERS]}


def event_lines(size: int, subscriptions: int, seed: int) -> bytes:
    """Events, one JSON object per line."""
    rng = np.random.default_rng([seed, size])
    device = rng.integers(0, devices(subscriptions), size).tolist()
    numbers = rng.integers(0, DOMAIN, (size, 1 + len(NUMBERS))).tolist()
    lines = [
        f'{{"specversion":"1.0","id":"{i:016x}","source":"/devices","type":"reading","datacontenttype":'
        f'"application/json","data":{{"device":"d{device[i]:08d}","value":{value},"a":{a},"b":{b},'
        f'"c":{c},"d":{d}}}}}\n'
        for i, (value, a, b, c, d) in enumerate(numbers)
    ]
    return "".join(lines).encode()
