"""Entries in the outboxes of every broker, a relay included: other ways for them, and removed neighbours."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.documents import LinkDocument
from fieldfare.gateway.federation.links import Links
from fieldfare.gateway.federation.receipts import marked_again
from fieldfare.gateway.federation.topology import NO_PATH
from fieldfare.gateway.federation.wire import Lost, decode_entry, encoder
from fieldfare.gateway.problems import HttpProblem
from fieldfare.storage.links import Outbox, Part
from fieldfare.storage.sqlite.links import LinkStore

REROUTED_BATCH_SIZE = 1_000

logger = logging.getLogger("fieldfare.gateway.federation")


class Custody:
    """The entries in the outboxes of one broker."""

    def __init__(self, clusters: Clusters, store: LinkStore, links: Links) -> None:
        self._clusters = clusters
        self._store = store
        self._links = links

    def start(self) -> None:
        """Start to send, on the running event loop."""
        # The next link that comes up gives them another way.
        for name in self._store.outboxes():
            if name != NO_PATH and name not in self._links.peers:
                self._store.take_back(name, again)
        self._links.start()

    async def reroute(self) -> bool:
        """Give entries other ways if the topology has changed; return whether it has."""
        if not self._links.must_reroute:
            return False
        self._links.must_reroute = False
        try:
            await asyncio.to_thread(self._reroute)
        except BaseException:
            self._links.must_reroute = True
            raise
        self._links.is_held = self._links.must_reroute
        return True

    def _reroute(self) -> None:
        """Give entries that were never sent another way, where theirs is cut and there is one."""
        cut = [name for name in self._links.peers if not self._clusters.is_up(name)]
        after = 0
        while found := self._store.unsent((NO_PATH, *cut), after, REROUTED_BATCH_SIZE):
            after = found[-1][0]
            rerouted: list[tuple[int, list[Part]]] = []
            for id, peer, stored in found:
                entry = decode_entry(stored)
                if isinstance(entry, Lost):
                    if peer == NO_PATH:  # It has no destinations: it would stay for ever.
                        rerouted.append((id, []))
                    continue
                ways = [(hop or peer, part) for hop, part in self._clusters.split(entry, entry.destinations)]
                if ways != [(peer, stored)]:  # None where all destinations were removed.
                    rerouted.append((id, ways))
            if rerouted:
                self._store.reroute(rerouted)
            if len(found) < REROUTED_BATCH_SIZE:
                break

    async def finish_requests(self, name: str) -> None:
        """Wait for an answer of a removed neighbour that is being processed; there are no later ones."""
        if name in self._links.peers:
            async with self._links.peers[name].acknowledging:
                pass

    async def remove(self, name: str) -> None:
        """Remove another broker from these sites for good.

        Raises
        ------
        HttpProblem
            It is this broker, it is not known here, or it can be reached.
        """
        if name in self._clusters.removed:
            return
        if name == self._clusters.name or self._clusters.cluster_of(name) is None:
            detail = f"{name!r:.80} is not a broker that {self._clusters.name!r} knows, or is this one."
            raise HttpProblem(404, "unknown-broker", detail, hint="`fieldfare brokers` shows them.")
        if self._clusters.path(name) is not None:
            detail = f"The broker {name!r} can be reached: events that it holds for others would be lost."
            hint = "Stop it first; `fieldfare brokers` shows when it can no longer be reached."
            raise HttpProblem(409, "broker-reachable", detail, hint=hint)
        await self._links.remove(name)
        logger.warning("the broker %s was removed", name)

    def links_document(self, outboxes: Mapping[str, Outbox]) -> list[LinkDocument]:
        """Return the states of the links, for operators."""
        return [self._link(name, outboxes) for name in self._links.peers]

    def _link(self, name: str, outboxes: Mapping[str, Outbox]) -> LinkDocument:
        peer, fill = self._links.peers[name], outboxes.get(name, Outbox(0, 0, 0))
        return LinkDocument(
            peer=name,
            url=peer.url,
            cluster=self._clusters.cluster_of_peer(name) or None,
            is_up=self._clusters.is_up(name),
            trouble=peer.trouble or None,
            outbox_entries=fill.entries,
            outbox_bytes=fill.bytes,
            unacknowledged=fill.sent,
            received_to=self._store.watermark(name),
            sent_requests=peer.requests,
            sent_entries=peer.entries,
            sent_bytes=peer.bytes,
            withheld_events=peer.withheld,
        )


def again(data: bytes) -> bytes:
    """Return an encoded entry marked as one that its destination may have."""
    return encoder.encode(marked_again(decode_entry(data)))
