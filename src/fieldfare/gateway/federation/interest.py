"""Filters out: each change of this broker's subscriptions goes to every other broker, in order.

An edge broker sends the filters of its other clusters' brokers, too, as if they were its own.

A broker that is new to this one first gets all current filters. Every message states up to which revision it
is complete, so that the receiver knows for each of its own revisions as of which revision it has the filters.
A filter that cannot match what a broker advertises is not sent to it; its removal is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from fieldfare.filters.encrypted import ENCRYPTED
from fieldfare.gateway.federation.advertisements import Advertisements
from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.correspondence import Correspondence
from fieldfare.gateway.federation.heeding import Heeding, confirmation_of, statement_of
from fieldfare.gateway.federation.wire import FILTERS_MAX, Destination, FilterChange, Interest
from fieldfare.model import INTEREST, Change, space_name
from fieldfare.storage.links import Advertisement, Correspondent, Part
from fieldfare.storage.registry import SubscriptionHistory
from fieldfare.storage.sqlite.links import LinkStore

MESSAGE_BYTES = 512 << 10
"""Bytes of filters' texts after which a message ends."""

Page = tuple[tuple[FilterChange, ...], int | None]
"""Changes, and the revision up to which all changes are known with them; None within a first page."""


class InterestSender:
    """Sends the changes of this broker's filters."""

    def __init__(
        self,
        registry: SubscriptionHistory,
        store: LinkStore,
        clusters: Clusters,
        correspondence: Correspondence,
        advertisements: Advertisements,
        heeding: Heeding,
    ) -> None:
        self._registry = registry
        self._store = store
        self._clusters = clusters
        self._correspondence = correspondence
        self._advertisements = advertisements
        self._heeding = heeding
        self.is_withdrawn = False
        """Whether other brokers are told that this one, which is leaving, has no filters."""

    def publish(self, revision: int) -> bool:
        """Send what other brokers do not know up to a revision; return whether there was anything."""
        has_sent = False
        for name in self._clusters.brokers:
            known = self._correspondence.get(name)
            if not known.messages and self._advertisements.ready(name) is None:
                continue
            changes, known = self._changes(known, revision)
            statements, known = self._statements(known, revision)
            pages = [*changes, *statements]
            if not pages:
                continue
            parts, known = self._messages(known, pages)
            self._store.add(parts, [known])
            self._correspondence.put([known])
            has_sent = True
        return has_sent

    def _changes(self, known: Correspondent, revision: int) -> tuple[Iterable[Page], Correspondent]:
        """Return what a broker does not know of the filters, and its state once that is sent."""
        name = known.name
        if self.is_withdrawn:
            if known.withdrawn:
                return (), known
            floor = known.floor if known.messages else revision
            return [((), revision)], replace(known, withdrawn=revision, floor=floor)
        if known.withdrawn or not known.messages:
            floor = known.floor if known.messages else revision
            versions = self._for(name, self._registry.versions(revision, revision))
            wanted = (each for each in versions if each.filter is not None)
            return first_pages(wanted, revision), replace(known, withdrawn=0, floor=floor)
        if known.through >= revision:
            return (), known
        return later_pages(self._for(name, self._registry.changes(known.through, revision)), revision), known

    def _statements(self, known: Correspondent, revision: int) -> tuple[Iterable[Page], Correspondent]:
        """Return what a broker needs by its newest advertisements, and the ones of this broker for it.

        The last page of the filters confirms the advertisements. Before it, a filter that is removed can
        match nothing that is published there, and one that is added is already part of the current ones.
        """
        pages: list[Iterable[Page]] = []
        heard, revision = self._advertisements.ready(known.name) or 0, max(revision, known.through)
        if heard > known.heeded:
            if known.messages and not (self.is_withdrawn or known.withdrawn):
                spaces = self._heeding.spaces_after(known.name, known.heeded)
                versions = self._registry.versions(revision, revision)
                mine = (each for each in versions if space_name(each.space.removeprefix(INTEREST)) in spaces)
                pages.append((page, None) for page, _ in first_pages(self._for(known.name, mine), revision))
            pages.append([((confirmation_of(heard),), revision)])
            known = replace(known, heeded=heard)
        is_heeding = known.advertised > 0 or known.name in self._clusters.heeding
        if is_heeding and not self.is_withdrawn:
            told = self._advertisements.told_to(known.name)
            # By version: the greatest one that has come is confirmed, with all before it.
            news = sorted((row for row in told if row.version > known.advertised), key=_version)
            if news:
                pages.append(_paged(map(statement_of, news)))
                version = news[-1].version
                # One that is told for the first time sends all filters until then.
                confirmed = known.confirmed if known.advertised else version
                known = replace(known, advertised=version, confirmed=confirmed)
        return chain.from_iterable(pages), known

    def _for(self, name: str, changes: Iterable[Change]) -> Iterator[Change]:
        for change in self.concerning(name, changes):
            yield change if self._heeding.needs(name, change) else replace(change, filter=None)

    def concerning(self, name: str, changes: Iterable[Change]) -> Iterator[Change]:
        """Yield the changes that concern a broker: not those of its cluster, which it gets from there."""
        known = self._correspondence.brokers
        members = self._clusters.members(self._clusters.cluster_of(name))
        hidden = {known[each].number for each in members if each in known}
        for change in changes:
            is_of_others = change.space.startswith(INTEREST)
            if not is_of_others or (self._clusters.is_edge and change.destination not in hidden):
                yield change

    def _messages(self, known: Correspondent, pages: Iterable[Page]) -> tuple[list[Part], Correspondent]:
        parts: list[Part] = []
        to = (Destination(known.name),)
        for filters, theirs in pages:
            known = replace(known, messages=known.messages + 1, through=theirs or known.through)
            is_all = known.withdrawn > 0
            message = Interest(self._clusters.name, to, known.messages, filters, theirs, is_all)
            parts += self._clusters.split(message, to)
        return parts, known


