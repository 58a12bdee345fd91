"""Cheung and Jacobsen 2006, section 4: PRESS, and the estimated performance metrics."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fieldfare.balancing import Load, MatchingCost
from fieldfare.balancing.load import linear_delay
from fieldfare.balancing.press import Profile, aggregate, and_not, exclusive, rate
from fieldfare.filters import compile_filter, region_of
from fieldfare_lab.balancing.poset import Poset
from fieldfare_lab.simulation.balancing.bit_vectors import BitVectors

PUBLICATIONS = [
    {"class": "STOCK", "volume": 0},
    {"class": "STOCK", "volume": 10},
    {"class": "STOCK", "volume": 20},
    {"class": "SPORTS", "type": "racing"},
    {"class": "STOCK", "volume": 100},
    {"class": "STOCK", "volume": 500},
]
CANDIDATES = [
    "class = 'STOCK'",
    "class = 'STOCK' AND volume > 15",
    "class = 'STOCK' AND volume > 150",
    "class = 'SPORTS'",
]
CSS = ["class = 'STOCK' AND volume > 50", "class = 'STOCK' AND volume < 5", "class = 'MOVIES'"]


def sampled(filters: list[str]) -> BitVectors:
    compiled = [compile_filter(text) for text in filters]
    vectors = BitVectors(len(filters), len(PUBLICATIONS))
    for publication in PUBLICATIONS:
        vectors.record([each.matches(publication) for each in compiled])
    return vectors


def test_table_1a_the_vectors_of_the_candidates() -> None:
    vectors = sampled(CANDIDATES)
    assert [vectors.text(at) for at in range(4)] == ["110111", "110100", "100000", "001000"]


def test_table_1b_the_vectors_of_the_acceptors_css_and_their_or() -> None:
    vectors = sampled(CSS)
    assert [vectors.text(at) for at in range(3)] == ["110000", "000001", "000000"]
    assert text(aggregate(vectors.bits(), 6)) == "110001"


def text(bits: object) -> str:
    return "".join("1" if bit else "0" for bit in np.asarray(bits)[::-1])


def test_a_vector_is_filled_from_the_right() -> None:
    vectors = BitVectors(1, 6)
    for matched in (True, True, False):
        vectors.record([matched])
    assert vectors.text(0) == "011"


def test_equation_2_the_publication_rate_of_a_subscription() -> None:
    """With 3 msg/s, [class,=,'STOCK'] with 5 of 6 bits has 2.5 msg/s."""
    bits = sampled(CANDIDATES).bits()
    assert rate(3.0, int(bits[0].sum()), 6) == 2.5


def test_equation_3_what_a_subscription_adds_to_the_acceptors_input() -> None:
    stock = sampled(CANDIDATES).bits()[0]
    added = and_not(stock, aggregate(sampled(CSS).bits(), 6))
    assert text(added) == "000110"
    assert rate(3.0, int(added.sum()), 6) == 1.0


def test_a_chosen_subscription_is_merged_into_the_css_by_or() -> None:
    stock = sampled(CANDIDATES).bits()[0]
    assert text(aggregate([stock, aggregate(sampled(CSS).bits(), 6)], 6)) == "110111"


def test_the_rate_reduced_is_andnot_the_or_of_what_stays() -> None:
    """Open in the text: SPORTS alone matches sample 4; the stocks share theirs."""
    bits = sampled(CANDIDATES).bits()
    only = exclusive(bits, bits.sum(axis=0))
    assert [text(each) for each in only] == ["000011", "000000", "000000", "001000"]
    naive = [bits[at] & ~aggregate([bits[other] for other in range(4) if other != at], 6) for at in range(4)]
    assert (only == naive).all()


def test_ten_thousand_subscribers_with_100_samples_take_1_mb() -> None:
    assert 8 * BitVectors(10_000, 100).nbytes == 1_000_000


def test_random_vectors_come_back_as_they_were_recorded() -> None:
    rng = np.random.default_rng(1)
    samples = rng.random((40, 1_003)) < 0.3
    vectors = BitVectors(1_003, 50)
    for row in samples:
        vectors.record(row)
    assert (vectors.bits() == samples.T).all() and not vectors.is_full
    for _ in range(10):
        vectors.record(samples[0])
    assert vectors.is_full
    with pytest.raises(ValueError, match="All 50 samples were taken"):
        vectors.record(samples[0])


def test_a_sample_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="2 values; there are 3"):
        BitVectors(3, 5).record([True, False])
    with pytest.raises(ValueError, match="do not fit"):
        Profile(("a",), np.zeros((2, 3), dtype=bool), np.zeros(3, dtype=bool), 1.0, 1.0)


def test_with_fewer_than_n_samples_rates_are_of_those_taken() -> None:
    """T ends before N publications have come: 2 of 4 are half, whatever N is."""
    vectors = BitVectors(1, 50)
    for matched in (True, False, True, False):
        vectors.record([matched])
    assert rate(3.0, int(vectors.bits()[0].sum()), vectors.taken) == 1.5
    assert rate(3.0, 0, 0) == 0.0


def test_the_css_of_one_general_filter_is_one_subscription() -> None:
    """'Given that the CSS is usually small (one in the case of [class,=,*])'."""
    poset = Poset([(filter, region_of(compile_filter(filter))) for filter in ["EXISTS class", *CANDIDATES]])
    assert len(poset.css()) == 1


def test_equation_4_the_matching_delay_is_linear_in_the_subscriptions() -> None:
    assert linear_delay(0.02, 200, 300, 1.0) == pytest.approx(0.03)
    assert linear_delay(0.02, 200, 0, 1.0) == 0
    assert linear_delay(0.0, 0, 300, 1e-4) == pytest.approx(0.03)  # ours: no subscriptions to scale


def test_the_estimated_ratios_are_their_own_equations_with_new_rates() -> None:
    """The new matching delay enters the estimated I_r (open in the text): it will be measured with it."""
    load = Load(
        input_per_s=10,
        matching_s=0.02,
        subscriptions=100,
        output_bytes_per_s=500,
        output_bytes_per_s_max=1000,
    )
    after = load.after(50, 2.0, 1.0, 100.0)
    assert after.matching_s == pytest.approx(0.03)
    assert after.input_ratio == pytest.approx(12 * 0.03)
    assert after.output_ratio == pytest.approx(0.6)


def test_with_the_new_delay_the_estimate_is_what_happens_and_without_it_is_not() -> None:
    engine = MatchingCost(subscription_s=1e-4)
    before = Load(input_per_s=20, matching_s=engine.of(300, 0), subscriptions=300)
    happens = 12 * engine.of(200, 0)
    assert before.after(-100, -8, 0, 0).input_ratio == pytest.approx(happens)
    without = 12 * before.matching_s
    assert abs(without / happens - 1) > 0.4


def test_equation_4_misfits_an_engine_whose_time_follows_the_matches() -> None:
    """The silent subscriptions leave: equation 4 takes a third off, the engine hardly anything."""
    engine = MatchingCost(fixed_s=1e-3, subscription_s=1e-6, match_s=1e-4)
    before = Load(
        input_per_s=20,
        deliveries_per_s=2_000,
        matching_s=engine.of(300, 100),
        subscriptions=300,
        cost=engine,
        is_calibrated=True,
    )
    happens = engine.of(200, 100)
    assert before.after(-100, 0, 0, 0).matching_s == pytest.approx(happens)
    assert linear_delay(before.matching_s, 300, 200, 0.0) < 0.7 * happens
    assert math.isclose(before.after(0, 0, -1_000, 0).matching_s, engine.of(300, 50))
