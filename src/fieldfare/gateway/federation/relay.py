"""A broker that only passes entries on: it has links, and no spaces, events or filters of its own.

Others see in its row that it is a relay: it is on paths, and in no list of destinations. It holds entries of
others from one link to the next, as each broker between does; a removed broker's entries get other ways.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.custody import Custody, again
from fieldfare.gateway.federation.documents import BrokerDocument, RelayDocument
from fieldfare.gateway.federation.links import Links
from fieldfare.storage.errors import StorageError
from fieldfare.storage.links import Correspondent
from fieldfare.storage.sqlite.links import LinkStore

RETRY_S = 1.0
"""Seconds until a step that failed is tried again."""

logger = logging.getLogger("fieldfare.gateway.federation")


class Relay:
    """One relay: its links, and the loop that gives entries other ways."""

    def __init__(
        self, clusters: Clusters, store: LinkStore, known: Mapping[str, Correspondent], links: Links
    ):
        self._clusters = clusters
        self._store = store
        self._known = dict(known)
        self.links = links
        self.custody = Custody(clusters, store, links)
        links.on_change = self._wake_up
        self._wake = asyncio.Event()
        self._stepping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to pass entries on, on the running event loop."""
        self.custody.start()
        self._wake.set()
        self._stepping = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop; entries that wait are sent after the next start."""
        await self.links.close()
        if self._stepping is not None:
            self._stepping.cancel()
            await asyncio.gather(self._stepping, return_exceptions=True)
        await asyncio.to_thread(self._store.close)

    def _wake_up(self) -> None:
        self._wake.set()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self._step()
            except Exception as error:
                # Catch all errors: if this task ended, entries of a cut link would wait for the next start.
                self._wake.set()
                self.links.is_held = False  # A full disk has room again only once entries are sent.
                is_known = isinstance(error, StorageError | OSError)
                logger.error("giving entries other ways waits: %s", error, exc_info=not is_known)
                with suppress(asyncio.TimeoutError):
                    await asyncio.sleep(RETRY_S)

    async def _step(self) -> None:
        for name in self._clusters.removed:
            state = self._known.get(name) or Correspondent(name)
            if not state.is_removed:
                await self.custody.finish_requests(name)
                state = replace(state, is_removed=True)
                await asyncio.to_thread(self._store.forget, state, again)
                self._known[name] = state
                self.links.must_reroute = True
        if await self.custody.reroute():
            self.links.poke()

    @property
    def links_up(self) -> dict[str, bool]:
        """Whether the link to each neighbour is up."""
        return {name: self._clusters.is_up(name) for name in self.links.peers}

    def document(self) -> RelayDocument:
        """Return the state of this relay for `GET /v1/brokers`; it reads files: call it on a thread."""
        outboxes = self._store.outboxes()
        waiting = outboxes.get("")
        rows, removed = self._clusters.rows, self._clusters.removed
        return RelayDocument(
            broker=self._clusters.name,
            routing=self.links.routing,
            state="relay",
            clusters=[],
            links=self.custody.links_document(outboxes),
            brokers=[
                BrokerDocument(
                    name=row.name,
                    links=list(row.links),
                    is_removed=row.name in removed,
                    is_leaving=row.is_leaving,
                    is_relay=row.is_relay,
                    next_hop=self._clusters.path(row.name),
                )
                for row in rows
            ],
            without_path=waiting.entries if waiting else 0,
        )
