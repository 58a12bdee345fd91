"""A partitioning by its name, for the subscriptions and events at hand."""

from __future__ import annotations

from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.partitioning.baselines import HashPartitioning, Replicated
from fieldfare.partitioning.extents import Extents
from fieldfare.partitioning.strategy import Partitioning
from fieldfare.planning.plans import PlanSettings, plan

PARTITIONINGS = ("attribute_space", "single_attribute", "hash", "replicated")


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
