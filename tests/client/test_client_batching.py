"""The queue gives every event once, in order, in batches within the limits; nothing waits too long."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.client.batching import (
    SEQUENCE_SPREAD_MAX,
    SEQUENCE_STEP,
    Batch,
    BatchSettings,
    EventQueue,
    ManyEvents,
    OneEvent,
)
from fieldfare.client.errors import ApiError, ConnectionFailed, PublishError, Refusal
from fieldfare.client.protocol import PublishAnswer
from fieldfare.client.retry import Backoff, RetrySettings
from fieldfare.model import Position

TAKEN = PublishAnswer([Position(0, 0, 0)], keeps_order=True)


class CommandReader:
    """A receiver that records its results and errors."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.errors: list[Exception] = []

    def one(self) -> OneEvent:
        return OneEvent(self.results.append, self.errors.append)

    def many(self, count: int) -> ManyEvents:
        return ManyEvents(count, self.results.append, self.errors.append)


def make_queue(policy: BatchSettings) -> EventQueue:
    return EventQueue(policy, "producer", 1 << 20)


def take_all(queue: EventQueue) -> list[Batch]:
    batches = []
    while len(queue):
        batches.append(queue.take())
    return batches


def positions(offset: int, count: int) -> list[Position | None]:
    return [Position(0, offset, index) for index in range(count)]


