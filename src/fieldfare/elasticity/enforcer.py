"""The elasticity enforcer (Barazzutti et al. 2014, section V): when to add and to release hosts, and what
moves.

    a new probe of every slice
      ├─ global rule: the hosts' mean CPU over 30 s is outside 30 to 70 %   ──▶ scale out, scale in
      └─ else local rule: a host's mean CPU over 30 s is outside 20 to 80 % ──▶ its slices move

A load is the mean of each slice's probes over the window, summed where the slices are now: so what was moved
counts at its new place at once. Nothing is decided while moves are under way, nor within the grace after.

Where the text is open or contradicts itself:

* Scaling out, a host's capacity is the target, as Figure 5 has it; but where slices are coarse (two of 26
%) and
  would leave hosts half used, it grows up to the local rule's bound, so that there come to be no more than
  ceil(load / target) hosts.
* Scaling in, it is that bound: by the target nothing would fit anywhere, with all hosts near it. There come
to be
  max(1, floor(load / target)) hosts, "for an average of 50 % or more"; but not so few that they would have
  more than the global rule's upper bound (0.9 of load: one host by the one, two by the other).
* The local rule gives an overloaded host's slices to hosts up to the target, then up to what the global rule
  allows, and only then adds one (the text says both that it moves slices among the hosts there are, and
  that its second step adds some). An underloaded host is emptied if all its slices fit up to the target
  elsewhere, and released; else it stays.
* How much leaves an overloaded host goes by the last seconds where they have more: 30 s dilute a jump.
* A host that is to be released and whose slices fit nowhere stays, and with it the others that were to
follow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, floor, inf

from fieldfare.effects import Effect, Send, source
from fieldfare.elasticity.messages import ClusterProbes, MigrationRequest, SliceMove
from fieldfare.elasticity.rules import SliceLoad, first_fit, least_state

ANY_NUMBER = 1_000_000
CAPACITY_STEP = 0.02
RECENT_S = 5.0
"""By how much of the window's end a jump is sized."""


@dataclass(slots=True)
class ClusterLoad:
    """The loads that a decision is made by."""

    slices: dict[str, SliceLoad]
    hosts: tuple[str, ...]

    def on(self, host: str) -> list[SliceLoad]:
        """A host's slices."""
        return [each for each in self.slices.values() if each.host == host]

    def of(self, host: str) -> float:
        """A host's CPU."""
        return sum(each.cpu for each in self.on(host))

    @property
    def total(self) -> float:
        """All hosts' CPU."""
        return sum(each.cpu for each in self.slices.values())

    @property
    def mean(self) -> float:
        return self.total / len(self.hosts)

    def without(self, moving: Iterable[SliceLoad], hosts: Iterable[str]) -> dict[str, float]:
        """These hosts' CPU once the slices have left."""
        names = {each.name for each in moving}
        return {host: sum(each.cpu for each in self.on(host) if each.name not in names) for host in hosts}


@dataclass(frozen=True, slots=True)
class ElasticityPolicy:
    """The policy, in shares of a host's CPU and seconds.

    Parameters
    ----------
    mean_low, mean_high
        The global rule. Further apart: fewer changes, and hosts that are less evenly used.
    host_low, host_high
        The local rule.
    target
        What a host shall have after a change. Higher: fewer hosts; lower: more room for what comes.
    window_s
        What a mean is of. Longer: later, and less disturbed by moments.
    grace_s
        From the end of one request's moves to the next request.
    calm_s
        From a request that adds hosts to one that releases some. Longer: fewer moves there and back.
    kept_mean
        What those that are left may have at most after a release. Higher: fewer hosts, and some of them
        back soon.
    move_bytes
        How much more state a move is worth avoiding. With none the slices with least state go, however many
        they are, as in the paper; with some, fewer and larger ones.
    hosts_max
        Never more hosts than these.
    hosts_min
        Never fewer, whatever the load.
    releases_per_hour
        Hosts are released at no more times than this in an hour. More: fewer hosts that have little to do;
        fewer: less coming and going. Adding hosts is for the load to say.
    scarce_s
        Where hosts were asked for and did not all come, none is asked for so long: loads are spread over what
        there is. Longer: fewer moves wait for hosts that never come; shorter: a cluster that has grown is
        used sooner.
    """

    mean_low: float = 0.3
    mean_high: float = 0.7
    host_low: float = 0.2
    host_high: float = 0.8
    target: float = 0.5
    window_s: float = 30.0
    grace_s: float = 30.0
    calm_s: float = 30.0
    kept_mean: float = 0.7
    move_bytes: int = 0
    hosts_max: int = ANY_NUMBER
    hosts_min: int = 1
    releases_per_hour: int = ANY_NUMBER
    scarce_s: float = 900.0

    def added(self, load: ClusterLoad) -> int:
        """How many hosts a load needs more than there are, by the target."""
        wanted = min(self.hosts_max, max(self.hosts_min, ceil(load.total / self.target)))
        return max(0, wanted - len(load.hosts))


