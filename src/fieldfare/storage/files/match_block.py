"""A block of the match log as a file: the subscriptions that matched the events of a range of records.

A block is organized by subscription, so that one subscription's matches are read without the rest. The file
is an Arrow IPC file. If most subscriptions have few matches, its buffers are compressed with zstd (level 1;
lz4 takes a quarter more space); otherwise they are incompressible noise. Its record batches have one row of
lists::

    records        int32   number of events of each record     } the directory:
    first_numbers  uint32  first number of each batch          } in the first
    checksums      uint32  CRC-32 of each batch's lists below  } batch only
    numbers        uint32  subscription numbers, ascending: the first, then differences
    matches        uint16  number of events that each subscription matched, minus 1
    low            uint8   low bytes of the gaps between the ordinals of these events
    high           uint8   their high bytes, two bits each, 3 for 3 or more; the first in the lowest bits
    more           uint8   the high bytes of 3 or more, minus 3

An event's ordinal is its number in the block, from 0. A batch has about 65,536 matches, and all matches of
each of its subscriptions. The schema's metadata has, under ``fieldfare``, a JSON object: format, start, end,
matches, extra, checksum (of the directory), and spaces (matches by space); and, under ``checksum``, that
object's CRC-32. Blocks of older versions have neither spaces nor that CRC-32.
"""

from __future__ import annotations

import errno
import re
import tempfile
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Self

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fieldfare.matching.pairs import LIST_EVENTS_MAX, MatchLists, keys_of
from fieldfare.storage.errors import CorruptBlockError, MatchLogError
from fieldfare.storage.files.match_lists import gap_planes, ordinals_of, pack_high, select, sums, unpack_high
from fieldfare.storage.match_log import BLOCK_EVENTS_MAX, NewMatchBlock

FORMAT = 2
BATCH_MATCHES = 65_536
"""Approximate matches of a batch."""
_BATCH_MATCHES_MAX = BATCH_MATCHES + LIST_EVENTS_MAX
"""Maximum matches of a batch that is decoded: that takes 40 times as much memory as Arrow's lists."""
NOISE_MATCHES = 16
"""Mean matches per subscription above which a block is not compressed: nearly all bytes are then gaps."""

_CACHED_BATCHES = 8
_OF_THIS_PROCESS = frozenset(
    (errno.EACCES, errno.EAGAIN, errno.EINTR, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EPERM)
)
_ASKED = re.compile(r"of size ([0-9]+) failed")
_ABSURD = "capacity too large"
"""Arrow's words for a length that, rounded up, exceeds 63 bits."""
_NEVER_BYTES = 1 << 30
"""Allocation size, in bytes, from which a failure is due to a corrupt length: no list of a batch is that
large."""
PACKED_MATCHES = 256
"""Matches and records from which on a block is compressed: for fewer, setting that up takes most of the
time."""
WAITING_BATCHES = 256
"""Maximum batches kept in memory while a block is written, about 20 MB; further ones go to a temporary
file."""

_DIRECTORY = {"records": pa.int32(), "first_numbers": pa.uint32(), "checksums": pa.uint32()}
_LISTS = {
    "numbers": pa.uint32(),
    "matches": pa.uint16(),
    "low": pa.uint8(),
    "high": pa.uint8(),
    "more": pa.uint8(),
}
_SCHEMA = pa.schema(
    [
        pa.field(name, pa.list_(pa.field("item", kind, nullable=False)), nullable=False)
        for name, kind in (_DIRECTORY | _LISTS).items()
    ]
)
_EMPTY = {name: np.zeros(0, kind.to_pandas_dtype()) for name, kind in (_DIRECTORY | _LISTS).items()}
_WRITE_OPTIONS = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=1), use_threads=False)
_NOISE_OPTIONS = pa.ipc.IpcWriteOptions(use_threads=False)
_READ_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)
_METADATA_KEY = b"fieldfare"
_CHECKSUM_KEY = b"checksum"


class _Header(msgspec.Struct):
    format: int
    start: int
    end: int
    matches: int
    extra: dict[str, int | float]
    checksum: int
    spaces: dict[str, Annotated[int, msgspec.Meta(ge=0)]] = {}


