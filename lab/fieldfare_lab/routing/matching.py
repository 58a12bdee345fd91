"""Matching layer: the destinations of advertisements, subscriptions and events.

    Advertise ──────▶ R-SRT of its receivers; each that passes it on becomes its routing source there
    Subscribe ◀────── to the sources of intersecting advertisements, up to the origin: R-PRT
    Accepted  ──────▶ back to the subscriber's broker, behind all records that older versions have matched
    Publication ────▶ to the sources of matching subscriptions, down to the subscribers' brokers: L-PRT

A broker has at most one request for a subscription outstanding at an origin; so requests do not overtake each
other, on whatever paths they go. Answers may overtake records: see `state.Received`. Records may overtake
answers: see `tables.LocalTable.match`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from fieldfare.routing.checking import RefusedError
from fieldfare_lab.routing.messages import (
    Accepted,
    Advertise,
    Content,
    Counts,
    Delivered,
    Everything,
    Filter,
    Origin,
    Publication,
    Routed,
    Subscribe,
    Unadvertise,
    Unsubscribe,
)
from fieldfare_lab.routing.state import (
    Group,
    Received,
    RequestKey,
    State,
)
from fieldfare_lab.routing.strategy import Strategy
from fieldfare_lab.routing.tables import (
    Advertiser,
    AtOrigin,
    Counters,
    LocalSubscription,
    RemoteSubscription,
)

EVERYTHING_ID = ""
"""The name of the advertisement of a broker that has no other."""

REMOVED_MAX = 10_000
"""Maximum brokers whose removal is noted; further ones are refused."""


class Matching:
    """The matching layer of one broker, on its durable state.

    Parameters
    ----------
    members
        Returns the other brokers of a group.
    tell
        Reports to the runtime.
    """

    def __init__(
        self,
        state: State,
        strategy: Strategy,
        counters: Counters,
        members: Callable[[str], list[str]],
        tell: Callable[[object], None],
    ) -> None:
        self.state = state
        self.strategy = strategy
        self.counters = counters
        self._members = members
        self._tell = tell

    # Local clients

    def advertise(self, id: str, filter: Filter | None) -> None:
        """Advertise a filter, or withdraw it; without any advertisement, a broker advertises everything."""
        ads = self.state.advertisements
        if filter is None and id not in ads:
            raise RefusedError(f"There is no advertisement {id!r}.")
        self._set_advertisement(id, filter)
        if not ads:
            self._set_advertisement(EVERYTHING_ID, Everything())
        elif id != EVERYTHING_ID and EVERYTHING_ID in ads:
            self._set_advertisement(EVERYTHING_ID, None)

    def _set_advertisement(self, id: str, filter: Filter | None) -> None:
        me, revision = self.state.name, self.state.next_revision()
        content: Advertise | Unadvertise
        if filter is None:
            del self.state.advertisements[id]
            content = Unadvertise(me, id, revision)
        else:
            self.state.advertisements[id] = (revision, filter)
            content = Advertise(me, id, revision, filter)
        for group, path in self.strategy.own(self.state.multicast.links):
            self._send(group, sorted(self._group(group).told), replace(content, path=path))

    def subscribe(self, id: str, filter: Filter | None) -> None:
        """Create, replace or end a local subscription; each origin answers from where on that counts."""
        known = self.state.subscriptions.subscriptions.get(id)
        if filter is None and (known is None or known.filter is None):
            raise RefusedError(f"There is no subscription {id!r}.")
        me, version = self.state.name, self.state.next_revision()
        if known is None:
            known = self.state.subscriptions.subscriptions[id] = LocalSubscription(id, version, filter)
        known.version, known.filter = version, filter
        known.origins[me] = AtOrigin(version, filter, version)
        if filter is None:
            del known.origins[me]
        self._tell(Counts(id, version, me, version, filter is None))
        asked = {origin: None for origin in known.origins if origin != me}
        if filter is not None:
            for group in self.state.groups.values():
                asked |= dict.fromkeys(group.advertisements.intersecting(filter))
        self._ask(known, asked)

    def publish(self, partition: int, offset: int, event: Any) -> None:
        """Route a record of the local log to its local and remote destinations."""
        state = self.state
        if offset < state.published.get(partition, 0):
            return
        if not any(ad.matches(event) for _, ad in state.advertisements.values()):
            raise RefusedError(f"No advertisement of {state.name!r} matches the event. Advertise it first.")
        state.published[partition] = offset + 1
        publication = Publication(Origin(state.name, partition, offset, state.revision), event)
        self._deliver(publication)
        self._pass_on(publication, None)

    # Topology

    def greet(self, name: str) -> None:
        """Send the advertisements to the brokers of a group that have not had them."""
        group = self._group(name)
        for member in self._members(name):
            if member in group.told:
                continue
            group.told.add(member)
            for entered, path in self.strategy.own(self.state.multicast.links):
                if entered == name:
                    for id, (revision, filter) in self.state.advertisements.items():
                        self._send(name, [member], Advertise(self.state.name, id, revision, filter, path))
            for origin, from_group in list(self.state.origins.items()):
                known = self.state.groups[from_group].advertisements.origins[origin]
                for entered, path in self._entries(origin, known.source, from_group, known.path):
                    if entered != name or member == origin:
                        continue
                    for id, (revision, ad) in known.ads.items():
                        if ad is not None:
                            self._send(name, [member], Advertise(origin, id, revision, ad, path))

    def removed(self, name: str, broker: str) -> None:
        """Drop everything that came from a broker that was removed for good."""
        group = self._group(name)
        group.told.discard(broker)
        for origin, known in list(group.advertisements.origins.items()):
            if known.source == broker and origin != broker:
                self._drop_origin(name, known.source, Unadvertise(origin, None, 0, known.path))
        advertised = group.advertisements.origins.get(broker)
        if advertised is None or advertised.source == broker:
            path = advertised.path if advertised else (name,)
            self._drop_origin(name, broker, Unadvertise(broker, None, 0, path, is_removed=True))
        for entry in list(group.subscriptions.by_source.get(broker, {}).values()):
            beyond = tuple(origin for origin in entry.asked if origin != self.state.name)
            version = max(entry.asked.values(), default=0) + 1
            self._relay(Unsubscribe(entry.subscriber, entry.id, version, beyond))
            for origin in entry.asked:
                self.state.askers.pop((entry.subscriber, entry.id, origin), None)
            group.subscriptions.discard(entry)
        self.state.sent.pop(broker, None)
        self.state.received.pop(broker, None)
        self.state.held = [each for each in self.state.held if each[0] != broker]
        self._note_removed(broker)

    def _note_removed(self, broker: str) -> None:
        """Note that a broker was removed for good.

        Its messages may still be on their way, on other paths than the news. Links that are direct keep the
        order, and there its subscriptions end by requests.
        """
        self.state.removed.add(broker)
        if self.strategy.is_direct:
            return
        for group in self.state.groups.values():
            for entry in list(group.subscriptions.entries()):
                if entry.subscriber == broker:
                    group.subscriptions.discard(entry)
        self.state.askers = {key: each for key, each in self.state.askers.items() if key[0] != broker}
        self.state.held = [each for each in self.state.held if each[1].subscriber != broker]
        self._stop_waiting(lambda key: key[0] == broker)

    # Contents from other brokers

    def receive(self, routed: Routed) -> None:
        """Process a content of which this broker is a destination."""
        content, name, source = routed.content, routed.group, routed.source
        if source in self.state.removed:
            raise RefusedError(f"{source!r} was removed: what it sent before is not processed.")
        if not self.strategy.is_direct and getattr(content, "subscriber", None) in self.state.removed:
            return
        if isinstance(content, Advertise | Unadvertise):
            self._advertised(name, source, content)
        elif isinstance(content, Subscribe | Unsubscribe):
            asked = content if content.origins else replace(content, origins=(self.state.name,))
            if isinstance(asked, Subscribe):
                self._subscribed(name, source, asked)
            else:
                self._unsubscribed(name, source, asked)
        elif isinstance(content, Accepted):
            key = (content.subscriber, content.id, content.origin, content.version)
            if key not in self._received(source).outstanding:
                raise RefusedError(f"{source!r} was not asked for subscription {content.id!r}.")
            self.state.held.append((source, content))
            self._release(source)
        elif isinstance(content, Publication):
            self._received(source).add(routed.stamp)
            try:
                self._published(name, source, content)
            finally:
                self._release(source)

    def _advertised(self, name: str, source: str, ad: Advertise | Unadvertise) -> None:
        origin = ad.origin
        if origin == self.state.name or self.strategy.is_other_way(ad.path):
            return
        if self.strategy.is_forged(origin, source):
            raise RefusedError(f"An advertisement of {origin!r} cannot come from {source!r}.")
        origins = self._group(name).advertisements.origins
        if self.state.origins.get(origin, name) != name or (
            origin in origins and origins[origin].source != source
        ):
            return
        if ad.id is None:
            if isinstance(ad, Unadvertise):
                self._all_withdrawn(name, source, ad)
            return
        if origin in self.state.removed:
            return
        known = origins.setdefault(origin, Advertiser(source, ad.path))
        self.state.origins[origin] = name
        if ad.id in known.ads and known.ads[ad.id][0] >= ad.revision:
            return
        filter = ad.filter if isinstance(ad, Advertise) else None
        known.ads[ad.id] = (ad.revision, filter)
        for entered, path in self._entries(origin, source, name, ad.path):
            told = sorted(self._group(entered).told - {origin})
            self._send(entered, told, replace(ad, path=path))
        if filter is not None:
            for subscription in list(self.state.subscriptions.subscriptions.values()):
                self._ask(subscription, [origin])

    def _all_withdrawn(self, name: str, source: str, ad: Unadvertise) -> None:
        is_known = ad.origin in self.state.removed or ad.origin in self.state.origins
        if ad.is_removed and not is_known and len(self.state.removed) >= REMOVED_MAX:
            raise RefusedError(
                f"{REMOVED_MAX} brokers were removed: the removal of {ad.origin!r} is not noted."
            )
        self._drop_origin(name, source, ad)
        if ad.is_removed:
            self._note_removed(ad.origin)

    def _drop_origin(self, name: str, source: str, ad: Unadvertise) -> None:
        """Drop an origin, and tell the brokers of other groups; its removal also if it was not known here."""
        origin = ad.origin
        known = self._group(name).advertisements.origins.pop(origin, None)
        if known is None and (not ad.is_removed or origin in self.state.removed):
            return
        for entered, path in self._entries(origin, source, name, ad.path):
            told = sorted(self._group(entered).told - {origin})
            self._send(entered, told, replace(ad, path=path))
        if known is None:
            return
        del self.state.origins[origin]
        self.state.covering.forget(origin)
        for subscription in list(self.state.subscriptions.subscriptions.values()):
            there = subscription.origins.pop(origin, None)
            for publication in there.parked if there else ():
                if there and there.counts_for(publication):
                    self._tell(Delivered((subscription.id,), publication))
            self._forget_ended(subscription)
        for group in self.state.groups.values():
            for entry in list(group.subscriptions.entries()):
                if origin in entry.asked:
                    entry.leaving.add(origin)
                    entry.answered(origin, entry.asked[origin])
                    self._forget_unused(group, entry)
        self.state.askers = {key: each for key, each in self.state.askers.items() if key[2] != origin}
        self.state.held = [each for each in self.state.held if each[1].origin != origin]
        self._stop_waiting(lambda key: key[2] == origin)

    def _stop_waiting(self, concerns: Callable[[RequestKey], bool]) -> None:
        """Forget the answers that need not come any more."""
        for received in self.state.received.values():
            for key in [key for key in received.outstanding if concerns(key)]:
                received.answered(key)

    def _subscribed(self, name: str, source: str, asked: Subscribe) -> None:
        group = self._group(name)
        key = (asked.subscriber, asked.id)
        known = group.subscriptions.get(source, key)
        if known is not None and (repeated := known.repeated(asked)):
            self._check_source(name, source, asked)
            known.requested(replace(asked, origins=repeated))
            self._repeat(replace(asked, origins=self._beyond(repeated)))
            return
        self._check_request(name, source, known, asked)
        entry = group.subscriptions.add(source, key)
        entry.requested(asked)
        self._answer_or_relay(name, source, entry, asked)

    def _unsubscribed(self, name: str, source: str, asked: Unsubscribe) -> None:
        entry = self._group(name).subscriptions.get(source, (asked.subscriber, asked.id))
        if entry is None or not entry.asked.keys() >= set(asked.origins):
            raise RefusedError(f"There is no subscription {asked.id!r} of {asked.subscriber!r} to end.")
        self._check_request(name, source, entry, asked)
        entry.requested(asked)
        self._answer_or_relay(name, source, entry, asked)

    def _check_request(
        self, name: str, source: str, entry: RemoteSubscription | None, asked: Subscribe | Unsubscribe
    ) -> None:
        self._check_source(name, source, asked)
        for origin in asked.origins:
            if entry and asked.version <= entry.asked.get(origin, 0):
                raise RefusedError(
                    f"Version {asked.version} of subscription {asked.id!r} of {asked.subscriber!r} is not"
                    f" newer than {entry.asked[origin]}."
                )

    def _check_source(self, name: str, source: str, asked: Subscribe | Unsubscribe) -> None:
        if self.strategy.is_forged(asked.subscriber, source):
            raise RefusedError(f"A subscription of {asked.subscriber!r} cannot come from {source!r}.")
        for origin in asked.origins:
            asker = self.state.askers.get((asked.subscriber, asked.id, origin), (name, source))
            if asker != (name, source):
                raise RefusedError(
                    f"Subscription {asked.id!r} of {asked.subscriber!r} comes from {asker[1]!r}, not from"
                    f" {source!r}."
                )

    def _answer_or_relay(
        self, name: str, source: str, entry: RemoteSubscription, asked: Subscribe | Unsubscribe
    ) -> None:
        me, key = self.state.name, (asked.subscriber, asked.id)
        beyond = []
        for origin in asked.origins:
            if origin == me:
                revision = self.state.next_revision()
                entry.answered(me, asked.version)
                self._answer(name, source, Accepted(*key, asked.version, me, revision, 0, 0))
            elif self.state.origins.get(origin, name) != name:
                self.state.askers[*key, origin] = (name, source)
                beyond.append(origin)
            else:
                # Removed meanwhile, which the subscriber's broker learns too.
                entry.leaving.add(origin)
                entry.answered(origin, asked.version)
        self._relay(replace(asked, origins=tuple(beyond)))
        self._forget_unused(self._group(name), entry)

    def _relay(self, asked: Subscribe | Unsubscribe) -> None:
        """Send a request on to the sources of its origins, which answer it."""
        asked = replace(asked, origins=self._beyond(asked.origins))
        for origin in asked.origins:
            self._received(self._way(origin)[1]).outstanding.add(
                (asked.subscriber, asked.id, origin, asked.version)
            )
        for each in self.state.covering.request(asked) if self.strategy.uses_covering else [asked]:
            self._request(each)

    def _repeat(self, asked: Subscribe) -> None:
        for each in self.state.covering.repeat(asked) if self.strategy.uses_covering else [asked]:
            self._request(each)

    def _beyond(self, origins: Iterable[str]) -> tuple[str, ...]:
        """Return the origins that are reached over other brokers."""
        return tuple([origin for origin in origins if origin in self.state.origins])

    def _way(self, origin: str) -> tuple[str, str]:
        """Return the group and the source of an origin's advertisements."""
        group = self.state.origins[origin]
        return group, self.state.groups[group].advertisements.origins[origin].source

    def _request(self, asked: Subscribe | Unsubscribe) -> None:
        themselves: dict[str, list[str]] = {}
        ways: dict[tuple[str, str], list[str]] = {}
        for origin in asked.origins:
            group, source = self._way(origin)
            if source == origin:
                themselves.setdefault(group, []).append(origin)
            else:
                ways.setdefault((group, source), []).append(origin)
        for group, origins in themselves.items():
            self._send(group, origins, replace(asked, origins=()))
        for (group, source), origins in ways.items():
            self._send(group, [source], replace(asked, origins=tuple(origins)))

    def _answer(self, name: str, source: str, answer: Accepted) -> None:
        """Send an answer behind the records that were sent to its receiver before."""
        stamp, count = self.state.revision, self.state.sent.get(source, 0)
        self._send(name, [source], replace(answer, after_stamp=stamp, after_count=count))

    def _release(self, source: str) -> None:
        """Process the answers of a source whose records have all come."""
        ready = [
            each for each in self.state.held if each[0] == source and self._received(source).has_all(each[1])
        ]
        for each in ready:
            self.state.held.remove(each)
            answer = each[1]
            self._received(source).answered((answer.subscriber, answer.id, answer.origin, answer.version))
            self._accepted(source, answer)

    def _accepted(self, source: str, answer: Accepted) -> None:
        if answer.subscriber == self.state.name:
            self._counts(answer)
            return
        key = (answer.subscriber, answer.id, answer.origin)
        if key not in self.state.askers:
            return
        name, asker = self.state.askers[key]
        group = self._group(name)
        entry = group.subscriptions.get(asker, key[:2])
        if entry is None or answer.origin not in entry.asked:
            return
        entry.answered(answer.origin, answer.version)
        if answer.origin not in entry.asked:
            del self.state.askers[key]
        self._forget_unused(group, entry)
        self.state.next_revision()
        self._answer(name, asker, answer)

    def _counts(self, answer: Accepted) -> None:
        """Let the version that was asked for count from the answered revision."""
        subscription = self.state.subscriptions.subscriptions.get(answer.id)
        there = subscription.origins.get(answer.origin) if subscription else None
        if subscription is None or there is None or there.asking is None or there.asking[0] != answer.version:
            return
        version, filter = there.asking
        now = AtOrigin(version, filter, answer.revision)
        for publication in there.parked:
            if (now if publication.origin.stamp >= answer.revision else there).counts_for(publication):
                self._tell(Delivered((answer.id,), publication))
        if filter is None:
            del subscription.origins[answer.origin]
        else:
            subscription.origins[answer.origin] = now
        self._tell(Counts(answer.id, version, answer.origin, answer.revision, filter is None))
        self._ask(subscription, [answer.origin])
        self._forget_ended(subscription)

    def _published(self, name: str, source: str, publication: Publication) -> None:
        origin = publication.origin.broker
        known = self._group(name).advertisements.origins.get(origin)
        if known is None or known.source != source:
            raise RefusedError(f"A record of {origin!r} cannot come from {source!r}.")
        self._deliver(publication)
        self._pass_on(publication, name)

    def _deliver(self, publication: Publication) -> None:
        matches = self.state.subscriptions.match(publication, self.counters)
        if matches:
            self._tell(Delivered(tuple(matches), publication))

    def _pass_on(self, publication: Publication, arrived_in: str | None) -> None:
        """Send a record to the brokers of other groups that have matching subscriptions."""
        for name, group in self.state.groups.items():
            if name != arrived_in:
                self._send(name, group.subscriptions.match(publication, self.counters), publication)

    def _ask(self, subscription: LocalSubscription, origins: Iterable[str]) -> None:
        """Ask origins for the newest version of a subscription, where none is outstanding."""
        me, version = self.state.name, subscription.version
        begin, end = [], []
        for origin in origins:
            group = self.state.origins.get(origin)
            there = subscription.origins.get(origin)
            if group is None or (there and (there.asking or there.version == version)):
                continue
            known = self.state.groups[group].advertisements.origins[origin]
            if subscription.filter is not None and known.intersects(subscription.filter):
                there = subscription.origins.setdefault(origin, AtOrigin())
                there.asking = (version, subscription.filter)
                begin.append(origin)
            elif there is not None:
                there.asking = (version, None)
                end.append(origin)
        if begin and subscription.filter is not None:
            self._relay(Subscribe(me, subscription.id, version, subscription.filter, tuple(begin)))
        if end:
            self._relay(Unsubscribe(me, subscription.id, version, tuple(end)))
        self._forget_ended(subscription)

    # Helpers

    def _forget_ended(self, subscription: LocalSubscription) -> None:
        if subscription.filter is None and not subscription.origins:
            self.state.subscriptions.subscriptions.pop(subscription.id, None)

    def _forget_unused(self, group: Group, entry: RemoteSubscription) -> None:
        if not entry.asked:
            group.subscriptions.discard(entry)

    def _entries(
        self, origin: str, source: str, name: str, path: tuple[str, ...]
    ) -> list[tuple[str, tuple[str, ...]]]:
        return self.strategy.passed_on(origin, source, name, path, self.state.multicast.links)

    def _group(self, name: str) -> Group:
        return self.state.groups.setdefault(name, Group())

    def _received(self, source: str) -> Received:
        return self.state.received.setdefault(source, Received())

    def _send(self, group: str, destinations: list[str], content: Content) -> None:
        if not destinations:
            return
        if isinstance(content, Publication):
            for name in destinations:
                self.state.sent[name] = self.state.sent.get(name, 0) + 1
        me, revision = self.state.name, self.state.revision
        self.state.multicast.send(Routed(group, me, revision, tuple(destinations), content))
