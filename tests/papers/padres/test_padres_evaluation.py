"""Cheung and Jacobsen 2006, section 6, small: the machines in simulated time, with made quotes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from fieldfare.balancing.messages import State
from fieldfare.filters import compile_filter
from fieldfare_lab.simulation.balancing.edge_engine import Machine
from fieldfare_lab.simulation.balancing.setups import (
    GLOBAL_SET_UP,
    LOCAL_SET_UP,
    OURS,
    PAPER,
    SetUp,
    chain,
)
from fieldfare_lab.simulation.balancing.stock_market import StockRegion, made_quotes, open_market, publication
from fieldfare_lab.simulation.balancing.system import BalancedBrokers

QUOTES = made_quotes(30, 200, seed=1)
SMALL = replace(
    LOCAL_SET_UP, subscribers=400, publishers=10, joins_s=(10.0, 110.0), step_s=500.0, until_s=700.0
)


def ran(set_up: SetUp, seed: int = 1) -> BalancedBrokers:
    brokers = set_up.build(QUOTES, seed)
    brokers.run(set_up.until_s)
    return brokers


@pytest.fixture(scope="module", params=[PAPER, OURS], ids=["paper", "ours"])
def local(request: pytest.FixtureRequest) -> BalancedBrokers:
    return ran(replace(SMALL, settings=request.param))


@pytest.mark.long
def test_nothing_is_lost_or_doubled(local: BalancedBrokers) -> None:
    assert local.expected[0].sum() > 10_000
    assert local.lost() == local.doubled_or_foreign() == 0


@pytest.mark.long
def test_all_brokers_take_load_and_the_strong_ones_more(local: BalancedBrokers) -> None:
    """Figure 6e."""
    counts = {name: engine.subscriptions for name, engine in local.engines.items()}
    assert sum(counts.values()) == 400
    assert counts["B4"] > counts["B3"] > counts["B2"] > 0


@pytest.mark.long
def test_the_loads_come_within_the_triggering_threshold(local: BalancedBrokers) -> None:
    """Figures 6a to 6c, before the step."""
    loads = [load for at, _, load in local.records.loads if 400 <= at < 500]
    ratios = [float(load.input_ratio) for load in loads]
    assert max(ratios) - min(ratios) < 0.15


@pytest.mark.long
def test_no_broker_is_left_in_a_session(local: BalancedBrokers) -> None:
    for name in local.engines:
        state = local.machines[name].state  # type: ignore[attr-defined]
        assert state.state is not State.BUSY and not state.outgoing and not state.incoming


@pytest.mark.long
def test_a_run_with_the_same_seed_is_identical() -> None:
    small = replace(SMALL, subscribers=100, until_s=200.0)
    assert ran(small).records.moves == ran(small).records.moves


@pytest.mark.long
def test_load_that_begins_at_one_cluster_reaches_the_others() -> None:
    """The headline: 'capable of distributing all of the system's load originating from an edge point'."""
    weak = Machine(20, 64, 1.0)
    clusters = tuple(replace(each, edges=dict.fromkeys(each.edges, weak)) for each in chain(3))
    brokers = ran(
        replace(GLOBAL_SET_UP, clusters=clusters, subscribers=300, publishers=10, step_s=1e9, until_s=900.0)
    )
    counts = {name: engine.subscriptions for name, engine in brokers.engines.items()}
    assert min(counts.values()) > 0, counts
    assert brokers.lost() == brokers.doubled_or_foreign() == 0


@pytest.mark.long
def test_without_balancing_an_overloaded_broker_delays_by_hundreds() -> None:
    """Figure 6d: 'increased by 750 times' is what an overload does, not what balancing gains."""
    brokers = ran(replace(SMALL, subscribers=1_500, is_balancing=False))
    means = [total / count for total, count in brokers.records.delays.values() if count]
    assert max(means) > 100 * means[0]


def test_figure_3_heads_serve_publishers_and_edge_brokers_subscribers() -> None:
    brokers = replace(GLOBAL_SET_UP, subscribers=40, publishers=3).build(QUOTES, 1)
    heads = {each.head for each in GLOBAL_SET_UP.clusters}
    edges = [name for each in GLOBAL_SET_UP.clusters for name in each.edges]
    assert set(brokers.engines) == set(edges) and not heads & set(edges)
    for cluster in GLOBAL_SET_UP.clusters:
        assert {brokers._hops(name, cluster.head) for name in cluster.edges} == {1}
    assert brokers._hops("B11", "B41") == 5  # over four heads in a chain


def test_section_6_1_the_templates_have_their_shares() -> None:
    market = open_market(QUOTES, 10, 4_000, 0.0, Random(1))
    kinds = Counter(each.attribute if each.symbol else f"any {each.attribute}" for each in market.regions)
    shares = {kind: count / 4_000 for kind, count in kinds.items()}
    expected = {"high": 0.2, "low": 0.2, "volume": 0.2, None: 0.34, "any volume": 0.05, "any None": 0.01}
    assert shares == pytest.approx(expected, abs=0.025)


def test_section_6_1_silent_subscriptions_match_nothing() -> None:
    market = open_market(QUOTES, 10, 400, 0.25, Random(1))
    silent = ~market.matched[:, market.subscriber_columns].any(axis=0)
    assert int(np.count_nonzero(silent)) >= 100


def test_the_simulations_matches_are_those_of_the_filters() -> None:
    market = open_market(QUOTES, 3, 60, 0.2, Random(2))
    names = list(market.quotes.symbols)
    for quote in range(0, len(market.quotes.sizes), 37):
        symbol = names[quote // 200]
        event = {"class": "STOCK", "symbol": symbol}
        event |= {name: float(values[quote]) for name, values in market.quotes.columns.items()}
        for region, column in market.unique.items():
            assert compile_filter(region.text()).matches(event) == market.matched[quote, column]


def test_section_6_1_a_publication_has_eight_attributes() -> None:
    row = {"class": "STOCK", "symbol": "YHOO", "open": "25.25", "high": "43.00", "low": "24.50"}
    row |= {"close": "33.00", "volume": "17030000", "date": "1996-04-12"}
    assert publication(row) == (
        "[class, 'STOCK'], [symbol, 'YHOO'], [open, 25.25], [high, 43.00], [low, 24.50], [close, 33.00],"
        " [volume, 17030000], [date, '1996-04-12']"
    )
    assert (
        StockRegion("YHOO", "high", 25.0).text() == "class = 'STOCK' AND symbol = 'YHOO' AND high > 25.000000"
    )
