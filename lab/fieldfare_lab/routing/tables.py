"""Matching tables: L-SRT, R-SRT, L-PRT and R-PRT, local and remote apart.

As in PADRES, an SRT (subscription routing table) holds advertisements, by which subscriptions are routed, and
a PRT (publication routing table) holds subscriptions, by which publications are routed. A local table belongs
to the broker's own clients; of the remote tables there is one for each cluster.

A version of a subscription counts for a record of an origin from the revision that the origin has answered.
The subscriber's broker (L-PRT) therefore keeps, for each origin, the version that counts and its first
revision, and the version that the origin was asked for, whose first revision is not known yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fieldfare_lab.routing.messages import (
    Filter,
    Publication,
    Subscribe,
    Unsubscribe,
)

SubscriptionKey = tuple[str, str]
"""The subscriber's broker, and the subscription's name there."""


@dataclass(slots=True)
class Advertiser:
    """The advertisements of one origin: a part of R-SRT.

    Attributes
    ----------
    source
        The routing source from which they came; subscriptions go there.
    ads
        Revision and filter of each; withdrawn ones without a filter.
    """

    source: str
    path: tuple[str, ...]
    ads: dict[str, tuple[int, Filter | None]] = field(default_factory=dict)

    def intersects(self, wanted: Filter) -> bool:
        """Return whether an event of the origin may match a filter."""
        return any(ad is not None and ad.intersects(wanted) for _, ad in self.ads.values())


@dataclass(slots=True)
class AtOrigin:
    """A local subscription at one origin.

    Attributes
    ----------
    filter, revision
        What counts, and from which revision; None until the origin has answered, and after an end.
    asking
        The version and filter (None: an end) that the origin was asked for and has not answered.
    """

    version: int = 0
    filter: Filter | None = None
    revision: int = 0
    asking: tuple[int, Filter | None] | None = None
    parked: list[Publication] = field(default_factory=list)
    """Records for which the answer that is under way matters."""

    def counts_for(self, publication: Publication) -> bool:
        """Return whether the version that counts matches a record."""
        return (
            self.filter is not None
            and self.revision <= publication.origin.stamp
            and self.filter.matches(publication.event)
        )


@dataclass(slots=True)
class LocalSubscription:
    """An entry of L-PRT: the newest version, and what counts at each origin."""

    id: str
    version: int
    filter: Filter | None
    origins: dict[str, AtOrigin] = field(default_factory=dict)


@dataclass(slots=True)
class RemoteSubscription:
    """An entry of R-PRT: a subscription to which records of some origins are forwarded.

    Attributes
    ----------
    source
        Where its matches go: the subscriber's broker, or a broker that has replaced the routing source.
    versions
        Filters that are still needed: the newest, and older ones until each origin has answered.
    asked, reached
        For each origin the last version that was asked for, and that has been answered.
    leaving
        Origins at which an end was asked for.
    """

    subscriber: str
    id: str
    source: str
    versions: dict[int, Filter] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)
    covered_at: dict[str, int] = field(default_factory=dict)
    """Origins for which the version asked for last is only noted: a stored subscription of the source
    covers it."""

    def matches(self, origin: str, event: Any) -> bool:
        """Return whether a record of an origin matches a version that may count for it."""
        return any(each.matches(event) for each in self.stored_at(origin))

    def stored_at(self, origin: str) -> Iterator[Filter]:
        """Yield the filters against which an origin's records are matched."""
        for number, each in self.versions.items():
            if self._is_needed(origin, number):
                yield each

    def repeated(self, asked: Subscribe) -> tuple[str, ...]:
        """Return the origins for which a request only changes whether its version is stored."""
        return tuple(
            [
                origin
                for origin in asked.origins
                if self.asked.get(origin) == asked.version
                and origin not in self.leaving
                and (origin in self.covered_at) == asked.is_stored
            ]
        )

    def requested(self, asked: Subscribe | Unsubscribe) -> None:
        """Note a request, or a repeated one that tells whether its version is stored."""
        for origin in asked.origins:
            self.asked[origin] = asked.version
            self.covered_at.pop(origin, None)
        if isinstance(asked, Unsubscribe):
            self.leaving.update(asked.origins)
        elif asked.is_stored:
            self.versions[asked.version] = asked.filter
        else:
            self.covered_at |= dict.fromkeys(asked.origins, asked.version)
        self._drop_unneeded()

    def answered(self, origin: str, version: int) -> None:
        """Drop what no origin needs any more."""
        self.reached[origin] = max(version, self.reached.get(origin, 0))
        if origin in self.leaving and version >= self.asked[origin]:
            self.leaving.discard(origin)
            self.covered_at.pop(origin, None)
            del self.asked[origin], self.reached[origin]
        self._drop_unneeded()

    def _is_needed(self, origin: str, version: int) -> bool:
        oldest, newest = self.reached.get(origin, 0), self.asked.get(origin, -1)
        return oldest <= version <= newest and version != self.covered_at.get(origin)

    def _drop_unneeded(self) -> None:
        self.versions = {
            number: each
            for number, each in self.versions.items()
            if any(self._is_needed(origin, number) for origin in self.asked)
        }


