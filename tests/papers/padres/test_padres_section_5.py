"""Cheung and Jacobsen 2006, section 5 and Table 2: which subscribers the offload algorithms choose."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "balancing"))

from test_report_cards import CAPACITY, SETTINGS, Case, Set_, load

from fieldfare.balancing import Load, Metric, Resource
from fieldfare.balancing.plans import Plan
from fieldfare_lab.simulation.balancing.offload import covered_by, offload, types

ALL = frozenset(range(12))


def found(
    mine: Load, theirs: Load, filters: str, css: str = "", movable: dict[str, int] | None = None
) -> Case:
    """Filters such as ``"a:0-5:3 b:0-1,4:1"``: name, samples that they match, subscribers."""
    built = []
    for word in filters.split():
        name, bits, number = word.split(":")
        built.append((Set_(name, _bits(bits)), int(number)))
    return Case(mine, theirs, built, [Set_(f"css {text}", _bits(text)) for text in css.split()])


def _bits(text: str) -> frozenset[int]:
    bits = set[int]()
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        bits |= set(range(int(low), int(high or low) + 1))
    return frozenset(bits)


def plan(case: Case, metric: Metric, overloaded: Resource | None = None, pinned: str = "") -> Plan:
    counts = {key: 0 if key in pinned.split() else count for key, count in case.counts().items()}
    return offload(
        metric,
        overloaded,
        (case.mine, case.theirs),
        case.poset(),
        case.profile(),
        counts,
        tuple(case.css),
        SETTINGS,
    )


def moved(done: Plan) -> list[tuple[object, int]]:
    return [(each.key, each.number) for each in done.moved]


IDLE = load(0, 0.0, 0.0)


# 5.1, the report card


def test_a_report_card_has_five_fields() -> None:
    case = found(load(9, 12.0, 4_000, 1e-2), IDLE, "a:0-5:3 b:0-1:4 c:8-11:2", css="0-3")
    exchange = case.exchange()
    exchange.is_covered = np.array([key in covered_by(tuple(case.css), case.poset()) for key in "abc"])
    cards = exchange.cards(np.array([0, 1, 2]), Metric.INPUT)
    assert list(cards.number) == [3, 4, 2]  # all of them: too few to balance
    assert cards.difference[2] == pytest.approx(8 * 7 * 1e-2 - 4 * 2e-4, rel=0.02)
    assert list(cards.is_covered) == [False, True, False]
    assert list(cards.reduced_per_s) == [4.0, 0.0, 4.0]
    assert list(cards.bytes_per_s) == [600.0, 200.0, 400.0]
    assert list(cards.added_per_s) == [2.0, 0.0, 4.0]


def test_the_number_is_bounded_by_the_acceptors_resources() -> None:
    """Each of 50 subscribers adds 100 bytes/s to 8,600 of 10,000: 4 fit below 0.9."""
    case = found(load(50, 12.0, 9_400), load(10, 12.0, 8_600), "a:0:50")
    cards = case.exchange().cards(np.array([0]), Metric.OUTPUT)
    assert cards.number[0] == 4


def test_the_number_is_the_least_that_balances() -> None:
    case = found(load(100, 12.0, 4_000), load(100, 12.0, 2_000), "a:0:50 b:1:50")
    cards = case.exchange().cards(np.array([0]), Metric.OUTPUT)
    assert cards.number[0] == 10 and abs(cards.difference[0]) <= 0.005


def test_the_number_may_bring_the_offloader_below_the_acceptor() -> None:
    """Each subscriber takes 12 % of the bandwidth: two of them are nearest to a difference of 0.4."""
    case = found(load(4, 12.0, 4_800), load(100, 12.0, 800), "a:0-11:4")
    cards = case.exchange().cards(np.array([0]), Metric.OUTPUT)
    assert cards.number[0] == 2 and cards.difference[0] == pytest.approx(-0.08)


# 5.1, the input offload algorithm


def test_only_the_css_is_considered_until_it_has_left() -> None:
    """b and c are covered by a. The children of a chosen subscription join the CSS (open in the text)."""
    case = found(load(10, 12.0, 4_000, 5e-3), IDLE, "a:0-11:1 b:0-5:5 c:0-2:4")
    done = plan(case, Metric.INPUT)
    assert moved(done)[0] == ("a", 1)
    assert {key for key, _ in moved(done)} <= {"a", "b", "c"} and len(done.moved) > 1


def test_the_card_nearest_to_zero_is_chosen() -> None:
    """a takes 10 of 12 messages away, b 2: to balance 0.5 with 0.28, b is nearer to zero."""
    mine, theirs = load(60, 12.0, 4_000, 7e-4), load(30, 6.0, 0.0, 1.6e-3)
    done = plan(found(mine, theirs, "a:0-9:30 b:10-11:30"), Metric.INPUT)
    cards = found(mine, theirs, "a:0-9:30 b:10-11:30").exchange().cards(np.array([0, 1]), Metric.INPUT)
    nearest = int(np.argmin(np.abs(cards.difference)))
    assert done.moved[0].key == "ab"[nearest]


def test_with_equal_differences_less_added_input_is_preferred() -> None:
    """Nothing but the delay changes: both reduce nothing. b is covered by the acceptor's CSS."""
    mine = load(40, 12.0, 0.0, 5e-4)
    theirs = replace(load(0, 0.0, 0.0), input_per_s=0.0)
    case = found(mine, theirs, "a:0-3:10 b:4-7:10 c:0-3,8:10 d:4-7,9:10", css="4-7 9")
    cards = case.exchange().cards(np.array([2, 3]), Metric.INPUT)
    assert cards.added_per_s[1] < cards.added_per_s[0]


