"""What changes do to a registry, whoever keeps it: pure, a batch in memory until it is written."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from fieldfare.model import OPEN_END, DeliverySettings, Offsets, Position, Subscription, positions_text
from fieldfare.storage.errors import RegistryError
from fieldfare.storage.registry import Configure, Conflict, Put, Remove

MAX_NUMBER = (1 << 32) - 1


@dataclass(slots=True)
class ChangeBatch:
    """A batch of changes on the way: what stands after each, and the rows to write at its end.

    Parameters
    ----------
    ends, now_ms
        As `Registry.apply` is given them.
    standing
        The subscriptions that the changes name, as they stand, by space and id.
    revision, number
        The last that were given out.
    """

    ends: Offsets
    now_ms: int
    standing: dict[tuple[str, str], Subscription]
    revision: int
    number: int
    touched: dict[tuple[str, str], bool] = field(default_factory=dict)
    """The ids changed, and whether each stood before the batch."""
    versions: dict[int, dict[str, Any]] = field(default_factory=dict)
    begun: dict[int, tuple[Position, ...]] = field(default_factory=dict)
    """Where delivery of those replaced, or with a past, begins if nobody has read yet, by number."""
    pasts: dict[int, dict[str, Any]] = field(default_factory=dict)
    ended_pasts: list[int] = field(default_factory=list)
    closings: list[dict[str, Any]] = field(default_factory=list)

    def apply(self, change: Put | Configure | Remove) -> Subscription | Conflict | None:
        """What `Registry.apply` answers to one change."""
        key = (change.space, change.id)
        existing = self.standing.get(key)
        if isinstance(change, Configure):
            if existing is None:
                return None
            self.touched.setdefault(key, True)
            self.standing[key] = configured = replace(existing, delivery=change.delivery)
            return configured
        if isinstance(change, Remove):
            if existing is None:
                return None
            self._touch(key)
            self._close(existing, removed=True)
            if existing.start is not None and self.pasts.pop(existing.number, None) is None:
                self.ended_pasts.append(existing.number)
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
        self.touched.setdefault(key, key in self.standing)
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
            if self.number == MAX_NUMBER:
                raise RegistryError("all subscription numbers have been given out")
            self.number += 1
        number = self.number if existing is None else existing.number
        delivery = put.delivery or (existing.delivery if existing is not None else DeliverySettings())
        start = self._begin_in_the_past(put, number) if existing is None else existing.start
        subscription = Subscription(
            *(put.id, put.space, put.filter, put.dialect, number, self.revision, self.ends, delivery, start),
            cost=put.cost,
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
        }
        return subscription

    def _begin_in_the_past(self, put: Put, number: int) -> tuple[Position, ...] | None:
        if put.start is None:
            return None
        named = {position.partition: position for position in put.start}
        start = tuple(named.get(end.partition, end) for end in _first_events(self.ends))
        self.begun[number] = start
        self.pasts[number] = {
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
