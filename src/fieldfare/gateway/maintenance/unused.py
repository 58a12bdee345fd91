"""Expiry of unused subscriptions: one that no client uses for the time in its settings is deleted.

A subscription is *used* when a client pulls, settles, seeks or administers its messages, holds pulled
messages, has a stream open, or changes the subscription; one with a push address also when the receiver
accepts a message or there is none to send. Only subscriptions with the setting are watched, and each
maintenance round checks all of them.

Only time in which it could have been used counts: by a monotonic clock, while the service runs, and at most
twice a round's planned length. The unused time is saved to the registry in steps, and counting resumes there
after a start; time lost between two steps only delays expiry. After a start, clients have `BACK_S` seconds to
return. A subscription that a person has paused does not expire.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from fieldfare.gateway.admission.audit import Audit
from fieldfare.gateway.delivery.service import DeliveryService
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.push.pushes import Pushes
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.model import Subscription, space_name
from fieldfare.storage.errors import StorageError
from fieldfare.storage.registry import SubscriptionStore

logger = logging.getLogger("fieldfare.gateway")

BACK_S = 600.0
"""Minimum seconds from a start until a subscription expires, unless its own limit is lower: clients have this
time to return."""

STEPS = 20
"""Number of times that the unused time is saved within a subscription's limit."""

LOOKED_BATCH_SIZE = 500
NOTED_BATCH_SIZE = 1_000
EXPIRED_BATCH_SIZE = 500
"""Maximum subscriptions deleted in one round; the others follow in later rounds."""


@dataclass(slots=True)
class Watched:
    """A subscription that expires, with its unused time in seconds."""

    subscription: Subscription
    unused_s: float = 0.0
    noted_s: float = 0.0
    is_used: bool = False
    held_s: float = 0.0
    """Seconds for which a client may still hold pulled messages."""

    @property
    def limit_s(self) -> float:
        """Seconds without use after which it expires."""
        assert self.subscription.delivery.expires_unused_s is not None
        return self.subscription.delivery.expires_unused_s

    @property
    def stays(self) -> bool:
        """Whether a person has paused it, so that it does not expire."""
        delivery = self.subscription.delivery
        return delivery.paused and delivery.paused_because is None


class Unused:
    """A watch on the subscriptions that expire when unused.

    Parameters
    ----------
    registry
        Stores the unused times; the constructor reads all expiring subscriptions from it.
    subscriptions, deliveries, pushes
        Delete subscriptions, and know which have readers.
    audit, metrics
        Record the deletions.
    """

    def __init__(
        self,
        registry: SubscriptionStore,
        subscriptions: Subscriptions,
        deliveries: DeliveryService,
        pushes: Pushes,
        audit: Audit,
        metrics: Metrics,
    ) -> None:
        self._registry = registry
        self._subscriptions = subscriptions
        self._deliveries = deliveries
        self._pushes = pushes
        self._audit = audit
        self._metrics = metrics
        self._watched: dict[int, Watched] = {}
        after = ("", "")
        while page := registry.expiring(after):
            for each, noted_s in page:
                watched = self._watched[each.number] = Watched(each)
                left_at_most_s = max(0.0, watched.limit_s - BACK_S)
                watched.unused_s = watched.noted_s = min(float(noted_s), left_at_most_s)
            after = (page[-1][0].space, page[-1][0].id)
        deliveries.call_on_change(self._changed)

    def _changed(self, number: int, subscription: Subscription | None) -> None:
        """Handle a subscription's new settings, or its deletion (None)."""
        if subscription is None or subscription.delivery.expires_unused_s is None:
            self._watched.pop(number, None)
        else:
            self._watched[number] = Watched(subscription)

    def used(self, number: int, held_s: float = 0.0) -> None:
        """Note that a client uses a subscription, or may hold messages of it for ``held_s`` seconds."""
        watched = self._watched.get(number)
        if watched is not None:
            watched.is_used = True
            watched.held_s = max(watched.held_s, held_s)

    def unused_s(self, number: int) -> float | None:
        """Return for how many seconds a subscription was unused; None if it does not expire."""
        watched = self._watched.get(number)
        return None if watched is None else watched.unused_s

    async def round(self, elapsed_s: float) -> None:
        """Check all watched subscriptions; ``elapsed_s`` is the usable time since the last round."""
        over: list[Watched] = []
        notes: list[tuple[Subscription, int]] = []
        for at, (number, watched) in enumerate(list(self._watched.items())):
            if at % LOOKED_BATCH_SIZE == LOOKED_BATCH_SIZE - 1:
                await asyncio.sleep(0)
            if self._is_used(number, watched):
                watched.unused_s, watched.is_used = 0.0, False
                watched.held_s = max(0.0, watched.held_s - elapsed_s)
            elif not watched.stays:
                watched.unused_s += elapsed_s
            if watched.unused_s >= watched.limit_s:
                over.append(watched)
            elif watched.unused_s < watched.noted_s or (
                watched.unused_s - watched.noted_s >= watched.limit_s / STEPS
            ):
                watched.noted_s = float(int(watched.unused_s))
                notes.append((watched.subscription, int(watched.unused_s)))
        try:
            for start in range(0, len(notes), NOTED_BATCH_SIZE):
                await asyncio.to_thread(self._registry.note_unused, notes[start : start + NOTED_BATCH_SIZE])
            for watched in over[:EXPIRED_BATCH_SIZE]:
                await self._expire(watched)
        except (StorageError, OSError) as error:
            logger.error("unused subscriptions could not be removed; retrying later: %s", error)

    def _is_used(self, number: int, watched: Watched) -> bool:
        if watched.is_used or watched.held_s > 0:
            return True
        if watched.subscription.delivery.push is not None:
            return self._pushes.is_used(number) or self._deliveries.is_read(
                number, self._pushes.session(number)
            )
        return self._deliveries.is_read(number)

    async def _expire(self, watched: Watched) -> None:
        subscription = watched.subscription
        if self._watched.get(subscription.number) is not watched or watched.is_used:
            return  # changed, removed or used since the check
        removed = await self._subscriptions.remove_unused(subscription)
        if removed is None:
            return
        self._deliveries.deleted(subscription.number)
        self._metrics.expired_subscriptions.inc()
        path = f"/v1/spaces/{space_name(subscription.space)}/subscriptions/{subscription.id}"
        because = f"unused for {watched.limit_s:g} s"
        self._audit.note(time.time_ns() // 1_000_000, "", "DELETE", path, 204, None, because)
        logger.info("%s expired: %s", path, because)
