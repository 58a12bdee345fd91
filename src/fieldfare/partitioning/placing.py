"""Subscriptions as they come to be placed: where they lie, and in which slices they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fieldfare.filters import NormalForm, decode_normal_form
from fieldfare.filters.normal_form import path_order
from fieldfare.partitioning.extents import Extents, constrained_paths, extents_of
from fieldfare.partitioning.strategy import Partitioning, Placement

LOOKED_AT = 8
"""Of the attributes that most filters constrain, so many come into question for searching."""


class Placed(Protocol):
    """A subscription as it comes to be placed: an entry of an index is one."""

    @property
    def number(self) -> int: ...
    @property
    def compiled(self) -> NormalForm | bytes: ...


def form_of(compiled: NormalForm | bytes) -> NormalForm:
    """A filter's normal form, from what the library `plain` keeps of it."""
    return decode_normal_form(compiled) if isinstance(compiled, bytes) else compiled


def read_extents(subscriptions: Sequence[Placed]) -> Extents:
    """Where subscriptions lie on the attributes that most of them constrain."""
    forms = [form_of(subscription.compiled) for subscription in subscriptions]
    counts = constrained_paths(forms)
    paths = sorted(counts, key=lambda path: (-counts[path], path_order(path)))[:LOOKED_AT]
    numbers = (subscription.number for subscription in subscriptions)
    return extents_of(zip(numbers, forms, strict=True), paths)


def place(partitioning: Partitioning, subscriptions: Sequence[Placed]) -> Placement:
    """Put subscriptions into slices; filters are only read where the partitioning looks at values.

    Where it does not, one that can never match is stored like any other, and filters may be of any library.
    """
    if partitioning.paths:
        given = [(subscription.number, form_of(subscription.compiled)) for subscription in subscriptions]
        return partitioning.place(extents_of(given, partitioning.paths))
    count = len(subscriptions)
    numbers = np.fromiter((subscription.number for subscription in subscriptions), np.uint32, count)
    return partitioning.place(Extents(numbers, np.ones(count, np.bool_), {}))
