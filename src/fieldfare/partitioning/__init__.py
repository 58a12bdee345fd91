"""Partitioning: which slices hold a subscription, and which of them an event visits.

Li et al., "A Scalable and Elastic Publish/Subscribe Service" (BlueDove), IPDPS 2011, section III.A;
docs/papers/bluedove.md maps the paper to the code. Pure: arrays and plain values, no I/O, no randomness.
"""

from fieldfare.partitioning.attribute_space import AttributeSpace
from fieldfare.partitioning.axis import Axis
from fieldfare.partitioning.baselines import ONE_SLICE, HashPartitioning, Replicated
from fieldfare.partitioning.extents import Extents, constrained_paths, extents_of
from fieldfare.partitioning.strategy import NO_SLICE, Partitioning, Placement, Routes, Slice

__all__ = [
    "NO_SLICE",
    "ONE_SLICE",
    "AttributeSpace",
    "Axis",
    "Extents",
    "HashPartitioning",
    "Partitioning",
    "Placement",
    "Replicated",
    "Routes",
    "Slice",
    "constrained_paths",
    "extents_of",
]
