"""The contract of an event log, for every implementation: one partition or several, holes anywhere."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import kafka_rig
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from memory_log import MemoryEventLog
from tests.doses import drawn

from fieldfare.arrow_events.stream import write_events
from fieldfare.storage import EventLog, open_event_log
from fieldfare.storage.errors import TrimmedError
from fieldfare.storage.event_log import (
    FIRST,
    PAYLOAD_BYTES_MAX,
    Appended,
    NewRecord,
    OutOfOrder,
    Record,
    RetentionPolicy,
    ends_of,
    starts_of,
)

KINDS: dict[str, Callable[[Path], EventLog]] = {
    "sqlite": lambda folder: open_event_log(f"sqlite:///{folder}/log.db"),
    "memory-1": lambda folder: MemoryEventLog(1, seed=1),
    "memory-3": lambda folder: MemoryEventLog(3, seed=2),
    "memory-dense": lambda folder: MemoryEventLog(2, seed=3, holes=0),
    "kafka-1": lambda folder: open_event_log(kafka_rig.topic(1)),
    "kafka-3": lambda folder: open_event_log(kafka_rig.topic(3)),
}
HOUR_MS = 3_600_000
KEPT_HERE = pytest.mark.parametrize("log", [kind for kind in KINDS if "kafka" not in kind], indirect=True)
"""Of logs that remove records themselves; of a topic the brokers do."""


@pytest.fixture(params=list(KINDS))
def log(request: pytest.FixtureRequest, tmp_path: Path) -> EventLog:
    return KINDS[request.param](tmp_path)


def lines(count: int, width: int = 8) -> bytes:
    return (b'"' + b"x" * width + b'"\n') * count


def record(count: int = 1, width: int = 8, space: str = "birds", **fields: object) -> NewRecord:
    return NewRecord(space, lines(count, width), count, **fields)  # type: ignore[arg-type]


def read_all(log: EventLog) -> dict[tuple[int, int], Record]:
    """All records kept, by partition and offset."""
    return {
        (partition.number, found.offset): found
        for partition in log.partitions
        for found in partition.read(partition.start(), partition.end())
    }


def place(appended: Appended) -> tuple[int, int]:
    return appended.partition, appended.offset


def test_a_new_log_is_empty_and_every_partition_starts_at_0(log: EventLog) -> None:
    assert [partition.number for partition in log.partitions] == list(range(len(log.partitions)))
    assert starts_of(log) == ends_of(log) == (0,) * len(log.partitions)
    assert log.size_bytes() == 0
    for partition in log.partitions:
        assert list(partition.read(0, 10)) == []
        assert partition.bound(0, 100, 100) == 0
        assert (partition.backlog_events(0), partition.lowest_stamp(0), partition.last_stamp()) == (
            0,
            None,
            0,
        )


def test_records_read_back_as_they_were_appended_and_in_that_order(log: EventLog) -> None:
    chance = random.Random(1)
    expected: dict[tuple[int, int], Record] = {}
    for stamp in range(30):
        some = [
            record(chance.randint(1, 9), space=chance.choice(["birds", "fish"]), appended_ms=i, stamp=stamp)
            for i in range(chance.randint(0, 9))
        ]
        for new, done in zip(some, log.append(some), strict=True):
            assert (done.count, done.stamp, done.duplicate, done.differs) == (new.count, stamp, False, False)
            expected[place(done)] = Record(
                done.offset, new.space, new.count, new.payload, new.appended_ms, stamp
            )
    assert read_all(log) == expected
    assert sorted(expected, key=lambda at: (at[0], expected[at].stamp)) == sorted(expected)
    for partition in log.partitions:
        own = [offset for number, offset in expected if number == partition.number]
        assert partition.end() > max(own)
        for _ in range(20):
            start, end = sorted((chance.randint(0, partition.end()), chance.randint(0, partition.end() + 5)))
            wanted = sorted(offset for offset in own if start <= offset < end)
            assert [found.offset for found in partition.read(start, end)] == wanted
        assert partition.last_stamp() == expected[partition.number, max(own)].stamp


def test_a_record_may_be_an_arrow_stream_with_a_row_for_each_event(log: EventLog) -> None:
    payload = bytes(write_events(pa.record_batch({"id": ["a", "b\n"]})))
    log.append([NewRecord("fish", payload, 2)])
    for broken, count in (payload, 3), (payload[:-40], 2), (payload[:4], 1):
        with pytest.raises(ValueError, match="Arrow stream"):
            log.append([NewRecord("fish", broken, count)])
    assert [each.payload for each in read_all(log).values()] == [payload]


@pytest.mark.parametrize(
    "bad",
    [
        NewRecord("birds", b"", 0),
        NewRecord("birds", b"{}\n{}\n", 1),
        NewRecord("birds", b"{}", 1),
        NewRecord("birds", b"\n" * 10_001, 10_001),
        NewRecord("birds", b"x" * PAYLOAD_BYTES_MAX + b"\n", 1),
        NewRecord("birds", b"{}\n", 1, producer="p"),
        NewRecord("birds", b"{}\n", 1, follows=1),
        NewRecord("birds", b"{}\n", 1, producer="p", sequence=1, follows=1),
        NewRecord("birds", b"{}\n", 1, producer="p", sequence=1, follows=-2),
    ],
)
def test_a_record_that_breaks_a_limit_is_refused_and_nothing_of_its_batch_is_appended(
    log: EventLog, bad: NewRecord
) -> None:
    with pytest.raises(ValueError):
        log.append([record(), bad])
    assert not any(ends_of(log))


def test_an_append_of_nothing_asks_whether_the_log_can_be_written(log: EventLog) -> None:
    assert log.append([]) == []
    assert not read_all(log)


def test_a_producers_repeat_appends_nothing_and_tells_the_first_place(log: EventLog) -> None:
    """A client did not get the answer to its publish call, and sends the batch again."""
    log.append([record()])
    wanted = [record(3, producer="p", sequence=7, stamp=4), record(2, producer="p", sequence=8, stamp=4)]
    first, second = log.append(wanted)
    assert first.partition == second.partition and first.offset < second.offset
    again = [replace(each, stamp=9) for each in wanted]
    assert log.append(again) == [replace(first, duplicate=True), replace(second, duplicate=True)]
    assert len(read_all(log)) == 3
    assert not log.append([record(producer="q", sequence=7, stamp=9)])[0].duplicate


def test_a_repeat_within_one_append_is_recognised(log: EventLog) -> None:
    first, again = log.append([record(4, producer="p", sequence=1)] * 2)
    assert again == replace(first, duplicate=True)


def test_the_same_producer_and_sequence_in_another_space_is_no_repeat(log: EventLog) -> None:
    """Two teams' programs call themselves "importer" and count from 1: the second lost its events."""
    both = [record(producer="importer", sequence=1), record(space="fish", producer="importer", sequence=1)]
    first, other = log.append(both)
    assert place(first) != place(other)
    assert log.append(both) == [replace(first, duplicate=True), replace(other, duplicate=True)]


