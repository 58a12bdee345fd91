"""A process's connections to one topic: a client for requests, pooled readers, creation of missing topics.

Connections are opened on first use, opened again in a forked process, and never pickled.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from fieldfare.storage.errors import StorageError, TrimmedError
from fieldfare.storage.kafka.address import KafkaAddress
from fieldfare.storage.kafka.tail import Tail

try:
    from confluent_kafka import (
        OFFSET_END,
        Consumer,
        KafkaError,
        KafkaException,
        Message,
        Producer,
        TopicPartition,
    )
    from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("Kafka needs the extra: pip install 'fieldfare[kafka]'") from error

logger = logging.getLogger("fieldfare.storage.kafka")

ANSWER_S = 10.0
"""Maximum seconds to wait for a broker; then the request fails. Larger: fewer errors, reported later."""

FETCH_WAIT_MS = 5
"""Milliseconds that a broker delays its answer if there are no new messages. Larger: fewer idle requests, but
the end of a range that ends with a hole is detected later."""

TAIL_WAIT_MS = 250
"""Milliseconds that a broker delays its answer to a tail if there are no new messages. Larger: fewer idle
requests, but a hole at the end of a partition is noticed later."""

LOOK_EVERY_S = 0.01
"""Minimum seconds between two requests of a waiter for a partition's end. Larger: less load on the broker,
but messages are noticed later."""

READ_AHEAD_KIB = 2 << 10
"""KiB that a reader fetches ahead. Larger: large records are read faster, but a reader of a short range
fetches more in vain, and each pooled reader uses more memory."""

_PASSED_OVER = 4
"""Maximum offsets that a reader skips to reach its target; beyond it, the reader seeks. Commit markers lie
between records, and skipping keeps the messages fetched ahead."""

_KEPT_READERS = 4
"""Maximum idle readers to keep; the oldest beyond it are closed."""
_SLICE_S = 0.05
_DEFAULT_PIECE_BYTES = 900_000
_ROOM_BYTES = 16 << 10
"""Bytes of a message reserved for its header and the enclosing batch, besides its piece of the payload."""

_COMMON: Mapping[str, Any] = {
    "client.id": "fieldfare",
    "socket.keepalive.enable": True,
    "socket.timeout.ms": 10_000,
    # Reconnect soon after a broker returns.
    "reconnect.backoff.max.ms": 500,
    "log.connection.close": False,
    # Failures are raised as errors; librdkafka would also log them, every second for each client.
    "log_level": 2,
    "fetch.message.max.bytes": 1 << 20,
}


_UNANSWERED = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)

C = TypeVar("C", Consumer, Producer, AdminClient)
T = TypeVar("T")

_OF_PARENTS: list[object] = []
_LEADERLESS = {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
}
"""Transient errors after the creation of a topic, or while another broker takes over a partition."""


@contextmanager
def errors_as_such() -> Iterator[None]:
    """Raise a client's fatal error as KafkaException instead of SystemError.

    The library sets the exception but still runs the delivery callbacks, for which Python raises SystemError.
    """
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from error
        raise


class Reader:
    """A consumer of one partition that continues from its position without a request to the broker.

    Between two uses it fetches ahead while the partition has more messages, and pauses at its end.
    """

    def __init__(self, consumer: Consumer, address: KafkaAddress) -> None:
        self._consumer = consumer
        self._address = address
        self._held: Message | None = None
        self._rests = False
        self.partition = -1
        self.next = -1

    def move_to(self, partition: int, offset: int) -> None:
        """Move to an offset of a partition."""
        if self.is_near(partition, offset) and not self._rests:
            if self._held is not None and self._held.offset() < offset:
                self._held = None
            self.next = offset
            return
        self._held, self._rests = None, False
        self.partition, self.next = partition, offset
        self._consumer.assign([TopicPartition(self._address.topic, partition, offset)])

    def is_near(self, partition: int, offset: int) -> bool:
        """Return whether an offset is at most `_PASSED_OVER` offsets ahead of the reader's position."""
        return self.partition == partition and 0 <= offset - self.next <= _PASSED_OVER

    def rest(self) -> None:
        """Stop fetching if everything was read: the client would poll the broker every `FETCH_WAIT_MS`."""
        if self.partition >= 0 and self._held is None and not self._rests:
            place = TopicPartition(self._address.topic, self.partition)
            _, known_end = self._consumer.get_watermark_offsets(place, cached=True)
            if self.next >= known_end:
                self._consumer.unassign()
                self._rests = True

    def messages(self, end: int) -> Iterator[Message]:
        """Yield the messages before an offset or the partition's end, and advance the reader's position.

        Raises
        ------
        TrimmedError
            The topic's retention has removed the next message.
        """
        give_up_s = time.monotonic() + 3 * ANSWER_S
        while self.next < end:
            # Compare with None: a message without a value is false.
            message = self._consumer.poll(_SLICE_S) if self._held is None else self._held
            self._held = None
            if message is not None and (problem := message.error()) is None:
                if message.offset() < self.next:
                    continue  # Yielded already: after a change of leader, a client may fetch messages again.
                if message.offset() >= end:
                    self._held, self.next = message, end
                    return
                self.next = message.offset() + 1
                yield message
                give_up_s = time.monotonic() + 3 * ANSWER_S
                continue
            if message is not None and problem.code() == KafkaError._PARTITION_EOF:
                # Usually an earlier end: later messages are on their way.
                self.next = max(self.next, message.offset())
                continue
            # The request also wakes the fetching thread, which sometimes sleeps for a second.
            low, high = self.bounds()
            if self.next < low:
                wanted = self.next
                self._leave()
                raise TrimmedError(f"{self._address} holds the records from {low} to {high}, not {wanted}")
            if message is not None and problem.code() == KafkaError._AUTO_OFFSET_RESET:
                # Retention has removed messages before the target, and the client has stopped fetching.
                self._consumer.assign([TopicPartition(self._address.topic, self.partition, self.next)])
            if self.next >= min(high, end):
                return
            if time.monotonic() > give_up_s:
                self._leave()
                raise KafkaException(problem if message is not None else KafkaError(KafkaError._TIMED_OUT))

    def bounds(self) -> tuple[int, int]:
        """Return the offsets from and to which the partition can be read."""
        return _bounds(self._consumer, TopicPartition(self._address.topic, self.partition))

    def _leave(self) -> None:
        self.partition = self.next = -1
        self._held = None

    def close(self) -> None:
        self._consumer.close()


