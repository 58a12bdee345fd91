"""Brokers that exchange entries over links that lose requests and are cut, and that die.

They have the service's own links, inbox and store, with a registry, a log and a network in memory. A world is
drawn from a seed. Each broker publishes events for some others and changes its filters; brokers are killed at
any call of their store and start again, some are gone for good and are removed. In the end all links are up,
and each broker has each event for it once, and has applied each message with filters.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from gateway_support import event

from fieldfare.gateway.change_gate import ChangeGate
from fieldfare.gateway.federation.advertisements import Advertisements
from fieldfare.gateway.federation.clusters import Clusters
from fieldfare.gateway.federation.correspondence import Correspondence
from fieldfare.gateway.federation.departure import Departure, DepartureParts
from fieldfare.gateway.federation.heeding import Heeding
from fieldfare.gateway.federation.inbox import Inbox
from fieldfare.gateway.federation.links import LinkError, Links, Peer, RemovedError
from fieldfare.gateway.federation.receipts import Receipts
from fieldfare.gateway.federation.service import Federation
from fieldfare.gateway.federation.unions import Unions
from fieldfare.gateway.federation.wire import (
    Counts,
    Destination,
    Events,
    Interest,
    decode_answer,
    decode_entry,
    decode_rows,
)
from fieldfare.gateway.peers import DDBR
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.publishing.events import Limits
from fieldfare.storage.brokers import Run, StoredBroker
from fieldfare.storage.event_log import Appended, NewRecord
from fieldfare.storage.sqlite.links import LinkStore

TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
QUIET_ROUNDS_MAX = 400
KINDS = (*["publish"] * 4, "filters", "cut", "heal", "die")
STORE_CALLS = ("add", "receive", "transmit", "acknowledge", "confirm", "send_again", "forget", "processed")
STORE_CALLS += ("reroute", "set_row", "advertise")


class Killed(BaseException):
    """The broker's process is killed here."""


@dataclass
class Disk:
    """What survives a kill, apart from the file of links: the log, and the filters of others."""

    log: dict[tuple[str, int], NewRecord] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)
    withdrawn: dict[str, int] = field(default_factory=dict)
    revision: int = 1


class MemoryBrokers:
    """The filters of other brokers: only how many messages were applied."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def brokers(self) -> list[StoredBroker]:
        names = sorted(self._disk.sequences)
        return [StoredBroker(name, place + 1, self._disk.sequences[name]) for place, name in enumerate(names)]

    def runs(self) -> list[Run]:
        return []

    def count_filters(self) -> dict[int, int]:
        return {}

    def apply_filters(
        self, name: str, sequence: int, filters: Any, theirs: int | None, *_: Any, is_all: bool
    ) -> int:
        known = self._disk.sequences.get(name, 0)
        assert sequence <= known + 1, "a message is missing"
        if sequence == known + 1:
            self._disk.sequences[name] = sequence
            if is_all:
                assert theirs and not filters
                self._disk.withdrawn[name] = theirs
            else:
                self._disk.withdrawn.pop(name, None)
        return 1

    def forget_broker(self, name: str, *_: Any) -> int:
        self._disk.sequences.pop(name, None)
        self._disk.withdrawn.pop(name, None)
        return 1


class MemoryWriter:
    """Appends to the log; a repeat of a producer's sequence changes nothing."""

    @property
    def stamp(self) -> int:
        return self._disk.revision

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.writer = self

    async def append(self, record: NewRecord, *, is_due: bool = False) -> Appended:
        await asyncio.sleep(0)
        key = record.producer or "", record.sequence or 0
        is_repeat = key in self._disk.log
        self._disk.log.setdefault(key, record)
        return Appended(0, record.count, 1, is_repeat)

    async def change(self, work: Callable[[Any], int]) -> int:
        return work(())


class MemoryInterest:
    """Tells others that this broker, which is leaving, has no filters, or has them again."""

    is_withdrawn = False

    def __init__(self, node: Node) -> None:
        self._node = node

    def publish(self, revision: int) -> bool:
        has_sent = False
        for name in self._node.clusters.brokers:
            known = self._node.correspondence.get(name)
            if self.is_withdrawn == bool(known.withdrawn) or revision <= known.withdrawn:
                continue
            withdrawn = revision if self.is_withdrawn else 0
            self._node.send_filters(name, revision if withdrawn else None, withdrawn)
            has_sent = True
        return has_sent


