"""A second opinion on filters over flights: SQLite's WHERE, which shares no code with fieldfare."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from fieldfare.cli.demo.flights import FLIGHT_FIELDS, WEATHER_FIELDS

_COLUMNS = (
    "type",
    "source",
    "subject",
    *(f"data.{name}" for name in FLIGHT_FIELDS),
    *(f"data.weather.{name}" for name in WEATHER_FIELDS),
)
_TEXT_OR_PATH = re.compile(r"'[^']*'|\b(data(?:\.\w+)+|type|source|subject)\b")


class FlightsInSqlite:
    """Events as rows of a table whose columns are the attributes; what is missing is NULL."""

    def __init__(self, events: Sequence[bytes]) -> None:
        self.size = len(events)
        self._database = sqlite3.connect(":memory:")
        self._database.execute("PRAGMA case_sensitive_like = on")
        self._database.execute(f"CREATE TABLE event ({', '.join(map(_quote, _COLUMNS))})")
        marks = ", ".join("?" * len(_COLUMNS))
        rows = (
            [_look_up(event, name.split(".")) for name in _COLUMNS]
            for event in map(msgspec.json.decode, events)
        )
        self._database.executemany(f"INSERT INTO event VALUES ({marks})", rows)

    def matches(self, filter_text: str) -> list[int]:
        """Return the indexes of the events that the filter matches, in order."""
        where = _TEXT_OR_PATH.sub(lambda found: _quote(found[1]) if found[1] else found[0], filter_text)
        return [row - 1 for (row,) in self._database.execute(f"SELECT rowid FROM event WHERE {where}")]


def _quote(name: str) -> str:
    return f'"{name}"'


def _look_up(event: dict[str, Any], steps: Sequence[str]) -> Any:
    value: Any = event
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    return value