@settings(max_examples=drawn(150))
@given(
    calls=st.lists(st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=12), max_size=12),
    max_events=st.integers(1, 7),
    max_bytes=st.integers(1, 30),
)
def test_every_event_goes_out_once_in_order_within_the_limits(
    calls: list[list[bytes]], max_events: int, max_bytes: int
) -> None:
    queue = make_queue(BatchSettings(max_events=max_events, max_bytes=max_bytes))
    heard = [CommandReader() for _ in calls]
    for lines, listener in zip(calls, heard, strict=True):
        queue.add(lines, sum(map(len, lines)), listener.many(len(lines)), 0, 0.0)
    sent: list[bytes] = []
    batches = take_all(queue)
    for batch in batches:
        assert 1 <= len(batch.lines) <= max_events
        assert len(batch.lines) == 1 or sum(map(len, batch.lines)) <= max_bytes
        assert batch.size_bytes == sum(map(len, batch.lines))
        sent += batch.lines
        batch.resolve(PublishAnswer(positions(batch.sequence, len(batch.lines))))
    assert sent == [line for lines in calls for line in lines]
    assert [batch.sequence // SEQUENCE_STEP for batch in batches] == list(range(len(batches)))
    assert queue.size_bytes == 0 and not len(queue)
    where = iter(at for batch in batches for at in positions(batch.sequence, len(batch.lines)))
    for lines, listener in zip(calls, heard, strict=True):
        assert listener.results == [[next(where) for _ in lines]]


def test_an_event_waits_for_others_at_most_for_its_linger() -> None:
    queue = make_queue(BatchSettings(max_events=3, linger_ms=5))
    assert queue.due_in_s(10.0) is None
    queue.add([b"a"], 1, CommandReader().one(), 0, 10.0)
    assert queue.due_in_s(10.0) == pytest.approx(0.005)
    queue.add([b"b"], 1, CommandReader().one(), 0, 10.004)
    assert queue.due_in_s(10.004) == pytest.approx(0.001)
    assert queue.due_in_s(10.006) == 0.0


def test_a_full_batch_and_a_hurried_one_wait_for_nothing() -> None:
    queue = make_queue(BatchSettings(max_events=2, linger_ms=1000))
    queue.add([b"a"], 1, CommandReader().one(), 0, 0.0)
    assert queue.due_in_s(0.0) == 1.0
    queue.hurry()
    assert queue.due_in_s(0.0) == 0.0
    first = queue.take()
    queue.add([b"a", b"b"], 2, CommandReader().many(2), 0, 0.0)
    assert queue.due_in_s(0.0) is None  # One request at a time.
    queue.finish(first, TAKEN)
    assert queue.due_in_s(0.0) == 0.0


def test_requests_do_not_run_too_far_ahead_of_one_that_keeps_failing() -> None:
    """The service knows a producer's last 1,000 sequences; an older one's repeat would be appended twice."""
    queue = make_queue(BatchSettings(max_events=1, linger_ms=0, max_in_flight=2))
    queue.add([b"x"] * (SEQUENCE_SPREAD_MAX + 2), 1, CommandReader().many(SEQUENCE_SPREAD_MAX + 2), 0, 0.0)
    queue.finish(queue.take(), TAKEN)
    stuck = queue.take()
    for _ in range(SEQUENCE_SPREAD_MAX - 1):
        assert queue.due_in_s(0.0) == 0.0
        queue.finish(queue.take(), TAKEN)
    assert queue.due_in_s(0.0) is None
    queue.finish(stuck, TAKEN)
    assert queue.due_in_s(0.0) == 0.0


def test_each_future_gets_the_outcome_of_its_event_in_a_partial_batch() -> None:
    queue = make_queue(BatchSettings(linger_ms=0))
    first, second = CommandReader(), CommandReader()
    queue.add([b"good"], 4, first.one(), 0, 0.0)
    queue.add([b"bad"], 3, second.one(), 0, 0.0)
    answer = PublishAnswer([Position(0, 7, 0), None], {1: Refusal(1, "no source", "/source")})
    queue.take().resolve(answer)
    assert first.results == [Position(0, 7, 0)] and not first.errors
    assert str(second.errors[0]) == "the service refused the event at /source: no source"


def test_a_call_that_went_in_several_requests_accounts_for_every_event() -> None:
    queue = make_queue(BatchSettings(max_events=2))
    heard = CommandReader()
    queue.add([b"a", b"b"], 2, receiver := heard.many(5), 0, 0.0)
    queue.add([b"c", b"d", b"e"], 3, receiver, 2, 0.0)
    one, two, three = take_all(queue)
    two.fail(ConnectionFailed("gone", "http://x"))
    one.resolve(PublishAnswer([None, Position(0, 1, 0)], {0: Refusal(0, "no type")}))
    assert not heard.errors
    three.resolve(PublishAnswer(positions(3, 1)))
    error = heard.errors[0]
    assert isinstance(error, PublishError)
    assert error.accepted == ((1, Position(0, 1, 0)), (4, Position(0, 3, 0)))
    assert error.refused == (Refusal(0, "no type"),)
    assert error.unknown == (2, 3)
    assert str(error) == ("1 of 5 events were refused: item 0: no type; 2 of 5 events were not acknowledged")
    assert isinstance(error.__cause__, ConnectionFailed)


@pytest.mark.parametrize(
    "wrong",
    [{"max_events": 0}, {"max_events": 10_001}, {"max_bytes": 0}, {"linger_ms": -1}, {"max_in_flight": 0}],
)
def test_invalid_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        BatchSettings(**wrong)


def test_waits_between_attempts_grow_and_end_at_the_deadline() -> None:
    backoff = Backoff(RetrySettings(0.1, 0.4, deadline_s=10.0), 0.0, random.Random(7))
    gone = ConnectionFailed("gone", "http://x")
    waits = [backoff.next_wait_s(gone, 1.0) for _ in range(5)]
    for wait_s, bound_s in zip(waits, (0.1, 0.2, 0.4, 0.4, 0.4), strict=True):
        assert wait_s is not None and bound_s / 2 <= wait_s <= bound_s
    assert backoff.next_wait_s(gone, 9.9) == pytest.approx(0.1)
    assert backoff.next_wait_s(gone, 10.0) is None


def test_the_service_is_left_alone_for_as_long_as_it_asks() -> None:
    backoff = Backoff(RetrySettings(0.1, 0.4, deadline_s=10.0), 0.0, random.Random(7))
    wait_s = backoff.next_wait_s(ApiError(429, {}, retry_after_s=3.0), 0.0)
    assert wait_s is not None and 3.0 <= wait_s <= 3.1


def test_a_permanent_error_is_not_retried() -> None:
    backoff = Backoff(RetrySettings(), 0.0, random.Random(7))
    assert backoff.next_wait_s(ApiError(404, {}), 0.0) is None
