"""How many hosts there may be, by the time of day: an operator's floors, ceilings and schedules."""

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
    """At least and at most so many hosts."""

    least: int
    most: int

    @classmethod
    def parsed(cls, text: str) -> Self:
        """From ``MIN..MAX``, or one number for both; ValueError says what is wrong with it."""
        found = _BOUNDS.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text!r} says of hosts neither how many nor MIN..MAX")
        least, most = int(found[1]), int(found[2] or found[1])
        if not 1 <= least <= most <= HOSTS_MAX:
            raise ValueError(f"{text!r}: at least 1 host, at most {HOSTS_MAX}, and no more than there may be")
        return cls(least, most)


class Span(NamedTuple):
    """Other bounds from a minute of the day to another, which may be of the next day."""

    start: int
    end: int
    bounds: HostBounds

    @classmethod
    def parsed(cls, text: str) -> Self:
        """From ``HH:MM-HH:MM=MIN..MAX``; ValueError says what is wrong with it."""
        found = _SPAN.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text!r} is no part of a schedule: write HH:MM-HH:MM=MIN..MAX")
        hours, minutes = (int(found[1]), int(found[3])), (int(found[2]), int(found[4]))
        if max(hours) > 24 or max(minutes) > 59:
            raise ValueError(f"{text!r}: there is no such time of day")
        start, end = (60 * hour + minute for hour, minute in zip(hours, minutes, strict=True))
        if max(start, end) > DAY or start == end:
            raise ValueError(f"{text!r}: there is no time between these")
        try:
            return cls(start, end, HostBounds.parsed(found[5]))
        except ValueError as error:
            raise ValueError(f"{text!r}: {error}") from None

    def has(self, minute: int) -> bool:
        """Whether a minute of the day is in it."""
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end


@dataclass(frozen=True, slots=True)
class HostSchedule:
    """How many hosts there may be at any time.

    Attributes
    ----------
    usual : HostBounds
    spans : tuple of Span
        When it is otherwise; of several that have a minute the first counts.
    """

    usual: HostBounds
    spans: tuple[Span, ...] = ()

    @classmethod
    def parsed(cls, usual: str, spans: Iterable[str] = ()) -> Self:
        """From texts; ValueError says what is wrong with which."""
        return cls(HostBounds.parsed(usual), tuple(map(Span.parsed, spans)))

    def at(self, minute: int) -> HostBounds:
        """At a minute of the day."""
        return next((span.bounds for span in self.spans if span.has(minute)), self.usual)
