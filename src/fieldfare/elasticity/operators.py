"""The operators of a service as slices (Barazzutti et al. 2014, section III): how many, and their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Operators:
    """The static configuration: the number of slices of each operator (section IV.B).

    Parameters
    ----------
    access_points, exit_points
        Number of slices of AP and of EP.
    matchers
        Number of slices of each matching operator; there is one operator for every filtering scheme.
    sink
        The slice that receives the notifications.
    """

    access_points: int
    matchers: Mapping[str, int]
    exit_points: int
    sink: str = "sink"

    def of(self, operator: str, count: int) -> tuple[str, ...]:
        """Return the names of an operator's slices."""
        return tuple(f"{operator}:{i + 1}" for i in range(count))

    @property
    def access_point_slices(self) -> tuple[str, ...]:
        return self.of("AP", self.access_points)

    def matcher_slices(self, scheme: str) -> tuple[str, ...]:
        """Return the slices of one matching operator."""
        return self.of(scheme, self.matchers[scheme])

    @property
    def exit_point_slices(self) -> tuple[str, ...]:
        return self.of("EP", self.exit_points)

    @property
    def slices(self) -> tuple[str, ...]:
        """All slices that may be moved."""
        matchers = [name for scheme in self.matchers for name in self.matcher_slices(scheme)]
        return (*self.access_point_slices, *matchers, *self.exit_point_slices)

    def upstream(self, name: str, sources: tuple[str, ...]) -> frozenset[str]:
        """Return the slices whose outputs reach a slice; `sources` are those before the access points."""
        if name in self.access_point_slices:
            return frozenset(sources)
        if name in self.exit_point_slices:
            return frozenset(name for scheme in self.matchers for name in self.matcher_slices(scheme))
        return frozenset(self.access_point_slices)
