"""A world of brokers in clusters that advertise what they publish, in memory: see `advertised_world`.

Here also the forwarder is the service's own: an event is matched at each edge, as of the revision that its
record names there. For each event that was accepted, the brokers' runs say as of which revision it counts at
each other broker. There it must have come once if a subscription of that revision matches it, and may have
come only if so many matched it on the way; either way the subscriptions of that revision get it.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from advertised_world import (
    NUMBERS,
    SPACE,
    AdvertisedDisk,
    AdvertisedNode,
    AdvertisedWorld,
    History,
    KnownBrokers,
    matches,
    meet,
)
from exchange_world import World, play

from fieldfare.gateway.federation.forwarder import Forwarder
from fieldfare.model import Change, interest_key, is_forwarded
from fieldfare.storage.brokers import Run
from fieldfare.storage.event_log import NewRecord, Record

LINES = {3: "ab bc", 4: "ab bc cd", 5: "ab bc cd de"}
TWO_CLUSTERS = "ab:N be:N ec:S cd:S"
THREE_CLUSTERS = "ab:N be:N ec:S cf:S fd:W dg:W"


def by_filter(links: str) -> str:
    """Return links of which each is a cluster."""
    return " ".join(f"{pair}:{pair}" for pair in links.split())


@dataclass
class ClusteredDisk(AdvertisedDisk):
    """What survives a kill: changes are those of the broker's subscriptions and of others' filters."""

    numbers: dict[tuple[str, int], int] = field(default_factory=dict)

    def at(self, revision: int, destination: int | None = None) -> dict[int, str]:
        """The subscriptions of a revision; with a destination, another broker's filters."""
        found: dict[int, str] = {}
        for each in self.changes:
            if each.revision <= revision and each.destination == destination:
                found[each.number] = each.filter or ""
        return {number: text for number, text in found.items() if text}

    def change_remote(self, name: str, number: int, text: str | None) -> None:
        known = self.remote.setdefault(name, {})
        if known.get(number) == text:
            return
        self.revision += 1
        known.pop(number, None)
        if text is not None:
            known[number] = text
        mine = self.numbers.setdefault((name, number), 1_000 + len(self.numbers))
        self.changes.append(
            Change(self.revision, interest_key(SPACE), mine, text, "sql", destination=ord(name))
        )


class ClusteredHistory(History):
    """The part of a registry that the sender of filters reads, with others' filters."""

    _disk: ClusteredDisk

    def versions(self, revision: int, _: int) -> Iterator[Change]:
        last = {each.number: each for each in self._disk.changes if each.revision <= revision}
        return iter([each for each in last.values() if each.filter is not None])


class ClusteredBrokers(KnownBrokers):
    """The filters of other brokers, which keep their versions."""

    _disk: ClusteredDisk

    def runs(self) -> list[Run]:
        return [run for runs in self._disk.runs.values() for run in runs]

    def next_revision(self, *_: Any) -> int:
        self._disk.revision += 1
        return self._disk.revision

    def apply_filters(
        self, name: str, sequence: int, filters: Any, theirs: int | None, *_: Any, is_all: bool
    ) -> int:
        disk = self._disk
        if sequence == disk.sequences.get(name, 0) + 1:
            disk.sequences[name] = sequence
            for each in filters:
                disk.change_remote(name, each.number, each.filter)
            if theirs is not None:
                runs = disk.runs.setdefault(name, [])
                if runs and runs[-1].revision == disk.revision:
                    runs.pop()
                runs.append(Run(ord(name), disk.revision, theirs))
        return disk.revision

    def forget_broker(self, name: str, *_: Any) -> int:
        for number in list(self._disk.remote.get(name, {})):
            self._disk.change_remote(name, number, None)
        return super().forget_broker(name)


