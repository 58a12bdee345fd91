"""Subscriptions that nobody reads for as long as their settings say are removed, as if somebody did it.

A subscription is *used* when somebody pulls, settles, seeks or looks after its messages, holds some that he
has pulled, has a stream open, or changes it; one with a push address also when a receiver accepts a message,
or has none to be sent. Only those with the setting are watched, by their numbers, and a round of upkeep looks
at each.

What is counted is time in which it could have been used: a clock that nobody sets, while the service runs,
and no more of a round than it should take. How long each was unused is noted in the registry in steps, so
that a start goes on from there; what is lost between two steps makes it stay longer. Whoever reads has a time
to come back after a start, too. What a person has paused stays.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from fieldfare.gateway.admission.audit import Audit
from fieldfare.gateway.delivery.pump import Pump
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.push.pushes import Pushes
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.model import Subscription, space_name
from fieldfare.storage.errors import StorageError
from fieldfare.storage.registry import Registry

logger = logging.getLogger("fieldfare.gateway")

BACK_S = 600.0
"""So long after a start nothing expires that had less time left: its readers come back first."""

STEPS = 20
"""How long one was unused is noted so often in its time."""

LOOKED_AT_ONCE = 500
NOTED_AT_ONCE = 1_000
EXPIRED_AT_ONCE = 500
"""One round removes so many at most."""


@dataclass(slots=True)
class Watched:
    """A subscription that expires, and for how long nobody has used it."""

    subscription: Subscription
    unused_s: float = 0.0
    noted_s: float = 0.0
    is_used: bool = False
    held_s: float = 0.0
    """For how long yet somebody may hold messages that he has pulled."""

    @property
    def limit_s(self) -> float:
        """After how long it expires."""
        assert self.subscription.delivery.expires_unused_s is not None
        return self.subscription.delivery.expires_unused_s

    @property
    def stays(self) -> bool:
        """Whether a person has paused it."""
        delivery = self.subscription.delivery
        return delivery.paused and delivery.paused_because is None


class Unused:
    """Watches those that expire.

    Parameters
    ----------
    registry
        Has the notes; all that expire are read from it here.
    subscriptions, pump, pushes
        Remove them, and know who reads.
    audit, metrics
        Are told of what was removed.
    """

    def __init__(
        self,
        registry: Registry,
        subscriptions: Subscriptions,
        pump: Pump,
        pushes: Pushes,
        audit: Audit,
        metrics: Metrics,
    ) -> None:
        self._registry = registry
        self._subscriptions = subscriptions
        self._pump = pump
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
        pump.call_on_change(self._changed)

    def _changed(self, number: int, subscription: Subscription | None) -> None:
        """A subscription has these settings now, or is removed (None)."""
        if subscription is None or subscription.delivery.expires_unused_s is None:
            self._watched.pop(number, None)
        else:
            self._watched[number] = Watched(subscription)

    def used(self, number: int, held_s: float = 0.0) -> None:
        """Somebody does something with a subscription's messages, or may hold some for so long."""
        watched = self._watched.get(number)
        if watched is not None:
            watched.is_used = True
            watched.held_s = max(watched.held_s, held_s)

    def unused_s(self, number: int) -> float | None:
        """For how long nobody has used a subscription that expires."""
        watched = self._watched.get(number)
        return None if watched is None else watched.unused_s

    async def round(self, elapsed_s: float) -> None:
        """Look at all after so much time, in which any of them could have been used."""
        over: list[Watched] = []
        notes: list[tuple[Subscription, int]] = []
        for at, (number, watched) in enumerate(list(self._watched.items())):
            if at % LOOKED_AT_ONCE == LOOKED_AT_ONCE - 1:
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
            for start in range(0, len(notes), NOTED_AT_ONCE):
                await asyncio.to_thread(self._registry.note_unused, notes[start : start + NOTED_AT_ONCE])
            for watched in over[:EXPIRED_AT_ONCE]:
                await self._expire(watched)
        except (StorageError, OSError) as error:
            logger.error("subscriptions that nobody uses: %s; it will be tried again", error)

    def _is_used(self, number: int, watched: Watched) -> bool:
        if watched.is_used or watched.held_s > 0:
            return True
        if watched.subscription.delivery.push is not None:
            return self._pushes.is_used(number) or self._pump.is_read(number, self._pushes.session(number))
        return self._pump.is_read(number)

    async def _expire(self, watched: Watched) -> None:
        subscription = watched.subscription
        if self._watched.get(subscription.number) is not watched or watched.is_used:
            return  # changed, removed or used since the round looked at it
        removed = await self._subscriptions.remove_unused(subscription)
        if removed is None:
            return
        self._pump.deleted(subscription.number)
        self._metrics.expired_subscriptions.inc()
        path = f"/v1/spaces/{space_name(subscription.space)}/subscriptions/{subscription.id}"
        because = f"nobody used it for {watched.limit_s:g} s"
        self._audit.note(time.time_ns() // 1_000_000, "", "DELETE", path, 204, None, because)
        logger.info("%s expired: %s", path, because)
