"""Bounds for the number of hosts by the time of day: an operator's minimums, maximums and schedules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

HOSTS_MAX = 1_000
DAY = 24 * 60

_BOUNDS = re.compile(r"(\d{1,5})(?:\.\.(\d{1,5}))?")
_SPAN = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d)=(.*)")


class HostBounds(NamedTuple):
    """Minimum and maximum number of hosts."""

    least: int
    most: int

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Parse ``MIN..MAX``, or one number for both; ValueError explains an invalid text."""
        found = _BOUNDS.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text!r} is neither a number of hosts nor MIN..MAX")
        least, most = int(found[1]), int(found[2] or found[1])
        if not 1 <= least <= most <= HOSTS_MAX:
            raise ValueError(f"{text!r}: hosts must be 1 to {HOSTS_MAX}, and MIN at most MAX")
        return cls(least, most)


class Span(NamedTuple):
    """Bounds that apply from one minute of the day to another, which may be on the next day."""

    start: int
    end: int
    bounds: HostBounds

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Parse ``HH:MM-HH:MM=MIN..MAX``; ValueError explains an invalid text."""
        found = _SPAN.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text!r} is not a span of a schedule: write HH:MM-HH:MM=MIN..MAX")
        hours, minutes = (int(found[1]), int(found[3])), (int(found[2]), int(found[4]))
        if max(hours) > 24 or max(minutes) > 59:
            raise ValueError(f"{text!r}: not a time of day; times are 00:00 to 24:00")
        start, end = (60 * hour + minute for hour, minute in zip(hours, minutes, strict=True))
        if max(start, end) > DAY or start == end:
            raise ValueError(f"{text!r}: the span is empty")
        try:
            return cls(start, end, HostBounds.parsed(found[5]))
        except ValueError as error:
            raise ValueError(f"{text!r}: {error}") from None

    def has(self, minute: int) -> bool:
        """Return whether the span contains a minute of the day."""
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end


@dataclass(frozen=True, slots=True)
class HostSchedule:
    """Bounds for the number of hosts at any time of day.

    Attributes
    ----------
    usual : HostBounds
        Bounds outside all spans.
    spans : tuple of Span
        Exceptions; if several contain a minute, the first applies.
    """

    usual: HostBounds
    spans: tuple[Span, ...] = ()

    @classmethod
    def parsed(cls, usual: str, spans: Iterable[str] = ()) -> Self:
        """Parse the texts; ValueError explains an invalid one."""
        return cls(HostBounds.parsed(usual), tuple(map(Span.parsed, spans)))

    def at(self, minute: int) -> HostBounds:
        """Return the bounds at a minute of the day."""
        return next((span.bounds for span in self.spans if span.has(minute)), self.usual)