class ClusteredNode(AdvertisedNode):
    """A broker that matches what it passes on."""

    disk: ClusteredDisk
    world: ClusteredWorld

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        if name == self.world.old:
            self.advertisements.told_to = lambda name: ()  # type: ignore[method-assign]
            self.advertisements.ready = lambda name: 0  # type: ignore[method-assign]

    def make_brokers(self) -> Any:
        return ClusteredBrokers(self.disk)

    def make_interest(self) -> Any:
        sender = super().make_interest()
        sender._registry = ClusteredHistory(self.disk)
        return sender

    def make_forwarder(self) -> Any:
        log: Any = SimpleNamespace(partitions=(self,))
        matched: Any = SimpleNamespace(partition=lambda _: self)
        self.forwarder = Forwarder(
            log, matched, self.store, self.clusters, self.correspondence,
            lambda: self.disk.revision, lambda: (len(self.disk.log),),
        )  # fmt: skip
        return self.forwarder

    # As a partition of the log and of the match log

    number = 0

    def start(self) -> int:
        return 0

    def read(self, start: int, end: int) -> Iterator[Record]:
        for offset, each in list(enumerate(self.disk.log.values()))[start:end]:
            yield Record(offset, each.space, each.count, each.payload, 0, each.stamp, each.origin)

    def block_at(self, start: int) -> Any:
        end = len(self.disk.log)
        if end == start or self.world.chance(self.world.lag):
            return None
        return SimpleNamespace(end=end, matches_of_each=lambda numbers: self._matches(start, end, numbers))

    def _matches(self, start: int, end: int, numbers: Any) -> Any:
        found: list[tuple[int, int]] = []
        bounds = [0]
        for number in numbers.tolist():
            for record in self.read(start, end):
                texts = self.disk.at(record.stamp, number).values() if is_forwarded(record.origin) else ()
                for index, line in enumerate(record.payload.splitlines()):
                    event = json.loads(line)
                    found += [(record.offset, index)] if any(matches(text, event) for text in texts) else []
            bounds.append(len(found))
        pairs = np.array(found, np.int64).reshape(-1, 2)
        return np.array(bounds), pairs[:, 0], pairs[:, 1].astype(np.int32)

    def append(self, id: str, number: int, payload: bytes) -> None:
        self.world.accepted += 1
        record = NewRecord(SPACE, payload, 1, "", self.world.accepted, 0, self.disk.revision)
        self.disk.log["", self.world.accepted] = record
        self.world.events.append((self.name, id, number, self.disk.revision))

    async def advertise(self, text: str | None) -> None:
        if self.name != self.world.old:
            await super().advertise(text)


