"""Axes with numeric boundaries, and partitionings by one of them, for experiments and tests."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from fieldfare.model import Path
from fieldfare.partitioning import AttributeSpace, Axis
from fieldfare.partitioning.axis import place_before


def numeric_axis(path: Path, cuts: Sequence[int | float | Decimal]) -> Axis:
    """Return an axis with its boundaries before these numbers.

    Values that are no numbers are in the first segment (the atoms) or in the last (the strings).
    """
    return Axis(path, tuple(sorted(place_before(cut) for cut in cuts)))


def single_attribute(axis: Axis, owners: Sequence[int]) -> AttributeSpace:
    """Return the paper's P2P baseline (section IV.B): one attribute, so each event has one candidate.

    The paper stores a subscription on one matcher only. But a range that overlaps several segments must be in
    each of them, or an event in one of the others would miss it; so it is stored in each here.
    """
    return AttributeSpace((axis,), (tuple(owners),))
