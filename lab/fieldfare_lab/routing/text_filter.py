"""Filters of subscriptions and advertisements as text: what clients write and brokers send one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fieldfare.filters import FilterRegion, compile_filter, region_of
from fieldfare_lab.routing.filter_sets import EVERYTHING
from fieldfare_lab.routing.messages import Everything


@dataclass(frozen=True, slots=True)
class TextFilter:
    """A filter of any dialect, compiled for matching, covering and intersection.

    It is pickled as its text, and compiled again where it is loaded.

    Raises
    ------
    FilterError
        The text is not a filter of the dialect.
    """

    text: str
    dialect: str = "sql"
    region: FilterRegion = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "region", region_of(compile_filter(self.text, self.dialect)))

    def matches(self, event: Mapping[str, Any]) -> bool:
        """Return whether an event matches."""
        return self.region.matches(event)

    def intersects(self, other: Any) -> bool:
        """Return False only if no event can match both filters."""
        if isinstance(other, TextFilter):
            return self.region.intersects(other.region)
        return True

    def covers(self, other: Any) -> bool:
        """Return True only if every event that matches `other` matches this filter."""
        if isinstance(other, TextFilter):
            return self.region.covers(other.region)
        return isinstance(other, Everything) and self.region.covers(EVERYTHING)

    def __reduce__(self) -> tuple[type[TextFilter], tuple[str, str]]:
        return TextFilter, (self.text, self.dialect)
