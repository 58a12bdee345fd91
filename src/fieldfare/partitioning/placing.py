"""Assignment of index entries to slices: their extents, and the slices that store them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fieldfare.filters import NormalForm, decode_normal_form
from fieldfare.filters.normal_form import path_order
from fieldfare.partitioning.extents import Extents, constrained_paths, extents_of
from fieldfare.partitioning.strategy import Partitioning, Placement

LOOKED_AT = 8
"""Maximum attributes considered for searching: those that most filters constrain."""


class Placed(Protocol):
    """A subscription to be placed, such as an entry of an index."""

    @property
    def number(self) -> int: ...
    @property
    def compiled(self) -> NormalForm | bytes: ...


def form_of(compiled: NormalForm | bytes) -> NormalForm:
    """Return a filter's normal form, decoded if it is in the compiled form of the library `plain`."""
    return decode_normal_form(compiled) if isinstance(compiled, bytes) else compiled


def read_extents(subscriptions: Sequence[Placed]) -> Extents:
    """Compute the extents of subscriptions on the attributes that most of them constrain."""
    forms = [form_of(subscription.compiled) for subscription in subscriptions]
    counts = constrained_paths(forms)
    paths = sorted(counts, key=lambda path: (-counts[path], path_order(path)))[:LOOKED_AT]
    numbers = (subscription.number for subscription in subscriptions)
    return extents_of(zip(numbers, forms, strict=True), paths)


def place(partitioning: Partitioning, subscriptions: Sequence[Placed]) -> Placement:
    """Assign subscriptions to slices; filters are read only if the partitioning depends on values.

    Otherwise filters that can never match are stored like any other, and filters may be of any library.
    """
    if partitioning.paths:
        given = [(subscription.number, form_of(subscription.compiled)) for subscription in subscriptions]
        return partitioning.place(extents_of(given, partitioning.paths))
    count = len(subscriptions)
    numbers = np.fromiter((subscription.number for subscription in subscriptions), np.uint32, count)
    return partitioning.place(Extents(numbers, np.ones(count, np.bool_), {}))
