"""Several filters together: a hull around them, and those that no other covers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fieldfare.filters.covering import FilterRegion, covers
from fieldfare.filters.normal_form import Conjunction, NormalForm
from fieldfare_lab.routing.hulls import CONJUNCTIONS_MAX, hull_of

EVERYTHING = FilterRegion(NormalForm((Conjunction(()),)))
"""The region of all events: what a space without advertisements advertises."""


def merge(regions: Iterable[FilterRegion], conjunctions_max: int = CONJUNCTIONS_MAX) -> FilterRegion:
    """Return the hull of several filters: it covers them all, and its size is bounded.

    Sets of one attribute are united, and attributes that not all constrain are dropped, until at most
    ``conjunctions_max`` conjunctions with ``hulls.CUTS_MAX`` bounds in each are left.
    """
    forms = [region.form for region in regions]
    return FilterRegion(hull_of(forms, conjunctions_max))


def covering_set(regions: Sequence[FilterRegion]) -> list[int]:
    """Return the indexes of the filters that no other one covers: PADRES's covering subscription set.

    Of filters that cover each other the first one is kept. Each filter is compared with those kept so far.
    """
    kept: list[int] = []
    for number, region in enumerate(regions):
        if any(covers(regions[other], region) for other in kept):
            continue
        kept = [other for other in kept if not covers(region, regions[other])]
        kept.append(number)
    return kept
