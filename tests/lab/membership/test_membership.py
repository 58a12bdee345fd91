"""Join, leave and crash, in any order, on a bad network: no gap, and no subscription lost."""

from __future__ import annotations

from math import ceil, log2
from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from membership_support import PATHS, System
from tests.doses import drawn

from fieldfare.effects import Received, Send
from fieldfare.filters import compile_filter
from fieldfare.partitioning.axis import AXIS_END, AXIS_START
from fieldfare_lab.membership import Dispatcher, MatcherRow, MatcherTable, State, attribute_space, stored_of
from fieldfare_lab.membership.gossip import Gossip
from fieldfare_lab.membership.messages import JoinRequest, LoadMessage, Split, StoredSubscription, Unreachable


def subscription(number: int, rng: Random) -> StoredSubscription:
    """Most have a small box, some say nothing of x, some ask for a name instead of a number."""
    x, y = rng.uniform(0, 100), rng.uniform(0, 100)
    text = f"y >= {y:.1f} AND y < {y + 7:.1f}"
    if rng.random() < 0.8:
        text += f" AND x BETWEEN {x:.1f} AND {x + 5:.1f}"
    elif rng.random() < 0.5:
        text += f" AND x IN ('a{number}', {number})"
    return stored_of(number, compile_filter(text).normal_form, PATHS)


def populate(system: System, count: int) -> None:
    for _ in range(count):
        system.subscribe(subscription(len(system.registry), system.rng))


def settle(system: System, seconds: float = 100.0) -> None:
    """A good network for a while: longer than a silence, a pull, and the second look at the snapshot."""
    system.lose(0.0)
    system.run(seconds)


def grown(seed: int, size: int) -> System:
    """Return a system of `size` matchers with 60 subscriptions."""
    system = System(seed)
    populate(system, 60)
    system.run(3)
    for _ in range(size - 1):
        system.join()
        system.run(4)
    settle(system, 15)
    assert len(system.live()) == size
    return system


PHASES = (Phase.explicit, Phase.generate)
"""Without shrinking: it would take minutes, and the seed says it all."""

actions = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "crash", "subscribe"]), st.floats(0, 15)), max_size=10
)


@settings(max_examples=drawn(40), phases=PHASES)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.1, 0.3]), actions)
def test_no_subscription_is_lost_whatever_comes_goes_and_dies(
    seed: int, loss: float, script: list[tuple[str, float]]
) -> None:
    """A night in a data center: two servers are added, one dies while it is handing over, one is retired."""
    system = System(seed)
    populate(system, 20)
    for _ in range(3):
        system.join()
        system.run(3)
    system.lose(loss)
    for action, pause_s in script:
        live = system.live()
        if action == "join":
            system.join()
        elif action == "subscribe":
            populate(system, 10)
        elif len(live) > 1:
            victim = system.rng.choice(live)
            system.leave(victim) if action == "leave" else system.crash(victim)
        system.run(pause_s)
        system.check_no_gaps()
    settle(system)
    system.check_no_gaps()
    assert system.confirmed == system.registry.keys()
    system.check_complete()


def test_a_joining_matcher_takes_about_half_of_the_heaviest_ones_subscriptions() -> None:
    """Li et al. 2011, section IV.E."""
    system = System(1)
    for number in range(100):
        text = f"x >= {number} AND x < {number + 1} AND y = {number * 7 % 100}"
        system.subscribe(stored_of(number, compile_filter(text).normal_form, PATHS))
    system.run(2)
    name = system.join()
    settle(system, 45)
    sizes = [[len(held) for held in system.matchers[m].holdings.sets] for m in ("m0", name)]
    assert sizes == [[50, 50], [50, 50]]


def test_a_leaving_matcher_hands_everything_to_its_neighbours_and_stops() -> None:
    system = grown(2, 5)
    system.leave("m2")
    system.run(5)
    assert system.matchers["m2"].row.state is State.LEFT
    settle(system, 60)
    assert system.stopped_ones == {"m2"}
    system.check_complete()


def test_the_system_shrinks_to_its_last_matcher() -> None:
    """Scaling in at night, all at once: neighbours that leave together do not wait for each other."""
    system = grown(3, 6)
    for name in system.live()[1:]:
        system.leave(name)
    settle(system, 120)
    assert system.live() == ["m0"]
    system.check_complete()


