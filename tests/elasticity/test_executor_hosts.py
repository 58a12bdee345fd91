"""Executors as hosts of the manager: they come and are lost, and the manager dies, at any step of a move.

A small engine stands in for Spark here, on hand-moved time; the real one is in ``tests/runtimes``.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.effects import Ask, AskFailed, Effect, Machine, Received, Send, Tell, Timer
from fieldfare.elasticity import Configuration, Enforcer, Manager, ManagerSettings, Operators
from fieldfare.elasticity.enforcer import RECENT_S, ElasticityPolicy, LoadWindow
from fieldfare.elasticity.executor_hosts import (
    DecommissionExecutor,
    ExecutorHosts,
    ExecutorsSeen,
    HostsWanted,
    MapSlices,
    RequestExecutors,
    SlicesMapped,
    SlicesPlaced,
    ToHost,
    Worked,
)
from fieldfare.elasticity.manager import (
    ConfigurationKept,
    ConfigurationRead,
    KeepConfiguration,
    ReadConfiguration,
)
from fieldfare.elasticity.messages import (
    ClusterProbes,
    HostReleased,
    MigrationRequest,
    Pulse,
    ReleaseHost,
    SliceMove,
)

OPERATORS = Operators(0, {"M": 6}, 0)
STEP_S = 0.25
START_S, MAP_S = 4.0, 0.5


class Engine:
    """Executors that come when they are asked for, as long as there is room; and what the machines want."""

    def __init__(self, hosts: int = 2, room: int = 4, policy: ElasticityPolicy | None = None) -> None:
        self.now = 0.0
        self.kept: Configuration | None = None
        self.room, self.wanted, self.started = room, room, count()
        self.executors: dict[str, int] = {}
        self.placed: dict[str, str] = {}
        self.mapped: dict[str, set[str]] = {}
        self.cpu_per_s = 0.0
        self.processors = inf
        self.policy, self.hosts = policy, hosts
        self.asked: list[MigrationRequest] = []
        self.history: list[dict[str, str]] = []
        self._ticks = count()
        self.begin()

    def begin(self) -> None:
        """A driver: it knows what was kept, and has no executor yet."""
        self.executors, self.mapped, self.placed, self._waiting = {}, {}, {}, []
        self.wanted = self.room  # a cluster gives all that it has, until it is told how much is enough
        first = Configuration(OPERATORS, {}).begun(self.hosts)
        self.machines: dict[str, Machine] = {
            "manager": Manager(first, ManagerSettings(dead_after_s=10.0, start_s=30.0)),
            "hosts": ExecutorHosts(OPERATORS.slices),
        }
        if self.policy is not None:
            self.machines["enforcer"] = Enforcer(self.policy)
        for name, machine in self.machines.items():
            self._carry_out(name, machine.start(self.now))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += STEP_S
            coming = sum(what == "come" for _, _, what, _ in self._waiting)
            for _ in range(min(self.room, self.wanted) - len(self.executors) - coming):
                heappush(self._waiting, (self.now + START_S, next(self._ticks), "come", None))
            share = self.cpu_per_s * STEP_S / len(OPERATORS.slices)
            self._dispatch("hosts", Worked(dict.fromkeys(OPERATORS.slices, share), {}, {}))
            while self._waiting and self._waiting[0][0] <= self.now:
                _, _, what, message = heappop(self._waiting)
                if what == "come":
                    self.executors[str(next(self.started))] = 1
                    self._seen()
                else:
                    self._dispatch(what, message)

    def lose(self, executor: str) -> None:
        del self.executors[executor]
        self.mapped.pop(executor, None)
        self._seen()

    def move(self, slice_: str, host: str) -> None:
        self.ask(MigrationRequest((SliceMove(slice_, host),), 0, (), ""))

    def release(self, host: str, to: str) -> None:
        """Empty a host into another one, and give it back."""
        assert self.kept is not None
        moves = [SliceMove(name, to) for name, place in self.kept.places.items() if place.host == host]
        self.ask(MigrationRequest(tuple(moves), 0, (host,), ""))

    def ask(self, request: MigrationRequest) -> None:
        self._dispatch("manager", Received("enforcer", request))

    def _seen(self) -> None:
        self._dispatch("hosts", ExecutorsSeen(dict(self.executors)))

    def _dispatch(self, name: str, message: object) -> None:
        self._carry_out(name, self.machines[name].handle(message, self.now))

    def _later(self, after_s: float, name: str, message: object) -> None:
        heappush(self._waiting, (self.now + after_s, next(self._ticks), name, message))

    def _carry_out(self, name: str, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Timer():
                    heappush(self._waiting, (effect.at_s, next(self._ticks), name, effect.message))
                case Send(to="enforcer") if "enforcer" not in self.machines:
                    pass
                case Send() if effect.to in self.machines:
                    if isinstance(effect.message, MigrationRequest):
                        self.asked.append(effect.message)
                    said = effect.message
                    self._later(0.0, effect.to, said if isinstance(said, Received) else Received(name, said))
                case Send():
                    self._later(0.0, "hosts", ToHost(effect.to, effect.message))
                case Tell(news=SlicesPlaced(executors)):
                    # A place that takes effect is mapped before.
                    for each, executor in executors.items():
                        assert each in self.mapped[executor]
                    self.placed = dict(executors)
                    self.history.append(self.placed)
                case Ask():
                    self._do(effect.question)

    def _do(self, question: object) -> None:
        match question:
            case ReadConfiguration():
                if self.kept is not None:
                    self._later(0.0, "hosts", HostsWanted(self.kept.hosts))
                self._later(0.0, "manager", ConfigurationRead(self.kept))
            case KeepConfiguration(configuration):
                assert self.kept is None or configuration.version >= self.kept.version
                configuration.check()
                self.kept = configuration
                self._later(0.0, "hosts", HostsWanted(configuration.hosts))
                self._later(0.0, "manager", ConfigurationKept(configuration.version))
            case ReleaseHost(host):
                self._later(0.0, "manager", HostReleased(host))
            case RequestExecutors(wanted):
                self.wanted = wanted
            case DecommissionExecutor(executor):
                self.executors.pop(executor, None)
                self._later(0.0, "hosts", ExecutorsSeen(dict(self.executors)))
            case MapSlices(executor, slices):
                is_there = executor in self.executors
                if is_there:
                    self.mapped.setdefault(executor, set()).update(slices)
                self._later(MAP_S, "hosts", SlicesMapped(executor, slices, is_there, self.processors))

    def check_settled(self) -> None:
        """Every slice is at its host, by the configuration and by the executors; nothing is under way."""
        assert self.kept is not None
        hosts = self.machines["hosts"]
        assert isinstance(hosts, ExecutorHosts)
        assert not self.kept.moves
        assert not self.kept.moving
        assert not self.kept.leaving
        assert not self.kept.released
        assert hosts.placed == {name: place.host for name, place in self.kept.places.items()}
        assert not any(place.is_lost for place in self.kept.places.values())
        bodies = hosts.bodies
        assert self.placed == {name: bodies[place.host][0] for name, place in self.kept.places.items()}
        assert sorted(self.executors) == sorted(executor for executor, _, _ in bodies.values())


def test_it_starts_with_one_executor_per_host_and_releases_the_others() -> None:
    engine = Engine(hosts=2)
    engine.run(30)
    engine.check_settled()
    assert len(engine.executors) == 2


def test_what_could_not_be_done_is_requested_again() -> None:
    """Slices of an executor that could not be told to map them were never mapped."""
    hosts = ExecutorHosts(OPERATORS.slices)
    hosts.start(0.0)
    hosts.handle(HostsWanted(("host1",)), 0.0)
    asked = [effect.question for effect in hosts.handle(ExecutorsSeen({"0": 1, "1": 1}), 0.0)]
    assert asked == [MapSlices("0", ()), DecommissionExecutor("1")]
    for question in (*asked, RequestExecutors(1)):
        assert hosts.handle(AskFailed(question, OSError("no answer")), 1.0) == []
    again = [effect.question for effect in hosts.handle(ExecutorsSeen({"0": 1, "1": 1}), 1.0)]
    assert again == [RequestExecutors(1), DecommissionExecutor("1")]
    assert Ask(MapSlices("0", ())) in hosts.handle(Pulse(), 2.0)


def test_a_configuration_that_cannot_be_read_is_requested_again() -> None:
    """Without it the manager does nothing: not even a pulse."""
    manager = Manager(Configuration(OPERATORS, {}).begun(1))
    (first,) = manager.start(0.0)
    assert first == Ask(ReadConfiguration())
    (timer,) = manager.handle(AskFailed(first.question, OSError("no disk")), 0.0)
    assert isinstance(timer, Timer)
    assert manager.handle(timer.message, timer.at_s) == [first]
    *_, keep = manager.handle(ConfigurationRead(None), timer.at_s)
    assert isinstance(keep.question, KeepConfiguration)
    assert manager.handle(AskFailed(keep.question, OSError("no space")), 3.0) == []
    effects = manager.handle(Pulse(), 10.0)
    assert keep in effects, "it is stored at a later pulse"


def test_a_slice_moves_to_where_it_is_mapped_and_nowhere_in_between() -> None:
    engine = Engine()
    engine.run(30)
    engine.history.clear()
    before = engine.placed["M:1"]
    engine.move("M:1", "host2")
    engine.run(5)
    engine.check_settled()
    places = [each.get("M:1") for each in engine.history]
    assert places == [engine.placed["M:1"]]
    assert engine.placed["M:1"] != before


@settings(max_examples=drawn(150))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["move", "move", "release", "driver", "executor"]),
            st.sampled_from(OPERATORS.slices),
            st.integers(0, 3),
            st.floats(0.0, 6.0),
        ),
        max_size=8,
    )
)
def test_moves_are_completed_or_undone_after_any_kill(script: list[tuple[str, str, int, float]]) -> None:
    """Drivers and executors die with any step of a move under way: in the end all slices have one place."""
    engine = Engine(hosts=3)
    engine.run(30)
    for action, name, number, pause_s in script:
        assert engine.kept is not None
        if action == "move":
            engine.move(name, engine.kept.hosts[number % len(engine.kept.hosts)])
        elif action == "release":
            engine.release(engine.kept.places[name].host, engine.kept.hosts[number % len(engine.kept.hosts)])
        elif action == "driver":
            engine.begin()
        elif engine.executors:
            engine.lose(sorted(engine.executors)[number % len(engine.executors)])
        engine.run(pause_s)
    engine.run(120)
    engine.check_settled()


def test_a_host_whose_slices_can_go_nowhere_is_no_longer_leaving() -> None:
    """The host that should receive its slices died, and its pending release blocked all further decisions."""
    engine = Engine(hosts=3)
    engine.run(30)
    engine.release("host3", to="host2")
    engine.room = 2
    engine.lose(engine.placed["M:2"])
    engine.run(90)
    assert engine.kept is not None
    assert engine.kept.hosts == ("host1", "host3")
    engine.check_settled()


def test_a_slice_that_is_sent_to_a_host_that_leaves_keeps_it() -> None:
    engine = Engine(hosts=2)
    engine.run(30)
    engine.release("host2", to="host2")
    engine.run(30)
    engine.check_settled()
    assert engine.kept is not None and engine.kept.hosts == ("host1", "host2")


@pytest.mark.parametrize("who", ["driver", "giver", "taker"])
@pytest.mark.parametrize("after_s", [0.0, STEP_S, 2 * STEP_S, 3 * STEP_S, 4 * STEP_S])
def test_each_step_of_a_move_may_be_the_last(who: str, after_s: float) -> None:
    engine = Engine()
    engine.run(30)
    giver, taker = engine.placed["M:1"], engine.placed["M:2"]
    engine.move("M:1", "host2")
    engine.run(after_s)
    if who == "driver":
        engine.begin()
    else:
        engine.lose(giver if who == "giver" else taker)
    engine.run(90)
    engine.check_settled()
    assert set(engine.placed) == set(OPERATORS.slices)


def test_hosts_come_with_the_load_and_go_a_few_times_an_hour() -> None:
    """Half a core asks for one host, three for all; what is left goes by and by."""
    policy = ElasticityPolicy(calm_s=60.0, releases_per_hour=1, hosts_max=4)
    engine = Engine(hosts=1, policy=policy)
    engine.cpu_per_s = 0.4
    engine.run(120)
    assert len(engine.executors) == 1
    engine.cpu_per_s = 1.9
    engine.run(300)
    engine.check_settled()
    assert len(engine.executors) == 4
    assert set(engine.placed.values()) == set(engine.executors)
    engine.cpu_per_s = 0.9
    engine.run(300)
    few = len(engine.executors)
    assert few < 4
    engine.cpu_per_s = 0.1
    engine.run(600)
    assert len(engine.executors) == few
    engine.run(3600)
    assert len(engine.executors) == 1
    engine.check_settled()


def test_an_executor_that_may_use_half_a_processor_is_full_with_half_a_core_of_work() -> None:
    """Its control group, or container, gives it no more: at 0.4 of a core it looked half idle, and was left
    alone with what it could hardly do.
    """
    engine = Engine(hosts=1, policy=ElasticityPolicy())
    engine.processors = 0.5
    engine.cpu_per_s = 0.4
    engine.run(300)
    engine.check_settled()
    assert len(engine.executors) == 2
    hosts = engine.machines["hosts"]
    assert isinstance(hosts, ExecutorHosts)
    assert sum(each.cpu for each in hosts.probes.values()) == pytest.approx(0.8)


def test_unavailable_hosts_are_not_waited_for_continually() -> None:
    """A floor above what there is: each try held up all moves until its hosts were given up, and was made
    again at once, so a host with four of six slices was never relieved.
    """
    engine = Engine(hosts=1, room=3, policy=ElasticityPolicy(hosts_min=6))
    engine.cpu_per_s = 1.5
    engine.run(600)
    at = list(engine.placed.values())
    assert sorted(at.count(executor) for executor in engine.executors) == [2, 2, 2]
    engine.check_settled()
    assert sum(each.new_hosts > 0 for each in engine.asked) == 1
    engine.room = 6
    engine.run(1200)
    engine.check_settled()
    assert len(set(engine.placed.values())) == 6, "and it is tried again"


def test_floors_and_ceilings_are_kept_without_any_load() -> None:
    engine = Engine(hosts=1, policy=ElasticityPolicy())
    engine.run(60)
    enforcer = engine.machines["enforcer"]
    assert isinstance(enforcer, Enforcer)
    enforcer.policy = ElasticityPolicy(hosts_min=3)
    engine.run(300)
    engine.check_settled()
    assert len(set(engine.placed.values())) == 3
    assert [each.reason for each in engine.asked] == ["floor: 1 hosts of at least 3"]
    enforcer.policy = ElasticityPolicy(hosts_min=2, hosts_max=2)
    engine.run(300)
    engine.check_settled()
    assert len(set(engine.placed.values())) == 2
    assert engine.asked[-1].reason == "ceiling: 3 hosts of at most 2"


@pytest.mark.parametrize("batch_s", [0.25, 1.0, 4.0, 12.0])
def test_a_jump_is_sized_by_the_load_however_long_batches_are(batch_s: float) -> None:
    """The work of a batch of twelve seconds was counted in one heartbeat, which doubled the jump's size."""
    hosts, window = ExecutorHosts(OPERATORS.slices), LoadWindow(30.0)
    now, cpu = 0.0, 0.1
    hosts.start(now)
    ended_s = 0.0
    loads = []
    for step in range(1, round(120 / STEP_S) + 1):
        now = step * STEP_S
        if now >= ended_s + batch_s:
            share = dict.fromkeys(OPERATORS.slices, cpu * (now - ended_s))
            hosts.handle(Worked(share, {}, {}, now - ended_s), now)
            ended_s = now
        if now == round(now):
            hosts.handle(Pulse(), now)
            places = dict.fromkeys(OPERATORS.slices, "host1")
            window.add(ClusterProbes(dict(hosts.probes), places, ("host1",), True), now)
            if now > 60:
                loads += [window.load(length_s).total for length_s in (RECENT_S, 30.0)]
    assert loads == pytest.approx([6 * cpu] * len(loads))
