"""Places in the log as clients name them: a position, a time, or the earliest or latest event."""

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
"""Milliseconds that a time may be ahead of this machine's clock; a later one counts as future."""

_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d", re.ASCII)
_MEANT_AS_TIME = re.compile(r"(\d{4})-\d\d-\d\d([Tt ]|$)", re.ASCII)


class LogPlaces:
    """Conversion of places in the log to keys. It reads the log: call it on a thread.

    Parameters
    ----------
    log
        The log.
    log_ends
        Returns the ends of the log's partitions, as known to the writer.
    """

    def __init__(self, log: EventReader, log_ends: Callable[[], Offsets]) -> None:
        self._log = log
        self._log_ends = log_ends

    def keys(self, text: str, name: str, *, no_future: bool = False) -> list[int]:
        """Return the keys of a place, one for each partition named; never before what retention has left.

        Parameters
        ----------
        text
            The client's text: earliest, latest, a time, or positions (at most one per partition).
        name
            The member of the request's body that has the text.
        no_future
            Whether a future time is refused.

        Raises
        ------
        HttpProblem
            The text is no place, or a position is beyond the log's end.
        """
        pointer = f"/{name}"
        starts = starts_of(self._log)
        if text == "earliest":
            return keys_at(starts)
        if text == "latest":
            return keys_at(self._log_ends())
        if (time_ms := _time_ms(text)) is not None:
            if no_future and time_ms > time.time_ns() // 1_000_000 + AHEAD_MAX_MS:
                detail = f"{name} is {text}, which is in the future: leave {name} out to begin now."
                raise HttpProblem(400, "bad-position", detail, pointer=pointer)
            return keys_at(tuple(partition.first_since(time_ms) for partition in self._log.partitions))
        meant = _MEANT_AS_TIME.match(text)
        if meant is not None and int(meant[1]) >= len(starts):
            detail = (
                f"{name} is {text[:40]!r}; a time needs a valid date, seconds and a time zone, such as"
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
        """Return the keys of positions, one per partition; raise ValueError for one beyond the log's end."""
        keys: dict[int, int] = {}
        ends = self._log_ends()
        if text.count(",") > len(ends):  # before a megabyte of them is parsed
            raise ValueError(f"{text[:80]!r}... names more positions than the log has partitions")
        for position in positions_of(text):
            key, partition = key_of(position), position.partition
            if partition >= len(ends):
                raise ValueError(
                    f"there is no partition {position.partition}, which {position} names: the last one is"
                    f" {len(ends) - 1}"
                )
            if partition in keys:
                raise ValueError(f"{text[:80]!r} names a partition twice")
            if key > key_at(partition, ends[partition]):
                end = Position(partition, ends[partition], 0)
                raise ValueError(f"{position} is past the log's end, {end}")
            keys[partition] = key
        return list(keys.values())


def _time_ms(text: str) -> int | None:
    """Convert an RFC 3339 time to milliseconds since 1970; return None for any other text."""
    if not _TIME.match(text) or len(text) > 40:
        return None
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError:
        return None
    return None if moment.tzinfo is None else int(moment.timestamp() * 1000)
