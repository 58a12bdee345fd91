"""Several requests under way: whatever becomes of each, the log has the events in order and once.

The publisher's machines, without threads, against a log, over a network that reorders requests, loses them
and their answers, and brings some long after the publisher has given their connection up.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.doses import drawn

sys.path.insert(0, str(Path(__file__).parents[1] / "storage"))

from memory_log import MemoryEventLog

from fieldfare.client.batching import Batch, BatchSettings, OneEvent
from fieldfare.client.dispatch import BatchDelivery, PublisherQueue
from fieldfare.client.errors import ApiError, ConnectionFailed, FieldfareError, KeptInOutbox, OutboxError
from fieldfare.client.in_flight import FIRST, InFlight
from fieldfare.client.protocol import Answer, ApiCall, PublishAnswer
from fieldfare.client.retry import RetrySettings
from fieldfare.model import RECORD_EVENTS_MAX, Position
from fieldfare.storage.event_log import NewRecord, OutOfOrder

STEPS_MAX = 20_000


@dataclass(eq=False)
class Sent:
    """A request in the network; with `delivery` None its answer has no waiter."""

    call: ApiCall[PublishAnswer]
    delivery: BatchDelivery | None


class World:
    """A publisher, a network and a log; `step` has one of them do something, by chance."""

    def __init__(self, seed: int, folder: Path | None) -> None:
        self.random = Random(seed)
        self.folder = folder
        self.settings = BatchSettings(
            max_events=self.random.choice((1, 2, 5)),
            linger_ms=0,
            max_in_flight=self.random.choice((1, 2, 3, 5)),
        )
        self.retry = RetrySettings(0.05, 1.0, deadline_s=self.random.choice((3.0, 1e9)))
        self.trouble = self.random.choice((0.0, 0.1, 0.4))
        self.log = MemoryEventLog(1, seed=seed, holes=0)
        self.taken_most = RECORD_EVENTS_MAX
        self.taken: set[tuple[str, int]] = set()
        self.now_s = 0.0
        self.published = 0
        self.acknowledged: dict[int, Position] = {}
        self.failed: dict[int, FieldfareError] = {}
        self.network: list[Sent] = []
        self.working: dict[BatchDelivery, Batch] = {}
        self.resting: dict[BatchDelivery, tuple[float, bool]] = {}
        self.open()

    def open(self) -> None:
        """A publisher begins, with what one before it has left."""
        self.stopping = False
        outbox = None if self.folder is None else self.folder / "outbox"
        self.dispatch = PublisherQueue("http://x", "default", self.settings, self.retry, outbox, None)
        self.dispatch.chance = Random(self.random.random())
        if self.dispatch.outbox is not None:
            self.dispatch.outbox.sync = lambda: None  # type: ignore[method-assign]

    def end(self) -> None:
        """It is closed, or its program dies: what is in the network stays there."""
        for sent in self.network:
            sent.delivery = None
        if self.random.random() < 0.5:
            for delivery in [*self.working]:
                delivery.give_up()
                self.close(delivery)
        self.working.clear()
        self.resting.clear()
        self.dispatch.queue.close()

    def step(self) -> bool:
        """Let something happen; False when nothing can."""
        doings: list[Any] = [self.arrive] * 3 * bool(self.network)
        if self.dispatch.queue.due_in_s(self.now_s) == 0.0 and not self.dispatch.is_parked:
            doings += [self.take] * 3
        doings += [self.wake] * bool(self.resting)
        if not doings:
            return False
        self.random.choice(doings)()
        self.now_s += self.random.choice((0.0, 0.01, 0.2))
        if self.taken_most > 1 and self.random.random() < self.trouble / 5:
            self.taken_most = self.random.randint(1, self.taken_most - 1) if self.taken_most < 6 else 5
        return True

    def publish(self) -> None:
        """One event more; every seventh is one that the service refuses."""
        number, self.published = self.published, self.published + 1

        def resolve(position: Position) -> None:
            self.acknowledged[number] = position

        def refuse(error: FieldfareError) -> None:
            self.failed[number] = error

        line = json.dumps({"n": number, "bad": self.random.random() < self.trouble / 3}).encode()
        self.dispatch.queue.add([line], len(line), OneEvent(resolve, refuse), 0, self.now_s)

    def take(self) -> None:
        batch = self.dispatch.take()
        delivery = BatchDelivery(self.dispatch, batch, self.now_s)
        self.working[delivery] = batch
        self.send(delivery)

    def send(self, delivery: BatchDelivery) -> None:
        self.resting.pop(delivery, None)
        self.network.append(Sent(delivery.begin(self.now_s), delivery))

    def arrive(self) -> None:
        """A request arrives, or is lost, or its answer is; or the publisher gives it up before it arrives."""
        sent = self.random.choice(self.network)
        lot = self.random.random()
        if sent.delivery is not None and lot < self.trouble / 2:
            self.hear(sent, ConnectionFailed("the connection broke", "http://x"))
            if lot < self.trouble / 4:
                return  # and it is still on its way
            sent.delivery = None
            self.network.remove(sent)
            return
        self.network.remove(sent)
        answer = self.serve(sent.call)
        if self.random.random() < self.trouble / 2:
            self.hear(sent, ConnectionFailed("the connection broke", "http://x"))
            return
        try:
            found = sent.call.interpret(answer)
        except ApiError as error:
            self.hear(sent, error)
        else:
            self.hear(sent, found)

    def serve(self, call: ApiCall[PublishAnswer]) -> Answer:
        """Return the answer of a gateway that does not wait for the request that this one follows."""
        headers = dict(call.headers)
        lines = (call.content or b"").splitlines()
        if self.random.random() < self.trouble / 4:
            return _answer(self.random.choice((429, 503)), {"title": "Busy"})
        sent = headers["fieldfare-producer"], int(headers["fieldfare-sequence"])
        if len(lines) > self.taken_most and sent not in self.taken:
            return _answer(413, {"title": "Too large"})
        events = [json.loads(line) for line in lines]
        accepted = [index for index, event in enumerate(events) if not event["bad"]]
        refused = [{"index": i, "detail": "bad"} for i, event in enumerate(events) if event["bad"]]
        if not accepted:
            return _answer(400, {"title": "None is good", "refused": refused})
        follows = headers.get("fieldfare-follows")
        record = NewRecord(
            "default",
            b"".join(lines[index] + b"\n" for index in accepted),
            len(accepted),
            *sent,
            follows=None if follows is None else int(follows),
        )
        (place,) = self.log.append([record])
        if isinstance(place, OutOfOrder):
            assert record.sequence is not None
            kind = "sequence-passed" if place.newest > record.sequence else "out-of-order"
            return _answer(409, {"type": f"urn:fieldfare:problem:{kind}", "newest": place.newest})
        assert not place.differs
        self.taken.add(sent)
        document: dict[str, Any] = {"partition": 0, "offset": place.offset, "count": place.count}
        if follows is not None:
            document["follows"] = int(follows)
        if not refused:
            return _answer(200, document)
        at = [{"index": index, "position": f"0-{place.offset}-{n}"} for n, index in enumerate(accepted)]
        return _answer(207, document | {"accepted": at, "refused": refused})

    def hear(self, sent: Sent, what: PublishAnswer | Exception) -> None:
        """The publisher hears of a request, if it still waits."""
        delivery, sent.delivery = sent.delivery, None
        if delivery is None or delivery not in self.working:
            return
        if isinstance(what, PublishAnswer):
            delivery.succeed(what)
        else:
            wait_s = delivery.fail(what, self.now_s, self.stopping)
            if wait_s is not None:
                self.resting[delivery] = self.now_s + wait_s, delivery.is_early
                return
        self.close(delivery)

    def close(self, delivery: BatchDelivery) -> None:
        delivery.close(self.now_s)
        del self.working[delivery]

    def wake(self) -> None:
        """End the wait of one delivery, advancing the time if necessary."""
        for delivery, (until_s, is_early) in self.resting.items():
            if self.now_s >= until_s or (is_early and delivery.has_progressed()):
                self.send(delivery)
                return
        self.now_s = min(until_s for until_s, _ in self.resting.values())

    def check(self) -> None:
        """The log has each event once and in order, and all that was acknowledged where it was said to be."""
        stored = [
            (json.loads(line)["n"], Position(0, record.offset, index))
            for record in self.log.partitions[0].read(0, self.log.partitions[0].end())
            for index, line in enumerate(record.payload.splitlines())
        ]
        numbers = [number for number, _ in stored]
        assert numbers == sorted(set(numbers)), "doubled, or out of order"
        assert self.acknowledged.items() <= dict(stored).items()


def _answer(status: int, document: dict[str, Any]) -> Answer:
    return Answer(status, {}, json.dumps({"status": status} | document).encode())


def live(world: World, events: int, share: float) -> None:
    """Publish some, until all is over, or to the middle of it."""
    left = events
    for _ in range(STEPS_MAX):
        if left and world.random.random() < share:
            world.publish()
            left -= 1
        if not world.step() and not left:
            return
    raise AssertionError(f"it does not end: {world.dispatch.stats()}")


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_events_are_in_the_log_once_and_in_order_whatever_becomes_of_requests(first: int) -> None:
    """Most seeds have requests that fail, come late, too large or bad; some have a deadline."""
    overlapped = 0
    for seed in range(first, first + drawn(100)):
        world = World(seed, None)
        try:
            live(world, 60, world.random.choice((0.2, 0.9)))
            world.check()
            assert world.acknowledged.keys() | world.failed.keys() == set(range(60))
            if not world.trouble:
                assert not world.failed
        except BaseException:
            print(f"seed {seed}")
            raise
        overlapped += world.dispatch.stats().repeated_requests
    assert overlapped > 0


@pytest.mark.parametrize("seed", range(drawn(25)))
def test_events_kept_in_an_outbox_are_sent_before_new_ones(seed: int, tmp_path: Path) -> None:
    """Publishers end in the middle of several requests, of which some arrive later than the next one's."""
    world = World(seed, tmp_path)
    for _ in range(3):
        for _ in range(world.random.randrange(60)):
            if world.random.random() < 0.5:
                world.publish()
            world.step()
        world.stopping = world.random.random() < 0.5
        for _ in range(5 * world.stopping):
            world.step()
        world.end()
        world.open()
    live(world, 10, 0.5)
    world.check()
    kept = world.dispatch.require_outbox()
    assert kept.stats().waiting_events == 0
    refused = {json.loads(each.raw)["n"] for each in kept.refused()}
    read = world.log.partitions[0].read(0, world.log.partitions[0].end())
    stored = {json.loads(line)["n"] for record in read for line in record.payload.splitlines()}
    assert stored | refused == set(range(world.published)) and not stored & refused
    world.dispatch.queue.close()