def test_it_ends_when_all_choices_would_worsen_the_difference() -> None:
    """One subscription with one subscriber is all the load: moved, the other broker would have it all."""
    case = found(load(1, 12.0, 100, 2e-2), load(1, 0.0, 0.0, 2e-2), "a:0-11:1")
    assert moved(plan(case, Metric.INPUT)) == []


def test_it_ends_when_the_offloader_is_below_the_acceptor() -> None:
    case = found(load(20, 12.0, 100), load(40, 12.0, 0.0), "a:0-11:20")
    assert moved(plan(case, Metric.INPUT)) == []


def test_it_ends_within_the_balance_threshold() -> None:
    filters = " ".join(f"f{at:02}:{at}:4" for at in range(12))
    case = found(load(48, 12.0, 1_000, 2e-3), load(0, 0.0, 0.0, 2e-3), filters)
    done = plan(case, Metric.INPUT)
    difference = float(done.mine.input_ratio - done.theirs.input_ratio)
    assert 2 <= len(done.moved) < 12 and difference <= 0.005


def test_pinned_subscribers_do_not_move() -> None:
    case = found(load(100, 12.0, 4_000), load(100, 6.0, 2_000), "a:0:50 b:1:50")
    assert {key for key, _ in moved(plan(case, Metric.OUTPUT, pinned="a"))} == {"b"}


# 5.2, the match offload algorithm


def test_the_subscriptions_with_the_least_traffic_go_first() -> None:
    case = found(load(40, 12.0, 6_000, 1e-3), load(0, 0.0, 0.0, 1e-3), "a:0-11:10 b:0-1:10 c::10 d:0:10")
    assert moved(plan(case, Metric.DELAY)) == [("c", 10), ("d", 10)]


def test_silent_subscriptions_balance_the_delay_without_side_effects() -> None:
    """Table 2: none for the match algorithm."""
    case = found(load(80, 12.0, 6_000, 1e-3), load(0, 0.0, 0.0, 1e-3), "a:0-11:40 c::40")
    done = plan(case, Metric.DELAY)
    assert moved(done) == [("c", 40)]
    assert done.mine.output_bytes_per_s == case.mine.output_bytes_per_s
    assert done.mine.input_per_s == case.mine.input_per_s and done.theirs.input_per_s == 0


def test_with_equal_traffic_less_added_input_goes_first() -> None:
    case = found(load(40, 12.0, 6_000, 1e-3), load(1, 6.0, 600), "a:0-5:20 b:6-11:20", css="6-11")
    assert plan(case, Metric.DELAY).moved[0].key == "b"


def test_a_chosen_number_is_that_of_the_delays() -> None:
    case = found(load(100, 12.0, 1_000, 1e-3), load(20, 12.0, 0.0, 1e-3), "a:0:100", css="0")
    assert moved(plan(case, Metric.DELAY)) == [("a", 40)]


@pytest.mark.parametrize("overloaded", [Resource.CPU, Resource.INPUT, Resource.MEMORY])
def test_an_overload_is_shed_until_cpu_input_and_memory_are_below_the_lower_threshold(
    overloaded: Resource,
) -> None:
    """The acceptor already has the longer delay: without overload nothing would move."""
    mine = replace(load(120, 12.0, 1_000, 1e-3), cpu=1.0, memory=0.905)
    slow = load(10, 0.5, 0.0, 2e-2)
    filters = "a:0-11:1 " + " ".join(f"f{at}::7" for at in range(17))
    done = plan(found(mine, slow, filters), Metric.INPUT, overloaded)
    assert moved(plan(found(mine, slow, filters), Metric.DELAY)) == []
    for each in (Resource.CPU, Resource.INPUT, Resource.MEMORY):
        assert done.mine.ratio(each) < 0.9, each
    assert done.theirs.cpu <= 0.9


