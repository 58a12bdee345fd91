"""Seeded workloads for matching: filters and events drawn from the distributions that papers use.

`range`, `eq` and `bluedove` are described in docs/matching-speed.md; `mixed` resembles travellers' alerts on
flights: routes, carriers, delays, hours and weather, some broad, most narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters import Conjunction, NormalForm
from fieldfare.filters.values import ValueSet, greater_than, less_than, points
from fieldfare.matching.events.columns import KIND_FLOAT, KIND_INT, KIND_STRING, Column, ColumnBatch
from fieldfare.model import Path

Constraint = tuple[Path, ValueSet]


@dataclass(frozen=True, slots=True)
class Workload:
    """Filters as normal forms, and events as columns; each call with the same seed returns the same ones."""

    normal_forms: Callable[[int, int], Iterator[NormalForm]]
    """(count, seed) -> that many filters."""
    events: Callable[[int, int], ColumnBatch]
    """(size, seed) -> a batch of that many events."""


def _conjunction(constraints: list[Constraint]) -> NormalForm:
    return NormalForm((Conjunction(tuple(sorted(constraints)), True),))


def closed_range(low: Decimal | int, high: Decimal | int) -> ValueSet:
    """Return the numbers from low to high, both included."""
    above = greater_than(Decimal(low), or_equal=True)
    return ValueSet(numbers=above.intersection(less_than(Decimal(high), or_equal=True)))


def one_of(*strings: str) -> ValueSet:
    """Return exactly these strings."""
    return ValueSet(strings=points(strings))


def _names(count: int) -> list[Path]:
    return [("data", f"a{i:02d}") for i in range(count)]


def _integers(values: NDArray[np.int64]) -> Column:
    return Column(np.full(len(values), KIND_INT, np.uint8), np.ascontiguousarray(values))


def _floats(values: NDArray[np.float64]) -> Column:
    return Column(np.full(len(values), KIND_FLOAT, np.uint8), np.ascontiguousarray(values).view(np.int64))


class _Text:
    """The batch's text: every string once, however many events have it."""

    def __init__(self) -> None:
        self.raw = bytearray()

    def column(self, choices: list[str], picked: NDArray[np.int64]) -> Column:
        words = np.empty(len(choices), np.int64)
        for i, choice in enumerate(choices):
            encoded = choice.encode()
            words[i] = len(self.raw) << 32 | len(encoded)
            self.raw += encoded
        return Column(np.full(len(picked), KIND_STRING, np.uint8), words[picked])

    def array(self) -> NDArray[np.uint8]:
        return np.frombuffer(bytes(self.raw), np.uint8)


def _range_forms(count: int, seed: int) -> Iterator[NormalForm]:
    rng = np.random.default_rng(seed)
    names = _names(20)
    for _ in range(count):
        attributes = rng.permutation(20)[:10].tolist()
        lows = rng.integers(0, 600_000, 10).tolist()
        yield _conjunction(
            [(names[a], closed_range(low, low + 400_000)) for a, low in zip(attributes, lows, strict=True)]
        )


def _range_events(size: int, seed: int) -> ColumnBatch:
    values = np.random.default_rng(seed).integers(0, 1_000_000, (20, size))
    return ColumnBatch(size, {name: _integers(values[i]) for i, name in enumerate(_names(20))})


def _eq_value(i: int) -> str:
    return f"value-{i:02d}"


def _eq_forms(count: int, seed: int) -> Iterator[NormalForm]:
    rng = np.random.default_rng(seed)
    names = _names(20)
    for _ in range(count):
        attributes = rng.permutation(20)[:3].tolist()
        picked = rng.integers(0, 100, 3).tolist()
        yield _conjunction(
            [(names[a], one_of(_eq_value(i))) for a, i in zip(attributes, picked, strict=True)]
        )


def _eq_events(size: int, seed: int) -> ColumnBatch:
    picked = np.random.default_rng(seed).integers(0, 100, (20, size))
    text = _Text()
    choices = [_eq_value(i) for i in range(100)]
    columns = {name: text.column(choices, picked[i]) for i, name in enumerate(_names(20))}
    return ColumnBatch(size, columns, text.array())