def request(
    moving: Sequence[SliceLoad],
    places: Mapping[str, str | int],
    released: Sequence[str],
    reason: str,
) -> MigrationRequest:
    """What to ask the manager for; the slices with the least state first, which relieves soonest."""
    order = sorted(moving, key=lambda each: (each.memory_bytes, each.name))
    moves = tuple(SliceMove(each.name, places[each.name]) for each in order)
    added = len({place for place in places.values() if isinstance(place, int)})
    return MigrationRequest(moves, added, tuple(released), reason)


def loosest_fit(
    moving: Sequence[SliceLoad],
    room: Mapping[str, float],
    policy: ElasticityPolicy,
    most: float,
    new_hosts: int,
) -> dict[str, str | int] | None:
    """First fit with the target for capacity, or as much more as it takes, up to the most."""
    steps = round((most - policy.target) / CAPACITY_STEP)
    fits = (
        first_fit(moving, room, policy.target + step * CAPACITY_STEP, new_hosts) for step in range(steps + 1)
    )
    return next((places for places in fits if places is not None), None)


def scale_out(load: ClusterLoad, policy: ElasticityPolicy) -> MigrationRequest | None:
    """The global rule's upper bound: from each host above the target, as much as it has above it."""
    moving = [
        each
        for host in load.hosts
        for each in least_state(load.on(host), load.of(host) - policy.target, policy.move_bytes)
        if len(load.on(host)) > 1
    ]
    room = load.without(moving, load.hosts)
    places = loosest_fit(moving, room, policy, policy.host_high, policy.added(load))
    if not moving or places is None:
        return None
    return request(moving, places, (), f"global: mean CPU {load.mean:.0%} of {len(load.hosts)} hosts")


def scale_in(load: ClusterLoad, policy: ElasticityPolicy) -> MigrationRequest | None:
    """The global rule's lower bound: release the least loaded, one by one, until few enough are left."""
    fewest = max(policy.hosts_min, floor(load.total / policy.target), ceil(load.total / policy.kept_mean))
    wanted = min(fewest, policy.hosts_max)
    at = {name: each.host for name, each in load.slices.items()}
    left = ClusterLoad(dict(load.slices), load.hosts)
    released: list[str] = []
    while len(left.hosts) > wanted:
        host = min(left.hosts, key=left.of)
        staying = tuple(each for each in left.hosts if each != host)
        moving = left.on(host)
        places = first_fit(moving, {each: left.of(each) for each in staying}, policy.host_high, 0)
        if places is None:
            break
        for each in moving:
            left.slices[each.name] = SliceLoad(each.name, str(places[each.name]), each.cpu, each.memory_bytes)
        left.hosts = staying
        released.append(host)
    if not released:
        return None
    moved = {name: each.host for name, each in left.slices.items() if each.host != at[name]}
    slices = [load.slices[name] for name in moved]
    reason = f"global: mean CPU {load.mean:.0%} of {len(load.hosts)} hosts"
    return request(slices, moved, released, reason)


def relieve(load: ClusterLoad, policy: ElasticityPolicy, host: str) -> MigrationRequest | None:
    """The local rule's upper bound."""
    if len(load.on(host)) < 2:
        return None
    moving = least_state(load.on(host), load.of(host) - policy.target, policy.move_bytes)
    others = load.without(moving, (each for each in load.hosts if each != host))
    places = loosest_fit(moving, others, policy, policy.mean_high, policy.added(load))
    if places is None and len(load.hosts) < policy.hosts_max:
        more = min(len(moving), policy.hosts_max - len(load.hosts))
        places = first_fit(moving, others, policy.target, more)
    if places is None:
        return None
    return request(moving, places, (), f"local: {host} has CPU {load.of(host):.0%}")


def empty(load: ClusterLoad, policy: ElasticityPolicy, host: str) -> MigrationRequest | None:
    """The local rule's lower bound."""
    moving = load.on(host)
    others = {each: load.of(each) for each in load.hosts if each != host}
    if len(others) < policy.hosts_min:
        return None
    places = first_fit(moving, others, policy.target, 0)
    if places is None or not others:
        return None
    return request(moving, places, (host,), f"local: {host} has CPU {load.of(host):.0%}")


def fill(load: ClusterLoad, policy: ElasticityPolicy) -> MigrationRequest:
    """The floor: hosts for a load that is expected, so they get slices by their number, not by their load."""
    added = policy.hosts_min - len(load.hosts)
    each_gets = len(load.slices) // policy.hosts_min
    slices = {host: sorted(load.on(host), key=lambda each: each.name) for host in load.hosts}
    places: dict[str, str | int] = {}
    moving = []
    for number in [place for place in range(added) for _ in range(each_gets)]:
        fullest = max(load.hosts, key=lambda host: len(slices[host]))
        moving.append(slices[fullest].pop())
        places[moving[-1].name] = number
    asked = request(moving, places, (), f"floor: {len(load.hosts)} hosts of at least {policy.hosts_min}")
    return replace(asked, new_hosts=added)


