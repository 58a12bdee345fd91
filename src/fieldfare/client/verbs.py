"""What both clients do around their calls, without carrying any out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from fieldfare.client.errors import Refusal, SubscriptionsRefused
from fieldfare.client.protocol import MAX_BULK
from fieldfare.client.records import NewSubscription

Subscribable = NewSubscription | Mapping[str, Any] | tuple[str, str]
"""An item of a bulk call: a NewSubscription, a mapping with ``filter`` and perhaps ``id`` and ``dialect``, or
(id, filter)."""


def read_subscribable(item: Subscribable) -> NewSubscription:
    """An item of a bulk call in its one form; ValueError where it is none."""
    if isinstance(item, NewSubscription):
        return item
    if isinstance(item, Mapping):
        unknown = set(item) - {"id", "filter", "dialect"}
        if "filter" not in item or unknown:
            raise ValueError(
                f"a subscription has a filter, and perhaps id and dialect, not {sorted(map(str, item))}"
            )
        return NewSubscription(item["filter"], item.get("id"), item.get("dialect") or "sql")
    if isinstance(item, tuple) and len(item) == 2:
        return NewSubscription(item[1], item[0])
    raise ValueError(f"a subscription is (id, filter), a mapping or a NewSubscription, not {item!r}")


def cut_bulk(items: Iterable[Subscribable]) -> Iterator[list[NewSubscription]]:
    """Pieces of a bulk call that fit a request each."""
    iterator = map(read_subscribable, items)
    while piece := list(islice(iterator, MAX_BULK)):
        yield piece


class BulkTally:
    """Adds up the pieces of a bulk call."""

    def __init__(self) -> None:
        self._sent = 0
        self._created = 0
        self._refused: list[Refusal] = []

    def stored(self, piece: list[NewSubscription], created: int) -> None:
        self._sent += len(piece)
        self._created += created

    def partly_stored(self, piece: list[NewSubscription], error: SubscriptionsRefused) -> None:
        self._refused += [
            Refusal(self._sent + r.index, r.detail, r.place, r.hint, r.id) for r in error.refused
        ]
        self.stored(piece, error.created)

    def result(self) -> int:
        """How many were stored; SubscriptionsRefused when not all of them were."""
        if self._refused:
            raise SubscriptionsRefused(self._created, self._refused)
        return self._created


def check_target(id: str | None, filter: str | None) -> None:
    """A subscriber needs to know what to follow."""
    if id is None and filter is None:
        raise ValueError("subscribe needs the id of a subscription, a filter for a new one, or both")