def one_by_one(count: int) -> World:
    """A world without faults, with ``count`` requests in flight behind a first one that was answered."""
    world = World(0, None)
    world.trouble = 0.0
    world.settings = BatchSettings(max_events=1, linger_ms=0, max_in_flight=count)
    world.retry = RetrySettings(0.05, 1.0, deadline_s=1e9)
    world.open()
    world.publish()
    world.take()
    world.arrive()
    for _ in range(count):
        world.publish()
        world.take()
    return world


def arrive(world: World, which: int) -> None:
    """One of those in the network arrives, and its answer too."""
    sent = world.network.pop(which)
    try:
        world.hear(sent, sent.call.interpret(world.serve(sent.call)))
    except ApiError as error:
        world.hear(sent, error)


def test_requests_overlap_once_the_service_has_shown_that_it_keeps_order() -> None:
    world = World(0, None)
    world.settings = BatchSettings(max_events=1, linger_ms=0, max_in_flight=3)
    world.trouble = 0.0
    world.open()
    for _ in range(5):
        world.publish()
    world.take()
    assert world.dispatch.queue.due_in_s(0.0) is None, "of an older service nothing is known yet"
    world.arrive()
    for _ in range(3):
        assert world.dispatch.queue.due_in_s(0.0) == 0.0
        world.take()
    assert world.dispatch.queue.due_in_s(0.0) is None
    follows = [dict(sent.call.headers)["fieldfare-follows"] for sent in world.network]
    sequences = [dict(sent.call.headers)["fieldfare-sequence"] for sent in world.network]
    assert follows == ["9999", *sequences[:2]]