@dataclass(slots=True)
class Counters:
    """Work of one broker since its start.

    Attributes
    ----------
    matchings, held, examined, compared
        Events matched against a table; the entries that the table had; those that were scanned, up to the
        first match of each destination; and those of them that were asked for at the event's origin, whose
        filters alone are compared with the event.
    sent
        Forwards by neighbour, repeats included, and `other_sent` of messages about links and topology.
    lists, listed
        Publications put on a link, and the destinations on their lists.
    unknown_lists
        Entries whose bitmap fitted no numbering.
    """

    matchings: int = 0
    held: int = 0
    examined: int = 0
    compared: int = 0
    sent: dict[str, int] = field(default_factory=dict)
    publications_sent: dict[str, int] = field(default_factory=dict)
    other_sent: int = 0
    lists: int = 0
    listed: int = 0
    list_length_max: int = 0
    unknown_lists: int = 0


@dataclass(slots=True)
class LocalTable:
    """L-PRT: the subscriptions of local clients."""

    subscriptions: dict[str, LocalSubscription] = field(default_factory=dict)

    def match(self, publication: Publication, counters: Counters) -> list[str]:
        """Return the subscriptions that a record counts for.

        Where an answer is under way and the version that was asked for has another result for the event than
        the one that counts, the record is parked until the answer comes.
        """
        origin, matches = publication.origin.broker, []
        counters.matchings += 1
        counters.held += len(self.subscriptions)
        counters.examined += len(self.subscriptions)
        for each in self.subscriptions.values():
            there = each.origins.get(origin)
            if there is None:
                continue
            counters.compared += 1
            counts = there.counts_for(publication)
            if there.asking is not None:
                later = there.asking[1]
                if counts != (later is not None and later.matches(publication.event)):
                    there.parked.append(publication)
                    continue
            if counts:
                matches.append(each.id)
        return matches


@dataclass(slots=True)
class RemoteTable:
    """R-PRT of one cluster: the subscriptions of other brokers, by the broker to which their matches go."""

    by_source: dict[str, dict[SubscriptionKey, RemoteSubscription]] = field(default_factory=dict)

    def get(self, source: str, key: SubscriptionKey) -> RemoteSubscription | None:
        """Return the entry of a subscription."""
        return self.by_source.get(source, {}).get(key)

    def add(self, source: str, key: SubscriptionKey) -> RemoteSubscription:
        """Return the entry of a subscription, a new one if there is none."""
        entries = self.by_source.setdefault(source, {})
        if key not in entries:
            entries[key] = RemoteSubscription(*key, source)
        return entries[key]

    def discard(self, entry: RemoteSubscription) -> None:
        """Remove an entry."""
        entries = self.by_source.get(entry.source, {})
        entries.pop((entry.subscriber, entry.id), None)
        if not entries:
            self.by_source.pop(entry.source, None)

    def entries(self) -> Iterator[RemoteSubscription]:
        """Yield all entries."""
        for entries in self.by_source.values():
            yield from entries.values()

    def match(self, publication: Publication, counters: Counters) -> list[str]:
        """Return the brokers to which a record goes; of each, entries are examined up to the first match."""
        found, origin = [], publication.origin.broker
        counters.matchings += bool(self.by_source)
        counters.held += sum(not entry.covered_at for entry in self.entries())
        for source, entries in self.by_source.items():
            for entry in entries.values():
                is_stored = next(entry.stored_at(origin), None) is not None
                counters.examined += not entry.covered_at or is_stored
                counters.compared += is_stored
                if entry.matches(origin, publication.event):
                    found.append(source)
                    break
        return found

    def stored(self) -> int:
        """Return how many subscriptions are stored; covered ones are noted, not stored."""
        return sum(1 for entry in self.entries() if entry.versions)


@dataclass(slots=True)
class AdvertisementTable:
    """R-SRT of one cluster: the advertisements of other brokers, by origin."""

    origins: dict[str, Advertiser] = field(default_factory=dict)

    def intersecting(self, wanted: Filter) -> Iterable[str]:
        """Return the origins whose advertisements a filter intersects."""
        return [name for name, each in self.origins.items() if each.intersects(wanted)]