def decide(
    load: ClusterLoad, policy: ElasticityPolicy, recent: ClusterLoad | None = None, *, is_calm: bool = True
) -> MigrationRequest | None:
    """What the rules ask for; the global one goes first, and local ones only count where it is kept.

    `recent` is the load of the window's last part; nothing is released unless it `is_calm`.
    """
    more = recent if recent is not None and recent.total > load.total else load
    by_load = sorted(load.hosts, key=load.of)
    if len(load.hosts) < policy.hosts_min:
        return fill(load, policy)
    if len(load.hosts) > policy.hosts_max and is_calm:
        fewer = scale_in(load, policy)
        if fewer is not None:
            return replace(fewer, reason=f"ceiling: {len(load.hosts)} hosts of at most {policy.hosts_max}")
    if load.mean > policy.mean_high:
        return scale_out(more, policy)
    if load.mean < policy.mean_low and len(load.hosts) > 1:
        return scale_in(load, policy) if is_calm else None
    if load.of(by_load[-1]) > policy.host_high:
        return relieve(more, policy, by_load[-1])
    if load.of(by_load[0]) < policy.host_low and is_calm:
        return empty(load, policy, by_load[0])
    return None


@dataclass(slots=True)
class LoadWindow:
    """Every slice's probes of the last seconds."""

    length_s: float
    _probes: deque[tuple[float, ClusterProbes]] = field(default_factory=deque)

    def add(self, probes: ClusterProbes, now: float) -> None:
        """Take in new probes and forget what is older than the window."""
        self._probes.append((now, probes))
        while self._probes[0][0] < now - self.length_s:
            self._probes.popleft()

    def is_full(self, now: float) -> bool:
        """Whether it has seen about its length; a tenth may be missing, as probes come when they come."""
        return now - self._probes[0][0] >= 0.9 * self.length_s

    def load(self, length_s: float) -> ClusterLoad:
        """The mean of each slice over so much of the window, where it is now."""
        now, last = self._probes[-1]
        inside = [probes for at, probes in self._probes if at >= now - length_s]
        slices = {}
        for name, host in last.places.items():
            cpu = sum(probes.slices[name].cpu for probes in inside) / len(inside)
            slices[name] = SliceLoad(name, host, cpu, last.slices[name].memory_bytes)
        return ClusterLoad(slices, last.hosts)


class Enforcer:
    """Asks the manager for moves, by the policy. `requests` has what it asked for, and when."""

    def __init__(self, policy: ElasticityPolicy | None = None, manager: str = "manager") -> None:
        self.policy = policy or ElasticityPolicy()
        self.requests: list[tuple[float, MigrationRequest]] = []
        self._manager = manager
        self._window = LoadWindow(self.policy.window_s)
        self._settled_s: float | None = None
        self._added_s = -inf
        self._released_s: deque[float] = deque(maxlen=1000)
        self._awaited: tuple[frozenset[str], int] | None = None
        """The hosts that there were when others were asked for, and how many were."""
        self._scarce_s = -inf

    def start(self, now: float) -> list[Effect]:
        return []

    def handle(self, message: object, now: float) -> list[Effect]:
        """Take in new probes of all slices."""
        _, probes = source("enforcer", message)
        if not isinstance(probes, ClusterProbes):
            return []
        self._window.add(probes, now)
        self.note(probes, now)
        if not probes.is_settled:
            self._settled_s = None
            return []
        if self._settled_s is None:
            self._settled_s = now if self.requests else now - self.policy.grace_s
        if now - self._settled_s < self.policy.grace_s or not self._window.is_full(now):
            return []
        load, recent = (self._window.load(length_s) for length_s in (self.policy.window_s, RECENT_S))
        self._count_who_came(load, now)
        asked = self.decide(load, recent, now)
        if asked is None:
            return []
        if asked.new_hosts:
            self._added_s = now
            self._awaited = frozenset(load.hosts), asked.new_hosts
        if asked.released:
            self._released_s.append(now)
        self.requests.append((now, asked))
        self._settled_s = now
        return [Send(self._manager, asked)]

    def note(self, probes: ClusterProbes, now: float) -> None:
        """Take note of new probes; the paper's rules need no more than the window."""

    def decide(self, load: ClusterLoad, recent: ClusterLoad, now: float) -> MigrationRequest | None:
        """What to ask for by the load of the window and of its last part."""
        return decide(load, self.policy_for(load, now), recent, is_calm=self.is_calm(now))

    def _count_who_came(self, load: ClusterLoad, now: float) -> None:
        if self._awaited is not None:
            before, count = self._awaited
            self._awaited = None
            if len(set(load.hosts) - before) < count:
                self._scarce_s = now

    def policy_for(self, load: ClusterLoad, now: float) -> ElasticityPolicy:
        """The policy; while hosts are scarce, without any that there are not."""
        if now - self._scarce_s >= self.policy.scarce_s:
            return self.policy
        there = len(load.hosts)
        policy = self.policy
        return replace(policy, hosts_min=min(policy.hosts_min, there), hosts_max=min(policy.hosts_max, there))

    def is_calm(self, now: float) -> bool:
        """Whether a host may be released: none was added just now, nor were there too many releases."""
        lately = sum(now - at < 3600 for at in self._released_s)
        return now - self._added_s >= self.policy.calm_s and lately < self.policy.releases_per_hour
