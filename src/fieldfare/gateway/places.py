"""Places in the log as clients name them: a position, a time, its earliest or its latest event."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import datetime

from fieldfare.delivery.keys import key_at, key_of, keys_at, position_of
from fieldfare.gateway.problems import HttpProblem
from fieldfare.model import Offsets, Position, positions_of
from fieldfare.storage.event_log import EventReader, starts_of

AHEAD_MAX_MS = 1_000
"""A clock that is ahead of this one's by no more is not said to speak of the future."""

_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d", re.ASCII)
_MEANT_AS_TIME = re.compile(r"(\d{4})-\d\d-\d\d([Tt ]|$)", re.ASCII)


class LogPlaces:
    """Finds them; every verb but `log_ends` reads the log: it is not to be called on the event loop.

    Parameters
    ----------
    log
        The log.
    log_ends
        The ends of its partitions, as far as the writer has moved them.
    """

    def __init__(self, log: EventReader, log_ends: Callable[[], Offsets]) -> None:
        self._log = log
        self._log_ends = log_ends

    def keys(self, text: str, name: str, *, no_future: bool = False) -> list[int]:
        """Where that is, in each partition that it speaks of: nowhere that retention has taken.

        Parameters
        ----------
        text
            What the client says: earliest, latest, a position (of each partition one, at most) or a time.
        name
            The member of the request's body that says it.
        no_future
            Whether a time that has not come is refused.

        Raises
        ------
        HttpProblem
            It is no place, or beyond the log's end.
        """
        pointer = f"/{name}"
        starts = starts_of(self._log)
        if text == "earliest":
            return keys_at(starts)
        if text == "latest":
            return keys_at(self._log_ends())
        if (time_ms := _time_ms(text)) is not None:
            if no_future and time_ms > time.time_ns() // 1_000_000 + AHEAD_MAX_MS:
                detail = (
                    f"{name} is {text}, which has not come yet; a subscription without {name} begins now."
                )
                raise HttpProblem(400, "bad-position", detail, pointer=pointer)
            return keys_at(tuple(partition.first_since(time_ms) for partition in self._log.partitions))
        meant = _MEANT_AS_TIME.match(text)
        if meant is not None and int(meant[1]) >= len(starts):
            detail = (
                f"{name} is {text[:40]!r}; a time has a date that there is, seconds and a zone, such as"
                " 2026-07-01T12:00:00Z or 2026-07-01T14:00:00+02:00."
            )
            raise HttpProblem(400, "bad-position", detail, pointer=pointer)
        if not text[:1].isdigit():
            detail = f"{name} must be earliest, latest, a position, or a time such as 2026-07-01T12:00:00Z."
            raise HttpProblem(400, "bad-position", detail, pointer=pointer)
        try:
            keys = self._keys_of(text)
        except ValueError as error:
            raise HttpProblem(400, "bad-position", f"{error}.", pointer=pointer) from None
        places = zip(keys, map(position_of, keys), strict=True)
        return [max(key, key_at(place.partition, starts[place.partition])) for key, place in places]

    def _keys_of(self, text: str) -> list[int]:
        """The keys of a position, or one of several partitions each, at the log's end at most."""
        keys: dict[int, int] = {}
        ends = self._log_ends()
        if text.count(",") > len(ends):  # before a megabyte of them is looked at
            raise ValueError(f"{text[:80]!r}... names more places than the log has partitions")
        for position in positions_of(text):
            key, partition = key_of(position), position.partition
            if partition >= len(ends):
                raise ValueError(f"the log's last partition is {len(ends) - 1}; {position} names another")
            if partition in keys:
                raise ValueError(f"{text[:80]!r} names a partition twice")
            if key > key_at(partition, ends[partition]):
                end = Position(partition, ends[partition], 0)
                raise ValueError(f"{position} lies beyond the log's end, {end}")
            keys[partition] = key
        return list(keys.values())


def _time_ms(text: str) -> int | None:
    """A time as RFC 3339 writes it, in milliseconds since 1970; None for what is none."""
    if not _TIME.match(text) or len(text) > 40:
        return None
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError:
        return None
    return None if moment.tzinfo is None else int(moment.timestamp() * 1000)