def first_pages(versions: Iterable[Change], revision: int) -> Iterator[Page]:
    """Yield all filters that are valid at a revision; only the last page is complete up to it."""
    page: list[FilterChange] = []
    for change in _matched(versions):
        if _is_full(page):
            yield tuple(page), None
            page = []
        page.append(change[1])
    yield tuple(page), revision


def later_pages(changes: Iterable[Change], revision: int) -> Iterator[Page]:
    """Yield changes in order; each page is complete up to its last change, the last one to `revision`.

    A record may be published between two pages: it meets a broker's filters as they stood between them.
    """
    page: list[FilterChange] = []
    last = 0
    for at, change in _matched(changes):
        if _is_full(page):
            yield tuple(page), last
            page = []
        page.append(change)
        last = at
    yield tuple(page), revision


def _paged(changes: Iterable[FilterChange]) -> Iterator[Page]:
    page: list[FilterChange] = []
    for change in changes:
        if _is_full(page):
            yield tuple(page), None
            page = []
        page.append(change)
    yield tuple(page), None


def _matched(changes: Iterable[Change]) -> Iterator[tuple[int, FilterChange]]:
    """Yield the changes that other brokers can match, with their revisions."""
    for change in changes:
        if change.dialect != ENCRYPTED:
            name = space_name(change.space.removeprefix(INTEREST))
            yield (
                change.revision,
                FilterChange(name, change.number, change.filter, change.dialect or "sql"),
            )


def _version(row: Advertisement) -> int:
    return row.version


def _is_full(page: list[FilterChange]) -> bool:
    if not page or len(page) >= FILTERS_MAX:
        return bool(page)
    # Of short filters the sum is looked at now and then; a few long ones are more than a message.
    if len(page) % 16 and len(page[-1].filter or "") < MESSAGE_BYTES // 32:
        return False
    return sum(len(each.filter or "") for each in page) >= MESSAGE_BYTES
