"""Multicasting: content goes to a list of destinations along shortest paths, one copy for each link.

Each (content, destination) has one custodian. A broker splits the list by next hop and puts one copy into the
outbox of each link with that link's part of the list; it keeps a copy until the neighbour has stored it.
Where the topology changes, what was never sent is split again; what was sent over a cut link is settled first
(see ``links``) if the neighbour can be reached another way, and waits for the link otherwise. So nothing is
lost, and nothing is sent twice and removed later.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from fieldfare.routing.overlay import Overlay
from fieldfare_lab.routing.links import Link
from fieldfare_lab.routing.messages import Routed, Settle, Settled

SETTLE_AGAIN = 10
"""How many times `BrokerSettings.settle_after_s` pass before a neighbour is asked again to settle."""


@dataclass(slots=True)
class Multicast:
    """One broker's links, and what it has in custody.

    Parameters
    ----------
    is_direct
        Whether destinations are neighbours, each reached over its own link only (FBR).

    Attributes
    ----------
    waiting
        What has no path to its destinations at present.
    """

    me: str
    is_direct: bool = False
    overlays: dict[str, Overlay] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    waiting: list[Routed] = field(default_factory=list)

    def send(self, routed: Routed) -> None:
        """Put one copy into the outbox of each next hop, with its part of the destinations."""
        overlay = self.overlays.get(routed.group)
        parts: dict[str | None, list[str]] = {}
        for name in routed.destinations:
            if overlay is None or name not in overlay.removed:
                parts.setdefault(self._next_hop(overlay, routed.source, name), []).append(name)
        for hop, names in parts.items():
            part = replace(routed, destinations=tuple(names))
            if hop is None:
                self.waiting.append(part)
            else:
                self.links[hop].unsent.append(part)

    def reroute(self) -> None:
        """Split everything again that was never sent."""
        unsent = self.waiting
        self.waiting = []
        for link in self.links.values():
            unsent.extend(link.unsent)
            link.unsent.clear()
        for routed in unsent:
            self.send(routed)

    def settle(self, now: float, after_s: float) -> None:
        """Ask the neighbours of links that have been down for a while, over another path, how far they came.

        The question is repeated now and then: question or answer may be on another link that was cut, whose
        own settling waits for this one.
        """
        if self.is_direct:
            return
        for link in self.links.values():
            if link.is_up or not link.sent or now < max(link.down_since_s + after_s, link.settle_at_s):
                continue
            for group in link.groups:
                if self._next_hop(self.overlays.get(group), self.me, link.peer) is not None:
                    link.is_settling = True
                    link.settle_at_s = now + SETTLE_AGAIN * after_s
                    self.send(Routed(group, self.me, 0, (link.peer,), Settle(link.session)))
                    break

    def asked_to_settle(self, group: str, source: str, settle: Settle) -> bool:
        """Close a session and answer; return False for a session that is not open."""
        link = self.links.get(source)
        watermark = link.close(settle.session) if link else None
        if watermark is None:
            return False
        self.send(Routed(group, self.me, 0, (source,), Settled(settle.session, watermark)))
        return True

    def settled(self, source: str, settled: Settled) -> bool:
        """Send another way what did not arrive; return False for an answer without a question."""
        link = self.links.get(source)
        if link and settled.session < link.session:
            return True
        rest = link.settled(settled.session, settled.watermark) if link else None
        for routed in rest or ():
            self.send(routed)
        return rest is not None

    def forget(self, peer: str) -> int:
        """Drop the link to a broker that was removed; return how many entries it had not acknowledged.

        Entries for other destinations go another way; the removed broker may have passed it on.
        """
        link = self.links.pop(peer, None)
        rest = [routed for _, routed in link.sent] if link else []
        for routed in (*rest, *(link.unsent if link else ())):
            self.send(replace(routed, destinations=tuple([n for n in routed.destinations if n != peer])))
        return len(rest)

    def peers(self, group: str) -> Iterable[str]:
        """Return the neighbours of a cluster whose links are up."""
        return [peer for peer, link in self.links.items() if link.is_up and group in link.groups]

    def _next_hop(self, overlay: Overlay | None, source: str, destination: str) -> str | None:
        if self.is_direct:
            return destination if destination in self.links else None
        hop = overlay.next_hop(source, destination) if overlay else None
        return hop if hop in self.links else None