class MemoryForwarder:
    """Tells a broker that its filters, of which it has none any more, count for all later events."""

    is_behind = False
    has_counts_due = True

    def __init__(self, node: Node) -> None:
        self._node = node

    def tell_again(self) -> None:
        self.step(is_again=True)

    def step(self, *, is_again: bool = False) -> bool:
        node = self._node
        for name, theirs in node.disk.withdrawn.items():
            known = node.correspondence.get(name)
            if name in node.clusters.brokers and (theirs > known.counted or is_again):
                counts = Counts(node.name, (Destination(name),), 1, theirs, known.events)
                known = replace(known, counted=theirs)
                node.store.add(node.clusters.split(counts, counts.destinations), [known])
                node.correspondence.put([known])
        return False


class Node:
    """One broker's process."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.disk = disk = world.disks[name]
        self.store = store = LinkStore(world.root / f"{name}.db")
        self._guard(store)
        version, rows = store.row()
        peers = world.clusters_of(name)
        world.version += 1
        self.clusters = clusters = Clusters(
            name, store.identity, sorted(set(peers.values())), peers, max(version, world.version),
            decode_rows(rows),
        )  # fmt: skip
        brokers = cast(Any, self.make_brokers())
        self.correspondence = correspondence = Correspondence(
            store.correspondents(), brokers.brokers(), brokers.runs()
        )
        writer = cast(Any, MemoryWriter(disk))
        self.heeding = Heeding(store)
        unions = Unions(store, clusters, correspondence, self.heeding)
        self.advertisements = Advertisements(store, clusters, correspondence, unions, self.delayed_ids)
        self.inbox = Inbox(
            clusters, store, brokers, correspondence, writer, lambda *_, **__: None, lambda name: name,
            Limits(), 1 << 16, self.heeding, self._next_revision,
        )  # fmt: skip
        self.receipts = Receipts(clusters, correspondence, lambda: world.now_s)
        self.links = Links(clusters, store, DDBR, {peer: peer for peer in peers}, None, TLS, self.receipts)
        self.links._post = self._post  # type: ignore[method-assign]
        moves = cast(Any, SimpleNamespace(
            is_due=False, open=0, repeat=lambda: None, peer_removed=self._nothing, refuse=lambda **_: None
        ))  # fmt: skip
        self.gate, interest = ChangeGate(), cast(Any, self.make_interest())
        self.departure = Departure(DepartureParts(
            clusters=clusters, store=store, correspondence=correspondence, links=self.links,
            interest=interest, moves=moves, gate=self.gate, next_revision=self._next_revision,
            local=self._local, drained=lambda is_over=False: None,
        ))  # fmt: skip
        self.federation = Federation(
            clusters=clusters, store=store, brokers=brokers, correspondence=correspondence, links=self.links,
            inbox=self.inbox, interest=interest, forwarder=cast(Any, self.make_forwarder()), writer=writer,
            moves=moves, balancer=cast(Any, None), departure=self.departure,
            advertisements=self.advertisements, heeding=self.heeding, filters=cast(Any, None),
        )  # fmt: skip
        self.failures: Counter[str] = Counter()

    def make_brokers(self) -> Any:
        return MemoryBrokers(self.disk)

    def make_interest(self) -> Any:
        return MemoryInterest(self)

    def make_forwarder(self) -> Any:
        return MemoryForwarder(self)

    def delayed_ids(self, _space: str) -> tuple[int, int] | None:
        return None

    async def _nothing(self, _: str) -> None: ...

    async def _next_revision(self) -> None:
        self.disk.revision += 1

    async def _local(self) -> dict[str, int]:
        return {}

    def _guard(self, store: LinkStore) -> None:
        """Let the process be killed before and after the calls that change something."""
        for name in STORE_CALLS:
            call = getattr(store, name)

            def guarded(*given: Any, call: Callable[..., Any] = call) -> Any:
                self.world.may_kill(self.name)
                found = call(*given)
                self.world.may_kill(self.name)
                return found

            setattr(store, name, guarded)

    async def _post(self, peer: Peer, body: bytes, headers: Any) -> Any:
        """Deliver a request, which may be lost, or its answer."""
        world, other = self.world, self.world.nodes.get(peer.name)
        if other is None or not world.is_up(self.name, peer.name) or world.chance(0.05):
            raise LinkError("lost")
        if headers:
            body = gzip.decompress(body)
        try:
            answer = decode_answer(await other.links.receive(self.name, body))
        except HttpProblem as problem:
            raise (RemovedError if problem.name == "broker-removed" else LinkError)(problem.detail) from None
        except Killed:
            world.restart(peer.name)
            raise LinkError("killed") from None
        if world.chance(0.05):
            raise LinkError("the answer is lost")
        return answer

    async def exchange(self, name: str) -> None:
        """Send a request to a neighbour, and note whether its link is up."""
        peer, other = self.links.peers[name], self.world.nodes.get(name)
        is_held = other is not None and not other.links._opened.is_set()
        if name in self.clusters.removed or peer.is_told or is_held:
            return
        try:
            await self.links._exchange(peer)
        except (LinkError, ValueError):
            self.failures[name] += 1
            if self.failures[name] >= 2 and self.clusters.set_up(name, is_up=False):
                await self.links._changed()
            return
        self.failures[name] = 0
        if self.clusters.set_up(name, is_up=True):
            await self.links._changed()

    async def step(self) -> None:
        """Do what the service's loop does."""
        self.federation._has_news = True
        self.federation._confirmed_s = self.departure._next_s = 0.0
        await self.federation._step()

    def publish(self, id: str, to: Sequence[str]) -> None:
        """Send an event to some brokers, as the forwarder does."""
        changed, destinations = [], []
        for name in to:
            known = self.correspondence.get(name)
            changed.append(replace(known, events=known.events + 1))
            destinations.append(Destination(name, 1, known.events + 1))
        payload = json.dumps(event(1, {"id": id})).encode() + b"\n"
        entry = Events(self.name, tuple(destinations), "default", 0, 1, 1, 1, payload)
        self.store.add(self.clusters.split(entry, entry.destinations), changed)
        self.correspondence.put(changed)
        self.world.published[id] = self.name, tuple(to)

    def change_filters(self) -> None:
        """Send a message with filters to each other broker."""
        for name in self.clusters.brokers:
            self.send_filters(name, None, self.correspondence.get(name).withdrawn)

    def send_filters(self, name: str, theirs: int | None, withdrawn: int) -> None:
        known = self.correspondence.get(name)
        known = replace(known, messages=known.messages + 1, withdrawn=withdrawn)
        entry = Interest(self.name, (Destination(name),), known.messages, (), theirs, theirs is not None)
        self.store.add(self.clusters.split(entry, entry.destinations), [known])
        self.correspondence.put([known])


