"""The elasticity enforcer (Barazzutti et al. 2014, section V): when to change hosts, and which slices move.

    a new probe of every slice
      ├─ global rule: the hosts' mean CPU over 30 s is outside 30 to 70 %   ──▶ scale out, scale in
      └─ else local rule: a host's mean CPU over 30 s is outside 20 to 80 % ──▶ its slices move

A load is the mean of each slice's probes over the window, summed by the slices' present hosts: a moved slice
counts at its new host immediately. Nothing is decided while moves are pending, nor during the grace period
after them.

Where the text is open or contradicts itself:

* Scaling out, a host's capacity is the target, as in Figure 5. But if slices are coarse (two of 26 %) and
  would leave hosts half used, the capacity grows up to the local rule's bound, so that there are at most
  ceil(load / target) hosts.
* Scaling in, the capacity is that bound: with the target nothing would fit anywhere if all hosts are near it.
  There remain max(1, floor(load / target)) hosts, "for an average of 50 % or more"; but enough that they do
  not exceed the global rule's upper bound (at a load of 0.9: one host by the first, two by the second).
* The local rule moves an overloaded host's slices to hosts up to the target, then up to the global rule's
  bound, and only then adds a host (the text says both that it moves slices among the existing hosts, and that
  its second step adds some). An underloaded host is emptied and released if all its slices fit elsewhere up
  to the target; else it stays.
* The amount that leaves an overloaded host is determined by the last seconds if their load is higher: a mean
  of 30 s understates a jump.
* A host that is to be released and whose slices fit nowhere stays, and so do the hosts that were to follow
  it.
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
"""Length, in seconds, of the window's end by which the size of a jump is determined."""


@dataclass(slots=True)
class ClusterLoad:
    """The loads on which a decision is based."""

    slices: dict[str, SliceLoad]
    hosts: tuple[str, ...]

    def on(self, host: str) -> list[SliceLoad]:
        """Return a host's slices."""
        return [each for each in self.slices.values() if each.host == host]

    def of(self, host: str) -> float:
        """Return a host's CPU."""
        return sum(each.cpu for each in self.on(host))

    @property
    def total(self) -> float:
        """CPU of all hosts together."""
        return sum(each.cpu for each in self.slices.values())

    @property
    def mean(self) -> float:
        return self.total / len(self.hosts)

    def without(self, moving: Iterable[SliceLoad], hosts: Iterable[str]) -> dict[str, float]:
        """Return the CPU of these hosts after the slices in `moving` have left."""
        names = {each.name for each in moving}
        return {host: sum(each.cpu for each in self.on(host) if each.name not in names) for host in hosts}


@dataclass(frozen=True, slots=True)
class ElasticityPolicy:
    """The policy, in shares of a host's CPU and in seconds.

    Parameters
    ----------
    mean_low, mean_high
        Bounds of the global rule. Further apart: fewer changes, and less evenly used hosts.
    host_low, host_high
        Bounds of the local rule.
    target
        CPU of a host after a change. Higher: fewer hosts; lower: more room for additional load.
    window_s
        Length of the window for means. Longer: later decisions, less disturbed by short peaks.
    grace_s
        Time from the end of one request's moves to the next request.
    calm_s
        Time from a request that adds hosts to one that releases some. Longer: fewer moves back and forth.
    kept_mean
        Maximum mean CPU of the remaining hosts after a release. Higher: fewer hosts, and some of them soon
        added again.
    move_bytes
        Additional state that avoiding one move is worth. With 0 the slices with the least state move, however
        many they are, as in the paper; with more, fewer and larger ones.
    hosts_max
        Maximum number of hosts.
    hosts_min
        Minimum number of hosts, whatever the load.
    releases_per_hour
        Maximum number of releases per hour. Higher: fewer idle hosts; lower: fewer changes. Adding hosts is
        not limited.
    scarce_s
        Time during which no host is requested after some requested hosts did not come; loads are balanced
        over the existing ones. Longer: fewer moves wait for hosts that never come; shorter: a cluster that
        has grown is used sooner.
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
        """Return the number of hosts to add for a load, by the target."""
        wanted = min(self.hosts_max, max(self.hosts_min, ceil(load.total / self.target)))
        return max(0, wanted - len(load.hosts))


def request(
    moving: Sequence[SliceLoad],
    places: Mapping[str, str | int],
    released: Sequence[str],
    reason: str,
) -> MigrationRequest:
    """Return a request to the manager; slices with the least state move first, which relieves soonest."""
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
    """Fit slices first-fit with the target as capacity, raised in steps up to `most`; None if none fits."""
    steps = round((most - policy.target) / CAPACITY_STEP)
    fits = (
        first_fit(moving, room, policy.target + step * CAPACITY_STEP, new_hosts) for step in range(steps + 1)
    )
    return next((places for places in fits if places is not None), None)


def scale_out(load: ClusterLoad, policy: ElasticityPolicy) -> MigrationRequest | None:
    """Apply the global rule's upper bound: move from each host above the target the excess."""
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
    """Apply the global rule's lower bound: release the least loaded hosts, one by one."""
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
    """Apply the local rule's upper bound to a host; None if nothing can move."""
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
    """Apply the local rule's lower bound to a host: empty and release it; None if its slices do not fit."""
    moving = load.on(host)
    others = {each: load.of(each) for each in load.hosts if each != host}
    if len(others) < policy.hosts_min:
        return None
    places = first_fit(moving, others, policy.target, 0)
    if places is None or not others:
        return None
    return request(moving, places, (host,), f"local: {host} has CPU {load.of(host):.0%}")


