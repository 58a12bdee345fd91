"""Our tuner by hand: what it reads, when it sees congestion, how a bound on latency is spent."""

from __future__ import annotations

from typing import Any

import pytest

from fieldfare.effects import Ask
from fieldfare.publishing.machine import BatchAssigned, Poll, Polled, ReadBatch, TransferCompleted
from fieldfare.publishing.windowed import WindowedKnobs, WindowedPublisher


def started(**knobs: Any) -> WindowedPublisher:
    machine = WindowedPublisher(WindowedKnobs(**knobs))
    assert machine.start(0.0) == [Ask(Poll(0.050))]
    return machine


def poll_at(machine: WindowedPublisher, now_s: float, pending: int, transferring: int = 0) -> Any:
    (effect,) = machine.handle(Polled(pending, pending, transferring), now_s)
    return effect.question


def test_a_single_message_is_read_at_the_next_poll() -> None:
    machine = started()
    assert poll_at(machine, 0.050, 0) == Poll(0.100)
    assert poll_at(machine, 0.100, 1) == ReadBatch(16)


def test_a_read_may_take_more_than_was_pending_at_the_poll() -> None:
    """Writes go before reads, so more messages may be there when the read's turn comes."""
    assert poll_at(started(), 0.050, 3) == ReadBatch(16)


def test_after_a_long_round_the_next_poll_is_at_once() -> None:
    machine = started()
    poll_at(machine, 0.050, 3)
    assert machine.handle(BatchAssigned(), 0.210) == [Ask(Poll(0.210))]
    poll_at(machine, 0.210, 3)
    assert machine.handle(BatchAssigned(), 0.220) == [Ask(Poll(pytest.approx(0.260)))]


def test_a_read_is_bounded_by_what_leaves_in_two_rounds() -> None:
    """20 transfers of 0.1 s are 200/s; in two rounds of 0.15 s leave 60."""
    machine = started(most_transfers=100)
    machine.handle(TransferCompleted(0.1, 20), 0.040)
    poll_at(machine, 0.050, 500)
    machine.handle(BatchAssigned(), 0.200)
    assert poll_at(machine, 0.200, 500) == ReadBatch(60)


def test_transfers_that_are_much_slower_than_the_quickest_close_the_window() -> None:
    """0.1 s was the quickest; 0.5 s is over 4 times that. Bandwidth: 0.75 x 200 + 0.25 x 20/0.5 = 160/s; what
    leaves in 0.1 s, twice: 32; 30 are under way, so 2 more may go."""
    machine = started(most_transfers=50)
    machine.handle(TransferCompleted(0.1, 20), 0.040)
    machine.handle(TransferCompleted(0.5, 20), 0.045)
    assert poll_at(machine, 0.050, 500, transferring=30) == ReadBatch(2)
    assert poll_at(machine, 0.100, 500, transferring=32) == Poll(pytest.approx(0.150))
    assert machine.setting().most_batch_messages == 32


def test_congestion_is_over_when_slow_transfers_are_a_while_ago() -> None:
    machine = started(most_transfers=50, memory_s=5.0)
    machine.handle(TransferCompleted(0.1, 20), 0.040)
    machine.handle(TransferCompleted(0.5, 20), 0.045)
    machine.handle(TransferCompleted(0.1, 20), 5.100)
    poll_at(machine, 5.110, 500, transferring=20)
    assert machine.setting().most_batch_messages == 50


def test_transfers_of_which_none_ends_close_the_window() -> None:
    """The least delay is 0.1 s; nothing has ended for more than 0.4 s: the bound is then 2 x 10/0.1 x 0.1 =
    20.
    """
    machine = started(most_transfers=50)
    machine.handle(TransferCompleted(0.1, 10), 0.050)
    poll_at(machine, 0.400, 500, transferring=22)
    assert machine.setting().most_batch_messages == 50
    poll_at(machine, 0.500, 500, transferring=22)
    assert machine.setting().most_batch_messages == 20


def test_silence_without_transfers_is_no_congestion() -> None:
    machine = started()
    machine.handle(TransferCompleted(0.1, 10), 0.050)
    assert isinstance(poll_at(machine, 9.0, 1), ReadBatch)
    assert machine.setting().most_batch_messages == 30


def test_a_few_transfers_are_always_allowed() -> None:
    """Bandwidth 1/4 per second: the pipe holds nothing, but a probe must detect when that ends."""
    machine = started()
    machine.handle(TransferCompleted(0.1, 1), 0.040)
    for _ in range(50):
        machine.handle(TransferCompleted(4.0, 1), 4.0)
    poll_at(machine, 4.050, 10)
    assert machine.setting().most_batch_messages == 16


def test_some_workers_are_left_to_requests_even_without_congestion() -> None:
    assert poll_at(started(most_transfers=32), 0.050, 500, transferring=30) == ReadBatch(2)


def test_a_read_counts_on_the_transfers_that_end_while_it_lasts() -> None:
    """80 transfers a second leave 10 in a round of 1/8 s: of 30 under way 20 stay, so 12 of 32 may
    be read."""
    machine = started(most_transfers=32)
    machine.handle(TransferCompleted(0.125, 10), 0.040)
    poll_at(machine, 0.0625, 500)
    machine.handle(BatchAssigned(), 0.1875)
    assert poll_at(machine, 0.1875, 500, transferring=30) == ReadBatch(12)


def test_a_bound_on_latency_is_spent_on_rarer_polls() -> None:
    """1 s may pass; a round takes 0.15 s and a transfer 0.14 s: 0.71 s are left to wait."""
    machine = started(latency_bound_s=1.0)
    machine.handle(TransferCompleted(0.14, 1), 0.040)
    poll_at(machine, 0.050, 1)
    (effect,) = machine.handle(BatchAssigned(), 0.200)
    assert isinstance(effect.question, Poll)
    assert effect.question.at_s == pytest.approx(0.050 + 0.710)


def test_a_bound_that_the_path_cannot_keep_means_as_quick_as_can_be() -> None:
    machine = started(latency_bound_s=0.1)
    machine.handle(TransferCompleted(0.14, 1), 0.040)
    assert poll_at(machine, 0.050, 0) == Poll(pytest.approx(0.100))


def test_a_bound_on_latency_bounds_what_is_under_way_in_congestion() -> None:
    """Little's law: 160/s leave; of the bound of 0.2 s the round of 0.05 s leaves 0.15 s: 24 and no more."""
    machine = started(latency_bound_s=0.2, most_transfers=50)
    machine.handle(TransferCompleted(0.1, 20), 0.010)
    machine.handle(TransferCompleted(0.5, 20), 0.020)
    poll_at(machine, 0.050, 5)
    machine.handle(BatchAssigned(), 0.100)
    assert machine.setting().most_batch_messages == 24


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_poll_s": 0.0},
        {"max_poll_s": 0.01},
        {"least_batch_messages": 0},
        {"least_transfers": 0},
        {"most_transfers": 3},
        {"window_gain": 0.5},
        {"slow_transfer": 1.0},
        {"latency_bound_s": 0.0},
        {"latency_bound_s": -1.0},
    ],
)
def test_invalid_knobs_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        WindowedKnobs(**wrong)
