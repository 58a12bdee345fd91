"""Unions of advertisements: an edge states to each cluster its own ones and those of its other clusters.

    a broker states ─▶ the union for each other cluster ─▶ confirmed by all there ─▶ confirmed to the broker

An edge checks only the events that are published at it: others were checked where they were published. So a
narrower union is told at once: the stamps of earlier events are lower than any revision of this broker as of
which filters are withdrawn because of it. A wider advertisement of a broker is confirmed once all brokers of
the other clusters send what it needs. A new broker counts as one that states everything, and is sent filters
only then. All waits lead away from the broker, along a tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from fieldfare.filters.covering import FilterRegion, covers
from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.correspondence import Correspondence
from fieldfare.gateway.federation.heeding import ADVERTISEMENT_MAX_BYTES, Heeding, known_region
from fieldfare.model import INTEREST
from fieldfare.storage.links import Advertisement, Correspondent
from fieldfare.storage.sqlite.links import LinkStore

Text = tuple[str | None, str]
"""An advertisement's filter, None for everything, and its dialect."""

EVERYTHING: Text = (None, "sql")

_Known = tuple[Sequence[Advertisement], dict[str, str | None], dict[str, int]]
"""Own advertisements, and by broker its cluster and the greatest version that it has stated."""


class Unions:
    """The unions of an edge; of another broker, none. Used by one thread at a time, except for `told`."""

    def __init__(
        self, store: LinkStore, clusters: Clusters, correspondence: Correspondence, heeding: Heeding
    ) -> None:
        self._store = store
        self._clusters = clusters
        self._correspondence = correspondence
        self._heeding = heeding
        self._rows: dict[str, dict[str, Advertisement]] = {}
        self.version = 0
        """The greatest version of a union."""
        self._parts: dict[str, list[Text]] = {}
        """The advertisements of which each stored union consists."""
        self._key: _Known | None = None
        self._ready: dict[str, int] = {}
        self._waits: dict[str, tuple[int, int]] = {}
        """By broker: a version of its, and the version here through which all others must confirm first."""
        for row in store.advertisements():
            if is_union(row) and not clusters.is_edge:
                # It states its own ones: should it be an edge again, all unions are new.
                store.advertise("", {row.space: ()})
            elif is_union(row):
                _, cluster, space = row.space.split(INTEREST)
                self._rows.setdefault(cluster, {})[space] = replace(row, space=space)
                self.version = max(self.version, row.version)

    def told(self, cluster: str | None) -> tuple[Advertisement, ...]:
        """Return the unions that the brokers of a cluster may be told, one for each space."""
        return tuple(self._rows.get(cluster or "", {}).values())

    def ready(self, name: str) -> int | None:
        """Return the version of a broker's advertisements that may be confirmed to it.

        None: not known yet; until then, the broker is sent nothing if it was sent nothing before.
        """
        return self._ready.get(name) if self._clusters.is_edge else self._heeding.version(name)

    def _known(self, own: Sequence[Advertisement]) -> _Known:
        members = {name: self._clusters.cluster_of(name) for name in self._clusters.brokers}
        return own, members, {name: self._heeding.version(name) for name in members}

    def is_due(self, own: Sequence[Advertisement]) -> bool:
        """Return whether unions may have changed, or a confirmation waits for other brokers."""
        known = self._known(own)
        return known != self._key or any(self._ready.get(name, -1) < at for name, at in known[2].items())

    def refresh(self, own: Sequence[Advertisement], version: int) -> None:
        """Store the unions that have changed, durable on return, and look at what may be confirmed.

        Parameters
        ----------
        own
            The advertisements of this broker that others may be told.
        version
            The greatest version so far of those.
        """
        self.version = max(self.version, version)
        key = _, members, heard = self._known(own)
        if key != self._key:
            self._renew(own, members)
            self._key = key
        unready = [name for name in members if self._ready.get(name, -1) < heard[name]]
        through = {name: self._through(name) for name in members} if unready else {}
        for name in unready:
            elsewhere = (through[each] for each in members if members[each] != members[name])
            beyond = min(elsewhere, default=self.version)
            while self._ready.get(name, -1) < heard[name]:
                wanted, at = self._waits.setdefault(name, (heard[name], self.version))
                if beyond < at:
                    break
                self._ready[name] = wanted
                del self._waits[name]

    def _renew(self, own: Sequence[Advertisement], members: dict[str, str | None]) -> None:
        mine: dict[str, Text] = {row.space: (row.filter, row.dialect) for row in own}
        renewed, parts = dict[str, dict[str, Advertisement]](), dict[str, list[Text]]()
        stored, version = dict[str, Sequence[Advertisement]](), self.version
        for cluster in self._clusters.names:
            others = [name for name, its in members.items() if its != cluster]
            through = min(map(self._through, self._clusters.members(cluster)), default=self.version)
            rows = renewed[cluster] = dict(self._rows.get(cluster, {}))
            for space in sorted(mine.keys() | rows.keys()):
                texts = [*(self._heeding.stated(name, space) for name in others), mine.get(space, EVERYTHING)]
                known, key = rows.get(space), f"{INTEREST}{cluster}{INTEREST}{space}"
                text = (known.filter, known.dialect) if known else None
                if self._parts.get(key) != texts and (union := union_of(texts)) != text:
                    version += 1
                    rows[space] = Advertisement("", space, version, *union)
                    stored[key] = [replace(rows[space], space=key)]
                elif known and space not in mine and known.version <= through:
                    del rows[space]
                    stored[key] = ()
                if space in rows:
                    parts[key] = texts
        if stored:
            self._store.advertise("", stored)
        self._rows.update(renewed)
        self._parts, self.version = parts, version

    def _through(self, name: str) -> int:
        told = self.told(self._clusters.cluster_of(name))
        return confirmed_through(self._correspondence.get(name), told, self.version)


def is_union(row: Advertisement) -> bool:
    """Return whether a stored advertisement is a union: no name of a space begins like its key."""
    return not row.broker and row.space.startswith(INTEREST)


def confirmed_through(known: Correspondent, told: Iterable[Advertisement], version: int) -> int:
    """Return the version up to which a broker sends the filters that are needed.

    That is `version`, the greatest of all, for one that has confirmed the newest of those it was `told`,
    and for one that was told nothing, since it sends all filters.
    """
    newest = max((row.version for row in told), default=0)
    return version if not known.advertised or known.confirmed >= newest else known.confirmed


def union_of(parts: Iterable[Text]) -> Text:
    """Return an advertisement that matches all events that any of these match, or everything."""
    kept: list[tuple[str, str, FilterRegion]] = []
    parts = set(parts)
    for text, dialect in () if EVERYTHING in parts else sorted(parts, key=str):
        region = None if text is None else known_region(text, dialect)
        if text is None or region is None:
            return EVERYTHING
        if not any(covers(each, region) for _, _, each in kept):
            kept = [each for each in kept if not covers(region, each[2])]
            kept.append((text, dialect, region))
    if len(kept) == 1:
        return kept[0][:2]
    # A line feed ends a comment.
    text = " OR ".join(f"({each}\n)" for each, _, _ in kept)
    is_sql = all(dialect == "sql" for _, dialect, _ in kept)
    return (text, "sql") if kept and is_sql and len(text.encode()) <= ADVERTISEMENT_MAX_BYTES else EVERYTHING
