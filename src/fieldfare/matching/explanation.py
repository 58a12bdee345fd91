"""What an index chose for its filters: said by their libraries, put together for people and as JSON.

`Part.explain`, `Index.explain` and `Index.explain_subscription` give these values; ``str()`` of each is text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fieldfare.matching.library import Chosen, SearchExplanation


@dataclass(frozen=True, slots=True)
class PartExplanation:
    """What a part chose.

    Attributes
    ----------
    subscriptions
        Subscription versions that it holds.
    versions_bytes
        Of the arrays that say which these are.
    filters
        What the library chose for their filters.
    """

    subscriptions: int
    versions_bytes: int
    filters: SearchExplanation

    @property
    def size_bytes(self) -> dict[str, int]:
        """Of all arrays, by what they are for."""
        return {**self.filters.size_bytes, "subscriptions": self.versions_bytes}

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        filters = self.filters.document()
        return {"subscriptions": self.subscriptions, **filters, "size_bytes": self.size_bytes}

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The same as text."""
        versions, size = count_of(self.subscriptions, "subscription version"), sum(self.size_bytes.values())
        summary, *rest = self.filters.lines()
        sizes = ", ".join(f"{name} {_bytes(size)}" for name, size in self.size_bytes.items() if size)
        return [f"{versions}, {summary}, {_bytes(size)}", *rest, f"  bytes: {sizes}"]


@dataclass(frozen=True, slots=True)
class IndexExplanation:
    """What an index chose: for each of its parts, the snapshot first, and how many versions have ended."""

    parts: tuple[PartExplanation, ...]
    closings: int

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {"closings": self.closings, "parts": [part.document() for part in self.parts]}

    def __str__(self) -> str:
        size = sum(sum(part.size_bytes.values()) for part in self.parts)
        versions = sum(part.subscriptions for part in self.parts)
        what = f"{count_of(len(self.parts), 'part')}, {count_of(versions, 'subscription version')}"
        lines = [f"{what} of which {self.closings:,} ended, {_bytes(size)}"]
        for number, part in enumerate(self.parts):
            first, *rest = part.lines()
            lines += [f"part {number}: {first}", *rest]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class IndexPlace:
    """Where a piece of a filter went: the number of the part that holds it, and what was chosen there."""

    part: int
    chosen: Chosen

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {"part": self.part, **self.chosen.document()}

    def __str__(self) -> str:
        return f"part {self.part}: {self.chosen}"


def count_of(number: int, one: str, many: str | None = None) -> str:
    """So many of something, in words."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _bytes(size: int) -> str:
    if size < 1_000_000:
        return f"{max(size, 1) / 1000:,.1f} KB"
    return f"{size / 1e6:,.1f} MB"
