"""The event log as a Kafka topic: a record is one message, or several if it exceeds the message limit."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from fieldfare.model import Offsets
from fieldfare.storage.errors import EventLogError
from fieldfare.storage.event_log import Appended, NewRecord, OutOfOrder, RetentionPolicy
from fieldfare.storage.kafka.address import KafkaAddress
from fieldfare.storage.kafka.connections import LOOK_EVERY_S, KafkaConnections
from fieldfare.storage.kafka.partition import KafkaPartition
from fieldfare.storage.kafka.tail import Tail
from fieldfare.storage.kafka.writer import KafkaWriter

TOPIC_SETTINGS = {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
"""Settings of a topic that is created here. Records get the broker's time: a wrong clock on this machine
would have them removed early, or refused."""


class KafkaEventLog:
    """An `EventLog` in a Kafka topic, whose own settings control retention.

    Parameters
    ----------
    url
        URL of the topic: see `storage.kafka.address`.
    """

    look_every_s = LOOK_EVERY_S

    def __init__(self, url: str) -> None:
        self._address = KafkaAddress.parse(url, "event log")
        self._connections = KafkaConnections(self._address, TOPIC_SETTINGS, EventLogError)
        self._partitions = tuple(
            KafkaPartition(self._connections, number) for number in range(self._connections.prepare())
        )
        self._lock = threading.Lock()
        self._writer: KafkaWriter | None = None

    def __reduce__(self) -> tuple[type[KafkaEventLog], tuple[str]]:
        return KafkaEventLog, (self.url,)

    def __repr__(self) -> str:
        return f"KafkaEventLog({self.url!r})"

    @property
    def url(self) -> str:
        return self._address.url

    @property
    def partitions(self) -> Sequence[KafkaPartition]:
        return self._partitions

    def listen(self, places: Mapping[int, int]) -> Tail:
        tail = self._connections.tail(places)
        for number, start in places.items():
            self._partitions[number].hear(tail, start)
        return tail

    def append(self, records: Sequence[NewRecord]) -> list[Appended | OutOfOrder]:
        for record in records:
            record.check()
        with self._lock:
            return self._writing().append(records)

    def raise_ends(self, to: Offsets) -> None:
        for partition, wanted in zip(self._partitions, to, strict=True):
            if wanted > (end := partition.end()):
                raise EventLogError(
                    f"{self._address}: partition {partition.number} ends at offset {end}, but cursors or"
                    f" matches of this service refer to offsets up to {wanted}: the topic was deleted and"
                    " created again, or an older copy of it was restored. Restore the missing records, or"
                    " start with another topic and a new data directory (--log, --data)"
                )

    def grow_older(self, elapsed_ms: int, policy: RetentionPolicy) -> None:
        if policy.producers_ms is not None:
            with self._lock:
                self._writing().grow_older(elapsed_ms, policy.producers_ms)

    def retain(self, policy: RetentionPolicy, keep_from: Offsets) -> None:
        if policy.producers_ms is not None:
            with self._lock:
                self._writing().forget(policy.producers_ms)

    def sizes(self) -> dict[str, int]:
        return {}

    def size_bytes(self) -> int:
        return sum(partition.size_bytes() for partition in self._partitions)

    def close(self) -> None:
        with self._lock:
            if self._writer is not None:
                self._writer.close()
                self._writer = None
        self._connections.close()

    def _writing(self) -> KafkaWriter:
        if self._writer is None:
            self._writer = KafkaWriter(self._connections, self._partitions)
        return self._writer
