"""Every formula and every branch of Balasubramanian et al., "Auto-tuned Publisher in a Pub/Sub System", by
hand.
"""

from __future__ import annotations

from typing import Any

import pytest

from fieldfare.publishing.autotuned import AutotunedKnobs, AutotunedPublisher
from fieldfare.publishing.machine import BatchAssigned, Poll, Polled, ReadBatch, TransferCompleted


def started(**knobs: Any) -> AutotunedPublisher:
    machine = AutotunedPublisher(AutotunedKnobs(**knobs))
    machine.start(0.0)
    return machine


def poll_at(machine: AutotunedPublisher, now_s: float, pending: int, arrived: int = 0) -> Any:
    (effect,) = machine.handle(Polled(pending, arrived), now_s)
    return effect.question


def assigned_at(machine: AutotunedPublisher, now_s: float) -> float:
    (effect,) = machine.handle(BatchAssigned(), now_s)
    assert isinstance(effect.question, Poll)
    return effect.question.at_s


def test_table_1_the_knobs_have_the_papers_values() -> None:
    """Table I: 50 and 200 ms, N_min 1, α 0.5, γ 0.75, β 1.2; section III.b: T is T_poll^max."""
    knobs = AutotunedKnobs()
    assert (knobs.min_poll_s, knobs.max_poll_s) == (0.050, 0.200)
    assert knobs.min_batch_messages == 1
    assert (knobs.load_gain, knobs.capacity_gain, knobs.poll_headroom) == (0.5, 0.75, 1.2)
    assert knobs.max_wait_s is None


def test_formula_1_the_load_is_an_average_of_samples_over_polling_intervals() -> None:
    """Section IV.B.a: 2 messages in 50 ms are 40/s; then 6 in 50 ms are 120/s: 0.5 x 40 + 0.5 x 120 = 80;
    then none in 100 ms: 0.5 x 80 + 0.5 x 0 = 40."""
    machine = started()
    assert machine.setting().load_per_s is None
    poll_at(machine, 0.050, 0, arrived=2)
    assert machine.setting().load_per_s == pytest.approx(40.0)
    poll_at(machine, 0.100, 0, arrived=6)
    assert machine.setting().load_per_s == pytest.approx(80.0)
    poll_at(machine, 0.200, 0, arrived=0)
    assert machine.setting().load_per_s == pytest.approx(40.0)


def test_formula_1_weighs_the_past_by_alpha() -> None:
    """With α = 0.9: 0.9 x 40 + 0.1 x 120 = 48."""
    machine = started(load_gain=0.9)
    poll_at(machine, 0.050, 0, arrived=2)
    poll_at(machine, 0.100, 0, arrived=6)
    assert machine.setting().load_per_s == pytest.approx(48.0)


def test_formula_2_the_capacity_is_an_average_of_transfers_under_way_by_their_time() -> None:
    """Section IV.B.c: η = n/s. 7 transfers, 0.14 s: 50/s. Then 6 in 0.2 s: 30/s, and
    0.75 x 50 + 0.25 x 30 = 45. Then 9 in 0.1 s: 90/s, and 0.75 x 45 + 0.25 x 90 = 56.25."""
    machine = started()
    assert machine.setting().most_batch_messages is None
    machine.handle(TransferCompleted(0.14, 7), 0.1)
    assert machine.setting().capacity_per_s == pytest.approx(50.0)
    machine.handle(TransferCompleted(0.20, 6), 0.2)
    assert machine.setting().capacity_per_s == pytest.approx(45.0)
    machine.handle(TransferCompleted(0.10, 9), 0.3)
    assert machine.setting().capacity_per_s == pytest.approx(56.25)
    assert machine.setting().most_batch_messages == 56


def test_n_max_is_the_capacity_and_never_below_n_min() -> None:
    """Section IV.B.c: "we set N_max to η_est": one transfer of 4 s is 0.25/s, and N_min is 1."""
    machine = started()
    assert machine.handle(TransferCompleted(4.0, 1), 4.0) == []
    assert machine.setting().most_batch_messages == 1


