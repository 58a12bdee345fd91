"""The match log as a Kafka topic: a block is one message, or several if it exceeds the message limit."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, cast

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from fieldfare.storage.errors import CorruptBlockError, MatchLogError, TrimmedError
from fieldfare.storage.files.match_block import FileBlock, write_block
from fieldfare.storage.kafka.address import KafkaAddress
from fieldfare.storage.kafka.block_places import BlockPlace, BlockPlaces
from fieldfare.storage.kafka.connections import ANSWER_S, LOOK_EVERY_S, KafkaConnections
from fieldfare.storage.kafka.pieces import HEADER, AssembledRecord, Assembly, Count, Pieces, header_of, new_id
from fieldfare.storage.kafka.tail import Tail
from fieldfare.storage.match_log import (
    BLOCK_RECORDS_MAX,
    OPEN_BLOCKS_MAX,
    BlockRange,
    LostBlock,
    NewMatchBlock,
)

FORMAT = 1
TOPIC_SETTINGS = {
    "cleanup.policy": "delete",
    # `trim` removes blocks that are no longer needed: after their events, never before.
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "LogAppendTime",
}
PAGE_MESSAGES = 1_000
"""Messages per page when reading back for older blocks; more than the blocks written concurrently."""

_KEPT_BYTES = 32 << 20
"""Maximum payload bytes of recent blocks to cache, because deliveries need them soon; beyond it, the oldest
are dropped."""
_KEPT_PIECES = 8
"""Maximum pieces of a block whose payload is cached."""
_MEMORY_PIECES = 64
"""Maximum pieces of a block that is read into memory; larger ones are read into an unnamed temporary file."""
_TORN_AFTER = 10_000
"""Messages without a further piece after which an incomplete block counts as abandoned."""
_QUEUE_KIB = 64 << 10
HEARD_WAIT_S = 0.05
"""Seconds to wait for messages that the tail has not yet brought; then they are read."""
_UNMET = 1 << 63


class BlockHeader(msgspec.Struct, omit_defaults=True):
    """The header of a message: the range of its block, and which piece of it this message is."""

    format: Count
    start: Count
    end: Count
    id: str
    piece: Count = 0
    pieces: Pieces = 1


class KafkaMatchPartition:
    """One partition of the match log's topic."""

    def __init__(self, log: KafkaMatchLog, connections: KafkaConnections, number: int) -> None:
        self.number = number
        self._log = log
        self._connections = connections
        self._lock = threading.RLock()
        self._places = BlockPlaces()
        self._low = self._high = -1
        """Range of the messages read so far: see `block_places`."""
        self._lowest_page_end = 0
        self._assembly = Assembly(BlockHeader, _KEPT_PIECES)
        self._recent: OrderedDict[str, bytes] = OrderedDict()
        self._recent_bytes = 0
        self._open: OrderedDict[BlockRange, tuple[str, FileBlock]] = OrderedDict()
        self._met_bytes = self._met_messages = 0
        self._tail: Tail | None = None
        self._first_kept = -1, 0
        """The first message of the partition at the last trim, and the end of its block."""

    def listen(self) -> Tail:
        """Return a tail that brings new blocks from now on; `_follow` takes them from there."""
        with self._lock:
            if self._tail is not None and not self._tail.is_closed:
                raise RuntimeError(f"partition {self.number} is listened to already")
            self._follow()
            self._tail = self._connections.tail({self.number: self._high})
            return self._tail

    def block_at(self, offset: int) -> FileBlock | None:
        while True:
            with self._lock:
                found = self._places.covering(offset) or self._look_for(offset)
            if found is None:
                return None
            try:
                return self._read(*found)
            except TrimmedError:
                with self._lock:
                    self._places.remove(found[0])

    def end(self, from_offset: int = 0) -> int:
        with self._lock:
            self._follow()
            while (found := self._places.covering(from_offset) or self._look_for(from_offset)) is not None:
                from_offset = found[0].end
        return from_offset

    def next_start(self, offset: int) -> int | None:
        with self._lock:
            self._follow()
            while not self._has_met_all(offset):
                self._reach_back()
            return self._places.next_start(offset)

    def greatest_end(self) -> int:
        with self._lock:
            self._follow()
            while not self._places and not self._has_met_all(0):
                self._reach_back()
            return self._places.greatest_end()

    def write(self, block: NewMatchBlock, *, synced: bool = True) -> int:
        block.check()
        with tempfile.SpooledTemporaryFile(max_size=_KEPT_BYTES) as file:
            write_block(block, cast("IO[bytes]", file))  # type: ignore[arg-type]
            size_bytes = file.tell()
            file.seek(0)
            self._log.send(
                self.number, BlockRange(block.start, block.end), cast("IO[bytes]", file), size_bytes
            )
        return size_bytes

    def sync(self, from_offset: int) -> int:
        # A write returns once all in-sync replicas have the block.
        return self.end(from_offset)

    def recover(self, from_offset: int) -> int:
        # Readers ignore incomplete blocks, so there is nothing to remove.
        return self.end(from_offset)

    def fill(self, start: int, end: int) -> list[BlockRange]:
        filled = []
        while start < end:
            start = self.end(start)
            if start >= end:
                break
            until = min(end, start + BLOCK_RECORDS_MAX, self.next_start(start) or end)
            self.write(NewMatchBlock.gap(start, until))
            filled.append(BlockRange(start, until))
            start = until
        return filled

    def compact(self, before: int, most_blocks: int = 1 << 30) -> int:
        return 0

    def trim(self, before: int) -> int:
        low, high = self._connections.bounds(self.number)
        removed, stop = 0, low
        if self._first_kept[0] == low and self._first_kept[1] > before:
            return 0
        with self._connections.reading(self.number, low) as reader:
            for message in reader.messages(high):
                header = header_of(message, BlockHeader)
                if header is not None and header.end > before:
                    self._first_kept = stop, header.end
                    break
                stop = message.offset() + 1
                removed += header is not None and header.piece == 0
        if stop > low:
            self._connections.remove_before(self.number, stop)
        with self._lock:
            self._places.remove_before(before)
        return removed

    def trouble(self, block: tuple[int, int]) -> str | None:
        wanted = BlockRange(*block)
        place = self._place_of(wanted)
        if place is None:
            return None
        try:
            self._read(wanted, place).check()
        except TrimmedError:
            return None
        except CorruptBlockError as error:
            return str(error)
        return None

    def set_aside(self, block: tuple[int, int]) -> object:
        # The last block of a range counts; the corrupt one stays in the topic until it is trimmed.
        place = self._place_of(BlockRange(*block))
        self.write(NewMatchBlock.gap(*block))
        self.forget(block)
        return self._connections.address if place is None else self._name(place)

    def forget(self, block: tuple[int, int]) -> None:
        with self._lock:
            self._open.pop(BlockRange(*block), None)
            self._follow()

    def size_bytes(self) -> int:
        """Return an estimate of the partition's bytes, from the messages read so far."""
        with self._lock:
            self._follow()
            low, high = self._connections.bounds(self.number)
            if not self._met_messages and not self._has_met_all(0):
                self._reach_back()
            return (high - low) * self._met_bytes // max(1, self._met_messages)

    def _place_of(self, block: BlockRange) -> BlockPlace | None:
        """Return the place of the block with exactly this range; None if there is none."""
        with self._lock:
            self._follow()
            while (place := self._places.place_of(block)) is None and not self._has_met_all(block.start):
                self._reach_back()
            return place

    def _look_for(self, offset: int) -> tuple[BlockRange, BlockPlace] | None:
        """Find a block that holds a record among unread messages, first in new ones, then in older ones."""
        self._follow()
        while True:
            if (found := self._places.covering(offset)) is not None:
                return found
            if self._has_met_all(offset) or (self._places and offset >= self._places.greatest_end()):
                return None
            self._reach_back()

    def _has_met_all(self, offset: int) -> bool:
        """Return whether no unread older message can belong to a block that ends after an offset."""
        return self._lowest_page_end <= offset

    def _follow(self) -> None:
        """Read the new messages."""
        end = self._connections.end(self.number)
        if self._high == end:
            return
        if self._take_heard(end):
            return
        low, high = self._connections.bounds(self.number)
        if self._high > high:  # The topic was created again, or has lost its end.
            self._places, self._high = BlockPlaces(), -1
            if self._tail is not None:
                self._tail.resume({self.number: high})
        if self._high < 0 or self._high < low:
            self._low = self._high = high
            self._lowest_page_end = _UNMET if low < high else 0
        if self._high < high:
            with self._connections.reading(self.number, self._high) as reader:
                for message in reader.messages(high):
                    self._meet(self._assembly, message)
            self._high = high
            self._assembly.give_up_before(high - _TORN_AFTER)
        if self._tail is not None and self._tail.is_lost:
            self._tail.resume({self.number: high})

    def _take_heard(self, end: int) -> bool:
        """Take the messages before an offset, and later ones, from the tail; return whether it had all."""
        until_s = time.monotonic() + HEARD_WAIT_S
        while self._tail is not None and self._tail.hears and 0 <= self._high < end:
            messages, _, _ = self._tail.take(self.number, max(0.0, until_s - time.monotonic()))
            if not messages:
                return False
            for message in messages:
                if message.offset() >= self._high:
                    self._meet(self._assembly, message)
                    self._high = message.offset() + 1
            self._assembly.give_up_before(self._high - _TORN_AFTER)
            if self._high >= end:
                return True
        return False

    def _reach_back(self) -> None:
        """Read one more page of older messages."""
        low, _ = self._connections.bounds(self.number)
        start = max(low, self._low - PAGE_MESSAGES)
        page_end = 0
        assembly = Assembly(BlockHeader, 0)
        if start < self._low:
            with self._connections.reading(self.number, start) as reader:
                for message in reader.messages(self._low):
                    page_end = max(page_end, self._meet(assembly, message))
                # A block may continue after the page in which it begins.
                if assembly:
                    for message in reader.messages(min(self._high, self._low + _TORN_AFTER)):
                        self._meet(assembly, message, begin=False)
                        if not assembly:
                            break
                    else:
                        if self._high <= self._low + _TORN_AFTER:
                            self._assembly.adopt_payloads(assembly)  # The block is still being written.
        self._low = start
        self._lowest_page_end = 0 if start <= low else page_end or _UNMET

    def _meet(self, assembly: Assembly[BlockHeader], message: Message, *, begin: bool = True) -> int:
        """Add a message to the index; return the end of its block, 0 if it is not part of a block."""
        self._met_messages += 1
        self._met_bytes += len(message)
        whole = assembly.add(message, begin=begin)
        if whole is None:
            header = header_of(message, BlockHeader)
            return 0 if header is None else header.end
        assembly.drop(whole)
        header = whole.header
        place = BlockPlace(whole.first, whole.last, header.id, header.pieces)
        self._places.add(BlockRange(header.start, header.end), place)
        self._keep(whole)
        return header.end

    def _keep(self, whole: AssembledRecord[BlockHeader]) -> None:
        payload = whole.payload
        if payload is None:
            return
        self._recent[whole.header.id] = payload
        self._recent_bytes += len(payload)
        while self._recent_bytes > _KEPT_BYTES:
            _, dropped = self._recent.popitem(last=False)
            self._recent_bytes -= len(dropped)

    def _read(self, block: BlockRange, place: BlockPlace) -> FileBlock:
        with self._lock:
            known = self._open.pop(block, None)
            if known is not None and known[0] == place.id:
                self._open[block] = known
                return known[1]
            payload = self._recent.get(place.id)
        if payload is not None:
            read = FileBlock(self._name(place), self.number, block, payload)
        else:
            read = self._fetch(block, place)
        with self._lock:
            self._open[block] = place.id, read
            if len(self._open) > OPEN_BLOCKS_MAX:
                self._open.popitem(last=False)
        return read

    def _fetch(self, block: BlockRange, place: BlockPlace) -> FileBlock:
        """Read a block from the topic, into memory or, if it is large, into a temporary file."""
        with tempfile.SpooledTemporaryFile(max_size=1 << 40) as file:
            if place.pieces > _MEMORY_PIECES:
                file.rollover()
            met = 0
            with self._connections.reading(self.number, place.first) as reader:
                for message in reader.messages(place.last + 1):
                    header = header_of(message, BlockHeader)
                    if header is not None and header.id == place.id and header.piece == met:
                        file.write(message.value() or b"")
                        met += 1
            if met != place.pieces:
                raise TrimmedError(f"{self._name(place)} was removed by the topic's retention")
            if place.pieces <= _MEMORY_PIECES:
                file.seek(0)
                return FileBlock(self._name(place), self.number, block, file.read())
            file.flush()
            return FileBlock(f"/proc/self/fd/{file.fileno()}", self.number, block)

    def _name(self, place: BlockPlace) -> str:
        return f"{self._connections.address}, partition {self.number}, message {place.first}"


