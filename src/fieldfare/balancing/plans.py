"""Plans: which subscribers are to move to another broker, and both loads after it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from fieldfare.balancing.load import Load


@dataclass(frozen=True, slots=True)
class Moved:
    """A choice that was made: a number of subscribers of a unique subscription."""

    key: Hashable
    number: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The subscribers to move, and the estimated loads after it.

    Attributes
    ----------
    moved
        The choices, in the order in which they were made.
    mine, theirs
        Estimated loads of the offloading and of the load-accepting broker.
    """

    moved: tuple[Moved, ...]
    mine: Load
    theirs: Load


def scalar(load: Load) -> Load:
    """Return a load whose fields are arrays of one value with the values themselves."""
    values = {
        name: float(np.asarray(getattr(load, name)).reshape(-1)[0])
        for name in (
            *("input_per_s", "matching_s", "subscriptions", "deliveries_per_s"),
            *("output_bytes_per_s", "cpu", "memory"),
        )
    }
    values["subscriptions"] = int(values["subscriptions"])
    fields = {name: getattr(load, name) for name in Load.__slots__}
    return Load(**{**fields, **values})
