"""Deliveries that wait for matches, moved by hand: none misses a match, and unmatched ones cost nothing."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from tests.doses import drawn

sys.path.insert(0, str(Path(__file__).parent))

from delivery_support import Readers

from fieldfare.delivery.delivery import Delivery
from fieldfare.delivery.keys import PARTITION_SHIFT, key_at
from fieldfare.delivery.read_scheduler import RETRY_S, ReadMatches, ReadScheduler
from fieldfare.effects import Ask, AskFailed, Timer

NUMBERS = st.integers(0, 4)


def key(offset: int) -> int:
    return key_at(0, offset)


def test_a_block_does_not_touch_waiting_deliveries_that_it_does_not_match(monkeypatch):
    """With 10,000 open streams each block took a tenth of a second of the event loop, for any matches."""
    readers = Readers()
    for number in range(10_000):
        readers.wait(number)
    fed: list[int] = []
    feed = Delivery.feed

    def counted(self: Delivery, *arguments: object) -> None:
        fed.append(self.number)
        feed(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Delivery, "feed", counted)
    for end in range(1, 101):
        readers.matched(end, {77: [key(end - 1)]} if end == 50 else {})
        readers.look()
    assert readers.looked == 100
    assert fed == [77]
    assert readers.take(77, 10) == [key(49)]
    readers.scheduler.bring(readers.deliveries[1])
    assert readers.deliveries[1].cursor_keys[0] == key(100), "it costs nothing, and is known all the same"


def test_a_look_that_fails_is_repeated_after_a_moment() -> None:
    """Without an answer the partition would never be read again."""
    scheduler = ReadScheduler((0,))
    (first,) = scheduler.start(0.0)
    assert isinstance(first, Ask)
    (timer,) = scheduler.handle(AskFailed(first.question, OSError("no disk")), 10.0)
    assert isinstance(timer, Timer) and timer.at_s == 10.0 + RETRY_S
    (again,) = scheduler.handle(timer.message, timer.at_s)
    assert again == Ask(ReadMatches(scheduler.groups[0].leader, follow=True))


def test_deliveries_at_the_same_position_share_one_read():
    """After a restart 10,000 browsers reconnect: every block that they missed is read once."""
    readers = Readers()
    for end in range(1, 51):
        readers.matched(end, {})
    readers.look()
    readers.looked = 0
    readers.wait(0)  # its look begins before the others come
    for number in range(1, 10_000):
        readers.wait(number)
    readers.look()
    assert readers.looked <= 51
    assert len(readers.scheduler.groups[0].leader.members) == 10_000


def test_cancelled_deadlines_leave_memory():
    """A client that repeatedly waits and leaves, with a lease of a day, left a deadline in memory each
    time."""
    readers = Readers()
    readers.matched(1, {1: [0]})
    readers.wait(1)
    readers.look()
    readers.take(1, 1, 86_400.0)
    for _ in range(10_000):
        readers.wait(1)
        readers.leave(1)
    assert len(readers.scheduler._deadlines) < 2_000
    assert len(readers.timers) == 1


def test_a_backlog_of_one_partition_keeps_no_message_of_another_waiting():
    """A consumer catches up with a day of one partition; an alarm comes in the other."""
    readers = Readers(partitions=2)
    for end in range(1, 101):
        readers.matched(end, {1: [key(end - 1)]})
    readers.look()
    readers.wait(1)
    readers.matched(1, {1: [key_at(1, 0)]}, partition=1)
    given = []
    for _ in range(5):
        readers.look()
        given += readers.take(1, 1)
        readers.wait(1)
    assert key_at(1, 0) in given
    assert [each for each in given if each != key_at(1, 0)] == [key(offset) for offset in range(4)]


class FrontierAgainstModel(RuleBasedStateMachine):
    """Readers come and go between the two steps of a read; all they read is compared with the matches.

    Some offsets of a block are holes, which readers skip.
    """

    partitions = 1

    def __init__(self) -> None:
        super().__init__()
        self.readers = Readers(partitions=self.partitions)
        self.began: dict[int, list[int]] = {}
        self.waiting: set[int] = set()
        self.given: dict[int, list[int]] = {}

    @rule(
        data=st.data(),
        records=st.integers(1, 3),
        matched=st.dictionaries(NUMBERS, st.integers(1, 7), max_size=3),
    )
    def block(self, data: st.DataObject, records: int, matched: dict[int, int]) -> None:
        partition = data.draw(st.integers(0, self.partitions - 1))
        start = self.readers.end(partition)
        keys = {
            number: [key_at(partition, start + i) for i in range(records) if which >> i & 1]
            for number, which in matched.items()
        }
        keys = {number: some for number, some in keys.items() if some}
        self.readers.matched(start + records, keys, partition)

    @rule(number=NUMBERS, back=st.integers(0, 12))
    def wait(self, number: int, back: int) -> None:
        if number not in self.began:
            self.began[number] = [max(0, self.readers.end(p) - back) for p in range(self.partitions)]
            self.given[number] = []
        self.readers.wait(number, *self.began[number])
        self.waiting.add(number)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), forget=st.booleans())
    def leave(self, data: st.DataObject, forget: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.waiting)))
        self.readers.leave(number)
        self.waiting.remove(number)
        if forget:
            self.readers.deliveries[number].forget_unread()

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), limit=st.integers(1, 3), acks=st.booleans())
    def take(self, data: st.DataObject, limit: int, acks: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.waiting)))
        self._take(number, limit, acks)

    def _take(self, number: int, limit: int, acks: bool) -> list[int]:
        given = self.readers.take(number, limit, 1e9)
        self.given[number] += given
        if acks:
            self.readers.scheduler.bring(self.readers.deliveries[number])
            self.readers.deliveries[number].ack(given)
        self.readers.wait(number)
        return given

    @rule()
    def see(self) -> None:
        if not self.readers.seen:
            self.readers.see()

    @rule()
    def answer(self) -> None:
        self.readers.answer()

    def teardown(self) -> None:
        for number in self.began:
            self.readers.wait(number)
            self.waiting.add(number)
        self.readers.look()
        given = [[0]]
        while any(given):
            given = [self._take(number, 100, True) for number in self.began]
            self.readers.look()
        for number, begins in self.began.items():
            delivery = self.readers.deliveries[number]
            self.readers.scheduler.bring(delivery)
            for partition, offset in enumerate(begins):
                own = [
                    block.keys.get(number, [])
                    for block in self.readers.blocks
                    if block.partition == partition
                ]
                matched = [each for some in own for each in some if each >= key_at(partition, offset)]
                given_here = [each for each in self.given[number] if each >> PARTITION_SHIFT == partition]
                assert given_here == matched, "in order within the partition"
                end = max(offset, self.readers.end(partition))
                assert delivery.partitions[partition].read_to == key_at(partition, end)


class FrontiersAgainstModel(FrontierAgainstModel):
    partitions = 3


TestFrontierAgainstModel = FrontierAgainstModel.TestCase
TestFrontiersAgainstModel = FrontiersAgainstModel.TestCase
for case in (TestFrontierAgainstModel, TestFrontiersAgainstModel):
    case.settings = settings(max_examples=drawn(150), stateful_step_count=40)
del case  # or pytest collects it, too