def test_a_known_pair_with_another_body_is_told_apart_from_a_repeat(log: EventLog) -> None:
    """A program lost its counter and began again at 1: its new events were answered and thrown away."""
    (first,) = log.append([record(producer="p", sequence=1)])
    (wrong,) = log.append([record(2, producer="p", sequence=1)])
    assert wrong == replace(first, duplicate=True, differs=True)
    assert len(read_all(log)) == 1


def test_the_last_1000_sequences_of_a_producer_are_remembered_also_with_gaps(log: EventLog) -> None:
    sequences = [time * 17 for time in range(2_000)]
    done = []
    for first in range(0, 2_000, 50):
        done += log.append([record(producer="p", sequence=each) for each in sequences[first : first + 50]])
    repeats = log.append([record(producer="p", sequence=sequence) for sequence in sequences[1_000:]])
    assert repeats == [replace(each, duplicate=True) for each in done[1_000:]]


def test_a_record_is_appended_only_after_the_one_that_it_follows(log: EventLog) -> None:
    """Concurrent requests arrive in any order, and some do not arrive at all."""
    early = record(producer="p", sequence=20, follows=10, stamp=3)
    assert log.append([early]) == [OutOfOrder(FIRST)]
    first, second = log.append([record(producer="p", sequence=10, follows=FIRST, stamp=3), early])
    assert first.partition == second.partition and first.offset < second.offset
    assert log.append([early]) == [replace(second, duplicate=True)], "a repeat is one, whatever it follows"
    assert log.append([replace(early, follows=FIRST)]) == [replace(second, duplicate=True)]
    assert log.append(
        [
            record(producer="p", sequence=40, follows=30, stamp=3),
            record(producer="p", sequence=15, follows=10, stamp=3),
            record(space="fish", producer="p", sequence=21, follows=20, stamp=3),
            record(producer="q", sequence=21, follows=20, stamp=3),
        ]
    ) == [OutOfOrder(20), OutOfOrder(20), OutOfOrder(FIRST), OutOfOrder(FIRST)]
    assert len(read_all(log)) == 2


