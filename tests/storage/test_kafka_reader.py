"""How a reader of Kafka's goes from place to place: with clients that are none, so no broker is needed."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka", reason="needs fieldfare[kafka]")

from confluent_kafka import KafkaError, TopicPartition

from fieldfare.storage.kafka import connections
from fieldfare.storage.kafka.address import KafkaAddress

ADDRESS = KafkaAddress.parse("kafka://127.0.0.1:9092/events", "event log")


class Told:
    """A message of a client's, as far as a reader looks at it."""

    def __init__(self, offset: int, problem: KafkaError | None = None) -> None:
        self._offset = offset
        self._problem = problem

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._problem


class Repeating:
    """A client that fetches again what it has given already, as one may where a leader has changed."""

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
    reader.go_to(0, 0)
    assert [message.offset() for message in reader.messages(4)] == [0, 1, 2, 3]


class Holey:
    """A client that has some offsets of many; what lies before ``low`` retention has taken meanwhile."""

    def __init__(self, offsets: list[int]) -> None:
        self._offsets = offsets
        self._at = 0
        self.low = 0
        self.assigned: list[int] = []

    def assign(self, partitions: list[TopicPartition]) -> None:
        (place,) = partitions
        self._at = place.offset
        self.assigned.append(place.offset)

    def poll(self, timeout: float) -> Told | None:
        if self._at < self.low:
            return Told(self._at, KafkaError(KafkaError._AUTO_OFFSET_RESET))
        offset = next((each for each in self._offsets if each >= self._at), None)
        if offset is None:
            return None
        self._at = offset + 1
        return Told(offset)

    def get_watermark_offsets(self, partition: object, timeout: float) -> tuple[int, int]:
        return self.low, self._offsets[-1] + 1


def test_a_reader_reads_on_over_the_marks_between_two_records() -> None:
    """Two offsets farther on it began anew, and what it had fetched ahead was fetched again."""
    client = Holey([0, 2, 4, 6, 40])
    reader = connections.Reader(client, ADDRESS)  # type: ignore[arg-type]
    for start, end, found in ((0, 1, [0]), (2, 3, [2]), (6, 7, [6]), (6, 7, [6]), (40, 41, [40])):
        reader.go_to(0, start)
        assert [message.offset() for message in reader.messages(end)] == found
    assert client.assigned == [0, 6, 40]


def test_a_reader_gets_over_what_retention_took_on_its_way() -> None:
    client = Holey([0, 2, 3, 5])
    reader = connections.Reader(client, ADDRESS)  # type: ignore[arg-type]
    reader.go_to(0, 0)
    assert [message.offset() for message in reader.messages(1)] == [0]
    client.low = 3
    reader.go_to(0, 3)
    assert [message.offset() for message in reader.messages(6)] == [3, 5]
    assert client.assigned == [0, 3]