def write_block(block: NewMatchBlock, file: BinaryIO) -> None:
    """Write a block to a file; ValueError if its arrays are inconsistent or too large."""
    block.check()
    first_numbers, checksums, numbers, matches = list[int](), list[int](), 0, 0
    with _Batches(
        Path(file.name).parent if isinstance(getattr(file, "name", None), str) else None
    ) as batches:
        for lists in block.pieces():
            numbers, matches = numbers + lists.numbers.size, matches + lists.ordinals.size
            for first_number, batch in _batches_of(block, lists):
                first_numbers.append(first_number)
                checksums.append(_checksum(batch, _LISTS))
                batches.add(batch)
        directory = {
            "records": np.ascontiguousarray(block.counts, np.int32),
            "first_numbers": np.array(first_numbers, np.uint32),
            "checksums": np.array(checksums, np.uint32),
        }
        header = _Header(
            FORMAT,
            block.start,
            block.end,
            matches,
            {name: _plain(value) for name, value in block.extra.items()},
            _checksum(directory, _DIRECTORY),
            dict(block.spaces),
        )
        encoded = msgspec.json.encode(header)
        schema = _SCHEMA.with_metadata({_METADATA_KEY: encoded, _CHECKSUM_KEY: b"%d" % zlib.crc32(encoded)})
        is_large = matches + block.counts.size >= PACKED_MATCHES
        is_packed = is_large and NOISE_MATCHES * numbers >= matches
        options = _WRITE_OPTIONS if is_packed else _NOISE_OPTIONS
        with pa.ipc.new_file(file, schema, options=options) as writer:
            for row in batches.rows(directory):
                writer.write_batch(row)


def _batches_of(block: NewMatchBlock, lists: MatchLists) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
    """Yield the encoded batches of lists, each with its first subscription number."""
    numbers, starts, ordinals = lists
    for first, last in pairwise(_batch_cuts(starts)):
        begin, end = starts[first], starts[last]
        low, high, ascending = gap_planes(starts[first : last + 1] - begin, ordinals[begin:end])
        if not ascending:
            raise block.refusal("the events of a list are not in ascending order")
        yield (
            int(numbers[first]) if numbers.size else 0,
            {
                "numbers": np.diff(numbers[first:last], prepend=np.uint32(0)),
                "matches": (np.diff(starts[first : last + 1]) - 1).astype(np.uint16),
                "low": low,
                **dict(zip(("high", "more"), pack_high(high), strict=True)),
            },
        )


class _Batches:
    """A buffer of batches until the directory, which precedes them, is known; many of them are on disk."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._few: list[dict[str, NDArray[Any]]] = []
        self._file: Any = None
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, batch: dict[str, NDArray[Any]]) -> None:
        if len(self._few) < WAITING_BATCHES:
            self._few.append(batch)
            return
        if self._writer is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed by close()
            self._writer = pa.ipc.new_stream(self._file, _SCHEMA, options=_NOISE_OPTIONS)
        self._writer.write_batch(_one_row(batch))

    def rows(self, directory: dict[str, NDArray[Any]]) -> Iterator[pa.RecordBatch]:
        """Yield all batches; the first contains the directory."""
        for index, batch in enumerate(self._few):
            yield _one_row((directory if index == 0 else {}) | batch)
        if self._writer is not None:
            self._writer.close()
            self._file.seek(0)
            yield from pa.ipc.open_stream(self._file)


def _plain(value: float) -> int | float:
    """Convert a NumPy scalar to a Python number, which JSON can represent."""
    return value.item() if isinstance(value, np.generic) else value


def _batch_cuts(starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where to cut the lists into batches of about BATCH_MATCHES; at least one batch."""
    wanted = np.arange(BATCH_MATCHES, int(starts[-1]), BATCH_MATCHES)
    inner = np.unique(np.searchsorted(starts, wanted))
    last = starts.size - 1
    return np.concatenate(([0], inner[(inner > 0) & (inner < last)], [last])).astype(np.int64)


def _one_row(lists: Mapping[str, NDArray[Any]]) -> pa.RecordBatch:
    columns = []
    for column in _SCHEMA:
        values = np.ascontiguousarray(lists.get(column.name, _EMPTY[column.name]))
        # Built from buffers: a block has hundreds of batches, and pa.array() would dominate the time.
        items = pa.Array.from_buffers(column.type.value_type, values.size, [None, pa.py_buffer(values)])
        offsets = pa.py_buffer(np.array([0, values.size], np.int32))
        columns.append(pa.Array.from_buffers(column.type, 1, [None, offsets], children=[items]))
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def _checksum(lists: Mapping[str, NDArray[Any]], names: Mapping[str, Any]) -> int:
    checksum = 0
    for name in names:
        checksum = zlib.crc32(np.ascontiguousarray(lists[name]).data, checksum)
    return checksum


@dataclass(frozen=True, slots=True)
class _Batch:
    """A decoded batch; `starts` has one entry more than `numbers`."""

    numbers: NDArray[np.uint32]
    starts: NDArray[np.int64]
    low: NDArray[np.uint8]
    high: NDArray[np.uint8]


def _is_about_this_process(error: Exception) -> bool:
    """Return whether a read error is due to the process (memory, descriptors, permissions), not the file."""
    if isinstance(error, MemoryError):
        asked = _ASKED.search(str(error))
        return _ABSURD not in str(error) if asked is None else int(asked[1]) < _NEVER_BYTES
    return isinstance(error, OSError) and error.errno in _OF_THIS_PROCESS


