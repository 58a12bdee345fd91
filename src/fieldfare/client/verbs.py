"""Helpers that both clients use around their calls, without I/O."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from fieldfare.client.errors import Refusal, SubscriptionsRefused
from fieldfare.client.protocol import BULK_MAX
from fieldfare.client.records import BulkStored, FilterWarning, NewSubscription

logger = logging.getLogger("fieldfare.client")

Subscribable = NewSubscription | Mapping[str, Any] | tuple[str, str]
"""An item of a bulk call: a NewSubscription, a mapping with ``filter`` and optionally ``id``, ``dialect``,
``delivery``, ``owner`` and ``labels``, or (id, filter)."""

BULK_CHARS_MAX = 2 << 20
"""Maximum size of the filters and labels in one bulk request, in characters; larger calls are split. It is
well below the service's limit in bytes."""


def read_subscribable(item: Subscribable) -> NewSubscription:
    """Convert an item of a bulk call to a NewSubscription; ValueError if it has none of the allowed forms."""
    if isinstance(item, NewSubscription):
        return item
    if isinstance(item, Mapping):
        if faults := list(_faults_of(item)):
            name = f" {item['id']!r}" if "id" in item else ""
            raise ValueError(
                f"the subscription{name} {' and '.join(faults)}: correct the names of its fields, which are"
                " filter (required), id, dialect, delivery, owner and labels"
            )
        return NewSubscription(
            item["filter"],
            item.get("id"),
            item.get("dialect") or "sql",
            item.get("delivery"),
            owner=item.get("owner"),
            labels=item.get("labels"),
        )
    if isinstance(item, tuple) and len(item) == 2:
        return NewSubscription(item[1], item[0])
    raise ValueError(f"a subscription must be (id, filter), a mapping or a NewSubscription, not {item!r}")


def _faults_of(item: Mapping[str, Any]) -> Iterator[str]:
    """Return what is wrong with the fields of an item of a bulk call, each fault as the end of a sentence."""
    if unknown := set(item) - {"id", "filter", "dialect", "delivery", "owner", "labels"}:
        yield f"has unknown fields ({', '.join(sorted(map(repr, unknown)))})"
    if "filter" not in item:
        yield "lacks the field 'filter'"


def cut_bulk(items: Iterable[Subscribable]) -> Iterator[list[NewSubscription]]:
    """Split a bulk call into pieces, one per request."""
    piece: list[NewSubscription] = []
    piece_chars = 0
    for item in map(read_subscribable, items):
        labels = item.labels or {}
        chars = len(item.filter) + sum(len(str(text)) for pair in labels.items() for text in pair)
        if piece and (len(piece) == BULK_MAX or piece_chars + chars > BULK_CHARS_MAX):
            yield piece
            piece, piece_chars = [], 0
        piece.append(item)
        piece_chars += chars
    if piece:
        yield piece


class BulkTally:
    """Sums up the results of a bulk call's requests."""

    def __init__(self) -> None:
        self._sent = 0
        self._stored = 0
        self._refused: list[Refusal] = []

    def add(self, piece: list[NewSubscription], answer: BulkStored) -> None:
        """Count one request, and log the warnings about its filters."""
        self._refused += [
            Refusal(self._sent + r.index, r.detail, r.place, r.hint, r.id) for r in answer.refused
        ]
        self._sent += len(piece)
        self._stored += answer.stored
        log_warnings(answer.warnings)

    def result(self) -> int:
        """Return how many were stored; SubscriptionsRefused if some were not."""
        if self._refused:
            raise SubscriptionsRefused(self._stored, self._refused)
        return self._stored


def check_target(id: str | None, filter: str | None, start: object = None) -> None:
    """Raise ValueError unless there is an id or a filter, and a filter if there is a start."""
    if id is None and filter is None:
        raise ValueError("subscribe needs the id of a subscription, a filter for a new one, or both")
    if start is not None and filter is None:
        raise ValueError("start needs a filter, as it is for new subscriptions; use seek for an existing one")


def log_warnings(warnings: Iterable[FilterWarning], id: str | None = None) -> None:
    """Log warnings about stored filters, for calls whose results do not contain them."""
    for warning in warnings:
        logger.warning("%s", replace(warning, id=id or warning.id))