def test_records_that_are_not_in_order_take_none_of_their_neighbours_with_them(log: EventLog) -> None:
    found = log.append(
        [
            record(producer="p", sequence=2, follows=1),
            record(2),
            record(producer="p", sequence=1, follows=FIRST),
            record(producer="p", sequence=2, follows=1),
            record(producer="p", sequence=9, follows=3),
            record(producer="p", sequence=3, follows=2),
        ]
    )
    assert [found[0], found[4]] == [OutOfOrder(FIRST), OutOfOrder(2)]
    taken = [place(found[n]) for n in (2, 3, 5)]  # type: ignore[arg-type]
    assert taken == sorted(taken)
    assert read_all(log).keys() == {*taken, place(found[1])}  # type: ignore[arg-type]


def test_a_record_without_a_predecessor_is_appended_and_can_be_followed(log: EventLog) -> None:
    log.append([record(producer="p", sequence=7), record(producer="p", sequence=5)])
    assert log.append([record(producer="p", sequence=9, follows=5)]) == [OutOfOrder(7)]
    (found,) = log.append([record(producer="p", sequence=9, follows=7)])
    assert isinstance(found, Appended) and not found.duplicate


@pytest.mark.parametrize("log", ["sqlite", "kafka-1"], indirect=True)
def test_the_newest_sequence_of_a_producer_is_known_after_reopening(log: EventLog) -> None:
    log.append([record(producer="p", sequence=5, follows=FIRST)])
    log.close()
    again = open_event_log(log.url)
    assert again.append([record(producer="p", sequence=7, follows=6)]) == [OutOfOrder(5)]
    assert isinstance(again.append([record(producer="p", sequence=6, follows=5)])[0], Appended)
    again.close()


def test_a_forgotten_producer_starts_again(log: EventLog) -> None:
    """It was silent for a week, and its sequences are forgotten: its next record may follow none."""
    policy = RetentionPolicy(producers_ms=10 * HOUR_MS)
    log.append([record(producer="p", sequence=5, follows=FIRST)])
    for _ in range(12):
        log.grow_older(HOUR_MS, policy)
    log.retain(policy, (0,) * len(log.partitions))
    assert log.append([record(producer="p", sequence=6, follows=5)]) == [OutOfOrder(FIRST)]
    assert isinstance(log.append([record(producer="p", sequence=6, follows=FIRST)])[0], Appended)


def test_a_reader_stepping_from_bound_to_bound_gets_every_record_once(log: EventLog) -> None:
    chance = random.Random(3)
    log.append([record(chance.randint(1, 9), width=chance.randint(1, 50)) for _ in range(300)])
    everything = read_all(log)
    for partition in log.partitions:
        met, at = [], 0
        while at < partition.end():
            end = partition.bound(at, chance.randint(1, 9_000), chance.randint(1, 900))
            assert at < end <= partition.end()
            met += list(partition.read(at, end))
            at = end
        assert met == [found for (number, _), found in everything.items() if number == partition.number]
        assert partition.bound(at, 1, 1) == at