def test_an_overloaded_input_is_balanced_by_the_input_algorithm_and_then_by_match() -> None:
    """Table 2 says match for CPU and memory, section 5.2 for input, too: first input, then match."""
    mine = replace(load(100, 12.0, 1_000, 1e-3), cpu=1.0)
    done = plan(
        found(mine, load(200, 0.1, 0, 1e-4), "a:0-11:10 b:0-10:10 c::80"), Metric.INPUT, Resource.INPUT
    )
    assert done.moved[0].key == "a"  # the CSS
    assert done.mine.input_ratio < 0.9


# 5.3, the output offload algorithm


def test_phase_1_considers_only_what_the_acceptors_css_covers() -> None:
    case = found(load(40, 12.0, 8_000), load(40, 12.0, 0.0), "a:0-5:20 b:6-11:20", css="0-6")
    done = plan(case, Metric.OUTPUT)
    assert {key for key, _ in moved(done)} == {"a"}
    assert done.theirs.input_per_s == case.theirs.input_per_s  # Table 2: no side effect in phase I


def test_the_three_types_of_phase_1() -> None:
    """I lowers the input rate, II would if all its subscribers could go, III does not even then."""
    case = found(load(102, 12.0, 9_000), load(10, 12.0, 0.0), "a:0:2 b:1-2:90 c:3-5:5 d:3-5,6:5", css="0-11")
    exchange = case.exchange()
    cards = exchange.cards(np.arange(4), Metric.OUTPUT)
    assert list(types(cards, exchange)) == [1, 2, 3, 1]


def test_phase_1_goes_by_type_and_then_by_descending_traffic() -> None:
    case = found(
        load(60, 12.0, 9_000), load(10, 12.0, 0.0), "a:0:10 b:1-2:10 c:4-9:20 d:4-9,10:20", css="0-11"
    )
    order = [key for key, _ in moved(plan(case, Metric.OUTPUT))]
    exchange = case.exchange()
    cards = exchange.cards(np.arange(4), Metric.OUTPUT)
    of_type = dict(zip("abcd", types(cards, exchange), strict=True))
    traffic = dict(zip("abcd", cards.bytes_per_s, strict=True))
    assert order == sorted(order, key=lambda key: (of_type[key], -traffic[key]))


def test_phase_2_takes_what_is_not_covered_with_side_effects() -> None:
    """Table 2: it increases the input utilisation of the acceptor."""
    case = found(load(40, 12.0, 8_000, 1e-3), IDLE, "a:0-5:20 b:6-11:20")
    done = plan(case, Metric.OUTPUT)
    assert done.moved and done.theirs.input_per_s > 0


def test_phase_2_ends_once_the_inputs_are_balanced_though_the_outputs_are_not() -> None:
    """Otherwise the input algorithm would bring back what it moved, and so on."""
    mine, theirs = load(40, 12.0, 8_000, 1e-3), load(48, 10.0, 0.0, 1e-3)
    assert abs(mine.input_ratio - theirs.input_ratio) < 0.005
    assert moved(plan(found(mine, theirs, "a:0-5:20 b:6-11:20"), Metric.OUTPUT)) == []


def test_with_an_overloaded_output_phase_2_ends_below_the_lower_threshold() -> None:
    mine, theirs = load(40, 12.0, 9_700, 1e-3), load(48, 10.0, 0.0, 1e-3)
    done = plan(found(mine, theirs, "a:0-5:20 b:6-11:20"), Metric.OUTPUT, Resource.OUTPUT)
    assert done.moved and done.mine.output_bytes_per_s < 0.9 * CAPACITY


def test_what_a_choice_of_phase_2_covers_is_offloaded_next_by_phase_1() -> None:
    """b is covered by a; with a at the acceptor, it adds no input there."""
    filters = "a:0-7:4 b:0-3:3 c:8-11:2"
    case = found(load(32, 12.0, 9_000, 1e-3), load(30, 1.0, 0.0, 1e-3), filters)
    order = [key for key, _ in moved(plan(case, Metric.OUTPUT))]
    assert "a" in order and "b" in order
    assert order.index("b") == order.index("a") + 1


def test_table_2_the_input_algorithm_moves_output_too() -> None:
    case = found(load(100, 12.0, 4_000), IDLE, "a:0-11:40 b:0-5:60")
    done = plan(case, Metric.INPUT)
    assert done.mine.output_ratio < case.mine.output_ratio
    assert done.theirs.output_ratio > case.theirs.output_ratio