class World:
    """All brokers, and what should come where."""

    node_type: type[Node] = Node
    disk_type: type[Disk] = Disk

    def __init__(self, root: Path, seed: int, names: str, links: str) -> None:
        self.root, self.random = root, Random(seed)
        self.now_s = 0.0
        self.version = 0
        self.kills = self.removals = 0
        self.kill_chance = self.sloth = 0.0
        self.disks = {name: self.disk_type() for name in names}
        self.pairs = [(one, other) for one, other in links.split()]
        self.peers = {
            name: [b if a == name else a for a, b in self.pairs if name in (a, b)] for name in names
        }
        self.cut: set[frozenset[str]] = set()
        self.gone: set[str] = set()
        self.leaver = ""
        self.kill_at: int | None = None
        self.published: dict[str, tuple[str, tuple[str, ...]]] = {}
        self.nodes = {name: self.node_type(self, name) for name in names}

    def clusters_of(self, name: str) -> dict[str, str]:
        """Return the neighbours of a broker, each with the cluster of the link."""
        return dict.fromkeys(self.peers[name], "")

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def may_kill(self, name: str) -> None:
        if name == self.leaver and self.kill_at is not None:
            self.kill_at -= 1
            if self.kill_at < 0:
                self.kill_at = None
                self.kills += 1
                raise Killed
        if self.kill_chance and self.chance(self.kill_chance):
            self.kills += 1
            raise Killed

    def is_up(self, one: str, other: str) -> bool:
        return frozenset((one, other)) not in self.cut

    def restart(self, name: str) -> None:
        if name in self.nodes:
            self.nodes[name].store.close()
            kills, self.kill_chance, self.kill_at = (self.kill_chance, self.kill_at), 0.0, None
            self.nodes[name] = self.node_type(self, name)
            self.kill_chance, self.kill_at = kills

    async def act(self, name: str, *works: Callable[[Node], Any]) -> None:
        """Let a broker do things at the same time; it starts again if it is killed."""
        node = self.nodes[name]
        outcomes = await asyncio.gather(*(work(node) for work in works), return_exceptions=True)
        for each in outcomes:
            if isinstance(each, Killed):
                if self.nodes.get(name) is node:
                    self.restart(name)
            elif isinstance(each, BaseException):
                raise each

    async def round(self) -> None:
        """Let all brokers exchange and step once."""
        self.now_s += 1.0
        names = list(self.nodes)
        self.random.shuffle(names)
        for name in names:
            if self.chance(self.sloth):
                continue
            peers = self.peers[name]
            works = [lambda node, peer=peer: node.exchange(peer) for peer in peers]
            await self.act(name, *works, lambda node: node.step())

    async def draw(self) -> None:
        """Let something happen."""
        name = self.random.choice(sorted(self.nodes))
        node = self.nodes[name]
        kind = self.random.choice(KINDS)
        others = [each for each in node.clusters.brokers if each not in {*self.gone, *node.disk.withdrawn}]
        if node.gate.refusal and kind in ("publish", "filters", "die"):
            return
        if kind == "publish" and others:
            to = self.random.sample(others, self.random.choice([1, len(others)]))
            node.publish(f"{name}{len(self.published)}", sorted(to))
        elif kind == "filters":
            node.change_filters()
        elif kind == "cut":
            self.cut.add(frozenset(self.random.choice(self.pairs)))
        elif kind == "heal" and self.cut:
            self.cut.discard(self.random.choice(sorted(self.cut, key=sorted)))
        elif kind == "die" and len(self.gone) < self.deaths_max and (holders := self.holders()):
            name = self.random.choice(holders)
            self.gone.add(name)
            self.nodes.pop(name).store.close()

    def holders(self) -> list[str]:
        """Return the brokers that hold entries of others, most of them over links that are cut."""
        found = []
        for name, node in sorted(self.nodes.items()):
            with node.store._reading() as connection:
                rows = connection.execute("SELECT entry FROM outbox WHERE number IS NOT NULL").fetchall()
            found += [name for (stored,) in rows if getattr(decode_entry(stored), "source", name) != name]
        return found

    deaths_max = 1

    async def remove_gone(self) -> None:
        """Remove brokers that are gone, where they cannot be reached any more."""
        for node in list(self.nodes.values()):
            for name in self.gone - node.clusters.removed:
                if node.clusters.cluster_of(name) is None:
                    continue
                if node.clusters.path(name) is None and self.chance(0.2):
                    try:
                        await node.links.remove(name)
                    except Killed:
                        self.restart(node.name)
                    self.removals += 1

    async def run(self, steps: int) -> None:
        self.kill_chance = 0.0
        for _ in range(12):
            await self.round()
        for node in self.nodes.values():
            node.change_filters()
        for _ in range(12):
            await self.round()
        self.kill_chance, self.sloth = 0.002, 0.5
        for _ in range(steps):
            kill_chance, self.kill_chance = self.kill_chance, 0.0
            await self.draw()
            self.kill_chance = kill_chance
            if self.chance(0.7):
                await self.round()
            await self.remove_gone()
        await self.finish()

    async def run_departure(self, name: str, kill_at: int | None, *, is_cancelled: bool, steps: int) -> None:
        """Let a broker leave while others exchange events; or let it stay after all."""
        for _ in range(12):
            await self.round()
        for node in self.nodes.values():
            node.change_filters()
        for _ in range(12):
            await self.round()
        for _ in range(steps):
            await self.draw()
        self.leaver, self.kill_at = name, kill_at
        while self.nodes[name].departure.state == "staying":
            await self.act(name, lambda node: node.departure.begin(is_forced=True))
        for _ in range(steps):
            await self.draw()
            if self.chance(0.7):
                await self.round()
        while is_cancelled and self.nodes[name].departure.state != "staying":
            if self.nodes[name].departure.state == "left":
                break
            await self.act(name, lambda node: node.departure.cancel())
        await self.finish()

    async def finish(self) -> None:
        """Heal all links, and go on until nothing is under way for some rounds: a row may still be."""
        self.cut.clear()
        self.kill_chance = self.sloth = 0.0
        quiet = 0
        for _ in range(QUIET_ROUNDS_MAX):
            await self.round()
            await self.remove_gone()
            quiet = quiet + 1 if self.is_quiet() else 0
            if quiet > 5:
                break

    def is_quiet(self) -> bool:
        leaving = self.nodes[self.leaver].departure if self.leaver else None
        if leaving is not None and leaving.state == "left":
            others = [node for name, node in self.nodes.items() if name != self.leaver]
            if not all(node.correspondence.get(self.leaver).is_removed for node in others):
                return False
        elif leaving is not None and leaving.state != "staying":
            return False
        return all(
            not node.store.outboxes()
            and not node.store.inbound(1)
            and not node.store.kept_totals()[0]
            and all(
                node.correspondence.get(each).is_removed
                for each in self.gone
                if each in node.clusters.removed or node.clusters.cluster_of(each) is not None
            )
            for node in self.nodes.values()
        )

    def faults(self) -> list[str]:
        """Return what is missing, what came twice, and what waits without end."""
        found = []
        for name, node in self.nodes.items():
            came = Counter(bytes(record.payload).decode() for record in node.disk.log.values())
            for id, (origin, to) in self.published.items():
                if name in to and origin not in self.gone:
                    count = sum(times for text, times in came.items() if f'"{id}"' in text)
                    if count != 1:
                        found.append(f"{id} came {count} times to {name}")
            for other, peer in self.nodes.items():
                has_left = self.leaver in (name, other) and self.has_left
                if other != name and not has_left:
                    sent, applied = peer.correspondence.get(name).messages, node.disk.sequences.get(other, 0)
                    if sent != applied:
                        found.append(f"{name} has applied {applied} of {sent} messages of {other}")
                    repeats = node.correspondence.get(other).repeats
                    if repeats:
                        found.append(f"{name} counts {repeats} entries of {other} as sent twice")
        if not self.is_quiet():
            found.append("something waits without end")
        return found

    @property
    def has_left(self) -> bool:
        return bool(self.leaver) and self.nodes[self.leaver].departure.state == "left"

    def close(self) -> None:
        for node in self.nodes.values():
            node.store.close()


def play(course: Coroutine[Any, Any, None]) -> None:
    """Run a world on one thread: with several, its course would depend on how they take turns."""

    async def on_this_thread(work: Callable[..., Any], *given: Any, **named: Any) -> Any:
        await asyncio.sleep(0)
        return work(*given, **named)

    with patch.object(asyncio, "to_thread", on_this_thread):
        asyncio.run(course)


def run_departure(
    root: Path, seed: int, kill_at: int | None = None, *, is_cancelled: bool = False, steps: int = 30
) -> World:
    """Run a world of four brokers in a ring, of which one leaves."""
    root.mkdir(parents=True, exist_ok=True)
    world = World(root, seed, "abcd", "ab bc cd da")
    world.deaths_max = 0
    try:
        play(world.run_departure("b", kill_at, is_cancelled=is_cancelled, steps=steps))
    finally:
        world.close()
    return world


def run_world(root: Path, seed: int, steps: int = 60, deaths_max: int = 1) -> World:
    """Run a world of five brokers with two ways between any two of them."""
    root.mkdir(parents=True, exist_ok=True)
    world = World(root, seed, "abcde", "ab bc cd de ea bd")
    world.deaths_max = deaths_max
    try:
        play(world.run(steps))
    finally:
        world.close()
    return world