def test_a_longer_service_time_lowers_n_max_and_with_it_n() -> None:
    """Section IV.B.c, last paragraph: congestion lengthens s_i; N = 40 with η = 8 / 0.1 = 80 becomes
    0.75 x 80 + 0.25 x (8 / 8) = 60.25, 45.4, 34.3: then N is 34."""
    machine = started(first_batch_messages=40)
    machine.handle(TransferCompleted(0.1, 8), 1.0)
    assert machine.setting().batch_messages == 40
    for moment_s in (9.0, 10.0, 11.0):
        machine.handle(TransferCompleted(8.0, 8), moment_s)
    assert machine.setting().capacity_per_s == pytest.approx(0.75**3 * 80 + (1 - 0.75**3) * 1)
    assert machine.setting().batch_messages == machine.setting().most_batch_messages == 34


def test_n_max_stops_the_growth_of_n() -> None:
    """η = 1 / 0.5 = 2: N goes 1, 2 and stays."""
    machine = started()
    machine.handle(TransferCompleted(0.5, 1), 0.0)
    for number in range(1, 4):
        poll_at(machine, number * 0.050, 10)
        assigned_at(machine, number * 0.050 + 0.001)
    assert machine.setting().batch_messages == 2


@pytest.mark.parametrize(
    ("round_s", "poll_s"),
    [(0.010, 0.050), (0.050, 0.060), (0.100, 0.120), (0.150, 0.180), (0.190, 0.200), (0.900, 0.200)],
)
def test_t_poll_is_beta_times_the_round_within_its_bounds(round_s: float, poll_s: float) -> None:
    """Section IV.B.b: T_poll = max(min(1.2 T_mpt, 200 ms), 50 ms)."""
    machine = started()
    poll_at(machine, 0.050, 1)
    assigned_at(machine, 0.050 + round_s)
    assert machine.setting().poll_interval_s == pytest.approx(poll_s)


def test_the_next_poll_is_an_interval_after_the_last_one() -> None:
    """Figure 6: the round of 100 ms began at 50 ms; T_poll becomes 120 ms; the next poll is at 170 ms."""
    machine = started()
    poll_at(machine, 0.050, 1)
    assert assigned_at(machine, 0.150) == pytest.approx(0.170)


def test_a_poll_that_a_long_round_has_missed_is_made_up_at_once() -> None:
    """Heuristic 3: a blocked MPT misses the timer. 300 ms of work, T_poll is 200 ms at most."""
    machine = started()
    poll_at(machine, 0.050, 1)
    assert assigned_at(machine, 0.350) == pytest.approx(0.350)


def test_n_grows_by_one_when_the_round_ends_within_the_poll_interval() -> None:
    """Section IV.B.c: "the value of N is increased by 1", to probe for capacity."""
    machine = started(first_batch_messages=5)
    assert poll_at(machine, 0.050, 8) == ReadBatch(5)
    assigned_at(machine, 0.090)
    assert machine.setting().batch_messages == 6


def test_n_shrinks_by_one_when_the_round_outlasts_the_poll_interval() -> None:
    """Section IV.B.c: "N is decreased by 1"; measured by the timer that ran, not by the new T_poll."""
    machine = started(first_batch_messages=5)
    poll_at(machine, 0.050, 8)
    assigned_at(machine, 0.110)  # 60 ms of work in an interval of 50 ms.
    assert machine.setting().batch_messages == 4
    assert machine.setting().poll_interval_s == pytest.approx(0.072)
    poll_at(machine, 0.125, 8)
    assigned_at(machine, 0.185)  # Again 60 ms: within the 72 ms that hold now.
    assert machine.setting().batch_messages == 5


def test_n_does_not_shrink_below_n_min() -> None:
    machine = started()
    poll_at(machine, 0.050, 1)
    assigned_at(machine, 0.250)
    assert machine.setting().batch_messages == 1


def test_a_round_that_ends_exactly_with_the_interval_leaves_n() -> None:
    """Neither "before the next poll timer expires" nor "longer"; 2^-4 s has no rounding error."""
    machine = started(first_batch_messages=5, min_poll_s=0.0625)
    poll_at(machine, 0.0625, 8)
    assigned_at(machine, 0.1250)
    assert machine.setting().batch_messages == 5


def test_n_halves_when_too_few_messages_have_come_and_the_timer_starts_again() -> None:
    """Section IV.B.c: multiplicative decrease by a factor of 2: 20, 10, 5, 2, 1, 1."""
    machine = started(first_batch_messages=20)
    seen = []
    for number in range(1, 6):
        now_s = number * 0.010
        assert poll_at(machine, now_s, 0) == Poll(now_s + 0.050)
        seen.append(machine.setting().batch_messages)
    assert seen == [10, 5, 2, 1, 1]


