"""A partitioning by its name, for the subscriptions and events at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fieldfare.filters import NormalForm, decode_normal_form
from fieldfare.filters.normal_form import path_order
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.partitioning.baselines import HashPartitioning, Replicated
from fieldfare.partitioning.extents import Extents, constrained_paths, extents_of
from fieldfare.partitioning.planning import PlanSettings, plan
from fieldfare.partitioning.strategy import Partitioning, Placement

PARTITIONINGS = ("attribute_space", "single_attribute", "hash", "replicated")
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


def choose_partitioning(
    name: str, matchers: int, extents: Extents, sample: ColumnBatch, segments_per_matcher: int = 1
) -> Partitioning:
    """A partitioning by its name.

    Parameters
    ----------
    name : str
        One of ``PARTITIONINGS``. The first two look at subscriptions and events to choose attributes and
        where to cut; where no attribute narrows the search, it is ``hash`` that is chosen.
    matchers : int
    extents : Extents
        Of the subscriptions, on the attributes that come into question.
    sample : ColumnBatch
        Some thousand recent events with these attributes.
    segments_per_matcher : int
        On each attribute. More: an event searches fewer subscriptions; fewer: fewer copies of each.

    Raises
    ------
    ValueError
        There is no such partitioning, or no matcher.
    """
    if matchers < 1:
        raise ValueError(f"{matchers} matchers: at least one is needed")
    if name == "hash":
        return HashPartitioning(matchers)
    if name == "replicated":
        return Replicated(matchers)
    if name not in PARTITIONINGS:
        raise ValueError(f"no partitioning is called {name!r}: there are {', '.join(PARTITIONINGS)}")
    # A slice is a file that any worker can read, so nothing need be stored twice in case a matcher dies.
    settings = PlanSettings(segments_per_matcher=segments_per_matcher, replicated=False)
    if name == "single_attribute":
        settings = PlanSettings(
            attributes_max=1, segments_per_matcher=segments_per_matcher, replicated=False, least_saving=1.0
        )
    found = plan(extents, sample, matchers, settings)
    return found.partitioning if found is not None else HashPartitioning(matchers)