class KafkaMatchLog:
    """A `MatchLog` in a Kafka topic.

    Parameters
    ----------
    url
        URL of the topic: see `storage.kafka.address`.
    """

    look_every_s = LOOK_EVERY_S

    def __init__(self, url: str) -> None:
        self._address = KafkaAddress.parse(url, "match log")
        self._connections = KafkaConnections(self._address, TOPIC_SETTINGS, MatchLogError)
        self._partitions = tuple(
            KafkaMatchPartition(self, self._connections, number)
            for number in range(self._connections.prepare())
        )
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._left: Producer | None = None
        self._process = os.getpid()
        self.on_broken: Callable[[CorruptBlockError], None] | None = None

    def __reduce__(self) -> tuple[type[KafkaMatchLog], tuple[str]]:
        return KafkaMatchLog, (self.url,)

    def __repr__(self) -> str:
        return f"KafkaMatchLog({self.url!r})"

    @property
    def url(self) -> str:
        return self._address.url

    def listen(self, partition: int) -> Tail:
        return self.partition(partition).listen()

    def partition(self, number: int) -> KafkaMatchPartition:
        if number >= len(self._partitions):
            raise MatchLogError(
                f"{self._address} has {len(self._partitions)} partitions, none for {number}: it needs as"
                " many as the event log has"
            )
        return self._partitions[number]

    def send(self, partition: int, block: BlockRange, file: IO[bytes], size_bytes: int) -> None:
        """Write a block's content as messages; return once all in-sync replicas have it."""
        piece_bytes = self._connections.piece_bytes()
        name, pieces = new_id(), max(1, -(-size_bytes // piece_bytes))
        problems: list[KafkaError | None] = []
        with self._connections.explained(), self._discarding_producer_on_error():
            producer = self._ready()
            for number in range(pieces):
                header = BlockHeader(FORMAT, block.start, block.end, name, number, pieces)
                value, headers = file.read(piece_bytes), [(HEADER, msgspec.json.encode(header))]
                while True:
                    try:
                        producer.produce(
                            self._address.topic,
                            value,
                            partition=partition,
                            headers=headers,
                            on_delivery=lambda error, _: problems.append(error),
                        )
                        break
                    except BufferError:  # The producer's queue is full.
                        producer.poll(0.05)
            producer.flush(2 * ANSWER_S)
            failed = [problem for problem in problems if problem is not None]
            if failed or len(problems) < pieces:
                raise KafkaException(failed[0] if failed else KafkaError(KafkaError._TIMED_OUT))

    @contextmanager
    def _discarding_producer_on_error(self) -> Iterator[None]:
        """Discard the producer after an error: after a fatal one it refuses all further messages."""
        try:
            yield
        except BaseException:
            with self._lock:
                self._producer = None
            raise

    def _ready(self) -> Producer:
        with self._lock:
            if self._process != os.getpid():
                self._process, self._left = os.getpid(), self._producer  # Its threads are in the parent.
                self._producer = None
            if self._producer is None:
                self._producer = self._connections.producer(**{"queue.buffering.max.kbytes": _QUEUE_KIB})
            return self._producer

    def lost(self) -> list[LostBlock]:
        return []

    def size_bytes(self) -> int:
        return sum(partition.size_bytes() for partition in self._partitions)

    def sizes(self) -> dict[str, int]:
        return {}
