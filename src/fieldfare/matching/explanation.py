"""Explanations of an index: the search structure chosen for each filter, as text and as JSON.

`Part.explain`, `Index.explain` and `Index.explain_subscription` return these objects; ``str()`` gives the
text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fieldfare.matching.library import Chosen, SearchExplanation


@dataclass(frozen=True, slots=True)
class PartExplanation:
    """The structures chosen in one part.

    Attributes
    ----------
    subscriptions
        The number of subscription versions.
    versions_bytes
        The size of the arrays that identify the versions.
    filters
        The library's choices for the filters.
    """

    subscriptions: int
    versions_bytes: int
    filters: SearchExplanation

    @property
    def size_bytes(self) -> dict[str, int]:
        """The size of all arrays, by purpose."""
        return {**self.filters.size_bytes, "subscriptions": self.versions_bytes}

    def document(self) -> dict[str, Any]:
        """Return the explanation as JSON."""
        filters = self.filters.document()
        return {"subscriptions": self.subscriptions, **filters, "size_bytes": self.size_bytes}

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return the explanation as lines of text."""
        versions, size = count_of(self.subscriptions, "subscription version"), sum(self.size_bytes.values())
        summary, *rest = self.filters.lines()
        sizes = ", ".join(f"{name} {_bytes(size)}" for name, size in self.size_bytes.items() if size)
        return [f"{versions}, {summary}, {_bytes(size)}", *rest, f"  bytes: {sizes}"]


@dataclass(frozen=True, slots=True)
class IndexExplanation:
    """The structures chosen in each part of an index, the snapshot first, and the number of closings."""

    parts: tuple[PartExplanation, ...]
    closings: int

    def document(self) -> dict[str, Any]:
        """Return the explanation as JSON."""
        return {"closings": self.closings, "parts": [part.document() for part in self.parts]}

    def __str__(self) -> str:
        size = sum(sum(part.size_bytes.values()) for part in self.parts)
        versions = sum(part.subscriptions for part in self.parts)
        total = f"{count_of(len(self.parts), 'part')}, {count_of(versions, 'subscription version')}"
        lines = [f"{total} of which {self.closings:,} ended, {_bytes(size)}"]
        for number, part in enumerate(self.parts):
            first, *rest = part.lines()
            lines += [f"part {number}: {first}", *rest]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class IndexPlace:
    """The location of one piece of a filter: the part's number, and the structure chosen there."""

    part: int
    chosen: Chosen

    def document(self) -> dict[str, Any]:
        """Return the location as JSON."""
        return {"part": self.part, **self.chosen.document()}

    def __str__(self) -> str:
        return f"part {self.part}: {self.chosen}"


def count_of(number: int, one: str, many: str | None = None) -> str:
    """Format a number with its noun in singular or plural."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _bytes(size: int) -> str:
    if size < 1_000_000:
        return f"{max(size, 1) / 1000:,.1f} KB"
    return f"{size / 1e6:,.1f} MB"
