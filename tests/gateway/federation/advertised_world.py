"""A world of brokers that advertise what they publish, in memory: see `exchange_world`.

Each broker has subscriptions, advertises ranges of numbers and publishes numbers: at once, by slow requests
and delayed. An event that is accepted must be sent to each other broker whose filters match it, as of the
revision of that broker which the event's record names. A broker of an earlier version may be between.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from exchange_world import Disk, Killed, MemoryBrokers, Node, World, play
from gateway_support import event

from fieldfare.filters import Filter, compile_filter
from fieldfare.filters.covering import intersects, region_of
from fieldfare.gateway.federation.heeding import Heeding
from fieldfare.gateway.federation.interest import InterestSender
from fieldfare.gateway.federation.wire import Destination, Events
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.publishing.events import DecodedEvents
from fieldfare.model import Change
from fieldfare.storage.brokers import Run, StoredBroker

NUMBERS = 12
SPACE = "default"
KINDS = (*["publish"] * 6, *["slow", "late", "release", "release"], *["filters"] * 3, *["advertise"] * 3)
KINDS += ("cut", "heal", "die", "abandoned")


@dataclass
class AdvertisedDisk(Disk):
    """What survives a kill: also this broker's subscriptions, those of others, and delayed events."""

    changes: list[Change] = field(default_factory=list)
    remote: dict[str, dict[int, str]] = field(default_factory=dict)
    runs: dict[str, list[Run]] = field(default_factory=dict)
    delayed: dict[int, tuple[str, int]] = field(default_factory=dict)

    def at(self, revision: int) -> dict[int, str]:
        """The subscriptions of a revision."""
        found: dict[int, str] = {}
        for each in self.changes:
            if each.revision <= revision:
                found[each.number] = each.filter or ""
        return {number: text for number, text in found.items() if text}


class History:
    """The part of a registry that the sender of filters reads."""

    def __init__(self, disk: AdvertisedDisk) -> None:
        self._disk = disk

    def changes(self, after: int, to: int) -> Iterator[Change]:
        return iter([each for each in self._disk.changes if after < each.revision <= to])

    def versions(self, revision: int, _: int) -> Iterator[Change]:
        return iter([Change(revision, SPACE, *item, "sql") for item in self._disk.at(revision).items()])


class KnownBrokers(MemoryBrokers):
    """The filters of other brokers."""

    _disk: AdvertisedDisk

    def brokers(self) -> list[StoredBroker]:
        return [StoredBroker(name, ord(name), sequence) for name, sequence in self._disk.sequences.items()]

    def apply_filters(
        self, name: str, sequence: int, filters: Any, theirs: int | None, *_: Any, is_all: bool
    ) -> int:
        disk = self._disk
        if sequence == disk.sequences.get(name, 0) + 1:
            disk.sequences[name] = sequence
            known = disk.remote.setdefault(name, {})
            if is_all:
                known.clear()
                disk.withdrawn[name] = theirs or 0
            else:
                disk.withdrawn.pop(name, None)
            for each in filters:
                if known.get(each.number) == each.filter:
                    continue
                disk.revision += 1
                known.pop(each.number, None)
                if each.filter is not None:
                    known[each.number] = each.filter
            if theirs is not None:
                disk.runs.setdefault(name, []).append(Run(0, disk.revision, theirs))
        return disk.revision

    def forget_broker(self, name: str, *_: Any) -> int:
        self._disk.remote.pop(name, None)
        self._disk.runs.pop(name, None)
        return super().forget_broker(name)


class OldHeeding(Heeding):
    """That of a broker of an earlier version, which knows no advertisements."""

    def take(self, *given: Any) -> None: ...