def test_exactly_n_pending_messages_are_enough() -> None:
    machine = started(first_batch_messages=5)
    assert poll_at(machine, 0.050, 5) == ReadBatch(5)
    assert machine.setting().batch_messages == 5


def test_a_poll_reads_no_more_than_n() -> None:
    """Section III.b: N is "the maximum number of requests that the MPT attempts to retrieve at a time"."""
    machine = started(first_batch_messages=5)
    assert poll_at(machine, 0.050, 500) == ReadBatch(5)


def test_when_t_expires_whatever_is_there_is_read() -> None:
    """Section III.b: T = 200 ms. N = 80 halves to 40, 20, 10 at 50, 100, 150 ms; at 200 ms 3 messages are
    still fewer than 10 and go all the same, and N is 5. Their round neither adds to N nor takes from it."""
    machine = started(first_batch_messages=80)
    for now_s in (0.050, 0.100, 0.150):
        assert isinstance(poll_at(machine, now_s, 3), Poll)
    assert poll_at(machine, 0.200, 3) == ReadBatch(3)
    assert machine.setting().batch_messages == 5
    assigned_at(machine, 0.210)
    assert machine.setting().batch_messages == 5


def test_t_counts_from_the_end_of_the_last_round() -> None:
    """The round ends at 60 ms, so 200 ms have passed at 260 ms and not at 250 ms."""
    machine = started(first_batch_messages=100)
    poll_at(machine, 0.050, 100)
    assigned_at(machine, 0.060)
    for now_s in (0.100, 0.150, 0.200, 0.250):
        assert isinstance(poll_at(machine, now_s, 1), Poll)
    assert poll_at(machine, 0.260, 1) == ReadBatch(1)


def test_when_t_expires_on_an_empty_store_it_starts_again() -> None:
    machine = started(first_batch_messages=1000)
    for now_s in (0.050, 0.100, 0.150, 0.200):
        assert isinstance(poll_at(machine, now_s, 0), Poll)
    assert isinstance(poll_at(machine, 0.250, 1), Poll)


def test_heuristic_1_little_load_ends_in_n_min_and_short_polls() -> None:
    """Section IV.B, heuristic 1: after a burst with long rounds, single messages bring both down."""
    machine = started(first_batch_messages=30)
    poll_at(machine, 0.050, 30)
    assigned_at(machine, 0.250)
    assert machine.setting().poll_interval_s == pytest.approx(0.200)
    now_s = 0.250
    for _ in range(6):
        now_s += 0.200
        effect = poll_at(machine, now_s, 1)
        if effect == ReadBatch(1):
            now_s = assigned_at(machine, now_s + 0.005)
    assert machine.setting().batch_messages <= 2
    assert machine.setting().poll_interval_s == pytest.approx(0.050)


def test_heuristic_2_load_raises_n_and_t_poll() -> None:
    """Section IV.B, heuristic 2: a store that never runs empty, rounds of 20 ms and 4 ms for each message.

    The round of N messages ends within T_poll while 20 + 4 N < T_poll, and T_poll follows at 1.2 times."""
    machine = started()
    now_s = 0.050
    for _ in range(30):
        effect = poll_at(machine, now_s, 1000)
        now_s = assigned_at(machine, now_s + 0.020 + 0.004 * effect.most_messages)
    assert machine.setting().batch_messages == 31
    assert machine.setting().poll_interval_s == pytest.approx(1.2 * (0.020 + 0.004 * 30))


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_poll_s": 0.0},
        {"min_poll_s": 0.3},
        {"min_batch_messages": 0},
        {"first_batch_messages": 0},
        {"poll_headroom": 1.0},
        {"capacity_window_s": 0.0},
    ],
)
def test_knobs_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        AutotunedKnobs(**wrong)


@pytest.mark.parametrize("gain", [-0.1, 1.0])
def test_filter_gains_lie_from_0_to_below_1(gain: float) -> None:
    """Formula 2: 0 < γ < 1."""
    with pytest.raises(ValueError):
        AutotunedPublisher(AutotunedKnobs(capacity_gain=gain))
