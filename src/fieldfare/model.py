"""The words every part shares: an event, where it stands in the log, and a subscription."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Event = Mapping[str, Any]
"""One CloudEvent as its JSON object: context attributes at the top, the payload under ``data``."""

Path = tuple[str | int, ...]
"""The name of an attribute: the steps from the event's top, e.g. ``("data", "price")``.

A string step is a member of an object, an integer step an element of an array. What is computed from
attributes has a path, too: see ``derived_path``.
"""

DEFAULT_SPACE = "default"

Offsets = tuple[int, ...]
"""An offset in each partition of the log, by the partition's number."""

OPEN_END = (1 << 63) - 1
"""The ``valid_to`` of a subscription version that nothing has replaced or removed yet."""


_DIGITS_MAX = 18
"""What a database and an array can hold for sure."""

_SHOWN_MAX = 80


_DERIVED = -1
"""The first step of no attribute: an event is an object, and arrays have no such element."""


def derived_path(text: str) -> Path:
    """The name of what is computed from attributes, by the text of its expression.

    It stands where paths of attributes do: in normal forms, and in what an index compares.
    """
    return (_DERIVED, text)


def derived_text(path: Path) -> str | None:
    """The text that ``derived_path`` was given; None for the path of an attribute."""
    return str(path[1]) if path[0] == _DERIVED else None


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Where one event stands in the log: partition, offset of its record, index in the record.

    Positions of one partition are totally ordered. As text: ``partition-offset-index``.
    """

    partition: int
    offset: int
    index: int

    def __str__(self) -> str:
        return f"{self.partition}-{self.offset}-{self.index}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read the text form back; ValueError says what is wrong with it."""
        parts = text.split("-", 3)
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
            shown = text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."
            raise ValueError(f"a position is partition-offset-index, three whole numbers, not {shown!r}")
        if any(len(part) > _DIGITS_MAX for part in parts):
            raise ValueError(f"no number of a position has more than {_DIGITS_MAX} digits")
        return cls(*map(int, parts))


def positions_text(positions: Iterable[Position]) -> str:
    """One position for each partition of the log, as text: of a log with one, the position."""
    return ",".join(map(str, positions))


def positions_of(text: str) -> tuple[Position, ...]:
    """What `positions_text` wrote; ValueError if it is none."""
    return tuple(map(Position.parse, text.split(",")))


@dataclass(frozen=True, slots=True)
class Subscription:
    """One standing filter as it stands now.

    ``number`` is the service's own small integer for it, the same for all its versions; ``revision``
    is the registry revision that wrote this version. No record before ``valid_from`` meets it.
    """

    id: str
    space: str
    filter: str
    dialect: str
    number: int
    revision: int
    valid_from: Offsets


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a subscription has been acknowledged: one place for each partition of the log.

    All its matches before its partition's place in ``positions`` are; of those at or after it, the ones that
    lie in a run of ``acked``, each given by its first and its last position. Both in order; of a partition
    without a place nothing was read.
    """

    positions: tuple[Position, ...]
    acked: tuple[tuple[Position, Position], ...] = ()