class AdvertisedNode(Node):
    """A broker with subscriptions and advertisements."""

    disk: AdvertisedDisk
    world: AdvertisedWorld

    def __init__(self, world: World, name: str) -> None:
        self._tasks: list[tuple[asyncio.Task[None], asyncio.Future[None]]] = []
        self.is_over = False
        """Whether its process was killed."""
        super().__init__(world, name)
        if name == self.world.old:
            rows_for = self.clusters.rows_for
            for topology in self.clusters._topologies.values():
                topology._heeding.discard(name)
            self.clusters.rows_for = lambda peer: tuple(  # type: ignore[method-assign]
                msgspec.structs.replace(row, heeds_advertisements=False) for row in rows_for(peer)
            )

    def make_brokers(self) -> Any:
        return KnownBrokers(self.disk)

    def make_interest(self) -> Any:
        if self.name == self.world.old:
            self.heeding = self.inbox._heeding = OldHeeding(self.store)
        history: Any = History(self.disk)
        return InterestSender(
            history, self.store, self.clusters, self.correspondence, self.advertisements, self.heeding
        )

    def delayed_ids(self, _space: str) -> tuple[int, int] | None:
        return (min(self.disk.delayed), max(self.disk.delayed)) if self.disk.delayed else None

    async def _local(self) -> dict[str, int]:
        return {"requests": len(self._tasks), "delayed_records": len(self.disk.delayed)}

    def change_filters(self) -> None:
        disk, random = self.disk, self.world.random
        number = random.randint(1, 4)
        is_removed = number in disk.at(disk.revision) and random.random() < 0.4
        self.subscribe(number, None if is_removed else self.world.range())

    def subscribe(self, number: int, text: str | None) -> None:
        """Store a subscription, or remove it."""
        self.disk.revision += 1
        self.disk.changes.append(Change(self.disk.revision, SPACE, number, text, "sql"))

    async def advertise(self, text: str | None) -> None:
        try:
            await self.federation.advertise(SPACE, None if text is None else compile_filter(text))
        except HttpProblem as problem:
            assert problem.name == "advertisement-pending", problem.detail

    async def offer(self, id: str, number: int, *, is_late: bool = False, until: Any = None) -> None:
        """Publish an event, if it is advertised."""
        payload = json.dumps(event(1, {"id": id, "n": number})).encode() + b"\n"

        async def append() -> None:
            if until is not None:
                await until
            if self.is_over:
                return
            try:
                if is_late:
                    self.disk.delayed[self.world.next_delayed()] = id, number
                else:
                    self.append(id, number, payload)
            except Killed:
                self.is_over = True
                raise

        try:
            await self.advertisements.publish(SPACE, DecodedEvents(payload, range(1)), append)
        except HttpProblem as problem:
            self.world.refused[problem.name] = self.world.refused.get(problem.name, 0) + 1

    def offer_slowly(self, id: str, number: int) -> None:
        """Publish an event by a request that ends when the world says so."""
        released: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        work = asyncio.create_task(self.offer(id, number, until=released))
        self._tasks.append((work, released))

    def abandon(self) -> None:
        """The clients of the slow requests go away: they are cancelled, and their events appended later."""
        for task, _ in self._tasks:
            task.cancel()

    async def release(self) -> None:
        """Let slow requests end, and append delayed events."""
        for _, released in self._tasks:
            if not released.done():
                released.set_result(None)
        works = [*(task for task, _ in self._tasks), *self.advertisements._open]
        self._tasks.clear()
        outcomes = await asyncio.gather(*works, return_exceptions=True)
        if any(isinstance(each, Killed) for each in outcomes):
            raise Killed
        for id in sorted(self.disk.delayed):
            name, number = self.disk.delayed.pop(id)
            payload = json.dumps(event(1, {"id": name, "n": number})).encode() + b"\n"
            self.append(name, number, payload)

    def append(self, id: str, number: int, payload: bytes) -> None:
        """Append an event, and send it to the brokers that have a filter which matches."""
        seen, to, changed = {"data": {"n": number}}, [], []
        for name in self.clusters.brokers:
            runs = self.disk.runs.get(name)
            if not runs:
                continue
            theirs = runs[-1].theirs
            wanted = name not in self.disk.withdrawn and any(
                matches(each, seen) for each in self.world.disks[name].at(theirs).values()
            )  # type: ignore[attr-defined]
            if any(matches(each, seen) for each in self.disk.remote[name].values()):
                known = self.correspondence.get(name)
                changed.append(replace(known, events=known.events + 1))
                to.append(Destination(name, theirs, known.events + 1))
            elif wanted:
                self.world.lost.append(f"{id} ({number}) of {self.name} is not sent to {name}")
        self.world.accepted += 1
        if to:
            entry = Events(self.name, tuple(to), SPACE, 0, 1, self.disk.revision, 1, payload)
            self.store.add(self.clusters.split(entry, entry.destinations), changed)
            self.correspondence.put(changed)
            self.world.published[id] = self.name, tuple(each.name for each in to)


