"""The manager's durable state (section IV.B): where each slice is, the hosts, and the pending moves.

Every change is a new value with the next version. The wiring that hosts follow is computed from it, so a
restarted manager sends what the previous one sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fieldfare.elasticity.messages import MigrationRequest, SliceMove, Wiring
from fieldfare.elasticity.operators import Operators

HOSTS_EVER = 1_000_000
"""Maximum number of hosts ever started in a valid configuration."""


@dataclass(frozen=True, slots=True)
class SlicePlace:
    """Where a slice is.

    Parameters
    ----------
    host
        The host that runs the slice.
    epoch
        The epoch of the slice at `host`. A copy that is being made has the next one.
    to
        The host where a copy is prepared, which receives the slice's inputs, too.
    is_lost
        No host runs the slice: `host` shall restore it from its stored state.
    """

    host: str
    epoch: int
    to: str | None = None
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything that outlives a manager.

    Parameters
    ----------
    operators
        The slices that may be moved.
    outer
        Slices that are never moved, before and behind the operators, and their hosts.
    places
        Where each slice of the operators is.
    hosts
        The hosts, oldest first.
    started
        Number of hosts ever started, which determines the next one's name.
    moves
        Pending moves in order.
    leaving
        Hosts that are released when no slice is on them or on its way to them; they stay if moves that were
        to empty them were undone.
    released
        Hosts whose release was requested and is not confirmed.
    version
        Number of this configuration; each change has the next one.
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
        """Raise ValueError for a configuration that no manager stored, such as one edited by hand."""
        hosts, places = set(self.hosts), self.places.values()
        ours = (f"host{number + 1}" for number in range(self.started if self.started <= HOSTS_EVER else 0))
        named = {place.host for place in places} | {place.to for place in places if place.to}
        operators = self.operators
        slices = operators.access_points + sum(operators.matchers.values()) + operators.exit_points
        if not hosts or len(hosts) != len(self.hosts) or not hosts.issubset(ours):
            raise ValueError("hosts must be named once each, host1 to the last one started")
        if slices != len(self.places) or set(operators.slices) != self.places.keys():
            raise ValueError("each slice must have exactly one place")
        if not named | set(self.leaving) | {move.to for move in self.moves} <= hosts:
            raise ValueError("slices must be at hosts in the list, and move to such")
        if not {move.slice for move in self.moves} <= self.places.keys():
            raise ValueError("moves must name slices of the operators")
        if sum(place.to is not None for place in places) > 1 or min(place.epoch for place in places) < 0:
            raise ValueError("at most one slice may be moving, and epochs must not be negative")

    def changed(self, **changes: object) -> Configuration:
        """Return the next version, with changes."""
        return replace(self, version=self.version + 1, **changes)  # type: ignore[arg-type]

    def placed(self, name: str, place: SlicePlace, **changes: object) -> Configuration:
        """Return the next version, with a slice at another place."""
        return self.changed(places={**self.places, name: place}, **changes)

    @property
    def moving(self) -> str | None:
        """The slice whose inputs go to two hosts, or None."""
        return next((name for name, place in self.places.items() if place.to), None)

    @property
    def wiring(self) -> Wiring:
        """The hosts that receive each slice's inputs."""
        places = {name: (place.host, place.to) for name, place in self.places.items()}
        hosts = {name: tuple(host for host in pair if host is not None) for name, pair in places.items()}
        return Wiring(self.version, {**hosts, **{name: (host,) for name, host in self.outer.items()}})

    @property
    def everyone(self) -> tuple[str, ...]:
        """All hosts that have slices or feed them."""
        return tuple(dict.fromkeys((*self.hosts, *self.outer.values())))

    def begun(self, hosts: int) -> Configuration:
        """Return the first configuration: all slices assigned to the hosts in turn, none of them running."""
        new = self.with_hosts(hosts)
        places = {
            name: SlicePlace(new.hosts[i % hosts], 1, is_lost=True)
            for i, name in enumerate(self.operators.slices)
        }
        return replace(new, places=places)

    def with_hosts(self, count: int) -> Configuration:
        """Return the next version, with `count` more hosts."""
        names = tuple(f"host{self.started + i + 1}" for i in range(count))
        return self.changed(hosts=self.hosts + names, started=self.started + count)

    def requested(self, request: MigrationRequest) -> Configuration:
        """Return the next version, with the enforcer's request; unknown slices or hosts are left out."""
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
        """Return the next version after a host's death: its slices restart elsewhere, without moves to it."""
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
        """Return the host with the fewest slices, preferring hosts that are not leaving."""
        count = Counter(place.host for place in places.values())
        staying = [host for host in self.hosts if host not in self.leaving]
        return min(staying or self.hosts, key=lambda host: count[host])

    def emptied(self) -> tuple[str, ...]:
        """Return the leaving hosts that are no longer needed."""
        used = {place.host for place in self.places.values()}
        used |= {place.to for place in self.places.values() if place.to}
        used |= {str(move.to) for move in self.moves}
        return tuple(host for host in self.leaving if host not in used)
