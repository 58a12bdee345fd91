"""What the manager keeps durably (section IV.B): where each slice is, which hosts there are, what is to be
done.

A new value for every change, with the next version. The wiring that hosts follow is computed from it, so a
manager that is started anew says what the one before it said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fieldfare.elasticity.messages import MigrationRequest, SliceMove, Wiring
from fieldfare.elasticity.operators import Operators

HOSTS_EVER = 1_000_000
"""Who says that he started more has not."""


@dataclass(frozen=True, slots=True)
class SlicePlace:
    """Where a slice is.

    Parameters
    ----------
    epoch
        Of the slice that runs at `host`. A copy that is being made has the next one.
    to
        Where a copy is prepared: its inputs go there, too.
    is_lost
        Nobody runs it: `host` shall begin with what was kept.
    """

    host: str
    epoch: int
    to: str | None = None
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class Configuration:
    """All that outlives a manager.

    Parameters
    ----------
    outer
        Slices that are never moved, before and behind the operators, and their hosts.
    hosts
        The oldest first.
    started
        How many hosts ever were: the next one's number.
    moves
        What waits; the first is the next.
    leaving
        Hosts that are released when nothing is on them or on its way to them; they stay when moves that were
        to empty them were undone.
    released
        Hosts that are given back, but perhaps not gone yet.
    """

    operators: Operators
    outer: Mapping[str, str]
    places: Mapping[str, SlicePlace] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    started: int = 0
    moves: tuple[SliceMove, ...] = ()
    leaving: tuple[str, ...] = ()
    released: tuple[str, ...] = ()
    version: int = 0

    def check(self) -> None:
        """Problem, a ValueError, when no manager kept this: somebody wrote it by hand."""
        hosts, places = set(self.hosts), self.places.values()
        ours = (f"host{number + 1}" for number in range(self.started if self.started <= HOSTS_EVER else 0))
        named = {place.host for place in places} | {place.to for place in places if place.to}
        operators = self.operators
        slices = operators.access_points + sum(operators.matchers.values()) + operators.exit_points
        if not hosts or len(hosts) != len(self.hosts) or not hosts.issubset(ours):
            raise ValueError("of its hosts each is named once, host1 or a later one that was started")
        if slices != len(self.places) or set(operators.slices) != self.places.keys():
            raise ValueError("each slice has one place")
        if not named | set(self.leaving) | {move.to for move in self.moves} <= hosts:
            raise ValueError("slices are at hosts, and move to such")
        if not {move.slice for move in self.moves} <= self.places.keys():
            raise ValueError("slices that are there move")
        if sum(place.to is not None for place in places) > 1 or min(place.epoch for place in places) < 0:
            raise ValueError("one slice moves at a time, and its places are counted")

    def changed(self, **changes: object) -> Configuration:
        """The next version."""
        return replace(self, version=self.version + 1, **changes)  # type: ignore[arg-type]

    def placed(self, name: str, place: SlicePlace, **changes: object) -> Configuration:
        """The next version, in which a slice is elsewhere."""
        return self.changed(places={**self.places, name: place}, **changes)

    @property
    def moving(self) -> str | None:
        """The slice whose inputs go to two hosts."""
        return next((name for name, place in self.places.items() if place.to), None)

    @property
    def wiring(self) -> Wiring:
        """Where each slice's inputs go."""
        places = {name: (place.host, place.to) for name, place in self.places.items()}
        hosts = {name: tuple(host for host in pair if host is not None) for name, pair in places.items()}
        return Wiring(self.version, {**hosts, **{name: (host,) for name, host in self.outer.items()}})

    @property
    def everyone(self) -> tuple[str, ...]:
        """All hosts that have slices or feed them."""
        return tuple(dict.fromkeys((*self.hosts, *self.outer.values())))

    def begun(self, hosts: int) -> Configuration:
        """The first configuration: all slices on the hosts in turn, none of them runs yet."""
        new = self.with_hosts(hosts)
        places = {
            name: SlicePlace(new.hosts[i % hosts], 1, is_lost=True)
            for i, name in enumerate(self.operators.slices)
        }
        return replace(new, places=places)

    def with_hosts(self, count: int) -> Configuration:
        """So many more hosts."""
        names = tuple(f"host{self.started + i + 1}" for i in range(count))
        return self.changed(hosts=self.hosts + names, started=self.started + count)

    def requested(self, request: MigrationRequest) -> Configuration:
        """With what the enforcer asked for. What names a slice or a host that is gone is left out."""
        new = self.with_hosts(request.new_hosts)
        added = new.hosts[len(self.hosts) :]
        moves = [
            SliceMove(move.slice, added[move.to] if isinstance(move.to, int) else move.to)
            for move in request.moves
        ]
        kept = tuple(move for move in moves if move.to in new.hosts and move.slice in new.places)
        leaving = tuple(host for host in request.released if host in new.hosts)
        return replace(new, moves=self.moves + kept, leaving=self.leaving + leaving)

    def without(self, dead: str) -> Configuration:
        """A host has died: its slices begin elsewhere with what was kept, and moves to it are undone."""
        hosts = tuple(host for host in self.hosts if host != dead)
        new = replace(self, hosts=hosts, leaving=tuple(host for host in self.leaving if host != dead))
        if not hosts:
            new = new.with_hosts(1)
        places = dict(new.places)
        for name, place in self.places.items():
            if dead in (place.host, place.to):
                staying = place.to if place.host == dead else place.host
                host = staying if staying in new.hosts else new.emptiest(places)
                places[name] = SlicePlace(host, place.epoch + 2, is_lost=True)
        moves = tuple(move for move in new.moves if move.to != dead)
        released = (*new.released, dead)
        return replace(new, places=places, moves=moves, released=released, version=self.version + 1)

    def emptiest(self, places: Mapping[str, SlicePlace]) -> str:
        """The host with the fewest slices that is not leaving, if there is one."""
        count = Counter(place.host for place in places.values())
        staying = [host for host in self.hosts if host not in self.leaving]
        return min(staying or self.hosts, key=lambda host: count[host])

    def emptied(self) -> tuple[str, ...]:
        """The leaving hosts that nothing needs any more."""
        used = {place.host for place in self.places.values()}
        used |= {place.to for place in self.places.values() if place.to}
        used |= {str(move.to) for move in self.moves}
        return tuple(host for host in self.leaving if host not in used)
