"""A broker: a machine without I/O that routes between fieldfare sites.

    clients ──SetAdvertisement, SetSubscription, Publish──▶ ┌ matching layer ─────────────────┐
            ◀──Delivered, Counts──────────────────────────  │ L-SRT, R-SRT, L-PRT, R-PRT      │
                                                            ├ multicasting layer ─────────────┤
    neighbours ◀─Forward, Ack, LinkState, LinkDigest──────▶ │ TRT, SPRT, links                │
                                                            └─────────────────────────────────┘

The protocol (``ddbr``, ``fbr``, ``merc``) is a strategy. The state is durable: see ``state``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fieldfare.effects import Effect, Send, Tell, Timer, source
from fieldfare.routing.checking import RefusedError, check_number, check_rows
from fieldfare.routing.messages import LinkRow
from fieldfare.routing.overlay import Overlay
from fieldfare_lab.routing.checking import check_bitmap, check_forward
from fieldfare_lab.routing.links import Link
from fieldfare_lab.routing.matching import EVERYTHING_ID, Matching
from fieldfare_lab.routing.messages import (
    Ack,
    Beat,
    Everything,
    Forward,
    LinkDigest,
    LinkDown,
    LinkState,
    LinkUp,
    Publication,
    Publish,
    Refused,
    Remove,
    Routed,
    SetAdvertisement,
    SetSubscription,
    Settle,
    Settled,
)
from fieldfare_lab.routing.multicast import Multicast
from fieldfare_lab.routing.state import State
from fieldfare_lab.routing.strategy import Strategy
from fieldfare_lab.routing.tables import Counters

REMOVED_VERSION = 1 << 62
"""The version of the row of a broker that was removed."""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The intervals of a broker, in seconds.

    Parameters
    ----------
    beat_s
        Interval at which digests are exchanged and unacknowledged entries are checked. Shorter: lost messages
        are repaired sooner; longer: fewer messages.
    resend_after_s
        Entries that are not acknowledged for this long are sent again. Must exceed a round trip.
    settle_after_s
        How long a link is down before entries that were sent over it are settled over another path. Shorter:
        less delay; longer: a link that comes back soon costs nothing.
    by_latency
        Whether shortest paths are those of least latency. Default: of fewest hops.
    list_names_max
        The longest destination list that is sent as names; longer ones are sent as bitmaps.
    """

    beat_s: float = 1.0
    resend_after_s: float = 2.0
    settle_after_s: float = 3.0
    by_latency: bool = False
    list_names_max: int = 8


def new_state(name: str, identity: str, strategy: Strategy) -> State:
    """Return the state of a broker that has never run."""
    return State(name, identity, Multicast(name, strategy.is_direct))


