"""A process's connections to one topic: one that asks, readers that are kept, topics made when missing.

They are opened when first used, anew in a process made by fork, and never travel in a pickle.
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
"""So long a broker may be away before it is an error. Larger: fewer errors, later."""

FETCH_WAIT_MS = 5
"""How long a broker holds an answer back when there is nothing new. Larger: fewer idle requests; a range that
ends with a hole is known to end later."""

LOOK_EVERY_S = 0.01
"""Who waits for messages asks no more often where they end. Larger: less for the broker to do, met later."""

READ_AHEAD_KIB = 2 << 10
"""How much a reader fetches before it is asked for. Larger: large records are read on faster; more is fetched
for nothing by who reads a range and leaves, and more memory of each that is kept."""

_PASSED_OVER = 4
"""A reader that stands so many offsets before a place reads on to it: between records lie marks of commits,
and what was fetched ahead is of use."""

_KEPT_READERS = 4
_SLICE_S = 0.05
_DEFAULT_PIECE_BYTES = 900_000
_ROOM_BYTES = 16 << 10
"""What a message takes beside its piece of the payload: header, and the batch around it."""

_COMMON: Mapping[str, Any] = {
    "client.id": "fieldfare",
    "socket.keepalive.enable": True,
    "socket.timeout.ms": 10_000,
    # A broker that comes back is found soon.
    "reconnect.backoff.max.ms": 500,
    "log.connection.close": False,
    # What goes wrong is an error, and said there: its log says so every second for each client.
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
}
"""For a moment, where a topic was made just now, or another broker takes a partition over."""


@contextmanager
def errors_as_such() -> Iterator[None]:
    """Raise a client's fatal error as what it is.

    The library sets it, and calls those who are to hear of messages all the same; of that Python complains.
    """
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KafkaException):
            raise error.__cause__ from error
        raise


class Reader:
    """A consumer of one partition that reads on from where it stood, which costs no request.

    Between two who use it, it fetches ahead while there is more to come, and rests where there is not.
    """

    def __init__(self, consumer: Consumer, address: KafkaAddress) -> None:
        self._consumer = consumer
        self._address = address
        self._held: Message | None = None
        self._rests = False
        self.partition = -1
        self.next = -1

    def go_to(self, partition: int, offset: int) -> None:
        """Stand before an offset."""
        if self.is_near(partition, offset) and not self._rests:
            if self._held is not None and self._held.offset() < offset:
                self._held = None
            self.next = offset
            return
        self._held, self._rests = None, False
        self.partition, self.next = partition, offset
        self._consumer.assign([TopicPartition(self._address.topic, partition, offset)])

    def is_near(self, partition: int, offset: int) -> bool:
        """Whether reading on leads to an offset soon."""
        return self.partition == partition and 0 <= offset - self.next <= _PASSED_OVER

    def rest(self) -> None:
        """Ask a broker for nothing more where all was read; else it does so every `FETCH_WAIT_MS`."""
        if self.partition >= 0 and self._held is None and not self._rests:
            place = TopicPartition(self._address.topic, self.partition)
            _, known_end = self._consumer.get_watermark_offsets(place, cached=True)
            if self.next >= known_end:
                self._consumer.unassign()
                self._rests = True

    def messages(self, end: int) -> Iterator[Message]:
        """What there is up to an offset, or the partition's end; afterwards it stands there.

        Raises
        ------
        TrimmedError
            The topic's retention has taken what comes next.
        """
        give_up_s = time.monotonic() + 3 * ANSWER_S
        while self.next < end:
            # One without a value counts as false.
            message = self._consumer.poll(_SLICE_S) if self._held is None else self._held
            self._held = None
            if message is not None and (problem := message.error()) is None:
                if message.offset() < self.next:
                    continue  # Given already: a client may fetch again what it had when a leader is another.
                if message.offset() >= end:
                    self._held, self.next = message, end
                    return
                self.next = message.offset() + 1
                yield message
                give_up_s = time.monotonic() + 3 * ANSWER_S
                continue
            if message is not None and problem.code() == KafkaError._PARTITION_EOF:
                # An earlier end, mostly: what came since is on its way.
                self.next = max(self.next, message.offset())
                continue
            # Asking also wakes the thread that fetches, which at times naps for a second.
            low, high = self.bounds()
            if self.next < low:
                wanted = self.next
                self._leave()
                raise TrimmedError(f"{self._address} holds the records from {low} to {high}, not {wanted}")
            if message is not None and problem.code() == KafkaError._AUTO_OFFSET_RESET:
                # Retention has taken what lay on the way to it, and the client fetches no more.
                self._consumer.assign([TopicPartition(self._address.topic, self.partition, self.next)])
            if self.next >= min(high, end):
                return
            if time.monotonic() > give_up_s:
                self._leave()
                raise KafkaException(problem if message is not None else KafkaError(KafkaError._TIMED_OUT))

    def bounds(self) -> tuple[int, int]:
        """From where to where the partition may be read."""
        return _bounds(self._consumer, TopicPartition(self._address.topic, self.partition))

    def _leave(self) -> None:
        self.partition = self.next = -1
        self._held = None

    def close(self) -> None:
        self._consumer.close()


class KafkaConnections:
    """What a process has open of one topic.

    Parameters
    ----------
    address
        The topic's.
    settings
        With what it is made when it does not exist.
    kind
        The error to raise when something cannot be done.
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
        """What a client said last of why no broker answers it."""
        self._piece_bytes: int | None = None

    def _check_process(self) -> None:
        if self._process != os.getpid():
            # Their threads are not in this process, so they could not even be closed.
            _OF_PARENTS.append((self._asking, self._administering, self._idle))
            self._start_anew()

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Give Kafka's errors the topic's name, and their kind."""
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
                said = said.replace(
                    f'"{value}"', "***"
                )  # Which may be a secret that came under a wrong name.
        if problem.code() not in _UNANSWERED:
            return said
        asking = self._asking
        if asking is not None:
            asking.poll(0)  # It tells what it has to tell to who polls.
        return f"no broker answers ({self._heard or said})"

    def _hear(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # Which says no more.
            self._heard = str(error.str())

    def _client(self, kind: Callable[..., C], settings: Mapping[str, Any]) -> C:
        """One of librdkafka's clients: the file's properties, and those that are ours to say."""
        try:
            properties = self.address.properties()
            ours = {"bootstrap.servers": self.address.brokers, "error_cb": self._hear}
            return kind({**_COMMON, **properties, **ours, **settings}, logger=logger)
        except (ValueError, TypeError) as error:
            raise self._kind(f"{self.address}: {error}") from None

    def prepare(self) -> int:
        """How many partitions the topic has; it is made if the address says how."""
        self._check_process()
        self.address.properties()
        with self.explained():
            found = self._partitions()
            if not found:
                if self.address.partitions is None:
                    raise self._kind(f"{self.address}: there is no such topic; make it, or add ?partitions=N")
                self._create(self.address.topic, self.address.partitions, self._settings)
                give_up_s = time.monotonic() + ANSWER_S
                while not (found := self._partitions()) and time.monotonic() < give_up_s:
                    time.sleep(0.02)  # The broker that answers may not have heard of it.
        return found

    def bounds(self, partition: int) -> tuple[int, int]:
        """From where to where a partition may be read: of what is committed."""
        with self.explained():
            return _bounds(self._ask(), TopicPartition(self.address.topic, partition))

    def end(self, partition: int) -> int:
        """To where a partition may be read: half of what `bounds` asks the broker for."""
        with self.explained():
            return _end(self._ask(), self.address.topic, partition)

    @contextmanager
    def reading(self, partition: int, offset: int) -> Iterator[Reader]:
        """A reader before an offset, kept for the next who wants one."""
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
                reader.go_to(partition, offset)
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

    def producer(self, **settings: Any) -> Producer:
        """A producer to whose messages all replicas in sync have agreed when they are delivered."""
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
        """How much of a payload goes in one message: less than the topic's limit."""
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
        """Have the broker remove the messages before an offset."""
        with self.explained():
            wanted = [TopicPartition(self.address.topic, partition, offset)]
            for future in self._admin().delete_records(wanted, request_timeout=ANSWER_S).values():
                future.result(ANSWER_S)

    def close(self) -> None:
        """Let go of all; what is used again is opened again."""
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

    def _consumer(self) -> Consumer:
        # A group is never joined, but librdkafka wants its name.
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
                "fetch.queue.backoff.ms": FETCH_WAIT_MS,  # A second by default, where so much is read ahead.
            },
        )

    def _admin(self) -> AdminClient:
        self._check_process()
        with self._lock:
            if self._administering is None:  # Kept: its futures end when it does.
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
                return _DEFAULT_PIECE_BYTES + _ROOM_BYTES  # Who may not ask goes by the brokers' default.
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
        # What begins at the latest time there is, is the end: one request, where both bounds are two.
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