class ClusteredWorld(AdvertisedWorld):
    """Brokers in clusters; some start late, and some are gone for good."""

    node_type = ClusteredNode
    disk_type = ClusteredDisk
    everything_share = 0.1
    late: str = ""
    mortal: str = ""

    def __init__(self, root: Path, seed: int, links: str) -> None:
        self.cluster_of = {
            tuple(sorted(pair)): its for pair, its in (each.split(":") for each in links.split())
        }
        self.events: list[tuple[str, str, int, int]] = []
        self.lag = 0.0
        pairs = " ".join(each.partition(":")[0] for each in links.split())
        super().__init__(root, seed, "".join(sorted(set(pairs) - {" "})), pairs)
        self.deaths_max = 0
        self._absent = list(type(self).late)
        for name in self._absent:
            self.nodes.pop(name).store.close()

    def clusters_of(self, name: str) -> dict[str, str]:
        return {peer: self.cluster_of[tuple(sorted((name, peer)))] for peer in self.peers[name]}

    def number(self, node: AdvertisedNode) -> int:
        stated = node.advertisements.texts().get(SPACE)
        fit = [each for each in range(NUMBERS) if stated and matches(stated, {"data": {"n": each}})]
        return self.random.choice(fit) if fit and self.chance(0.8) else super().number(node)

    def range(self) -> str:
        low = self.random.randrange(NUMBERS)
        return f"data.n >= {low} AND data.n < {low + self.random.randint(1, 4)}"

    async def draw(self) -> None:
        if not self.lag:
            self.lag = 0.5
            for name in list(self.nodes):
                await self.act(name, lambda node: node.advertise(self.range()))
        if self._absent and self.chance(0.05):
            self.join()
        if type(self).mortal and not self.gone and self.chance(0.03):
            name = type(self).mortal
            self.gone.add(name)
            self.restart(name)
            self.nodes.pop(name).store.close()
        await super().draw()

    def join(self) -> None:
        name = self._absent.pop()
        kills, self.kill_chance = self.kill_chance, 0.0
        self.nodes[name] = self.node_type(self, name)
        self.kill_chance = kills

    async def finish(self) -> None:
        while self._absent:
            self.join()
        self.lag = 0.0
        await super().finish()

    def is_quiet(self) -> bool:
        return super().is_quiet() and not any(node.forwarder.is_behind for node in self.nodes.values())

    def hops(self, origin: str) -> dict[str, list[str]]:
        """The brokers on the way to each other one, from edge to edge."""
        found: dict[str, list[str]] = {origin: []}
        waiting = deque([origin])
        while waiting:
            name = waiting.popleft()
            mine = set(self.clusters_of(name).values())
            for other in self.disks:
                if other not in found and mine & set(self.clusters_of(other).values()):
                    found[other] = [*found[name], other]
                    waiting.append(other)
        return found

    def faults(self) -> list[str]:
        found = World.faults(self)
        came: dict[str, dict[str, list[int]]] = {name: {} for name in self.nodes}
        for name, node in self.nodes.items():
            for record in node.disk.log.values():
                for line in record.payload.splitlines():
                    came[name].setdefault(json.loads(line)["data"]["id"], []).append(record.stamp)
        ways = {name: self.hops(name) for name in self.disks}
        for origin, id, number, stamp in self.events:
            for name, way in ways[origin].items():
                if name == origin or not self.gone.isdisjoint({origin, *way}):
                    continue
                at = self.revision_at(stamp, origin, way)
                stamps = came[name].get(id, [])
                wanted = [] if at is None else self.subscriptions(name, at, number)
                if len(stamps) != 1 if wanted else len(stamps) > 1:
                    found.append(f"{id} ({number}) came {len(stamps)} times to {name} for {wanted} of {at}")
                elif stamps and (got := self.subscriptions(name, stamps[0], number)) != wanted:
                    found.append(f"{id} ({number}) is for {got} of {name}, not {wanted}")
        return found + [fault for name in self.nodes for fault in self.faults_of(name)]

    def revision_at(self, stamp: int, origin: str, way: list[str]) -> int | None:
        """The revision as of which an event counts at the end of its way; None if it does not."""
        at: int | None = stamp
        for here, there in zip([origin, *way], way, strict=False):
            runs = self.disks[here].runs.get(there, [])  # type: ignore[attr-defined]
            at = next((run.theirs for run in reversed(runs) if at is not None and run.revision <= at), None)
        return at

    def subscriptions(self, name: str, revision: int, number: int) -> list[int]:
        texts = self.disks[name].at(revision)  # type: ignore[attr-defined]
        return [each for each, text in texts.items() if matches(text, {"data": {"n": number}})]

    def faults_of(self, name: str) -> list[str]:
        node: Any = self.nodes[name]
        found = []
        if node.advertisements.document(SPACE).is_pending:
            found.append(f"the advertisement of {name} waits without end")
        for other in node.clusters.brokers:
            [text] = [row.filter for row in node.advertisements.told_to(other)] or [None]
            for filter in node.disk.remote.get(other, {}).values():
                # One of an earlier version may lose on its way that others know advertisements.
                if text is not None and not self.old and not meet(text, filter):
                    found.append(f"{name} has {filter} of {other}, and states {text}")
        return found


def run_clustered(
    root: Path, seed: int, links: str, steps: int = 80, old: str = "", late: str = "", mortal: str = ""
) -> ClusteredWorld:
    """Run a world; `old` is of an earlier version, `late` starts later, `mortal` may be gone for good."""
    root.mkdir(parents=True, exist_ok=True)
    given = {"old": old, "late": late, "mortal": mortal}
    for name, value in given.items():
        setattr(ClusteredWorld, name, value)
    try:
        world = ClusteredWorld(root, seed, links)
        try:
            play(world.run(steps))
        finally:
            world.close()
    finally:
        for name in given:
            setattr(ClusteredWorld, name, "")
    return world