def test_dispatchers_route_around_a_dead_matcher_until_its_segments_are_taken_over() -> None:
    """Section IV.E: losses drop back to nothing within 17.5 seconds on average after a failure."""
    system = grown(4, 6)
    crashed_s = system.now
    system.crash("m3")
    dispatcher = system.dispatchers["d0"]
    dispatcher.handle(Unreachable("m3"), system.now)
    assert "m3" not in dispatcher.live(system.now)
    while any("m3" in dict(d.table.owned(0)) for d in system.dispatchers.values()):
        system.run(0.5)
        system.check_no_gaps()
    assert system.now - crashed_s < 30
    settle(system, 40)
    system.check_complete()


def test_a_dispatcher_that_hears_of_it_only_from_its_table_sees_a_crash_too() -> None:
    system = grown(5, 4)
    system.crash("m1")
    system.run(45)
    assert all("m1" not in d.live(system.now) for d in system.dispatchers.values())


def test_a_matcher_that_was_only_slow_leaves_when_it_was_taken_for_dead() -> None:
    """A garbage collection of 15 seconds: the neighbours took over; both own the span, then one goes."""
    system = grown(6, 4)
    system.crash("m2")
    system.run(15)
    system.wake("m2")
    populate(system, 30)
    system.check_no_gaps()
    settle(system, 120)
    assert "m2" in system.stopped_ones
    assert system.confirmed == system.registry.keys()
    system.check_complete()


def test_two_halves_of_a_cut_network_each_go_on_and_one_yields_when_they_meet_again() -> None:
    """A switch dies for a minute: each half takes over from the other, and both accept subscriptions."""
    system = grown(8, 6)
    system.network.cut({"m1", "m3", "m5", "d1"})
    system.run(20)
    populate(system, 30)
    system.run(40)
    system.check_no_gaps()
    assert system.confirmed == system.registry.keys()
    system.network.cut(())
    system.run(5)
    populate(system, 10)
    settle(system, 200)
    system.check_no_gaps()
    assert system.confirmed == system.registry.keys()
    system.check_complete()
    assert 1 <= len(system.live()) < 6


def test_two_neighbours_that_die_together_are_taken_over_by_the_next() -> None:
    system = grown(7, 6)
    owned = sorted((span, name) for name, span in system.dispatchers["d0"].table.owned(0))
    for _, name in owned[2:4]:
        system.crash(name)
    settle(system)
    system.check_no_gaps()
    system.check_complete()
    assert len(system.live()) == 4


@settings(max_examples=drawn(20))
@given(st.integers(0, 1000), st.sampled_from([0.0, 0.2, 0.5]))
def test_gossip_converges_although_messages_are_lost(seed: int, loss: float) -> None:
    """Section III.C: log(N) rounds propagate a change to the whole network; a few more where half is lost."""
    size = 32
    rng = Random(seed)
    servers = []
    for i in range(size):
        table = MatcherTable()
        table.merge([MatcherRow(f"s{j}", 1, State.UP, (None,)) for j in range(size)], 0.0)
        servers.append(Gossip(f"s{i}", table, rng, silent_after_s=1e9))
    servers[0].table.merge([MatcherRow("s0", 2, State.UP, (None,))], 0.0)
    rounds = 0
    while any(server.table.rows["s0"].version < 2 for server in servers):
        rounds += 1
        queue = [(server.me, effect) for server in servers for effect in server.round(0.0)]
        while queue:
            sender, effect = queue.pop()
            if rng.random() >= loss:
                queue += [
                    (effect.to, answer)
                    for answer in servers[int(effect.to[1:])].handle(sender, effect.message, 0.0)
                ]
    assert rounds <= ceil(log2(size)) * (1 if loss < 0.5 else 2)


def test_a_dispatcher_sends_a_joining_matcher_to_the_heaviest_and_then_to_the_next() -> None:
    """Section III.C: it "chooses a heavily loaded matcher"; two that join at once split two."""
    spans = ((AXIS_START, AXIS_END),)
    rows = [MatcherRow(name, 1, State.UP, spans) for name in ("a", "b", "c")]
    dispatcher = Dispatcher("d", rows, Random(1))
    for name, load in (("a", 3.0), ("b", 9.0), ("c", 7.0)):
        dispatcher.handle(Received(name, LoadMessage(load)), 0.0)
    assert dispatcher.handle(Received("n", JoinRequest("n")), 0.0) == [Send("b", Split("n"))]
    assert dispatcher.handle(Received("o", JoinRequest("o")), 0.0) == [Send("c", Split("o"))]


def test_a_table_with_a_gap_is_refused() -> None:
    table = MatcherTable()
    table.merge([MatcherRow("a", 1, State.UP, ((AXIS_START, (5,)),))], 0.0)
    with pytest.raises(ValueError, match="has no owner"):
        attribute_space(table, [("x",)], {"a": 0})
