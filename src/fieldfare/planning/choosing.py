"""Choose a partitioning by its name, for given subscriptions and events."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.partitioning.attribute_space import AttributeSpace
from fieldfare.partitioning.baselines import HashPartitioning, Replicated
from fieldfare.partitioning.extents import Extents
from fieldfare.partitioning.strategy import Partitioning
from fieldfare.planning.plans import Plan, PlanSettings, better_plan, plan

PARTITIONINGS = ("attribute_space", "single_attribute", "hash", "replicated")
BEST = "best"
"""The one of ``attribute_space`` and ``hash`` that is less work."""


def choose_partitioning(
    name: str, matchers: int, extents: Extents, sample: ColumnBatch, segments_per_matcher: int = 1
) -> Partitioning:
    """Return a partitioning by its name.

    Parameters
    ----------
    name : str
        One of ``PARTITIONINGS``. The first two choose attributes and boundaries from subscriptions and
        events; if no attribute narrows the search, the result is ``hash``.
    extents : Extents
        Of the subscriptions, on the candidate attributes.
    sample : ColumnBatch
        A few thousand recent events with these attributes.
    segments_per_matcher : int
        On each attribute. More: an event searches fewer subscriptions; fewer: fewer copies of each.

    Raises
    ------
    ValueError
        The name is unknown, or there is no matcher.
    """
    if matchers < 1:
        raise ValueError(f"the number of matchers is {matchers}; it must be at least 1")
    if name == "hash":
        return HashPartitioning(matchers)
    if name == "replicated":
        return Replicated(matchers)
    if name not in PARTITIONINGS:
        raise ValueError(f"{name!r} is not a partitioning; partitionings are {', '.join(PARTITIONINGS)}")
    settings = PlanSettings(segments_per_matcher=segments_per_matcher)
    if name == "single_attribute":
        settings = replace(settings, attributes_max=1, least_saving=1.0)
    found = plan(extents, sample, matchers, settings)
    return found.partitioning if found is not None else HashPartitioning(matchers)


def choose_anew(
    name: str,
    matchers: int,
    current: Partitioning,
    extents: Extents,
    sample: ColumnBatch,
    *,
    share: float = 1.0,
    copies_max: float = 1e9,
) -> Partitioning:
    """Return the partitioning for a space that is already cut; `current` if nothing is better.

    Parameters
    ----------
    name : str
        One of ``PARTITIONINGS``, or ``best``.
    extents : Extents
        Of the subscriptions, or of a sample of them.
    share : float
        The share of all subscriptions in `extents`, by which the cost of an event is scaled.
    copies_max : float
        Maximum average copies of a subscription, with ``best``.

    Raises
    ------
    ValueError
        The name is unknown, or there is no matcher.
    """
    if name not in (BEST, "attribute_space", "single_attribute"):
        return choose_partitioning(name, matchers, extents, sample)
    settings = PlanSettings(event_cost=PlanSettings().event_cost * share)
    if name == "single_attribute":
        settings = replace(settings, attributes_max=1, least_saving=1.0)
    hashed = HashPartitioning(matchers)
    found: Plan | None
    if _is_like(current, name, matchers):
        found = better_plan(current, extents, sample, matchers, settings)
        if found is None:
            return current
    else:
        found = plan(extents, sample, matchers, settings)
        if found is None:
            return hashed
    # By hash every matcher searches its part for each event.
    at_hash = len(extents) / matchers + settings.event_cost
    if name == BEST and (found.work >= at_hash or found.copies > copies_max):
        return hashed
    return found.partitioning


def _is_like(current: Partitioning, name: str, matchers: int) -> TypeGuard[AttributeSpace]:
    return (
        isinstance(current, AttributeSpace)
        and 1 + max(part.matcher for part in current.slices) == matchers
        and (name != "single_attribute" or len(current.axes) == 1)
    )