_NO_BLOCK = (pa.ArrowException, OSError, TypeError, KeyError, msgspec.DecodeError, UnicodeDecodeError)
"""Errors that `_opened` raises for a file that is not a block."""


def _opened(source: pa.NativeFile) -> tuple[Any, _Header]:
    reader = pa.ipc.open_file(source, options=_READ_OPTIONS)
    return reader, msgspec.json.decode(reader.schema.metadata[_METADATA_KEY], type=_Header)


def shares_of(path: Path) -> dict[str, int] | None:
    """Return the bytes of a block's file that belong to each space; None if it is unreadable or removed.

    Reads only the header.
    """
    try:
        with pa.memory_map(str(path)) as source:
            _, header = _opened(source)
            size_bytes = source.size()
    except _NO_BLOCK:
        return None
    # A header without a checksum may be corrupt: the shares must not exceed the file's size.
    whole = max(1, header.matches, sum(header.spaces.values()))
    return {space: size_bytes * matches // whole for space, matches in header.spaces.items()}


class FileBlock:
    """A `MatchBlock` read from a file, which stays readable through this object after its deletion.

    The most recently used batches are cached in decoded form.

    Parameters
    ----------
    path
        Path of the file; with `content`, the name used in errors.
    partition, block
        Partition and range that the block must have; BrokenBlockError otherwise.
    content
        The file's content, if it is in memory.
    """

    def __init__(
        self, path: Path | str, partition: int, block: tuple[int, int], content: bytes | None = None
    ) -> None:
        self.path = path
        self._partition = partition
        self._block = block
        try:
            opened = pa.memory_map(str(path)) if content is None else pa.BufferReader(content)
            self._reader, header = _opened(opened)
        except FileNotFoundError:
            raise
        except _NO_BLOCK as error:
            if _is_about_this_process(error):
                raise MatchLogError(f"{path} could not be opened: {error}") from error
            raise self._error(f"is not a match block: {error}") from error
        metadata = self._reader.schema.metadata
        checksum = metadata.get(_CHECKSUM_KEY)
        if checksum not in (None, b"%d" % zlib.crc32(metadata[_METADATA_KEY])):
            raise self._broken("the header's checksum is wrong")
        if header.format != FORMAT:
            if checksum is None:
                # Only blocks of format 2 were ever written without a checksum.
                raise self._broken(f"its header has format {header.format}, but no checksum")
            # Not corrupt: a block of another version, which must be left alone.
            raise MatchLogError(f"{path} has format {header.format}; format {FORMAT} was expected")
        if not self._reader.schema.equals(_SCHEMA, check_metadata=False):
            raise self._broken("its columns are not those of a match block")
        self.start, self.end = header.start, header.end
        if (self.start, self.end) != block:
            raise self._error(f"holds the records {self.start}-{self.end}")
        self.matches = header.matches
        self.extra: Mapping[str, int | float] = header.extra
        self.spaces: Mapping[str, int] = header.spaces
        self._lock = threading.Lock()
        self._cached: OrderedDict[int, _Batch] = OrderedDict()
        first = self._lists(0)
        if _checksum(first, _DIRECTORY) != header.checksum:
            raise self._broken("the directory's checksum is wrong")
        self.counts: NDArray[np.int32] = first["records"]
        self._first_numbers: NDArray[np.uint32] = first["first_numbers"]
        self._checksums: NDArray[np.uint32] = first["checksums"]
        if (
            self.counts.size != self.end - self.start
            or not self._reader.num_record_batches == self._checksums.size == self._first_numbers.size
        ):
            raise self._broken("the directory does not fit the file")
        self._event_starts = sums(self.counts)
        self.events = int(self._event_starts[-1])
        if self.counts.min(initial=0) < 0 or self.events > BLOCK_EVENTS_MAX:
            raise self._broken("the numbers of events are wrong")
        self._cached[0] = self._decode(0, first)

    def __repr__(self) -> str:
        return f"FileBlock({str(self.path)!r})"

    def matches_of(
        self, number: int, from_offset: int | None = None
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        _, offsets, indexes = self.matches_of_each(np.array([number], np.uint32))
        if from_offset is not None and from_offset > self.start:
            first = int(np.searchsorted(offsets, from_offset))
            return offsets[first:], indexes[first:]
        return offsets, indexes

    def matches_of_each(
        self, numbers: NDArray[np.uint32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
        batches = np.searchsorted(self._first_numbers[1:], numbers, "right")
        cuts = [0, *(np.flatnonzero(np.diff(batches)) + 1).tolist(), len(numbers)]
        found = [self._select(int(batches[a]), numbers[a:b]) for a, b in pairwise(cuts) if b > a]
        if len(found) == 1:
            return found[0]
        before = np.cumsum([0, *(len(offsets) for _, offsets, _ in found)])
        bounds = [each[0][1:] + first for each, first in zip(found, before, strict=False)]
        none = np.zeros(0, np.int64), np.zeros(0, np.int32)
        return (
            np.concatenate([np.zeros(1, np.int64), *bounds]),
            np.concatenate([none[0], *(offsets for _, offsets, _ in found)]),
            np.concatenate([none[1], *(indexes for _, _, indexes in found)]),
        )

    def _select(
        self, index: int, numbers: NDArray[np.uint32]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
        """Return the matches of numbers that are, if they exist, in one batch."""
        batch = self._batch(index)
        lists = batch.numbers, batch.starts, batch.low, batch.high
        found = select(numbers, *lists, self._event_starts)
        if found is None:
            raise self._broken("an event lies beyond the block")
        bounds, records, indexes = found
        return bounds, records + self.start, indexes

    def numbers(self) -> NDArray[np.uint32]:
        return np.concatenate([self._batch(index).numbers for index in range(self._checksums.size)])

    def lengths(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        found = [self._lengths(index, self._lists(index)) for index in range(self._checksums.size)]
        return np.concatenate([each[0] for each in found]), np.concatenate([each[1] for each in found])

    def by_event(self) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        keys = self.keys()
        events = keys.astype(np.uint16)
        indptr = sums(np.bincount(events, minlength=self.events))
        return indptr, (keys >> np.uint64(16)).astype(np.uint32)[events.argsort(kind="stable")]

    def keys(self) -> NDArray[np.uint64]:
        """Return the key of each match, ascending: see `pairs.keys_of`."""
        return np.concatenate(list(self._all_keys()))

    def check(self) -> None:
        for _ in self._all_keys():
            pass

    def _all_keys(self) -> Iterator[NDArray[np.uint64]]:
        """Yield the keys of the matches of each batch."""
        matches = 0
        for index in range(self._checksums.size):
            batch = self._decode(index, self._lists(index))
            lengths = np.diff(batch.starts)
            ordinals = ordinals_of(lengths, batch.low, batch.high)
            if ordinals.max(initial=-1) >= self.events:
                raise self._broken("an event lies beyond the block")
            matches += ordinals.size
            if matches > self.matches:
                break
            yield keys_of(batch.numbers.repeat(lengths), ordinals)
        if matches != self.matches:
            raise self._broken("the number of matches is wrong")

    def _batch(self, index: int) -> _Batch:
        with self._lock:
            batch = self._cached.pop(index, None)
        if batch is None:
            batch = self._decode(index, self._lists(index))
        with self._lock:
            self._cached[index] = batch
            if len(self._cached) > _CACHED_BATCHES:
                self._cached.popitem(last=False)
        return batch

    def _lists(self, index: int) -> dict[str, NDArray[Any]]:
        try:
            with self._lock:
                batch = self._reader.get_batch(index)
            batch.validate()  # A corrupt length must not cause reads outside the buffers.
            return {
                name: column.values.to_numpy(zero_copy_only=True)
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
            }
        except (pa.ArrowException, OSError, AttributeError, ValueError) as error:
            if _is_about_this_process(error):
                raise MatchLogError(f"{self.path} could not be read: {error}") from error
            raise self._broken(str(error)) from error

    def _lengths(
        self, index: int, lists: dict[str, NDArray[Any]]
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Return the numbers of a batch, and the length of each one's list."""
        if _checksum(lists, _LISTS) != self._checksums[index]:
            raise self._broken(f"the checksum of batch {index} is wrong")
        numbers, matches, low = lists["numbers"], lists["matches"], lists["low"]
        if numbers.size != matches.size or max(matches.size, low.size) > _BATCH_MATCHES_MAX:
            raise self._broken(f"the lists of batch {index} are wrong")
        return np.cumsum(numbers, dtype=np.uint32), matches.astype(np.int64) + 1

    def _decode(self, index: int, lists: dict[str, NDArray[Any]]) -> _Batch:
        numbers, lengths = self._lengths(index, lists)
        starts = sums(lengths)
        high = unpack_high(lists["high"], lists["more"], lists["low"].size)
        if high is None or starts[-1] != high.size:
            raise self._broken(f"the lists of batch {index} are wrong")
        return _Batch(numbers, starts, lists["low"], high)

    def _broken(self, reason: str) -> MatchLogError:
        return self._error(f"is broken: {reason}")

    def _error(self, what: str) -> CorruptBlockError:
        return CorruptBlockError(self._partition, self._block, f"{self.path} {what}")