def _bluedove_forms(count: int, seed: int) -> Iterator[NormalForm]:
    rng = np.random.default_rng(seed)
    names = _names(4)
    spots = np.array([125.0, 375.0, 625.0, 875.0])
    for _ in range(count):
        centres = rng.normal(spots, 250.0)
        while ((centres < 0) | (centres >= 1000)).any():
            outside = (centres < 0) | (centres >= 1000)
            centres[outside] = rng.normal(spots, 250.0)[outside]
        lows = np.clip(centres - 125, 0, 750).astype(int).tolist()
        yield _conjunction([(names[a], closed_range(low, low + 250)) for a, low in enumerate(lows)])


def _bluedove_events(size: int, seed: int) -> ColumnBatch:
    values = np.random.default_rng(seed).integers(0, 1000, (4, size))
    return ColumnBatch(size, {name: _integers(values[i]) for i, name in enumerate(_names(4))})


_ORIGINS = ["EWR", "JFK", "LGA"]
_CARRIERS = ["UA", "B6", "EV", "DL", "AA", "MQ", "US", "9E", "WN", "VX", "FL", "AS", "F9", "YV", "HA", "OO"]
_DESTINATIONS = [f"D{i:02d}" for i in range(105)]


def _weights(count: int) -> NDArray[np.float64]:
    """Return a rank by a Zipf-like law: the k-th has a probability in proportion to 1 / k ** 0.9."""
    weights = 1.0 / np.arange(1, count + 1) ** 0.9
    return np.asarray(weights / weights.sum(), np.float64)


def _mixed_forms(count: int, seed: int) -> Iterator[NormalForm]:
    rng = np.random.default_rng(seed)
    cities, carriers = _weights(105), _weights(16)
    for _ in range(count):
        constraints: dict[str, ValueSet] = {}
        kind = rng.random()
        if kind < 0.97:
            drawn = rng.choice(105, 1 + int(kind < 0.15), p=cities).tolist()
            constraints["dest"] = one_of(*(_DESTINATIONS[i] for i in drawn))
        if rng.random() < 0.6 or kind >= 0.97:
            constraints["origin"] = one_of(_ORIGINS[rng.integers(3)])
        if rng.random() < 0.5 or kind >= 0.97:
            constraints["carrier"] = one_of(_CARRIERS[rng.choice(16, p=carriers)])
        if rng.random() < 0.7 or kind >= 0.97:
            delay = Decimal(int(15 * rng.integers(1, 17)))
            constraints["dep_delay"] = ValueSet(
                numbers=greater_than(delay, or_equal=bool(rng.random() < 0.5))
            )
        if rng.random() < 0.5:
            hour = int(rng.integers(5, 22))
            constraints["hour"] = closed_range(hour, hour + int(rng.integers(0, 5)))
        if rng.random() < 0.15:
            constraints["wind_speed"] = ValueSet(numbers=greater_than(Decimal(int(rng.integers(8, 30)))))
        if rng.random() < 0.1:
            constraints["distance"] = ValueSet(numbers=less_than(Decimal(int(rng.integers(3, 50)) * 50)))
        yield _conjunction([(("data", name), values) for name, values in constraints.items()])


def _mixed_events(size: int, seed: int) -> ColumnBatch:
    rng = np.random.default_rng(seed)
    text = _Text()
    columns = {
        "origin": text.column(_ORIGINS, rng.integers(0, 3, size)),
        "dest": text.column(_DESTINATIONS, rng.choice(105, size, p=_weights(105))),
        "carrier": text.column(_CARRIERS, rng.choice(16, size, p=_weights(16))),
        "dep_delay": _integers((rng.exponential(25, size) - 10).astype(np.int64)),
        "hour": _integers(rng.integers(5, 24, size)),
        "wind_speed": _floats((rng.integers(0, 30, size) * 1.15078).astype(np.float64)),
        "distance": _integers(rng.integers(80, 5000, size)),
    }
    return ColumnBatch(size, {("data", name): column for name, column in columns.items()}, text.array())


WORKLOADS = {
    "range": Workload(_range_forms, _range_events),
    "eq": Workload(_eq_forms, _eq_events),
    "mixed": Workload(_mixed_forms, _mixed_events),
    "bluedove": Workload(_bluedove_forms, _bluedove_events),
}
