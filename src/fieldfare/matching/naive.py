"""The oracle: every filter evaluated on every event, in plain Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Matcher(Protocol):
    """What a filter must be able to do."""

    def matches(self, event: Mapping[str, Any]) -> bool: ...


def match_naive(
    events: Sequence[Mapping[str, Any]], filters: Sequence[tuple[int, Matcher]]
) -> list[list[int]]:
    """The numbers of the filters that each event matches, ascending, none twice."""
    return [sorted({number for number, condition in filters if condition.matches(event)}) for event in events]
