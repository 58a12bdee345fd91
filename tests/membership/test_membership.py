"""Join, leave and crash, in any order, on a bad network: no gap, and no subscription lost."""

from __future__ import annotations

from math import ceil, log2
from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from membership_support import PATHS, Network

from fieldfare.filters import compile_filter
from fieldfare.membership import Dispatcher, Row, State, Table, attribute_space, stored_of
from fieldfare.membership.gossip import Gossip
from fieldfare.membership.messages import JoinRequest, LoadMessage, Send, Split, Stored, Unreachable
from fieldfare.partitioning.axis import AXIS_END, AXIS_START


def subscription(number: int, rng: Random) -> Stored:
    """Most have a small box, some say nothing of x, some ask for a name instead of a number."""
    x, y = rng.uniform(0, 100), rng.uniform(0, 100)
    text = f"y >= {y:.1f} AND y < {y + 7:.1f}"
    if rng.random() < 0.8:
        text += f" AND x BETWEEN {x:.1f} AND {x + 5:.1f}"
    elif rng.random() < 0.5:
        text += f" AND x IN ('a{number}', {number})"
    return stored_of(number, compile_filter(text).normal_form, PATHS)


def populate(network: Network, count: int) -> None:
    for _ in range(count):
        network.subscribe(subscription(len(network.registry), network.rng))


def settle(network: Network, seconds: float = 100.0) -> None:
    """A good network for a while: longer than a silence, a pull, and the second look at the snapshot."""
    network.loss = 0.0
    network.run(seconds)


def grown(seed: int, size: int) -> Network:
    """A system of so many matchers with 60 subscriptions."""
    network = Network(seed)
    populate(network, 60)
    network.run(3)
    for _ in range(size - 1):
        network.join()
        network.run(4)
    settle(network, 15)
    assert len(network.live()) == size
    return network


PHASES = (Phase.explicit, Phase.generate)
"""Without shrinking: it would take minutes, and the seed says it all."""

actions = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "crash", "subscribe"]), st.floats(0, 15)), max_size=10
)


@settings(max_examples=40, deadline=None, derandomize=True, phases=PHASES)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.1, 0.3]), actions)
def test_no_subscription_is_lost_whatever_comes_goes_and_dies(
    seed: int, loss: float, script: list[tuple[str, float]]
) -> None:
    """A night in a data center: two servers are added, one dies while it is handing over, one is retired."""
    network = Network(seed)
    populate(network, 20)
    for _ in range(3):
        network.join()
        network.run(3)
    network.loss = loss
    for action, pause_s in script:
        live = network.live()
        if action == "join":
            network.join()
        elif action == "subscribe":
            populate(network, 10)
        elif len(live) > 1:
            victim = network.rng.choice(live)
            network.leave(victim) if action == "leave" else network.crash(victim)
        network.run(pause_s)
        network.check_no_gaps()
    settle(network)
    network.check_no_gaps()
    assert network.confirmed == network.registry.keys()
    network.check_complete()


def test_a_joining_matcher_takes_about_half_of_the_heaviest_ones_subscriptions() -> None:
    """Li et al. 2011, section IV.E."""
    network = Network(1)
    for number in range(100):
        text = f"x >= {number} AND x < {number + 1} AND y = {number * 7 % 100}"
        network.subscribe(stored_of(number, compile_filter(text).normal_form, PATHS))
    network.run(2)
    name = network.join()
    settle(network, 45)
    sizes = [[len(held) for held in network.matchers[m].holdings.sets] for m in ("m0", name)]
    assert sizes == [[50, 50], [50, 50]]


def test_a_leaving_matcher_hands_everything_to_its_neighbours_and_stops() -> None:
    network = grown(2, 5)
    network.leave("m2")
    network.run(5)
    assert network.matchers["m2"].row.state is State.LEFT
    settle(network, 60)
    assert network.stopped == {"m2"}
    network.check_complete()


def test_the_system_shrinks_to_its_last_matcher() -> None:
    """Scaling in at night, all at once: neighbours that leave together do not wait for each other."""
    network = grown(3, 6)
    for name in network.live()[1:]:
        network.leave(name)
    settle(network, 120)
    assert network.live() == ["m0"]
    network.check_complete()


