"""Rows of the registry as typed values. An unusable row is left out and noted; all others are still read.

SQLite stores any value in any column. So values are checked when they are read: all rows of a page in one
call, and one by one only if that fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec.structs import astuple

from fieldfare.model import (
    INDEX_MAX,
    OFFSET_MAX,
    OPEN_END,
    PARTITIONS_MAX,
    DeliverySettings,
    Labels,
    Position,
    Subscription,
    positions_of,
)
from fieldfare.storage.changes import NUMBER_MAX
from fieldfare.storage.corruption import note_corruption
from fieldfare.storage.errors import RegistryError

_SHOWN_MAX = 80
LEFT_OUT = "it is ignored: create again, or delete, the object that it belongs to"

Count = Annotated[int, msgspec.Meta(ge=0, le=OPEN_END)]
Partition = Annotated[int, msgspec.Meta(ge=0, lt=PARTITIONS_MAX)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=OFFSET_MAX)]
Index = Annotated[int, msgspec.Meta(ge=0, le=INDEX_MAX)]
Number = Annotated[int, msgspec.Meta(ge=1, le=NUMBER_MAX)]
SubscriptionRow = tuple[str, str, str, str, Number, Count, int, Any, Any, Any, Any, Any, Any]
"""Required types of a row of ``subscriptions``; the last six columns are checked separately."""

PAUSED_BECAUSE = "the stored delivery settings cannot be read: set all of them again, and paused to false"
_UNREADABLE = DeliverySettings(paused=True, paused_because=PAUSED_BECAUSE)
_NO_SETTINGS = DeliverySettings()

_further_decoder = msgspec.msgpack.Decoder(list[Offset])
_delivery_decoder = msgspec.json.Decoder(DeliverySettings)


def labels_text(labels: Labels) -> str | None:
    """Return labels as they are stored and searched: a line ``key=value`` each; None without labels."""
    return "\n".join(f"{key}={value}" for key, value in labels) or None


def read_labels(text: str | None) -> Labels:
    """Parse the text of `labels_text`: no key has a ``=``, and neither keys nor values have line ends."""
    pairs = (line.partition("=") for line in text.split("\n")) if text else ()
    return tuple((key, value) for key, _, value in pairs)


class Unusable:
    """A checker of rows that writes a note for each unusable one (see `storage.corruption`).

    Parameters
    ----------
    path
        Path of the database.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def report(self, table: str, key: object, why: object, outcome: str = LEFT_OUT) -> None:
        """Write a note about an unusable row, the first time that it is found."""
        shown = str(key)[:_SHOWN_MAX]
        what = f"table {table}, row {shown}: {str(why)[:200]}; {outcome}"
        note_corruption(self._path, f"{table}-{shown}", what)

    def usable(self, table: str, kind: Any, rows: Iterable[Sequence[Any]]) -> list[Any]:
        """Return the rows that conform to a tuple type; report the others, by their first column."""
        given = list(map(tuple, rows))
        try:
            return msgspec.convert(given, list[kind], builtin_types=(bytes,))
        except msgspec.ValidationError:
            pass
        found: list[Any] = []
        for row in given:
            try:
                found.append(msgspec.convert(row, kind, builtin_types=(bytes,)))
            except msgspec.ValidationError as error:
                self.report(table, row[0], error)
        return found

    def subscriptions(self, rows: Iterable[Sequence[Any]]) -> list[Subscription]:
        """Convert rows with the columns of `SubscriptionRow`; unreadable delivery settings pause delivery."""
        return [self._subscription(row) for row in self.usable("subscriptions", SubscriptionRow, rows)]

    def subscription(self, row: Sequence[Any]) -> Subscription:
        """Return the subscription of one row; RegistryError if the row is unusable."""
        found = self.subscriptions([row])
        if not found:
            raise RegistryError(
                f"{self._path}: the row of subscription {str(row[0])[:_SHOWN_MAX]!r} is unusable"
            )
        return found[0]

    def _subscription(self, row: SubscriptionRow) -> Subscription:
        id, space, filter, dialect, number, revision, cost, first, further, delivery, start, *tags = row
        key = f"{space}/{id}"
        # By default from the log's start: records older than the revision never match.
        valid_from: tuple[int, ...] = (0,)
        settings, positions = _NO_SETTINGS, None
        try:
            valid_from = (
                msgspec.convert(first, Offset),
                *(_further_decoder.decode(further) if further else ()),
            )
        except (msgspec.DecodeError, TypeError) as error:
            self.report("subscriptions", f"{key}, valid_from", error)
        if delivery:
            settings = self._settings(key, delivery)
        if start:
            positions = self._positions(key, start)
        return Subscription(
            id=id,
            space=space,
            filter=filter,
            dialect=dialect,
            number=number,
            revision=revision,
            valid_from=valid_from,
            delivery=settings,
            start=positions,
            cost=cost,
            **(self._tags(key, *tags) if any(tags) else {}),
        )

    def _tags(self, key: str, owner: Any, labels: Any) -> dict[str, Any]:
        """Return owner and labels; unreadable ones are left out."""
        if all(isinstance(each, str | None) for each in (owner, labels)):
            return {"owner": owner or "", "labels": read_labels(labels)}
        self.report("subscriptions", f"{key}, labels", "owner or labels are no text", "they are left out")
        return {}

    def _settings(self, key: str, delivery: Any) -> DeliverySettings:
        try:
            return _delivery_decoder.decode(delivery)
        except (ValueError, TypeError, RecursionError) as error:
            self.report("subscriptions", f"{key}, delivery", error)
            return _UNREADABLE

    def _positions(self, key: str, start: Any) -> tuple[Position, ...] | None:
        try:
            positions = positions_of(start)
            msgspec.convert([astuple(each) for each in positions], list[tuple[Partition, Offset, Index]])
            return positions
        except (ValueError, AttributeError, TypeError) as error:
            self.report("subscriptions", f"{key}, start", error)
            return None