def test_an_early_request_is_sent_again_once_the_first_is_answered() -> None:
    world = one_by_one(3)
    arrive(world, 2)
    arrive(world, 1)
    assert len(world.resting) == 2 and not any(each.has_progressed() for each in world.resting)
    arrive(world, 0)
    assert all(each.has_progressed() for each in world.resting)
    live(world, 0, 0.0)
    world.check()
    assert len(world.acknowledged) == 4
    assert world.dispatch.trouble is None, "that one came early is no trouble"


def test_a_request_behind_a_failed_one_does_not_wait_for_it(caplog: pytest.LogCaptureFixture) -> None:
    """The request arrived and its answer was lost; or it did not arrive, and must never be appended later."""
    for has_arrived in (True, False):
        world = one_by_one(2)
        lost = world.network.pop(0)
        if has_arrived:
            world.serve(lost.call)
        world.now_s += 2e9
        world.hear(lost, ConnectionFailed("the connection broke", "http://x"))
        assert list(world.failed) == [1]
        world.now_s = 0.0
        live(world, 1, 1.0)
        late = world.serve(lost.call)
        assert late.status == (200 if has_arrived else 409)
        assert b"sequence-passed" in late.body or has_arrived
        world.check()
        assert set(world.acknowledged) == {0, 2, 3}