def test_pieces_of_a_range_are_the_whole_range(log: EventLog) -> None:
    chance = random.Random(4)
    log.append([record(width=chance.randint(1, 500)) for _ in range(200)])
    for partition in log.partitions:
        for _ in range(30):
            start = chance.randint(0, partition.end() - 1)
            end, pieces = chance.randint(start + 1, partition.end()), chance.randint(1, 7)
            ranges = partition.split(start, end, pieces, chance.choice((0, 5_000)))
            assert 1 <= len(ranges) <= pieces
            assert (ranges[0][0], ranges[-1][1]) == (start, end)
            assert all(one[1] == two[0] for one, two in pairwise(ranges))
            assert all(first < last for first, last in ranges)


def test_a_time_leads_to_the_first_record_since(log: EventLog) -> None:
    for appended_ms in (100, 100, 200, 300, 300, 400):
        log.append([record(appended_ms=appended_ms) for _ in log.partitions])
    for partition in log.partitions:
        own = [(found.offset, found.appended_ms) for found in partition.read(0, partition.end())]
        for time_ms in (0, 100, 101, 200, 300, 301, 400, 401):
            since = partition.first_since(time_ms)
            assert {offset >= since for offset, appended_ms in own if appended_ms >= time_ms} <= {True}
            assert {offset < since for offset, appended_ms in own if appended_ms < time_ms} <= {True}
            assert partition.start() <= since <= partition.end()


def test_estimates_are_close_enough(log: EventLog) -> None:
    """Back-pressure uses the lag of matching, and purging uses the history that no record needs any more."""
    chance = random.Random(5)
    stamp = 0
    for _ in range(100):
        stamp += chance.randint(0, 3)
        log.append([record(stamp=stamp)])
    everything = read_all(log)
    for partition in log.partitions:
        end = partition.end()
        assert partition.backlog_events(end) == 0
        own = {offset: found for (number, offset), found in everything.items() if number == partition.number}
        for start in chance.sample(range(end), min(end, 25)):
            if start <= max(own):
                assert partition.backlog_events(start) > 0
            lowest = min((found.stamp for offset, found in own.items() if offset >= start), default=None)
            said = partition.lowest_stamp(start)
            assert said is None if lowest is None else said is not None and said <= lowest
        for stamp in {*chance.sample(range(1, 60), 25), partition.last_stamp(), partition.last_stamp() + 1}:
            first = partition.first_stamped(stamp)
            lower = [offset for offset, found in own.items() if found.stamp < stamp]
            if max(own) in lower:
                assert first is None
            else:
                behind = [offset for offset in own if first is not None and offset >= first]
                assert behind == [offset for offset in own if offset > max(lower, default=-1)]