def test_dispatchers_route_around_a_dead_matcher_until_its_segments_are_taken_over() -> None:
    """Section IV.E: losses drop back to nothing within 17.5 seconds on average after a failure."""
    network = grown(4, 6)
    crashed_s = network.now
    network.crash("m3")
    dispatcher = network.dispatchers["d0"]
    dispatcher.handle("d0", Unreachable("m3"), network.now)
    assert "m3" not in dispatcher.live(network.now)
    while any("m3" in dict(d.table.owned(0)) for d in network.dispatchers.values()):
        network.run(0.5)
        network.check_no_gaps()
    assert network.now - crashed_s < 30
    settle(network, 40)
    network.check_complete()


def test_a_dispatcher_that_hears_of_it_only_from_its_table_sees_a_crash_too() -> None:
    network = grown(5, 4)
    network.crash("m1")
    network.run(45)
    assert all("m1" not in d.live(network.now) for d in network.dispatchers.values())


def test_a_matcher_that_was_only_slow_leaves_when_it_was_taken_for_dead() -> None:
    """A garbage collection of 15 seconds: the neighbours took over; both own the span, then one goes."""
    network = grown(6, 4)
    network.crash("m2")
    network.run(15)
    network.wake("m2")
    populate(network, 30)
    network.check_no_gaps()
    settle(network, 120)
    assert "m2" in network.stopped
    assert network.confirmed == network.registry.keys()
    network.check_complete()


def test_two_halves_of_a_cut_network_each_go_on_and_one_yields_when_they_meet_again() -> None:
    """A switch dies for a minute: each half takes over from the other, and both accept subscriptions."""
    network = grown(8, 6)
    network.cut_off = {"m1", "m3", "m5", "d1"}
    network.run(20)
    populate(network, 30)
    network.run(40)
    network.check_no_gaps()
    assert network.confirmed == network.registry.keys()
    network.cut_off = set()
    network.run(5)
    populate(network, 10)
    settle(network, 200)
    network.check_no_gaps()
    assert network.confirmed == network.registry.keys()
    network.check_complete()
    assert 1 <= len(network.live()) < 6


def test_two_neighbours_that_die_together_are_taken_over_by_the_next() -> None:
    network = grown(7, 6)
    owned = sorted((span, name) for name, span in network.dispatchers["d0"].table.owned(0))
    for _, name in owned[2:4]:
        network.crash(name)
    settle(network)
    network.check_no_gaps()
    network.check_complete()
    assert len(network.live()) == 4


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(0, 1000), st.sampled_from([0.0, 0.2, 0.5]))
def test_gossip_converges_although_messages_are_lost(seed: int, loss: float) -> None:
    """Section III.C: log(N) rounds propagate a change to the whole network; a few more where half is lost."""
    size = 32
    rng = Random(seed)
    servers = []
    for i in range(size):
        table = Table()
        table.merge([Row(f"s{j}", 1, State.UP, (None,)) for j in range(size)], 0.0)
        servers.append(Gossip(f"s{i}", table, rng, silent_after_s=1e9))
    servers[0].table.merge([Row("s0", 2, State.UP, (None,))], 0.0)
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
    rows = [Row(name, 1, State.UP, spans) for name in ("a", "b", "c")]
    dispatcher = Dispatcher("d", rows, Random(1))
    for name, load in (("a", 3.0), ("b", 9.0), ("c", 7.0)):
        dispatcher.handle(name, LoadMessage(load), 0.0)
    assert dispatcher.handle("n", JoinRequest("n"), 0.0) == [Send("b", Split("n"))]
    assert dispatcher.handle("o", JoinRequest("o"), 0.0) == [Send("c", Split("o"))]


def test_a_table_with_a_gap_is_refused() -> None:
    table = Table()
    table.merge([Row("a", 1, State.UP, ((AXIS_START, (5,)),))], 0.0)
    with pytest.raises(ValueError, match="nobody owns"):
        attribute_space(table, [("x",)], {"a": 0})
