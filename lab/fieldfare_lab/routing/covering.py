"""Covering: a subscription is not stored at the next hop if one that is stored there covers it.

Carzaniga et al. 2001 do not send such a subscription on at all. Here it still travels to each origin, because
every version counts from an exact revision of the origin, but the hops only note that it was asked for: they
neither keep its filter nor examine it. Each hop decides for itself what the next one stores:

    asked for, not covered ──────────────▶ stored ◀──┐ the stored one that covered it ends, or is replaced:
    asked for, covered by a stored one ──▶ covered ──┘ a repeat of its request, before that is sent
                                             ▲
    stored, a wider one is stored ───────────┘ a repeat of its request, after that was sent

Links keep the order, so at any time the next hop stores a subscription that covers each covered one. Where a
stored one ends, its filter is matched until the origin has answered: after its answers to all requests that
were covered and came before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from fieldfare_lab.routing.messages import (
    Filter,
    Subscribe,
    Unsubscribe,
)
from fieldfare_lab.routing.tables import SubscriptionKey


@dataclass(slots=True)
class Requested:
    """A version of a subscription, as it was sent on.

    Attributes
    ----------
    subscribe
        The request; its origins are not used.
    stored, covered
        The origins for which the next hop stores it, and for which a stored one covers it. For a
        subscription that is covered where it came from, neither.
    """

    subscribe: Subscribe
    stored: set[str] = field(default_factory=set)
    covered: set[str] = field(default_factory=set)

    @property
    def key(self) -> SubscriptionKey:
        return self.subscribe.subscriber, self.subscribe.id

    def covers(self, filter: Filter) -> bool:
        return self.subscribe.filter.covers(filter)


@dataclass(slots=True)
class Repeats:
    """Requests to be repeated with another `is_stored`, by subscription, version and origins."""

    origins: dict[tuple[str, str, int], set[str]] = field(default_factory=dict)
    subscribes: dict[tuple[str, str, int], Subscribe] = field(default_factory=dict)

    def add(self, requested: Requested, origins: set[str]) -> None:
        subscribe = requested.subscribe
        key = (subscribe.subscriber, subscribe.id, subscribe.version)
        self.subscribes[key] = subscribe
        self.origins.setdefault(key, set()).update(origins)

    def take(self, requested: Requested, origins: set[str]) -> set[str]:
        """Remove and return those of the origins for which a request was to be repeated."""
        subscribe = requested.subscribe
        there = self.origins.get((subscribe.subscriber, subscribe.id, subscribe.version), set())
        taken = there & origins
        there -= taken
        return taken

    def messages(self, is_stored: bool) -> list[Subscribe]:
        """Return the repeated requests."""
        return [
            replace(self.subscribes[key], origins=tuple(sorted(origins)), is_stored=is_stored)
            for key, origins in self.origins.items()
            if origins
        ]


@dataclass(slots=True)
class Covering:
    """The requests that one broker has sent on, and which of them the next hop to each origin stores."""

    requested: dict[SubscriptionKey, dict[int, Requested]] = field(default_factory=dict)

    def request(self, asked: Subscribe | Unsubscribe) -> list[Subscribe | Unsubscribe]:
        """Return the messages with which a request goes on, in order."""
        origins, store, cover = set(asked.origins), Repeats(), Repeats()
        needed = asked if isinstance(asked, Subscribe) and asked.is_stored else None
        for ended, freed in self._end(asked, needed, origins):
            self._store_uncovered(ended, freed, needed, store, cover)
        if isinstance(asked, Unsubscribe):
            return [*store.messages(True), asked, *cover.messages(False)]
        stored = self._place(asked, origins, store, cover) if asked.is_stored else set[str]()
        parts = [
            replace(asked, origins=tuple(part), is_stored=is_stored)
            for is_stored in (True, False)
            if (part := [each for each in asked.origins if (each in stored) == is_stored])
        ]
        return [*store.messages(True), *parts, *cover.messages(False)]

    def repeat(self, asked: Subscribe) -> list[Subscribe]:
        """Return the messages that follow from a repeated request.

        A subscription that is covered now may stay stored at the next hop; whether the wider one covers it
        there was decided when that was sent on.
        """
        known = self.requested.get((asked.subscriber, asked.id), {}).get(asked.version)
        origins = set(asked.origins) - (known.stored if known else set())
        if not asked.is_stored:
            if known:
                known.covered -= origins
            self._forget_unused(asked)
            return []
        store, cover = Repeats(), Repeats()
        stored = self._place(asked, origins, store, cover)
        again = [replace(asked, origins=tuple(sorted(stored)))] if stored else []
        return [*again, *cover.messages(False)]

    def forget(self, origin: str) -> None:
        """Forget the requests at an origin that was removed."""
        for requested in list(self._all()):
            requested.stored.discard(origin)
            requested.covered.discard(origin)
            self._forget_unused(requested.subscribe)

    def _end(
        self, asked: Subscribe | Unsubscribe, needed: Subscribe | None, origins: set[str]
    ) -> list[tuple[Filter, set[str]]]:
        """End the earlier versions; return filters that may have covered others, and for which origins."""
        freed = []
        for earlier in self.requested.get((asked.subscriber, asked.id), {}).values():
            if needed is None or not needed.filter.covers(earlier.subscribe.filter):
                freed.append((earlier.subscribe.filter, earlier.stored & origins))
            earlier.stored -= origins
            earlier.covered -= origins
        self._forget_unused(asked)
        return freed

    def _store_uncovered(
        self, ended: Filter, freed: set[str], needed: Subscribe | None, store: Repeats, cover: Repeats
    ) -> None:
        """Store the subscriptions that neither a stored one nor the one to be sent next covers any more.

        A filter that does not intersect `ended` does not need it. Any other one may: it may have been covered
        by one that `ended` covers.
        """
        if not freed:
            return
        for each in list(self._all()):
            open = each.covered & freed
            if not open or not ended.intersects(each.subscribe.filter):
                continue
            if needed is not None and needed.filter.covers(each.subscribe.filter):
                continue
            open -= self._covered_at(each.subscribe, open)
            if open:
                each.covered -= open
                each.stored |= open
                store.add(each, open)
                self._cover_narrower(each, open, store, cover)

    def _place(self, asked: Subscribe, origins: set[str], store: Repeats, cover: Repeats) -> set[str]:
        """Note a request; return the origins for which the next hop is to store it."""
        versions = self.requested.setdefault((asked.subscriber, asked.id), {})
        requested = versions.setdefault(asked.version, Requested(asked))
        covered = self._covered_at(asked, origins)
        requested.covered |= covered
        requested.stored |= origins - covered
        self._cover_narrower(requested, origins - covered, store, cover)
        self._forget_unused(asked)
        return origins - covered

    def _cover_narrower(self, wider: Requested, origins: set[str], store: Repeats, cover: Repeats) -> None:
        """Let a subscription that is stored now cover the stored ones that are narrower."""
        for each in self._all():
            common = each.stored & origins
            if common and each.key != wider.key and wider.covers(each.subscribe.filter):
                each.stored -= common
                each.covered |= common
                cover.add(each, common - store.take(each, common))

    def _covered_at(self, asked: Subscribe, origins: set[str]) -> set[str]:
        """Return the origins for which another stored subscription covers one."""
        found: set[str] = set()
        for each in self._all():
            if found == origins:
                break
            common = (each.stored & origins) - found
            if common and each.key != (asked.subscriber, asked.id) and each.covers(asked.filter):
                found |= common
        return found

    def _all(self) -> Iterator[Requested]:
        for versions in self.requested.values():
            yield from versions.values()

    def _forget_unused(self, asked: Subscribe | Unsubscribe) -> None:
        key = (asked.subscriber, asked.id)
        versions = self.requested.get(key, {})
        for version in [n for n, each in versions.items() if not each.stored and not each.covered]:
            del versions[version]
        if not versions:
            self.requested.pop(key, None)