def fill(load: ClusterLoad, policy: ElasticityPolicy) -> MigrationRequest:
    """Add hosts up to `hosts_min`; they get slices by number, because the expected load is not there yet."""
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
    """Return the request that the rules make; local rules apply only while the global one is satisfied.

    `recent` is the load of the window's last part; hosts are released only if `is_calm`.
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
    """Every slice's probes of the last `length_s` seconds."""

    length_s: float
    _probes: deque[tuple[float, ClusterProbes]] = field(default_factory=deque)

    def add(self, probes: ClusterProbes, now: float) -> None:
        """Add new probes and drop those older than the window."""
        self._probes.append((now, probes))
        while self._probes[0][0] < now - self.length_s:
            self._probes.popleft()

    def is_full(self, now: float) -> bool:
        """Return whether the probes cover at least 90 % of the window; they do not arrive at exact times."""
        return now - self._probes[0][0] >= 0.9 * self.length_s

    def load(self, length_s: float) -> ClusterLoad:
        """Return the mean of each slice over the last `length_s` seconds, at its present host."""
        now, last = self._probes[-1]
        inside = [probes for at, probes in self._probes if at >= now - length_s]
        slices = {}
        for name, host in last.places.items():
            cpu = sum(probes.slices[name].cpu for probes in inside) / len(inside)
            slices[name] = SliceLoad(name, host, cpu, last.slices[name].memory_bytes)
        return ClusterLoad(slices, last.hosts)


class Enforcer:
    """Requests moves from the manager, by the policy; `requests` has its requests with their times."""

    def __init__(self, policy: ElasticityPolicy | None = None, manager: str = "manager") -> None:
        self.policy = policy or ElasticityPolicy()
        self.requests: list[tuple[float, MigrationRequest]] = []
        self._manager = manager
        self._window = LoadWindow(self.policy.window_s)
        self._settled_s: float | None = None
        self._added_s = -inf
        self._released_s: deque[float] = deque(maxlen=1000)
        self._awaited: tuple[frozenset[str], int] | None = None
        """The hosts at the last request for new ones, and the requested number; None if none is awaited.
        """
        self._scarce_s = -inf

    def start(self, now: float) -> list[Effect]:
        return []

    def handle(self, message: object, now: float) -> list[Effect]:
        """Process new probes of all slices."""
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
        self._count_new_hosts(load, now)
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
        """Record new probes; the paper's rules need only the window."""

    def decide(self, load: ClusterLoad, recent: ClusterLoad, now: float) -> MigrationRequest | None:
        """Return the request for the load of the window and of its last part, or None."""
        return decide(load, self.policy_for(load, now), recent, is_calm=self.is_calm(now))

    def _count_new_hosts(self, load: ClusterLoad, now: float) -> None:
        if self._awaited is not None:
            before, count = self._awaited
            self._awaited = None
            if len(set(load.hosts) - before) < count:
                self._scarce_s = now

    def policy_for(self, load: ClusterLoad, now: float) -> ElasticityPolicy:
        """Return the policy; while hosts are scarce, limited to the number of existing hosts."""
        if now - self._scarce_s >= self.policy.scarce_s:
            return self.policy
        there = len(load.hosts)
        policy = self.policy
        return replace(policy, hosts_min=min(policy.hosts_min, there), hosts_max=min(policy.hosts_max, there))

    def is_calm(self, now: float) -> bool:
        """Return whether hosts may be released: none was added recently, and not too many were released."""
        lately = sum(now - at < 3600 for at in self._released_s)
        return now - self._added_s >= self.policy.calm_s and lately < self.policy.releases_per_hour