def test_a_service_that_has_forgotten_a_producer_is_told_what_it_can_follow() -> None:
    """A program was silent for longer than the service remembers it."""
    world = one_by_one(2)
    live(world, 0, 0.0)
    world.log._producers.clear()
    live(world, 3, 0.9)
    world.check()
    assert len(world.acknowledged) == 6


def test_a_request_that_is_too_large_goes_in_parts_before_all_that_is_behind_it() -> None:
    world = World(3, None)
    world.trouble, world.settings = 0.0, BatchSettings(max_events=4, linger_ms=0, max_in_flight=3)
    world.open()
    for _ in range(13):
        world.publish()
    world.take()
    world.arrive()
    for _ in range(3):
        world.take()
    world.taken_most = 1
    arrive(world, 0)
    assert world.dispatch.queue.due_in_s(0.0) == 0.0, "the parts wait for no room: all others wait for them"
    live(world, 0, 0.0)
    world.check()
    assert len(world.acknowledged) == 13


def test_a_request_kept_in_an_outbox_is_not_overtaken_by_later_requests(tmp_path: Path) -> None:
    world = World(0, tmp_path)
    world.trouble, world.settings = 0.0, BatchSettings(max_events=1, linger_ms=0, max_in_flight=3)
    world.dispatch.queue.close()
    world.open()
    for _ in range(4):
        world.publish()
    world.take()
    world.arrive()
    for _ in range(3):
        world.take()
    world.stopping = True
    world.hear(world.network.pop(0), ConnectionFailed("the connection broke", "http://x"))
    assert isinstance(world.failed[1], KeptInOutbox)
    arrive(world, 1)
    arrive(world, 0)
    assert set(world.acknowledged) == {0}
    world.end()
    world.open()
    live(world, 0, 0.0)
    world.check()
    assert world.log.partitions[0].end() == 4


def test_a_disk_failure_while_a_request_is_split_does_not_block_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(0, tmp_path)
    world.trouble, world.settings = 0.0, BatchSettings(max_events=2, linger_ms=0, max_in_flight=2)
    world.dispatch.queue.close()
    world.open()
    for _ in range(4):
        world.publish()
    world.taken_most = 1
    outbox = world.dispatch.require_outbox()

    def broken(*arguments: object) -> None:
        raise OutboxError(outbox.path, "cannot be written")

    with monkeypatch.context() as patch:
        patch.setattr(outbox, "split", broken)
        world.take()
        arrive(world, 0)
    live(world, 0, 0.0)
    world.check()
    assert set(world.acknowledged) == {2, 3} and set(world.failed) == {0, 1}
    world.dispatch.queue.close()


def test_each_request_follows_the_one_before_it_that_may_still_come() -> None:
    order = InFlight()
    assert order.front is None
    for sequence in (9, 19, 29):
        order.add(sequence)
    assert [order.follows(sequence) for sequence in (9, 19, 29)] == [FIRST, 9, 19]
    order.end(19, is_taken=True)
    assert order.front == 9 and order.follows(29) == 19
    assert order.follows(9) == FIRST, "it is in the log, for 19 follows it"
    order.end(9, is_taken=False)
    assert order.follows(29) == 19
    order.learn(29, 9)
    assert order.follows(29) == 9
    order.add(25)
    order.learn(29, 19)
    assert (order.front, order.follows(25), order.follows(29)) == (25, 9, 25)
