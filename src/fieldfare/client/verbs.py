"""What both clients do around their calls, without carrying any out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fieldfare.client.errors import Refusal, SubscriptionsRefused
from fieldfare.client.protocol import MAX_BULK
from fieldfare.client.records import NewSubscription

Subscribable = NewSubscription | Mapping[str, Any] | tuple[str, str]
"""An item of a bulk call: a NewSubscription, a mapping with ``filter`` and perhaps ``id``, ``dialect`` and
``delivery``, or (id, filter)."""

MAX_BULK_CHARS = 2 << 20
"""Filters of one bulk request, in characters: safely below the service's bound on a request's bytes."""


def read_subscribable(item: Subscribable) -> NewSubscription:
    """An item of a bulk call in its one form; ValueError where it is none."""
    if isinstance(item, NewSubscription):
        return item
    if isinstance(item, Mapping):
        unknown = set(item) - {"id", "filter", "dialect", "delivery"}
        if "filter" not in item or unknown:
            raise ValueError(
                "a subscription has a filter, and perhaps id, dialect and delivery, not"
                f" {sorted(map(str, item))}"
            )
        return NewSubscription(
            item["filter"], item.get("id"), item.get("dialect") or "sql", item.get("delivery")
        )
    if isinstance(item, tuple) and len(item) == 2:
        return NewSubscription(item[1], item[0])
    raise ValueError(f"a subscription is (id, filter), a mapping or a NewSubscription, not {item!r}")


def cut_bulk(items: Iterable[Subscribable]) -> Iterator[list[NewSubscription]]:
    """Pieces of a bulk call that fit a request each."""
    piece: list[NewSubscription] = []
    piece_chars = 0
    for item in map(read_subscribable, items):
        if piece and (len(piece) == MAX_BULK or piece_chars + len(item.filter) > MAX_BULK_CHARS):
            yield piece
            piece, piece_chars = [], 0
        piece.append(item)
        piece_chars += len(item.filter)
    if piece:
        yield piece


class BulkTally:
    """Adds up the pieces of a bulk call."""

    def __init__(self) -> None:
        self._sent = 0
        self._stored = 0
        self._refused: list[Refusal] = []

    def stored(self, piece: list[NewSubscription], stored: int) -> None:
        self._sent += len(piece)
        self._stored += stored

    def partly_stored(self, piece: list[NewSubscription], error: SubscriptionsRefused) -> None:
        self._refused += [
            Refusal(self._sent + r.index, r.detail, r.place, r.hint, r.id) for r in error.refused
        ]
        self.stored(piece, error.stored)

    def result(self) -> int:
        """How many were stored; SubscriptionsRefused when not all of them were."""
        if self._refused:
            raise SubscriptionsRefused(self._stored, self._refused)
        return self._stored


def check_target(id: str | None, filter: str | None, start: object = None) -> None:
    """A subscriber needs to know what to follow."""
    if id is None and filter is None:
        raise ValueError("subscribe needs the id of a subscription, a filter for a new one, or both")
    if start is not None and filter is None:
        raise ValueError("start is where a new subscription begins, which needs a filter; see seek")