class Broker:
    """One broker: a machine without I/O.

    Parameters
    ----------
    state
        The state that was stored last, or `new_state`. The broker changes it; its runtime stores it.
    strategy
        The routing protocol. All brokers of an overlay use the same.
    """

    def __init__(self, state: State, strategy: Strategy, settings: BrokerSettings | None = None) -> None:
        self.state = state
        self.strategy = strategy
        self.settings = settings or BrokerSettings()
        self.counters = Counters()
        self.matching = Matching(state, strategy, self.counters, self._members, self._tell)
        self._multicast = state.multicast
        self._effects: list[Effect] = []
        self._now = 0.0
        self._handlers: Mapping[type, Callable[[str, Any], None]] = {
            Forward: self._forwarded,
            Ack: self._acknowledged,
            LinkState: self._link_state,
            LinkDigest: self._link_digest,
            Settled: self._settled,
        }
        self._own_handlers: Mapping[type, Callable[[Any], None]] = {
            Beat: self._beat,
            LinkUp: self._link_up,
            LinkDown: self._link_down,
            Remove: self._remove,
            Publish: lambda it: self.matching.publish(it.partition, it.offset, it.event),
            SetAdvertisement: lambda it: self.matching.advertise(it.id, it.filter),
            SetSubscription: lambda it: self.matching.subscribe(it.id, it.filter),
        }

    def start(self, now: float) -> list[Effect]:
        """Start, or start again after a crash: all links are down until the runtime reports them."""
        self._now = now
        for link in self._multicast.links.values():
            link.is_up, link.must_ack = False, False
            link.down_since_s = link.settle_at_s = now
        for name in self.strategy.clusters:
            self._multicast.overlays.setdefault(name, Overlay(self.state.name, self.settings.by_latency))
        if not self.state.advertisements:
            self.state.advertisements[EVERYTHING_ID] = (self.state.next_revision(), Everything())
        self._own_row_changed()
        self._beat(Beat())
        return self._effects_of_step()

    def handle(self, message: object, now: float) -> list[Effect]:
        """Process a neighbour's message, or a command of the runtime; invalid ones are reported as
        `Refused`."""
        self._now = now
        sender, content = source(self.state.name, message)
        try:
            if sender == self.state.name:
                self._own_handlers[type(content)](content)
            elif sender not in self._multicast.links:
                raise RefusedError(f"{sender!r} is not a neighbour. Configure the link on both sides.")
            elif type(content) not in self._handlers:
                raise RefusedError(f"Neighbours do not send {type(content).__name__}.")
            else:
                self._handlers[type(content)](sender, content)
        except RefusedError as error:
            self._tell(Refused(sender, str(error)))
        return self._effects_of_step()

    def is_quiet(self) -> bool:
        """Return whether nothing is in custody, and no answer is outstanding."""
        state = self.state
        return not (
            self._multicast.waiting
            or state.held
            or any(link.unsent or link.sent or link.is_settling for link in self._multicast.links.values())
            or any(each.outstanding for each in state.received.values())
            or any(
                there.parked or there.asking
                for each in state.subscriptions.subscriptions.values()
                for there in each.origins.values()
            )
        )

    # Links

    def _forwarded(self, sender: str, forward: Forward) -> None:
        link = self._multicast.links[sender]
        if forward.bitmap is not None:
            named = self._named(forward, forward.bitmap)
            if named is None:
                return
            forward = named
        routed = forward.routed
        check_forward(forward, self.state.name)
        group = self.strategy.group(sender, routed.group)
        if self.strategy.clusters and group not in link.groups:
            raise RefusedError(f"The link to {sender!r} does not belong to cluster {group!r}.")
        if forward.session == link.received_session - 1:
            self._send(sender, Settled(forward.session, link.closed_watermark))
            return
        link.must_ack = True
        if not link.accept(forward):
            return
        mine = self.state.name in routed.destinations
        others = tuple(name for name in routed.destinations if name != self.state.name)
        if others:
            self._multicast.send(Routed(group, routed.source, routed.stamp, others, routed.content))
        if mine:
            here = Routed(group, routed.source, routed.stamp, (self.state.name,), routed.content)
            self._receive(here)

    def _named(self, forward: Forward, bitmap: bytes) -> Forward | None:
        """Return an entry with names for its bitmap; None if no numbering fits, so that it is sent again."""
        check_bitmap(forward)
        group = forward.routed.group
        if group not in self._multicast.overlays:
            raise RefusedError(f"There is no cluster {group!r} whose brokers have numbers.")
        for numbering in self.state.numberings_of(group):
            if numbering.fits(forward.session, forward.number, bitmap):
                names = numbering.decode(bitmap)
                if names is None:
                    raise RefusedError("The bitmap of the destination list is not valid.")
                return replace(forward, routed=replace(forward.routed, destinations=names), bitmap=None)
        self.counters.unknown_lists += 1
        return None

    def _receive(self, routed: Routed) -> None:
        content = routed.content
        if isinstance(content, Settle):
            if not self._multicast.asked_to_settle(routed.group, routed.source, content):
                raise RefusedError(
                    f"Session {content.session} of the link from {routed.source!r} is not open."
                )
        elif isinstance(content, Settled):
            self._settled(routed.source, content)
        else:
            self.matching.receive(routed)

    def _settled(self, sender: str, settled: Settled) -> None:
        """Process the end of a session, from the neighbour directly or over another path."""
        check_number(settled.session, "The link's session", 1)
        check_number(settled.watermark, "The link's watermark")
        if not self._multicast.settled(sender, settled):
            raise RefusedError(f"{sender!r} was not asked to settle session {settled.session}.")

    def _acknowledged(self, sender: str, ack: Ack) -> None:
        link = self._multicast.links[sender]
        check_number(ack.session, "The link's session", 1)
        check_number(ack.number, "The entry's number")
        if ack.session == link.session and ack.number >= link.next_number:
            raise RefusedError(f"Entry {ack.number} of session {ack.session} was not sent.")
        if link.acknowledged(ack):
            link.resend_at_s = self._now + self.settings.resend_after_s

    def _link_up(self, up: LinkUp) -> None:
        if up.peer == self.state.name:
            raise RefusedError("A broker has no link to itself. Give each broker a name of its own.")
        link = self._multicast.links.setdefault(up.peer, Link(up.peer))
        link.groups = up.groups if self.strategy.clusters else (up.peer,)
        link.latency_ms = up.latency_ms
        link.is_up = True
        self._own_row_changed()
        for name in link.groups:
            if overlay := self._multicast.overlays.get(name):
                self._send(up.peer, LinkState(name, tuple(overlay.rows.values())))
            else:
                self.matching.greet(name)
        self._resend(link)

    def _link_down(self, down: LinkDown) -> None:
        link = self._multicast.links.get(down.peer)
        if link and link.is_up:
            link.is_up, link.down_since_s = False, self._now
            self._own_row_changed()

    # Topology

    def _own_row_changed(self) -> None:
        for name, overlay in self._multicast.overlays.items():
            links = sorted(
                (peer, self._multicast.links[peer].latency_ms) for peer in self._multicast.peers(name)
            )
            known = overlay.rows.get(self.state.name)
            if known is None or known.links != tuple(links):
                self.state.row_version += 1
                row = LinkRow(self.state.name, self.state.identity, self.state.row_version, tuple(links))
                self._merge(name, [row], None)

    def _link_state(self, sender: str, message: LinkState) -> None:
        overlay = self._multicast.overlays.get(message.group)
        if overlay is None or message.group not in self._multicast.links[sender].groups:
            raise RefusedError(f"The link to {sender!r} does not belong to cluster {message.group!r}.")
        clash = check_rows(message.rows, overlay, self.state.identity)
        rows = [row for row in message.rows if row.name != self.state.name and row.name not in clash]
        for row in message.rows:
            if row.name == self.state.name and row.version > self.state.row_version and row.name not in clash:
                # Our own row from before a loss of state: later versions must exceed it.
                self.state.row_version = row.version
                overlay.rows.pop(row.name, None)
                self._own_row_changed()
        self._merge(message.group, rows, sender)
        if clash:
            raise RefusedError(f"Another broker has the name {min(clash)!r} too. Give each broker its own.")

    def _link_digest(self, sender: str, message: LinkDigest) -> None:
        overlay = self._multicast.overlays.get(message.group)
        if overlay and message.digest != overlay.digest():
            self._send(sender, LinkState(message.group, tuple(overlay.rows.values())))

    def _merge(self, name: str, rows: list[LinkRow], sender: str | None) -> None:
        """Add rows to the TRT; flood the newer ones, and route what was not sent along the new paths."""
        overlay = self._multicast.overlays[name]
        newer = overlay.merge(rows)
        if not newer:
            return
        for peer in self._multicast.peers(name):
            if peer != sender:
                self._send(peer, LinkState(name, tuple(newer)))
        for row in newer:
            if row.is_removed:
                self._forget(name, row.name)
        self.matching.greet(name)
        self._multicast.reroute()

    def _remove(self, command: Remove) -> None:
        if command.broker == self.state.name:
            raise RefusedError("A broker cannot remove itself. Give the command to another broker.")
        found = False
        for name, overlay in list(self._multicast.overlays.items()):
            row = overlay.rows.get(command.broker)
            if row is not None and not row.is_removed:
                found = True
                self._merge(name, [LinkRow(row.name, row.identity, REMOVED_VERSION, (), True)], None)
        if not self.strategy.clusters and command.broker in self._multicast.links:
            found = True
            self._forget(command.broker, command.broker)
        if not found:
            raise RefusedError(f"There is no broker {command.broker!r}.")

    def _forget(self, name: str, broker: str) -> None:
        self.matching.removed(name, broker)
        if broker in self._multicast.links:
            unsettled = self._multicast.forget(broker)
            if unsettled:
                self._tell(Refused(broker, f"It was removed before it acknowledged {unsettled} entries."))
            self._own_row_changed()

    def _members(self, name: str) -> list[str]:
        overlay = self._multicast.overlays.get(name)
        if overlay is None:
            return [name] if name in self._multicast.links else []
        return [each for each in overlay.members() if each != self.state.name]

    # Timers and sending

    def _beat(self, beat: Beat) -> None:
        for name, overlay in self._multicast.overlays.items():
            for peer in self._multicast.peers(name):
                self._send(peer, LinkDigest(name, overlay.digest()))
        for link in self._multicast.links.values():
            if link.is_up and link.sent and self._now >= link.resend_at_s:
                self._resend(link)
        self._multicast.settle(self._now, self.settings.settle_after_s)
        self._effects.append(Timer(self._now + self.settings.beat_s, Beat()))

    def _resend(self, link: Link) -> None:
        for forward in link.again():
            self._send_forward(link, forward, forward)

    def _effects_of_step(self) -> list[Effect]:
        for link in self._multicast.links.values():
            if link.must_ack:
                link.must_ack = False
                self._send(link.peer, Ack(link.received_session, link.watermark))
            if link.is_up and link.unsent:
                for forward in link.transmit():
                    self._send_forward(link, forward, self._numbered(forward))
        effects, self._effects = self._effects, []
        return effects

    def _numbered(self, forward: Forward) -> Forward:
        """Return an entry with a bitmap, if its destination list is long."""
        names, group = forward.routed.destinations, forward.routed.group
        if group not in self._multicast.overlays or len(names) <= self.settings.list_names_max:
            return forward
        bitmap = self.state.numberings_of(group)[0].encode(forward.session, forward.number, names)
        if bitmap is None:
            return forward
        return replace(forward, routed=replace(forward.routed, destinations=()), bitmap=bitmap)

    def _send_forward(self, link: Link, forward: Forward, encoded: Forward) -> None:
        counters, content = self.counters, forward.routed.content
        link.resend_at_s = self._now + self.settings.resend_after_s
        counters.sent[link.peer] = counters.sent.get(link.peer, 0) + 1
        if isinstance(content, Publication):
            length = len(forward.routed.destinations)
            counters.publications_sent[link.peer] = counters.publications_sent.get(link.peer, 0) + 1
            counters.lists += 1
            counters.listed += length
            counters.list_length_max = max(length, counters.list_length_max)
        self._effects.append(Send(link.peer, encoded))

    def _send(self, to: str, message: object) -> None:
        self.counters.other_sent += 1
        self._effects.append(Send(to, message))

    def _tell(self, news: object) -> None:
        self._effects.append(Tell(news))
