"""Records and blocks that are heard at the end of a topic: as they are appended, in pieces, after faults."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import kafka_rig
import msgspec
import pytest
from storage_support import of_number, read_on, some_matches, write_in_blocks

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed")

from fieldfare.storage import open_event_log, open_match_log
from fieldfare.storage.errors import StorageError, TrimmedError
from fieldfare.storage.event_log import NewRecord, Record
from fieldfare.storage.kafka import connections, heard, partition, tail
from fieldfare.storage.kafka.address import KafkaAddress
from fieldfare.storage.kafka.record_header import RecordHeader
from fieldfare_lab.kafka_broker import KafkaBroker

DEADLINE_S = 180.0


@pytest.fixture
def url() -> str:
    return kafka_rig.topic(2)


@pytest.fixture
def own_broker() -> Iterator[KafkaBroker]:
    """A broker that a test may kill."""
    with kafka_rig.own_broker() as broker:
        yield broker


def record(number: int, size: int = 20, stamp: int = 0) -> NewRecord:
    payload = b'"' + f"{number}".zfill(size).encode() + b'"\n'
    return NewRecord("birds", payload, 1, "p", number, stamp=stamp)


def until(condition: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


class Follower:
    """Reads what is appended to the partitions of a log, as a task does."""

    def __init__(self, url: str, positions: dict[int, int]) -> None:
        self.log = open_event_log(url)
        self.positions = positions
        self.waiter = self.log.listen(positions)
        self.read: list[Record] = []

    def look(self) -> list[Record]:
        """Read what is there; return all that was read so far."""
        for number, position in self.positions.items():
            partition = self.log.partitions[number]
            end = partition.end()
            if end > position:
                upto = min(end, partition.bound(position, 300, 5))
                assert position < upto
                records = list(partition.read(position, upto))
                if records:
                    assert partition.last_stamp() >= records[-1].stamp
                self.read += records
                self.positions[number] = upto
        return self.read

    def numbers(self) -> list[int]:
        return sorted(int(each.payload.strip(b'"\n')) for each in self.read)


def test_records_are_heard_as_they_are_appended(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No request says where the partition ends, and no record is read from the broker again."""
    writer = open_event_log(url)
    writer.append([record(number) for number in range(10)])
    follower = Follower(url, {0: 0, 1: 0})

    def refused(*_: object) -> None:
        raise AssertionError("the broker was asked")

    until(lambda: follower.waiter.hears)
    monkeypatch.setattr(partition, "ASK_EVERY_S", DEADLINE_S)
    for each in follower.log.partitions:
        until(lambda each=each: each._heard.end() == each.end())  # behind the last marker
    for asks in ("reading", "bounds", "end"):
        monkeypatch.setattr(follower.log._connections, asks, refused)  # type: ignore[attr-defined]
    for number in range(10, 30):
        until(lambda number=number: len(follower.look()) == number)
        follower.waiter.clear()
        writer.append([record(number, stamp=number)])
        assert follower.waiter.wait(DEADLINE_S)
    until(lambda: len(follower.look()) == 30)
    assert follower.numbers() == list(range(30))
    ends = [writer.partitions[number].end() for number in (0, 1)]
    until(lambda: bool(follower.look()) and [*follower.positions.values()] == ends)  # behind the last marker
    follower.waiter.close()
    until(lambda: not follower.waiter.hears)


