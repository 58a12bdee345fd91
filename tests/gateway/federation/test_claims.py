"""What other brokers claim about their loads: absurd figures move little, and stop nothing."""

from __future__ import annotations

import dataclasses
import itertools
import math
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.doses import drawn
from tests.gateway.federation.test_balancing import SERVICE, load, profile_of

from fieldfare.balancing.advice import Peer, advise, joint_target
from fieldfare.balancing.claims import CAPACITY_MAX, believed, state_of
from fieldfare.balancing.load import Load, MatchingCost, Metric
from fieldfare.balancing.messages import State
from fieldfare.balancing.settings import BalancingSettings
from fieldfare.gateway.federation.balancing.edge_runner import balancing_settings
from fieldfare.gateway.federation.balancing.rows import load_document, peer_of
from fieldfare.gateway.federation.wire import LoadRow

HONEST = LoadRow("b", 1, "OK", 100.0, 1e-5, 4, 0.0, 0.0, 1e6, 0.1, 0.1, 0.0, True)
FIGURES = ("input_per_s", "matching_s", "deliveries_per_s", "output_bytes_per_s", "cpu", "memory", "queue_s")
TINY = 5e-324


def mine(output: float = 0.6) -> Load:
    """A broker that balances, as its meter measures it."""
    cost = MatchingCost(fixed_s=1e-5)
    return dataclasses.replace(load(0.001, output, 100), cost=cost, is_calibrated=True)


def received(row: LoadRow) -> LoadRow | None:
    """A row as it comes over a link; None if it is refused or ignored there."""
    try:
        found = msgspec.msgpack.decode(msgspec.msgpack.encode(row), type=LoadRow)
    except msgspec.ValidationError:
        return None
    return found if found.is_finite else None


def moved(rows: list[LoadRow], settings: BalancingSettings = SERVICE) -> tuple[str | None, int]:
    """Where a broker with a hundred equal subscriptions would move some, and how many."""
    peers = {row.name: peer_of(row, mine(), settings) for row in rows}
    movable = dict.fromkeys(range(100), 1)
    found = advise(mine(), peers, lambda _: profile_of(100), movable, settings)
    made = [each for each in found if each.plan is not None]
    return (made[-1].action.broker, len(made[-1].plan.moved)) if made else (None, 0)  # type: ignore[union-attr]


@pytest.mark.parametrize("figure", [*FIGURES, "output_bytes_per_s_max"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, -TINY, 1e300])
def test_figures_that_no_broker_has_do_not_come_in(figure: str, value: float) -> None:
    assert received(HONEST) == HONEST
    assert received(msgspec.structs.replace(HONEST, **{figure: value})) is None


@pytest.mark.parametrize("value", [0.0, TINY, 1e-300, 0.5])
def test_a_broker_without_bandwidth_does_not_come_in(value: float) -> None:
    assert received(msgspec.structs.replace(HONEST, output_bytes_per_s_max=value)) is None


EXTREMES: dict[str, tuple[float, ...]] = {
    **dict.fromkeys(FIGURES, (0.0, TINY, 1e-300, 1.0, 1e15)),
    "output_bytes_per_s_max": (1.0, 1e6, 1e15),
}


@pytest.mark.parametrize("state", list(State))
def test_no_claim_raises_or_moves_more_than_a_session_or_what_is_to_be_kept(state: State) -> None:
    """Every pair of figures is as extreme as it can come in, and some draws of all of them."""
    claims: list[dict[str, Any]] = [
        {one: a, other: b}
        for one, other in itertools.combinations(EXTREMES, 2)
        for a in EXTREMES[one]
        for b in EXTREMES[other]
    ]
    random = Random(7)
    claims += [{name: random.choice(of) for name, of in EXTREMES.items()} for _ in range(drawn(200))]
    with np.errstate(all="raise", under="ignore"):
        for claim in claims:
            row = received(msgspec.structs.replace(HONEST, state=state.value, **claim))
            assert row is not None
            peer = peer_of(row, mine(), SERVICE)
            target = joint_target(mine(), [peer])
            for metric in Metric:
                assert math.isfinite(target.metric(metric)), claim
            to, number = moved([row])
            assert number <= SERVICE.session_moves_max and (to is None or state is State.OK), claim
            msgspec.json.decode(msgspec.json.encode(load_document(row, 0.0, 90.0, counts=True)))
            assert target.output_ratio >= mine().output_ratio / (1 + CAPACITY_MAX) - 1e-9, claim


@pytest.mark.parametrize("state", list(State))
def test_no_overload_of_a_third_broker_keeps_two_from_balancing(state: State) -> None:
    """A very high load of one made the mean so high that no other had too much."""
    for figure, value in (("output_bytes_per_s", 1e15), ("input_per_s", 1e15), ("output_bytes_per_s", 2e6)):
        absurd = msgspec.structs.replace(HONEST, name="c", state=state.value, **{figure: value})
        assert moved([HONEST, absurd]) == ("b", 20)
        only_cpu = balancing_settings(10.0, 30, ("cpu",))
        assert moved([HONEST, absurd], only_cpu) == ("b", 20), "where no input or output is an overload, too"


def test_a_broker_with_a_higher_ratio_than_it_may_have_is_not_ok() -> None:
    for figure, value in (("output_bytes_per_s", 0.91e6), ("cpu", 0.91), ("memory", 1e15)):
        row = msgspec.structs.replace(HONEST, **{figure: value})
        assert peer_of(row, mine(), SERVICE).state is State.NOT_AVAILABLE, figure
    assert state_of(load(0.1, 0.89), State.BUSY, SERVICE) is State.BUSY


def test_a_capacity_counts_for_at_most_a_multiple_of_what_is_here() -> None:
    claimed = dataclasses.replace(mine(), output_bytes_per_s_max=1e15, matching_s=1e-300)
    found = believed(claimed, mine())
    assert found.output_bytes_per_s_max == CAPACITY_MAX * 1e6
    assert found.matching_s == pytest.approx(1e-5 / CAPACITY_MAX)
    assert believed(mine(), mine()) == mine(), "an honest one counts as it is"
    unmeasured = dataclasses.replace(mine(), matching_s=0.0)
    assert believed(claimed, unmeasured).matching_s > 1e-10
    target = joint_target(mine(), [Peer(found, State.OK)])
    assert target.output_ratio > mine().output_ratio / (2 + CAPACITY_MAX)
