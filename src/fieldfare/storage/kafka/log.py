"""The event log as a topic of Kafka: a record is a message, or several where it is larger than one may be."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from fieldfare.model import Offsets
from fieldfare.storage.errors import EventLogError
from fieldfare.storage.event_log import Appended, NewRecord, OutOfOrder, RetentionPolicy
from fieldfare.storage.kafka.address import KafkaAddress
from fieldfare.storage.kafka.connections import LOOK_EVERY_S, KafkaConnections
from fieldfare.storage.kafka.partition import KafkaPartition
from fieldfare.storage.kafka.writer import KafkaWriter

TOPIC_SETTINGS = {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}
"""Of a topic that is made here. Times are the broker's: one that is set wrong here would remove records, or
have them refused."""


class KafkaEventLog:
    """An `EventLog` in a topic, which the topic's own settings keep in bounds.

    Parameters
    ----------
    url
        See `address`.
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

    def append(self, records: Sequence[NewRecord]) -> list[Appended | OutOfOrder]:
        for record in records:
            record.check()
        with self._lock:
            return self._writing().append(records)

    def raise_ends(self, to: Offsets) -> None:
        for partition, wanted in zip(self._partitions, to, strict=True):
            if wanted > (end := partition.end()):
                raise EventLogError(
                    f"{self._address}: partition {partition.number} ends at {end}, and others know offsets up"
                    f" to {wanted}: brokers number records, so a topic that was made anew cannot go on"
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