class KafkaConnections:
    """The connections of one process to one topic.

    Parameters
    ----------
    address
        Address of the topic.
    settings
        Topic settings with which the topic is created if it does not exist.
    kind
        Type of the errors to raise.
    """

    def __init__(self, address: KafkaAddress, settings: Mapping[str, str], kind: type[StorageError]) -> None:
        self.address = address
        self._settings = settings
        self._kind = kind
        self._start_anew()

    def _start_anew(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._asking: Consumer | None = None
        self._administering: AdminClient | None = None
        self._idle: list[Reader] = []
        self._heard = ""
        """The last reason that a client reported for getting no answer from a broker."""
        self._piece_bytes: int | None = None

    def _check_process(self) -> None:
        if self._process != os.getpid():
            # The parent's clients cannot be closed here: their threads are not in this process.
            _OF_PARENTS.append((self._asking, self._administering, self._idle))
            self._start_anew()

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Raise Kafka's errors as errors of the given type, with the topic's address in the message."""
        try:
            with errors_as_such():
                yield
        except KafkaException as error:
            raise self._kind(f"{self.address}: {self._said(error)}") from error

    def _said(self, error: KafkaException) -> str:
        problem = error.args[0]
        if not isinstance(problem, KafkaError):
            return str(problem)
        said = str(problem.str())
        if problem.code() == KafkaError._INVALID_ARG:
            for value in filter(None, self.address.properties().values()):
                said = said.replace(f'"{value}"', "***")  # The value may be a secret under a misspelled name.
        if problem.code() not in _UNANSWERED:
            return said
        asking = self._asking
        if asking is not None:
            asking.poll(0)  # Run the error callback, which is called only while polling.
        return f"no broker answers ({self._heard or said})"

    def _hear(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # That error names no reason.
            self._heard = str(error.str())

    def _client(self, kind: Callable[..., C], settings: Mapping[str, Any]) -> C:
        """Create a librdkafka client with the address's properties; fieldfare's settings override them."""
        try:
            properties = self.address.properties()
            ours = {"bootstrap.servers": self.address.brokers, "error_cb": self._hear}
            return kind({**_COMMON, **properties, **ours, **settings}, logger=logger)
        except (ValueError, TypeError) as error:
            raise self._kind(f"{self.address}: {error}") from None

    def prepare(self) -> int:
        """Return the topic's number of partitions; create the topic if the address has `partitions`."""
        self._check_process()
        self.address.properties()
        with self.explained():
            found = self._partitions()
            if not found:
                if self.address.partitions is None:
                    raise self._kind(
                        f"{self.address}: there is no such topic; create it, or add ?partitions=N"
                    )
                self._create(self.address.topic, self.address.partitions, self._settings)
                give_up_s = time.monotonic() + ANSWER_S
                while not (found := self._partitions()) and time.monotonic() < give_up_s:
                    time.sleep(0.02)  # The broker that answers may not know the topic yet.
        return found

    def bounds(self, partition: int) -> tuple[int, int]:
        """Return the offsets from and to which committed messages of a partition can be read."""
        with self.explained():
            return _bounds(self._ask(), TopicPartition(self.address.topic, partition))

    def end(self, partition: int) -> int:
        """Return the offset up to which a partition can be read, with half the requests of `bounds`."""
        with self.explained():
            return _end(self._ask(), self.address.topic, partition)

    @contextmanager
    def reading(self, partition: int, offset: int) -> Iterator[Reader]:
        """Borrow a pooled reader, moved to an offset of a partition."""
        self._check_process()
        with self._lock:
            fits = [each for each in self._idle if each.is_near(partition, offset)]
            reader = next(iter(fits or self._idle), None)
            if reader is not None:
                self._idle.remove(reader)
        if reader is None:
            reader = Reader(self._consumer(), self.address)
        try:
            with self.explained():
                reader.move_to(partition, offset)
                yield reader
        finally:
            with self.explained():
                reader.rest()
            with self._lock:
                self._idle.append(reader)
                surplus = self._idle[:-_KEPT_READERS]
                del self._idle[:-_KEPT_READERS]
            for each in surplus:
                each.close()

    def tail(self, places: Mapping[int, int]) -> Tail:
        """Return a tail that brings the messages of some partitions, from given offsets on."""
        self._check_process()
        waiting = {"fetch.wait.max.ms": TAIL_WAIT_MS}
        with self.explained():
            return Tail(self._consumer(**waiting), self.address.topic, places)

    def producer(self, **settings: Any) -> Producer:
        """Return a producer whose messages count as delivered once all in-sync replicas have them."""
        limit = {"message.max.bytes": max(1_000_000, self.piece_bytes() + _ROOM_BYTES)}
        ours = {
            **limit,
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 0,
            "message.timeout.ms": int(ANSWER_S * 1_000),
        }
        return self._client(Producer, ours | settings)

    def piece_bytes(self) -> int:
        """Return the maximum payload bytes of one message, which is less than the topic's limit."""
        self._check_process()
        with self._lock:
            if self._piece_bytes is None:
                limit = self._max_message_bytes()
                if limit < 4 * _ROOM_BYTES:
                    raise self._kind(
                        f"{self.address}: max.message.bytes is {limit}; at least {4 * _ROOM_BYTES} are needed"
                    )
                self._piece_bytes = min(_DEFAULT_PIECE_BYTES, limit - _ROOM_BYTES)
            return self._piece_bytes

    def remove_before(self, partition: int, offset: int) -> None:
        """Delete a partition's messages before an offset."""
        with self.explained():
            wanted = [TopicPartition(self.address.topic, partition, offset)]
            for future in self._admin().delete_records(wanted, request_timeout=ANSWER_S).values():
                future.result(ANSWER_S)

    def close(self) -> None:
        """Close all connections; they are opened again when needed."""
        self._check_process()
        with self._lock:
            readers, self._idle = self._idle, []
            asking, self._asking = self._asking, None
            self._administering = None
        for reader in readers:
            reader.close()
        if asking is not None:
            asking.close()

    def _ask(self) -> Consumer:
        self._check_process()
        with self._lock:
            if self._asking is None:
                self._asking = self._consumer()
            return self._asking

    def _consumer(self, **settings: Any) -> Consumer:
        # No consumer group is joined, but librdkafka requires a group ID.
        return self._client(
            Consumer,
            {
                "group.id": "fieldfare",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": FETCH_WAIT_MS,
                "queued.max.messages.kbytes": READ_AHEAD_KIB,
                "fetch.queue.backoff.ms": FETCH_WAIT_MS,  # The default of 1 s stalls reads here.
                **settings,
            },
        )

    def _admin(self) -> AdminClient:
        self._check_process()
        with self._lock:
            if self._administering is None:  # Keep the client: its futures end when it is removed.
                self._administering = self._client(AdminClient, {})
            return self._administering

    def _partitions(self) -> int:
        metadata = self._ask().list_topics(self.address.topic, timeout=ANSWER_S)
        topic = metadata.topics.get(self.address.topic)
        if topic is not None and topic.error is not None:
            if topic.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise KafkaException(topic.error)
            return 0
        return 0 if topic is None else len(topic.partitions)

    def _create(self, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
        new = NewTopic(topic, partitions, self.address.replication, config=dict(settings))
        for future in self._admin().create_topics([new], request_timeout=ANSWER_S).values():
            try:
                future.result(ANSWER_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

    def _max_message_bytes(self) -> int:
        resource = ConfigResource(ResourceType.TOPIC, self.address.topic)
        with self.explained():
            try:
                (future,) = self._admin().describe_configs([resource], request_timeout=ANSWER_S).values()
                found = future.result(ANSWER_S)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise
                return _DEFAULT_PIECE_BYTES + _ROOM_BYTES  # Without permission, assume the brokers' default.
        policy = found["cleanup.policy"].value
        if "compact" in policy and "compact" not in self._settings.get("cleanup.policy", ""):
            raise self._kind(f"{self.address}: its cleanup.policy is {policy}, and must be delete")
        return int(found["max.message.bytes"].value)


def _bounds(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    def ask() -> tuple[int, int]:
        low, high = consumer.get_watermark_offsets(partition, timeout=ANSWER_S)
        return low, high

    return _asked(ask)


def _end(consumer: Consumer, topic: str, partition: int) -> int:
    def ask() -> int:
        # The offset for the latest time is the end. This takes one request; both bounds take two.
        (found,) = consumer.offsets_for_times(
            [TopicPartition(topic, partition, OFFSET_END)], timeout=ANSWER_S
        )
        if found.error is not None:
            raise KafkaException(found.error)
        return int(found.offset)

    return _asked(ask)


def _asked(ask: Callable[[], T]) -> T:
    give_up_s = time.monotonic() + ANSWER_S
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].code() not in _LEADERLESS or time.monotonic() > give_up_s:
                raise
        time.sleep(0.02)
