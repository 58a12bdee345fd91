"""How a reader of a Kafka log moves between positions, tested with fake clients and without a broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("confluent_kafka", reason="needs fieldfare[kafka]")

from confluent_kafka import KafkaError, TopicPartition

from fieldfare.storage.errors import TrimmedError
from fieldfare.storage.event_log import Record
from fieldfare.storage.kafka import connections
from fieldfare.storage.kafka.address import KafkaAddress
from fieldfare.storage.kafka.partition import KafkaPartition

ADDRESS = KafkaAddress.parse("kafka://127.0.0.1:9092/events", "event log")


class Told:
    """A client's message, with the parts that a reader uses."""

    def __init__(self, offset: int, problem: KafkaError | None = None) -> None:
        self._offset = offset
        self._problem = problem

    def __len__(self) -> int:
        """Return the length of its value, like a client's message."""
        return 0

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._problem


class Repeating:
    """A client that fetches messages again that it has returned already, as may happen after a change of
    leader."""

    def __init__(self, offsets: list[int]) -> None:
        self._messages = [Told(offset) for offset in offsets]

    def assign(self, partitions: list[object]) -> None:
        assert len(partitions) == 1

    def poll(self, timeout: float) -> Told | None:
        return self._messages.pop(0) if self._messages else None

    def get_watermark_offsets(self, partition: object, timeout: float) -> tuple[int, int]:
        return 0, 4


def test_what_a_client_fetches_again_is_given_once() -> None:
    reader = connections.Reader(Repeating([0, 0, 1, 0, 1, 2, 3]), ADDRESS)  # type: ignore[arg-type]
    reader.move_to(0, 0)
    assert [message.offset() for message in reader.messages(4)] == [0, 1, 2, 3]


def test_a_message_without_a_value_that_was_met_too_early_is_kept() -> None:
    """Its length is 0, so it counted as none."""
    reader = connections.Reader(Repeating([0, 2, 3]), ADDRESS)  # type: ignore[arg-type]
    reader.move_to(0, 0)
    found = [[message.offset() for message in reader.messages(end)] for end in (2, 4)]
    assert found == [[0], [2, 3]]


class Holey:
    """A client with holes; retention has removed the offsets before ``low``.

    After it has reported that, it fetches nothing until it is assigned a position.
    """

    def __init__(self, offsets: list[int]) -> None:
        self._offsets = offsets
        self._at: int | None = 0
        self.low = 0
        self.assigned: list[int] = []

    def assign(self, partitions: list[TopicPartition]) -> None:
        (place,) = partitions
        self._at = place.offset
        self.assigned.append(place.offset)

    def poll(self, timeout: float) -> Told | None:
        if self._at is None:
            return None
        if self._at < self.low:
            at, self._at = self._at, None
            return Told(at, KafkaError(KafkaError._AUTO_OFFSET_RESET))
        offset = next((each for each in self._offsets if each >= self._at), None)
        if offset is None:
            return None
        self._at = offset + 1
        return Told(offset)

    def get_watermark_offsets(self, partition: object, timeout: float) -> tuple[int, int]:
        return self.low, self._offsets[-1] + 1


def test_a_reader_reads_on_over_the_marks_between_two_records() -> None:
    """Two offsets farther it started again, and fetched its prefetched data a second time."""
    client = Holey([0, 2, 4, 6, 40])
    reader = connections.Reader(client, ADDRESS)  # type: ignore[arg-type]
    for start, end, found in ((0, 1, [0]), (2, 3, [2]), (6, 7, [6]), (6, 7, [6]), (40, 41, [40])):
        reader.move_to(0, start)
        assert [message.offset() for message in reader.messages(end)] == found
    assert client.assigned == [0, 6, 40]


def test_a_reader_gets_over_what_retention_took_on_its_way() -> None:
    client = Holey([0, 2, 3, 5])
    reader = connections.Reader(client, ADDRESS)  # type: ignore[arg-type]
    reader.move_to(0, 0)
    assert [message.offset() for message in reader.messages(1)] == [0]
    client.low = 3
    reader.move_to(0, 3)
    assert [message.offset() for message in reader.messages(6)] == [3, 5]
    assert client.assigned == [0, 3]


def test_a_reader_of_which_retention_took_all_reads_what_comes_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ANSWER_S", 0.01)
    offsets = [0, 2]
    client = Holey(offsets)
    reader = connections.Reader(client, ADDRESS)  # type: ignore[arg-type]
    reader.move_to(0, 0)
    assert [message.offset() for message in reader.messages(1)] == [0]
    client.low = 3
    reader.move_to(0, 3)
    assert list(reader.messages(6)) == []
    offsets.append(4)
    reader.move_to(0, 3)
    assert [message.offset() for message in reader.messages(5)] == [4]


class Shrinking(KafkaPartition):
    """A partition without holes; retention removes some records when the first one is read."""

    def __init__(self, end: int, taken: int) -> None:
        self._low, self._high, self._taken = 0, end, taken

    def bounds(self) -> tuple[int, int]:
        return self._low, self._high

    def read(self, start: int, end: int) -> Iterator[Record]:
        self._low = self._taken
        if start < self._low:
            raise self._gone
        for offset in range(start, end):
            yield Record(offset, "default", 1, b"{}", offset, offset)

    _gone = TrimmedError("it is gone")


@pytest.mark.parametrize("taken", [0, 40, 51, 99, 100])
@pytest.mark.parametrize("wanted", [0, 30, 70, 100])
def test_what_retention_takes_while_a_place_is_looked_for_is_passed_over(taken: int, wanted: int) -> None:
    """Looking up a time or a stamp raised an error."""
    assert Shrinking(100, taken).first_since(wanted) == max(taken, wanted)