class AdvertisedWorld(World):
    """Brokers that advertise."""

    node_type = AdvertisedNode
    disk_type = AdvertisedDisk
    old = ""
    everything_share = 0.3

    def __init__(self, *given: Any) -> None:
        self.old = type(self).old
        self.lost: list[str] = []
        self.refused: dict[str, int] = {}
        self.accepted = self._offered = self._delayed = 0
        super().__init__(*given)

    def next_delayed(self) -> int:
        self._delayed += 1
        return self._delayed

    def number(self, _: AdvertisedNode) -> int:
        """Draw a number to be published by a broker."""
        return self.random.randrange(NUMBERS)

    def range(self) -> str:
        low = self.random.randrange(NUMBERS)
        return f"data.n >= {low} AND data.n < {self.random.randint(low + 1, NUMBERS)}"

    def restart(self, name: str) -> None:
        node = self.nodes.get(name)
        super().restart(name)
        if isinstance(node, AdvertisedNode):
            node.is_over = True
            for task in (*(task for task, _ in node._tasks), *node.advertisements._open):
                if task is not asyncio.current_task():
                    task.cancel()
            node._tasks.clear()

    async def draw(self) -> None:
        name = self.random.choice(sorted(self.nodes))
        node: Any = self.nodes[name]
        kind = self.random.choice(KINDS)
        if node.gate.refusal and kind not in ("release", "cut", "heal"):
            return
        self._offered += 1
        id, number = f"{name}{self._offered}", self.number(node)
        if kind == "publish":
            await self.act(name, lambda node: node.offer(id, number))
        elif kind == "slow":
            node.offer_slowly(id, number)
        elif kind == "abandoned":
            node.offer_slowly(id, number)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            node.abandon()
        elif kind == "late":
            await self.act(name, lambda node: node.offer(id, number, is_late=True))
        elif kind == "release":
            await self.act(name, lambda node: node.release())
        elif kind == "filters":
            node.change_filters()
        elif kind == "advertise":
            text = None if self.chance(self.everything_share) else self.range()
            await self.act(name, lambda node: node.advertise(text))
        elif kind == "cut":
            self.cut.add(frozenset(self.random.choice(self.pairs)))
        elif kind == "heal" and self.cut:
            self.cut.discard(self.random.choice(sorted(self.cut, key=sorted)))
        elif kind == "die" and len(self.gone) < self.deaths_max and self.chance(0.2):
            self.gone.add(name)
            self.restart(name)
            self.nodes.pop(name).store.close()

    async def finish(self) -> None:
        kill_chance, self.kill_chance = self.kill_chance, 0.0
        for name in list(self.nodes):
            await self.act(name, lambda node: node.release())
        self.kill_chance = kill_chance
        await super().finish()

    def is_quiet(self) -> bool:
        """Also whether every broker has been sent everything: a step may send what follows from the last."""
        return super().is_quiet() and all(
            known.withdrawn
            or (
                known.through >= node.disk.revision
                and known.heeded == node.heeding.version(known.name)
                and (
                    known.name not in node.clusters.heeding
                    or all(row.version <= known.advertised for row in node.advertisements.told_to(known.name))
                )
                and not node.advertisements._before
            )
            for node in self.nodes.values()
            if not node.gate.refusal
            for known in map(node.correspondence.get, node.clusters.brokers)
        )

    def faults(self) -> list[str]:
        found = [*self.lost, *super().faults()]
        for name, node in self.nodes.items():
            assert isinstance(node, AdvertisedNode)
            if name == self.leaver and self.has_left:
                continue
            if node.advertisements.document(SPACE).is_pending:
                found.append(f"the advertisement of {name} waits without end")
            text = node.advertisements.texts().get(SPACE)
            for other in () if text is None else self.nodes:
                for filter in node.disk.remote.get(other, {}).values():
                    if other != self.old and not meet(text or "", filter) and not self.old:
                        found.append(f"{name} has {filter} of {other}, and advertises {text}")
        return found


@cache
def compiled(text: str) -> Filter:
    return compile_filter(text)


def matches(text: str, event: dict[str, Any]) -> bool:
    return compiled(text).matches(event)


def meet(one: str, other: str) -> bool:
    return intersects(region_of(compiled(one)), region_of(compiled(other)))


def run_advertised(
    root: Path, seed: int, steps: int = 80, old: str = "", deaths_max: int = 1, leaver: str = ""
) -> AdvertisedWorld:
    """Run a world of four brokers in a ring; `old` is one of an earlier version, `leaver` one that leaves."""
    root.mkdir(parents=True, exist_ok=True)
    AdvertisedWorld.old = old
    try:
        world = AdvertisedWorld(root, seed, "abcd", "ab bc cd da")
        world.deaths_max = deaths_max
        leaving = world.run_departure(leaver, None, is_cancelled=seed % 2 == 0, steps=steps // 2)
        try:
            play(leaving if leaver else world.run(steps))
        finally:
            leaving.close()
            world.close()
    finally:
        AdvertisedWorld.old = ""
    return world
