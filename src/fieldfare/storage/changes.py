"""The effects of a batch of changes on a registry, computed in memory, independent of the database."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fieldfare.model import OPEN_END, DeliverySettings, Offsets, Position, Subscription, positions_text
from fieldfare.storage.errors import RegistryError
from fieldfare.storage.registry import Configure, Conflict, Put, Remove

NUMBER_MAX = (1 << 32) - 1
"""Greatest subscription number, since indexes store 32 bits of it; then no subscription can be created."""


@dataclass(slots=True)
class ChangeBatch:
    """A batch of changes: the subscriptions after the changes so far, and the rows to write in the end.

    Parameters
    ----------
    ends, now_ms
        See `Registry.apply`.
    standing
        The current subscriptions that the changes name, by space and id.
    revision, number
        The last assigned revision and subscription number.
    """

    ends: Offsets
    now_ms: int
    standing: dict[tuple[str, str], Subscription]
    revision: int
    number: int
    touched: dict[tuple[str, str], Subscription | None] = field(default_factory=dict)
    """The changed spaces and ids, and each subscription as it was before the batch."""
    versions: dict[int, dict[str, Any]] = field(default_factory=dict)
    begun: dict[int, tuple[Position, ...]] = field(default_factory=dict)
    """Start positions of replaced or replayed subscriptions without a cursor, by subscription number."""
    replays: dict[int, dict[str, Any]] = field(default_factory=dict)
    ended_replays: list[int] = field(default_factory=list)
    closings: list[dict[str, Any]] = field(default_factory=list)

    def apply(self, change: Put | Configure | Remove) -> Subscription | Conflict | None:
        """Apply one change and return the result that `Registry.apply` returns for it."""
        key = (change.space, change.id)
        existing = self.standing.get(key)
        if isinstance(change, Configure):
            if existing is None:
                return None
            self.touched.setdefault(key, existing)
            self.standing[key] = configured = replace(
                existing,
                delivery=existing.delivery if change.delivery is None else change.delivery,
                owner=existing.owner if change.owner is None else change.owner,
                labels=existing.labels if change.labels is None else change.labels,
            )
            return configured
        if isinstance(change, Remove):
            if existing is None:
                return None
            self._touch(key)
            self._close(existing, removed=True)
            if existing.start is not None and self.replays.pop(existing.number, None) is None:
                self.ended_replays.append(existing.number)
            del self.standing[key]
            return existing
        if existing is not None and change.if_absent:
            return Conflict(existing)
        self._touch(key)
        if existing is not None:
            self._close(existing, removed=False)
            self.begun.setdefault(existing.number, _first_events(existing.valid_from))
        return self._open(change, existing)

    def _touch(self, key: tuple[str, str]) -> None:
        self.touched.setdefault(key, self.standing.get(key))
        self.revision += 1

    def _close(self, existing: Subscription, *, removed: bool) -> None:
        closing = {"valid_to": self.ends[0], "closed_revision": self.revision, "removed": removed}
        written_now = self.versions.get(existing.revision)
        if written_now is not None:
            written_now.update(closing)
        else:
            self.closings.append({"ended": existing.revision, **closing})

    def _open(self, put: Put, existing: Subscription | None) -> Subscription:
        if existing is None:
            if self.number >= NUMBER_MAX:
                raise RegistryError(
                    "all subscription numbers are used: no subscription can be created any more"
                )
            self.number += 1
        number = self.number if existing is None else existing.number
        delivery = put.delivery or (existing.delivery if existing is not None else DeliverySettings())
        owner = put.owner if put.owner is not None else existing.owner if existing is not None else ""
        labels = put.labels if put.labels is not None else existing.labels if existing is not None else ()
        start = self._start_positions(put, number) if existing is None else existing.start
        subscription = Subscription(
            id=put.id,
            space=put.space,
            filter=put.filter,
            dialect=put.dialect,
            number=number,
            revision=self.revision,
            valid_from=self.ends,
            delivery=delivery,
            start=start,
            cost=put.cost,
            owner=owner,
            labels=labels,
        )
        self.standing[put.space, put.id] = subscription
        self.versions[self.revision] = {
            "revision": self.revision,
            "space": put.space,
            "number": number,
            "valid_from": self.ends[0],
            "valid_to": OPEN_END,
            "closed_revision": None,
            "removed": False,
            "changed_ms": self.now_ms,
            "filter": put.filter,
            "dialect": put.dialect,
            "compiled": put.compiled,
            "destination": put.destination,
        }
        return subscription

    def _start_positions(self, put: Put, number: int) -> tuple[Position, ...] | None:
        if put.start is None:
            return None
        named = {position.partition: position for position in put.start}
        start = tuple(named.get(end.partition, end) for end in _first_events(self.ends))
        self.begun[number] = start
        self.replays[number] = {
            "number": number,
            "revision": self.revision,
            "space": put.space,
            "start": positions_text(start),
            "filter": put.filter,
            "dialect": put.dialect,
            "compiled": put.compiled,
            "matched": False,
        }
        return start


def _first_events(offsets: Offsets) -> tuple[Position, ...]:
    return tuple(Position(partition, offset, 0) for partition, offset in enumerate(offsets))
