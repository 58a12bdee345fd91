"""The writer of a topic: transactional appends, detection of repeats, recovery of appends of unknown outcome.

    begin ──▶ records to their partitions ──▶ commit ──▶ places
                         │ error, or no answer
                         ▼
      drop the producer ──▶ a new one of the same name: the broker ends the old one's transaction and
                            refuses its messages ──▶ a transaction in each partition, aborted ──▶
                            resume reading at the known end: repeats of committed records are known then

The new producer aborts its first transaction for a reason: after the kill of a broker, records of the old
producer were observed to be neither committed nor aborted in a partition. The new producer, whose
transactions have the same number there, committed them with its first record: a record appeared twice.

So a record is appended exactly once or not at all, and the caller is never told otherwise. A second writer of
the same name takes over as a new producer does; when the first one appends again, it takes over in turn. That
is slow, but still exact.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from zlib import crc32

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from fieldfare.storage.errors import EventLogError
from fieldfare.storage.event_log import FIRST, Appended, NewRecord, OutOfOrder
from fieldfare.storage.kafka.connections import ANSWER_S, KafkaConnections, errors_as_such
from fieldfare.storage.kafka.partition import KafkaPartition
from fieldfare.storage.kafka.pieces import HEADER, cut, new_id
from fieldfare.storage.kafka.record_header import FORMAT, RecordHeader
from fieldfare.storage.kafka.repeats import TABLE_SETTINGS, Repeats, digest_of, table_of

logger = logging.getLogger("fieldfare.storage.kafka")

SAVE_RECORDS = 20_000
"""Appended records after which the table of repeats is saved; a start reads at most about this many again."""
SAVE_BYTES = 256 << 20
"""Appended payload bytes after which the table of repeats is saved; a start reads about as many at most."""

TRANSACTION_MS = 60_000
"""Maximum duration of a transaction, in milliseconds; then the broker aborts it, and readers go past it."""


@dataclass(slots=True)
class _Wanted:
    """A record being appended, the offset of its first piece and the end of its last one."""

    record: NewRecord
    partition: int
    digest: bytes
    offset: int = -1
    end: int = -1

    def place(self) -> Appended:
        return Appended(self.offset, self.record.count, self.record.stamp, False, partition=self.partition)

    def delivered(self, piece: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            if not piece:
                self.offset = message.offset()
            self.end = message.offset() + 1


class KafkaWriter:
    """The writer of a topic; use it from one thread at a time.

    Parameters
    ----------
    connections
        Connections to the topic.
    partitions
        All partitions of the log.
    """

    def __init__(self, connections: KafkaConnections, partitions: Sequence[KafkaPartition]) -> None:
        self._connections = connections
        self._partitions = partitions
        address = connections.address
        self._table_address = table_of(address)
        self._producer: Producer | None = None
        self._repeats: Repeats | None = None
        self._unsaved_records = self._unsaved_bytes = 0
        self._aged = False
        self._turn = 0

    def append(self, records: Sequence[NewRecord]) -> list[Appended | OutOfOrder]:
        """Append the records in one transaction: all that are in order, or none; see `EventLog.append`."""
        with self._connections.explained():
            producer, repeats = self._ready()
        if not records:
            self._connections.bounds(0)
            return []
        places: list[Callable[[], Appended | OutOfOrder]] = []
        newest: dict[tuple[str, str], int] = {}
        stamp = repeats.as_of.stamp
        wanted: dict[object, _Wanted] = {}
        for record in records:
            digest = digest_of(record.payload)
            key: object = len(places)
            if record.producer is not None and record.sequence is not None:
                found = repeats.find(record.space, record.producer, record.sequence, digest)
                if found is not None:
                    places.append(lambda found=found: found)  # type: ignore[misc]
                    continue
                key = (record.space, record.producer, record.sequence)
                if key in wanted:
                    places.append(_repeat_of(wanted[key], digest))
                    continue
                sender = (record.space, record.producer)
                if record.follows is not None:
                    known = max(repeats.newest(*sender), newest.get(sender, FIRST))
                    if known != record.follows:
                        places.append(partial(OutOfOrder, known))
                        continue
                newest[sender] = max(record.sequence, newest.get(sender, FIRST))
            if record.stamp < stamp:
                raise EventLogError(
                    f"{self._connections.address}: a record with stamp {record.stamp} cannot follow one with"
                    f" stamp {stamp} (the registry's revision): the registry is older than the log, so"
                    " registry.db was replaced by an older copy. Restore the newest copy, or restart the"
                    f" service: it continues above {stamp}, without the changes that the copy lacks"
                )
            stamp = record.stamp
            wanted[key] = _Wanted(record, self._partition_of(record), digest)
            places.append(wanted[key].place)
        if wanted:
            self._commit(producer, list(wanted.values()))
            self._refuse_another_topic(repeats, wanted.values())
            try:
                for each in wanted.values():
                    self._learn(repeats, each.record, each.place(), each.end, each.digest)
            except BaseException:
                self._let_go()  # The next producer resumes reading at the known end.
                raise
        done = [place() for place in places]
        if self._unsaved_records >= SAVE_RECORDS or self._unsaved_bytes >= SAVE_BYTES:
            self._save()
        return done

    def grow_older(self, elapsed_ms: int, keep_ms: int) -> None:
        """Add `elapsed_ms` to the age of all producer sequences; `keep_ms` is the greatest age asked for."""
        with self._connections.explained():
            _, repeats = self._ready()
        noted = repeats.as_of.noted[-1:]
        repeats.grow_older(elapsed_ms, keep_ms)
        self._aged |= repeats.as_of.noted[-1:] != noted

    def forget(self, age_ms: int) -> None:
        """Remove the producer sequences older than `age_ms`."""
        with self._connections.explained():
            _, repeats = self._ready()
        repeats.forget(age_ms)
        if self._aged:
            self._save()

    def close(self) -> None:
        """Save the table, so that the next start reads no records again, and close the producer."""
        if self._producer is not None and self._unsaved_records:
            self._save()
        self._let_go()
        if self._repeats is not None:
            self._repeats.close()
            self._repeats = None

    def _ready(self) -> tuple[Producer, Repeats]:
        if self._producer is None or self._repeats is None:
            producer = self._connections.producer(
                **{
                    "transactional.id": f"fieldfare-{self._connections.address.topic}",
                    "transaction.timeout.ms": TRANSACTION_MS,
                }
            )
            # From here on, the broker refuses messages of the previous producer.
            producer.init_transactions(ANSWER_S)
            self._undo_what_is_open(producer)
            if self._repeats is None:
                self._repeats = self._load()
            self._catch_up(self._repeats)
            self._producer = producer
        return self._producer, self._repeats

    def _undo_what_is_open(self, producer: Producer) -> None:
        """Write and abort a message in each partition, which also aborts undecided records there.

        Records committed earlier stand before that message, and are visible once the message's end is. While
        a transaction of another program is open before it, they are not, and repeats could not be detected:
        that raises EventLogError.
        """
        problems: list[KafkaError | None] = []
        ends: dict[int, int] = {}

        def delivered(error: KafkaError | None, message: Message) -> None:
            problems.append(error)
            ends[message.partition()] = message.offset() + 1

        producer.begin_transaction()
        for partition in self._partitions:
            self._send(
                producer,
                topic=self._connections.address.topic,
                partition=partition.number,
                on_delivery=delivered,
            )
        producer.flush(ANSWER_S)
        failed = [problem for problem in problems if problem is not None]
        if failed or len(problems) < len(self._partitions):
            raise KafkaException(failed[0] if failed else KafkaError(KafkaError._TIMED_OUT))
        producer.abort_transaction(ANSWER_S)
        self._wait_until_visible(
            ends, "records of an earlier append are not visible yet: an older transaction is still open"
        )

    def _load(self) -> Repeats:
        table = KafkaConnections(self._table_address, TABLE_SETTINGS, EventLogError)
        table.prepare()
        try:
            low, high = table.bounds(0)
            repeats = Repeats(len(self._partitions))
            with table.reading(0, low) as reader:
                repeats.load((each.key() or b"", each.value()) for each in reader.messages(high))
        finally:
            table.close()
        return repeats

    def _catch_up(self, repeats: Repeats) -> None:
        """Add the records appended after the known ends to the table."""
        for partition in self._partitions:
            known, (low, high) = repeats.as_of.ends[partition.number], partition.bounds()
            if known > high:
                raise self._is_another(partition.number, high, known)
            for offset, header, payload in partition.read_headers(max(known, low), high):
                record = NewRecord(
                    header.space,
                    payload,
                    header.count,
                    header.producer,
                    header.sequence,
                    header.appended_ms,
                    header.stamp,
                )
                place = Appended(offset, header.count, header.stamp, False, partition=partition.number)
                self._learn(repeats, record, place, offset + 1, digest_of(payload))
            repeats.advance(partition.number, high, 0)

    def _learn(self, repeats: Repeats, record: NewRecord, place: Appended, end: int, digest: bytes) -> None:
        if record.producer is not None and record.sequence is not None:
            repeats.add(record.space, record.producer, record.sequence, place, digest)
        repeats.advance(place.partition, end, record.stamp)
        self._unsaved_records += 1
        self._unsaved_bytes += len(record.payload)

    def _refuse_another_topic(self, repeats: Repeats, appended: Iterable[_Wanted]) -> None:
        """Refuse records appended before known ends: no reader would see them, so never acknowledge them."""
        for each in appended:
            known = repeats.as_of.ends[each.partition]
            if each.offset < known:
                self._let_go()
                raise self._is_another(each.partition, each.offset, known)

    def _is_another(self, partition: int, end: int, known: int) -> EventLogError:
        return EventLogError(
            f"{self._connections.address}: partition {partition} ends at offset {end}, but records up to"
            f" {known} were appended: the topic was created again, or has lost records. Existing cursors and"
            " matches do not apply to it: start with a new data directory, and delete the topic"
            f" {self._table_address.topic}"
        )

    def _partition_of(self, record: NewRecord) -> int:
        if record.producer is None:
            self._turn += 1
            return self._turn % len(self._partitions)
        return crc32(f"{record.space}\0{record.producer}".encode()) % len(self._partitions)

    def _commit(self, producer: Producer, wanted: Sequence[_Wanted]) -> None:
        """Append records in one transaction; EventLogError if that fails or its outcome is unknown."""
        try:
            with errors_as_such():
                producer.begin_transaction()
                for each in wanted:
                    self._produce(producer, each)
                _end(producer)
            if any(each.offset < 0 for each in wanted):  # Should not happen; -1 is not an offset.
                raise EventLogError(
                    f"{self._connections.address}: a record was committed, but the broker returned no offset"
                )
            ends = {each.partition: each.end for each in wanted}
            self._wait_until_visible(ends, "a committed record is not visible")
        except KafkaException as error:
            self._let_go()
            raise EventLogError(
                f"{self._connections.address}: {error.args[0].str()}; the next append first checks whether"
                " these records are in the log"
            ) from error
        except BaseException:
            self._let_go()
            raise

    def _wait_until_visible(self, ends: Mapping[int, int], otherwise: str) -> None:
        """Wait until readers can pass the given ends: a commit is marked in the partitions a moment later."""
        give_up_s = time.monotonic() + ANSWER_S
        for number, end in ends.items():
            while self._partitions[number].end() < end:
                if time.monotonic() > give_up_s:
                    raise EventLogError(f"{self._connections.address}, partition {number}: {otherwise}")
                time.sleep(0.001)

    def _produce(self, producer: Producer, wanted: _Wanted) -> None:
        record, name = wanted.record, new_id()
        pieces = list(cut(memoryview(record.payload), self._connections.piece_bytes()))
        for number, piece in enumerate(pieces):
            header = RecordHeader(
                FORMAT,
                record.space,
                record.count,
                record.appended_ms,
                record.stamp,
                name,
                record.producer,
                record.sequence,
                number,
                len(pieces),
            )
            self._send(
                producer,
                topic=self._connections.address.topic,
                partition=wanted.partition,
                value=bytes(piece),
                headers=[(HEADER, msgspec.json.encode(header))],
                on_delivery=lambda error, message, number=number: wanted.delivered(number, error, message),
            )

    def _send(self, producer: Producer, **message: object) -> None:
        while True:
            try:
                producer.produce(**message)
                return
            except BufferError:  # The producer's queue is full.
                producer.poll(0.05)

    def _save(self) -> None:
        """Save the table in its topic; if that fails, the next start reads more records again."""
        producer, repeats = self._producer, self._repeats
        if producer is None or repeats is None:
            return
        try:
            with errors_as_such():
                producer.begin_transaction()
                for key, value in repeats.changed():
                    self._send(producer, topic=self._table_address.topic, partition=0, key=key, value=value)
                _end(producer)
        except KafkaException as error:
            logger.warning("%s could not be written: %s", self._table_address, error.args[0].str())
            self._let_go()
            return
        repeats.saved()
        self._unsaved_records = self._unsaved_bytes = 0
        self._aged = False

    def _let_go(self) -> None:
        """Drop the producer: the start of the next one decides the outcome of its messages."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None


def _repeat_of(first: _Wanted, digest: bytes) -> Callable[[], Appended]:
    return lambda: replace(first.place(), duplicate=True, differs=first.digest != digest)


def _end(producer: Producer) -> None:
    """Commit the transaction; retry retriable errors for up to `ANSWER_S`."""
    give_up_s = time.monotonic() + ANSWER_S
    while True:
        try:
            producer.commit_transaction(max(0.1, give_up_s - time.monotonic()))
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > give_up_s:
                raise
