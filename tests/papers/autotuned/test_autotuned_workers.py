"""Section IV.A, the shared workers; section III.a, the finite buffer; section V.B, the case without auto-
tuning.
"""

from __future__ import annotations

import pytest

from fieldfare.effects import Ask
from fieldfare.publishing.machine import BatchAssigned, Poll, Polled, ReadBatch, TransferCompleted
from fieldfare_lab.publishing import FixedPublisher, Task, WorkerPool


def test_a_request_goes_before_messages_that_wait_longer() -> None:
    """Section IV.A: a worker that ends a task first looks for requests at the MRT."""
    pool: WorkerPool[str] = WorkerPool(1, receive_buffer=5)
    assert pool.ask(Task.PUBLISH, "m1") is True
    assert pool.ask(Task.PUBLISH, "m2") is False
    assert pool.ask(Task.RECEIVE, "r1") is False
    assert pool.ask(Task.RECEIVE, "r2") is False
    order = [pool.release() for _ in range(4)]
    assert order == [(Task.RECEIVE, "r1"), (Task.RECEIVE, "r2"), (Task.PUBLISH, "m2"), None]
    assert pool.free_workers == 1


def test_priority_takes_no_worker_away_from_a_message() -> None:
    """Section IV.A: non-preemptive: a request waits until somebody's task ends."""
    pool: WorkerPool[str] = WorkerPool(2, receive_buffer=5)
    assert pool.ask(Task.PUBLISH, "m1") is True
    assert pool.ask(Task.PUBLISH, "m2") is True
    assert pool.ask(Task.RECEIVE, "r1") is False
    assert pool.waiting(Task.RECEIVE) == 1


def test_a_burst_of_requests_may_take_every_worker() -> None:
    """Section IV.A: "the MRT can use more and more of the WTs": the pool is not divided."""
    pool: WorkerPool[int] = WorkerPool(4, receive_buffer=0)
    assert [pool.ask(Task.RECEIVE, number) for number in range(4)] == [True] * 4
    assert pool.ask(Task.PUBLISH, 9) is False


def test_a_request_is_dropped_when_the_buffer_is_full() -> None:
    """Section III.a: "When the buffer is full any incoming request is dropped". Messages never are."""
    pool: WorkerPool[int] = WorkerPool(1, receive_buffer=2)
    assert [pool.ask(Task.RECEIVE, number) for number in range(4)] == [True, False, False, None]
    assert pool.dropped_requests == 1
    assert [pool.ask(Task.PUBLISH, number) for number in range(100)] == [False] * 100
    assert pool.dropped_requests == 1


def test_without_priority_who_asked_first_is_served_first() -> None:
    """Section V.B.3: without auto-tuning requests queue behind messages."""
    pool: WorkerPool[str] = WorkerPool(1, receive_buffer=5, receive_first=False)
    pool.ask(Task.PUBLISH, "m1")
    pool.ask(Task.PUBLISH, "m2")
    pool.ask(Task.RECEIVE, "r1")
    pool.ask(Task.PUBLISH, "m3")
    assert [pool.release() for _ in range(3)] == [
        (Task.PUBLISH, "m2"),
        (Task.RECEIVE, "r1"),
        (Task.PUBLISH, "m3"),
    ]


@pytest.mark.parametrize(("workers", "buffer"), [(0, 1), (1, -1)])
def test_a_pool_that_cannot_be_is_refused(workers: int, buffer: int) -> None:
    with pytest.raises(ValueError):
        WorkerPool(workers, buffer)


def test_without_tuning_n_and_t_poll_stay_as_they_are() -> None:
    """Section III.b and figure 5: 10 of 10 go; 9 wait until T = 200 ms have passed; nothing is learned."""
    machine = FixedPublisher(10, 0.050)
    assert machine.start(0.0) == [Ask(Poll(0.050))]
    assert machine.handle(Polled(12), 0.050) == [Ask(ReadBatch(10))]
    assert machine.handle(BatchAssigned(), 0.060) == [Ask(Poll(0.100))]
    machine.handle(TransferCompleted(30.0, 1), 0.090)
    for now_s in (0.100, 0.150, 0.200, 0.250):
        assert machine.handle(Polled(9), now_s) == [Ask(Poll(now_s + 0.050))]
    assert machine.handle(Polled(9), 0.300) == [Ask(ReadBatch(9))]
    assert machine.handle(BatchAssigned(), 0.700) == [Ask(Poll(0.700))]
    assert (machine.setting().batch_messages, machine.setting().poll_interval_s) == (10, 0.050)


@pytest.mark.parametrize("wrong", [(0, 0.05, 0.2), (1, 0.0, 0.2), (1, 0.05, -1.0)])
def test_fixed_settings_that_cannot_be_are_refused(wrong: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError):
        FixedPublisher(*wrong)