@KEPT_HERE
def test_retention_goes_by_age_and_spares_what_the_pipeline_needs(log: EventLog) -> None:
    policy = RetentionPolicy(max_age_ms=24 * HOUR_MS)
    ends = []
    for _ in range(30):
        log.append([record(appended_ms=4_102_444_800_000) for _ in range(5)])
        ends.append(ends_of(log))
        log.grow_older(HOUR_MS, policy)
    keep = tuple(end // 2 for end in ends[2])
    log.retain(policy, keep)
    for start, spared in zip(starts_of(log), keep, strict=True):
        assert start <= spared, "the pipeline has not matched them"
    log.retain(policy, ends[-1])
    for partition, start in enumerate(starts_of(log)):
        assert ends[5][partition] <= start <= ends[6][partition], "what is a day old went, and nothing else"
    log.retain(RetentionPolicy(), ends[-1])
    assert starts_of(log) >= ends[5], "without a bound nothing goes"


@KEPT_HERE
def test_retention_goes_by_bytes(log: EventLog) -> None:
    log.append([record(width=89) for _ in range(200)])
    before = read_all(log)
    log.retain(RetentionPolicy(max_bytes=9_200), (0,) * len(log.partitions))
    assert read_all(log) == before
    log.retain(RetentionPolicy(max_bytes=9_200), ends_of(log))
    left = read_all(log)
    assert log.size_bytes() == sum(len(found.payload) for found in left.values())
    assert 9_200 - 300 * len(log.partitions) < log.size_bytes() <= 9_200
    for partition in log.partitions:
        own = [offset for number, offset in before if number == partition.number]
        assert [offset for number, offset in left if number == partition.number] == [
            offset for offset in own if offset >= partition.start()
        ]
        if partition.start() > 0:
            with pytest.raises(TrimmedError, match="holds the records from"):
                list(partition.read(partition.start() - 1, partition.end()))
            with pytest.raises(TrimmedError):
                partition.bound(0, 1, 1)


@KEPT_HERE
def test_offsets_go_on_after_all_records_were_removed(log: EventLog) -> None:
    log.append([record(2, producer="p", sequence=1)] + [record() for _ in range(20)])
    ends = ends_of(log)
    log.retain(RetentionPolicy(max_bytes=0), ends)
    assert (ends_of(log), log.size_bytes(), read_all(log)) == (ends, 0, {})
    assert max(end - start for start, end in zip(starts_of(log), ends, strict=True)) <= 1
    for done in log.append([record(5) for _ in range(9)]):
        assert done.offset >= ends[done.partition]
    assert log.append([record(2, producer="p", sequence=1)])[0].duplicate, "that they were appended is known"


def test_a_producers_repeats_are_forgotten_when_they_are_old_enough(log: EventLog) -> None:
    policy = RetentionPolicy(producers_ms=10 * HOUR_MS)
    log.append([record(producer="p", sequence=1)])
    for hour in range(12):
        log.grow_older(HOUR_MS, policy)
        if hour == 5:
            log.append([record(producer="q", sequence=1)])
    log.retain(policy, (0,) * len(log.partitions))
    assert not log.append([record(producer="p", sequence=1)])[0].duplicate
    assert log.append([record(producer="q", sequence=1)])[0].duplicate
    assert len(read_all(log)) == 3, "the records themselves stay"


@KEPT_HERE
def test_no_offset_below_a_raised_end_is_given_to_a_record(log: EventLog) -> None:
    """A copy of yesterday's log was put back: what refers to offsets beyond it must not meet new records."""
    log.append([record() for _ in range(9)])
    ends, before = ends_of(log), read_all(log)
    log.raise_ends((1,) * len(ends))
    assert ends_of(log) == ends
    raised = tuple(end + 5_000_000 for end in ends)
    log.raise_ends(raised)
    assert ends_of(log) == raised
    new = log.append([record() for _ in range(9)])
    assert all(done.offset >= raised[done.partition] for done in new)
    assert read_all(log).keys() == before.keys() | {place(done) for done in new}
    for partition in log.partitions:
        at = ends[partition.number] + 77
        while at < partition.end():  # a hole of any length is gone through
            at = partition.bound(at, 1 << 20, 1 << 20)


class LogAgainstModel(RuleBasedStateMachine):
    """After any appends, removals and raised ends, the log reads like a dict with the same operations."""

    kind = ""
    keeps_itself = True

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.log = KINDS[self.kind](Path(self.folder.name))
        self.records: dict[tuple[int, int], NewRecord] = {}
        self.firsts: dict[tuple[str, int], Appended] = {}
        self.followed: set[tuple[str, int]] = set()
        self.stamp = 0
        self.sequence = 0

    def teardown(self) -> None:
        self.log.close()
        self.folder.cleanup()

    @rule(counts=st.lists(st.integers(1, 4), max_size=4), producer=st.sampled_from([None, "p", "q"]))
    def append(self, counts: list[int], producer: str | None) -> None:
        new = []
        for count in counts:
            self.sequence += 1
            sequence = None if producer is None else self.sequence
            new.append(record(count, count, producer=producer, sequence=sequence, stamp=self.stamp))
        ends = ends_of(self.log)
        for each, done in zip(new, self.log.append(new), strict=True):
            assert done.offset >= ends[done.partition] and place(done) not in self.records
            self.records[place(done)] = each
            if each.producer is not None and each.sequence is not None:
                self.firsts[each.producer, each.sequence] = done

    @rule(producer=st.sampled_from("pq"), steps=st.lists(st.integers(-2, 2), min_size=1, max_size=4))
    def follow(self, producer: str, steps: list[int]) -> None:
        """A record follows the newest one, or one a few places before or after it."""
        newest = max((number for name, number in self.firsts if name == producer), default=FIRST)
        new, expected = [], []
        for step in steps:
            self.sequence += 1
            follows = max(FIRST, newest + step)
            fields = {"sequence": max(self.sequence, follows + 1), "follows": follows, "stamp": self.stamp}
            self.sequence = fields["sequence"]
            new.append(record(1, 3, producer=producer, **fields))
            expected.append(None if follows == newest else OutOfOrder(newest))
            newest = self.sequence if follows == newest else newest
        for each, wanted, done in zip(new, expected, self.log.append(new), strict=True):
            if wanted is not None:
                assert done == wanted
                continue
            assert place(done) not in self.records and not done.duplicate
            self.records[place(done)] = each
            self.firsts[producer, each.sequence] = done
            self.followed.add((producer, each.sequence))

    @precondition(lambda self: self.firsts)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        (producer, sequence), first = data.draw(st.sampled_from(sorted(self.firsts.items(), key=str)))
        width = 3 if (producer, sequence) in self.followed else first.count
        again = record(first.count, width, producer=producer, sequence=sequence, stamp=self.stamp)
        (done,) = self.log.append([again])
        assert (place(done), done.duplicate, done.differs) == (place(first), True, False)

    @rule()
    def change_a_subscription(self) -> None:
        self.stamp += 1

    @precondition(lambda self: self.keeps_itself)
    @rule(max_bytes=st.integers(0, 60), behind=st.integers(0, 6))
    def retain(self, max_bytes: int, behind: int) -> None:
        keep = tuple(max(0, end - behind) for end in ends_of(self.log))
        self.log.retain(RetentionPolicy(max_bytes=max_bytes), keep)
        starts = starts_of(self.log)
        gone = [at for at in self.records if at[1] < starts[at[0]]]
        assert all(offset < keep[partition] for partition, offset in gone)
        for at in gone:
            del self.records[at]

    @precondition(lambda self: self.keeps_itself)
    @rule(by=st.integers(0, 9))
    def raise_ends(self, by: int) -> None:
        self.log.raise_ends(tuple(end + by for end in ends_of(self.log)))

    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        partition = data.draw(st.sampled_from(list(self.log.partitions)))
        start = data.draw(st.integers(partition.start(), partition.end()))
        end = partition.bound(start, data.draw(st.integers(1, 50)), data.draw(st.integers(1, 9)))
        assert start < end <= partition.end() or start == end == partition.end()
        found = [(partition.number, each.offset) for each in partition.read(start, end)]
        assert found == sorted(
            at for at in self.records if at[0] == partition.number and start <= at[1] < end
        )

    @invariant()
    def it_holds_what_it_was_given(self) -> None:
        found = read_all(self.log)
        assert {at: (each.payload, each.stamp) for at, each in found.items()} == {
            at: (new.payload, new.stamp) for at, new in self.records.items()
        }

    @invariant()
    def it_knows_how_much_each_space_has(self) -> None:
        kept: dict[str, int] = {}
        for new in self.records.values():
            kept[new.space] = kept.get(new.space, 0) + len(new.payload)
        assert self.log.sizes() == (kept if self.keeps_itself else {})


class SqliteAgainstModel(LogAgainstModel):
    kind = "sqlite"


class MemoryAgainstModel(LogAgainstModel):
    kind = "memory-3"


class KafkaAgainstModel(LogAgainstModel):
    """The broker trims its topics and is restarted, and so is the writer."""

    kind = "kafka-3"
    keeps_itself = False

    @rule(behind=st.integers(0, 6))
    def brokers_remove(self, behind: int) -> None:
        for partition in self.log.partitions:
            before = max(0, partition.end() - behind)
            kafka_rig.remove_before(self.log.url, partition.number, before)
            for at in [at for at in self.records if at[0] == partition.number and at[1] < before]:
                del self.records[at]

    @rule()
    def open_again(self) -> None:
        self.log.close()
        self.log = open_event_log(self.log.url)


TestSqliteAgainstModel = SqliteAgainstModel.TestCase
TestMemoryAgainstModel = MemoryAgainstModel.TestCase
TestKafkaAgainstModel = KafkaAgainstModel.TestCase
for case, examples in (TestSqliteAgainstModel, 25), (TestMemoryAgainstModel, 25), (TestKafkaAgainstModel, 6):
    case.settings = settings(max_examples=drawn(examples), stateful_step_count=25)

del case  # or pytest collects it, too