def test_a_record_in_pieces_is_heard_when_it_is_complete(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = open_event_log(url)
    monkeypatch.setattr(connections, "_DEFAULT_PIECE_BYTES", 70)
    monkeypatch.setattr(heard, "HELD_BYTES_MAX", 900)
    monkeypatch.setattr(tail, "HEARD_BYTES_MAX", 500)
    chance = random.Random(4)
    follower = Follower(url, {0: 0, 1: 0})
    sizes = [chance.choice((5, 200, 690)) for _ in range(60)]
    for number in range(0, 60, 4):
        writer.append([record(each, sizes[each]) for each in range(number, number + 4)])
        follower.look()
    until(lambda: len(follower.look()) == 60)
    assert follower.numbers() == list(range(60))
    assert all(len(each.payload) == sizes[int(each.payload.strip(b'"\n'))] + 3 for each in follower.read)
    follower.waiter.close()


def test_a_record_too_large_to_be_held_hides_no_later_one(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heard, "HELD_BYTES_MAX", 2_000)
    writer = open_event_log(url)
    follower = Follower(url, {0: 0, 1: 0})
    until(lambda: follower.waiter.hears)
    for number in range(12):
        writer.append([record(number, 3_000 if number % 3 == 0 else 20)])
        until(lambda number=number: len(follower.look()) == number + 1)
    assert follower.numbers() == list(range(12))
    follower.waiter.close()


def test_a_position_moves_without_a_read(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that stands by moves behind what another one has matched."""
    monkeypatch.setattr(heard, "HELD_BYTES_MAX", 3_000)
    writer = open_event_log(url)
    number = writer.append([record(0)])[0].partition  # type: ignore[union-attr]
    follower = Follower(url, {number: 0})
    until(lambda: follower.waiter.hears)
    for each in range(1, 40):
        writer.append([record(each)])
        follower.positions[number] = follower.log.partitions[number].end()
    follower.positions[number] = writer.partitions[number].end()
    writer.append([record(40)])
    until(lambda: len(follower.look()) == 1)
    assert follower.numbers() == [40]
    follower.waiter.close()


def test_after_its_end_a_listener_hides_nothing(url: str) -> None:
    """Afterwards the process matches a batch, up to an end that the driver has read from the broker."""
    writer = open_event_log(url)
    follower = Follower(url, {0: 0, 1: 0})
    for number in range(20):
        writer.append([record(number)])
        follower.look()
    follower.waiter.close()
    for each in writer.partitions:
        assert follower.log.partitions[each.number].end() == each.end()
        list(follower.log.partitions[each.number].read(0, each.end()))


def test_foreign_messages_hide_no_record(url: str) -> None:
    """A first piece without its others, and a header whose name is not in UTF-8."""
    from confluent_kafka import Producer

    writer = open_event_log(url)
    number = writer.append([record(0)])[0].partition  # type: ignore[union-attr]
    follower = Follower(url, {number: 0})
    until(lambda: len(follower.look()) == 1)
    address = KafkaAddress.parse(url, "log")
    producer = Producer({"bootstrap.servers": address.brokers})
    torn = RecordHeader(1, "birds", 1, 1, 0, "torn", pieces=2)
    producer.produce(
        address.topic, b"x", partition=number, headers=[("fieldfare", msgspec.json.encode(torn))]
    )
    for headers in ([("fieldfare", msgspec.json.encode(torn))], [("fieldfare", b"\xff")]):
        producer.produce(address.topic, b"x", partition=number, headers=headers)
    producer.flush(30)
    for each in range(1, 4):
        writer.append([record(each)])
    until(lambda: len(follower.look()) == 4)
    assert follower.numbers() == [0, 1, 2, 3]
    follower.waiter.close()


def test_what_was_removed_before_it_was_heard_is_an_error(url: str) -> None:
    writer = open_event_log(url)
    places = writer.append([record(number) for number in range(10)])
    number, removed = places[0].partition, places[6].offset  # type: ignore[union-attr]
    kafka_rig.remove_before(url, number, removed)
    follower = Follower(url, {number: 0})
    until(lambda: not follower.waiter.hears)
    with pytest.raises(TrimmedError):
        follower.look()
    follower.positions[number] = removed
    until(lambda: len(follower.look()) == 4)
    assert follower.numbers() == [6, 7, 8, 9]
    follower.waiter.close()


def test_after_a_broker_was_killed_no_record_is_missing(own_broker: KafkaBroker) -> None:
    url = kafka_rig.topic(1, own_broker)
    writer = open_event_log(url)
    writer.append([record(number) for number in range(5)])
    follower = Follower(url, {0: 0})
    until(lambda: len(follower.look()) == 5)
    own_broker.kill()
    own_broker.start_again()
    number = 5

    def appended() -> bool:
        try:
            writer.append([record(number)])
        except StorageError:
            return False
        return True

    while number < 15:
        until(appended)
        number += 1
    until(lambda: len(follower.look()) == 15)
    assert follower.numbers() == list(range(15))
    follower.waiter.close()


def test_blocks_are_heard_without_reading_them_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    matches = some_matches(200)
    writer, log = open_match_log(url).partition(0), open_match_log(url)
    write_in_blocks(writer, matches, list(range(0, 51, 2)))
    waiter, reader = log.listen(0), log.partition(0)

    def refused(*_: object) -> None:
        raise AssertionError("it was read from the broker")

    assert reader.end() == 50
    monkeypatch.setattr(log._connections, "reading", refused)  # type: ignore[attr-defined]
    for cuts in ([50, 54], [54, 57, 60], list(range(60, 201, 5))):
        waiter.clear()
        write_in_blocks(writer, matches, cuts)
        assert waiter.wait(DEADLINE_S)
        assert reader.end() == cuts[-1]
    assert read_on(reader, 4, 60) == (of_number(matches, 4, 60), 200)
    waiter.close()


def test_blocks_removed_before_they_were_heard_are_passed_over(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    matches = some_matches(120)
    writer, log = open_match_log(url).partition(0), open_match_log(url)
    reader = log.partition(0)
    write_in_blocks(writer, matches, list(range(0, 51, 2)))
    monkeypatch.setattr(tail, "HEARD_BYTES_MAX", 1)  # it stops after the first message
    waiter = log.listen(0)
    write_in_blocks(writer, matches, list(range(50, 101, 2)))
    until(lambda: waiter.wait(DEADLINE_S))
    writer.trim(90)
    monkeypatch.undo()
    until(lambda: reader.end(90) == 100)
    write_in_blocks(writer, matches, [100, 110, 120])
    until(lambda: reader.end(100) == 120)
    assert read_on(reader, 4, 100) == (of_number(matches, 4, 100), 120)
    waiter.close()
