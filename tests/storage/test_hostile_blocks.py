"""Blocks with right checksums and wrong lists, as another program may write them to a topic."""

from __future__ import annotations

import io
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from fieldfare.storage import NewMatchBlock
from fieldfare.storage.errors import CorruptBlockError
from fieldfare.storage.files import match_block
from fieldfare.storage.files.match_block import FileBlock, write_block

Batch = dict[str, Any]


def whole() -> tuple[dict[str, Any], Batch]:
    """Return the header and the only batch of a block of 4 events and 3 subscriptions."""
    file = io.BytesIO()
    numbers = np.array([3, 7, 9, 3, 9, 3], np.uint32)
    counts = np.array([1, 2, 1], np.int32)
    write_block(NewMatchBlock.by_event(0, 3, counts, np.array([0, 3, 4, 5, 6]), numbers), file)
    reader = pa.ipc.open_file(pa.BufferReader(file.getvalue()))
    row = reader.get_batch(0)
    header = msgspec.json.decode(reader.schema.metadata[b"fieldfare"])
    lists = zip(row.schema.names, row.columns, strict=True)
    return header, {name: column.values.to_numpy().copy() for name, column in lists}


def opened(header: dict[str, Any], *batches: Batch, packed: bool = False) -> FileBlock:
    """Open a block of these batches, all checksums of which are right."""
    checksums = [match_block._checksum(batch, match_block._LISTS) for batch in batches]
    batches[0]["checksums"] = np.array(checksums, np.uint32)
    header["checksum"] = match_block._checksum(batches[0], match_block._DIRECTORY)
    encoded = msgspec.json.encode(header)
    metadata = {b"fieldfare": encoded, b"checksum": b"%d" % zlib.crc32(encoded)}
    file = io.BytesIO()
    options = match_block._WRITE_OPTIONS if packed else match_block._NOISE_OPTIONS
    with pa.ipc.new_file(file, match_block._SCHEMA.with_metadata(metadata), options=options) as writer:
        for batch in batches:
            writer.write_batch(match_block._one_row(batch))
    return FileBlock("hostile", 0, (0, 3), file.getvalue())


@contextmanager
def bounded(most_bytes: int) -> Iterator[None]:
    """Check how much memory is allocated meanwhile, at most."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most_bytes
    finally:
        tracemalloc.stop()


READERS: list[Callable[[FileBlock], object]] = [
    FileBlock.check,
    FileBlock.by_event,
    FileBlock.keys,
    FileBlock.lengths,
    lambda block: block.matches_of(9),
    lambda block: block.matches_of_each(np.arange(20, dtype=np.uint32)),
]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "change",
    [
        {"numbers": np.array([3, 4], np.uint32)},
        {"numbers": np.array([3, 4, 2, 1], np.uint32)},
        {"numbers": np.zeros(0, np.uint32)},
        {"matches": np.array([5], np.uint16)},
        {"records": np.array([-1, 4, 1], np.int32)},
        {"records": np.array([1, 2, (1 << 31) - 1], np.int32)},
        {"first_numbers": np.zeros(0, np.uint32)},
        {"first_numbers": np.array([3, 5], np.uint32)},
    ],
)
def test_lists_that_do_not_fit_are_a_corrupt_block(
    change: Batch, read: Callable[[FileBlock], object]
) -> None:
    """A ValueError or IndexError would end a round of maintenance, and the block would never be set aside."""
    header, batch = whole()
    with pytest.raises(CorruptBlockError, match="hostile"):
        read(opened(header, batch | change))


@pytest.mark.parametrize("read", READERS)
def test_few_bytes_do_not_take_a_hundred_times_their_memory(read: Callable[[FileBlock], object]) -> None:
    header, batch = whole()
    lists = 64
    batch["numbers"] = np.arange(lists, dtype=np.uint32).clip(0, 1)
    batch["matches"] = np.full(lists, 65_535, np.uint16)
    batch["low"] = np.zeros(lists << 16, np.uint8)
    batch["high"] = np.zeros(lists << 14, np.uint8)
    header["matches"] = lists << 16
    with bounded(8 << 20), pytest.raises(CorruptBlockError):
        read(opened(header, batch, packed=True))


def test_high_bytes_that_no_match_has_are_not_unpacked() -> None:
    header, batch = whole()
    batch["high"] = np.concatenate((batch["high"], np.zeros(16 << 20, np.uint8)))
    with bounded(40 << 20), pytest.raises(CorruptBlockError):  # the test itself needs twice the list
        opened(header, batch, packed=True)


def test_no_more_keys_are_collected_than_the_header_has_matches() -> None:
    """Compaction reads a block completely whose header has few matches."""
    header, batch = whole()
    batch["records"] = np.array([1, 2, 65_533], np.int32)
    batches = 64
    batch["first_numbers"] = np.full(batches, 3, np.uint32)
    batch["numbers"] = np.array([3], np.uint32)
    batch["matches"] = np.array([65_535], np.uint16)
    batch["low"], batch["high"] = np.zeros(65_536, np.uint8), np.zeros(16_384, np.uint8)
    block = opened(header, batch, *(dict(batch) for _ in range(batches - 1)), packed=True)
    with bounded(8 << 20), pytest.raises(CorruptBlockError):
        block.keys()


def test_the_longest_length_is_no_lack_of_memory_either() -> None:
    """Arrow says "capacity too large" of it, without a size; the block was never set aside."""
    assert not match_block._is_about_this_process(pa.ArrowMemoryError("capacity too large"))


@pytest.mark.parametrize("events", [0, 1])
def test_many_records_without_matches_take_few_bytes(events: int) -> None:
    file = io.BytesIO()
    counts = np.full(65_536, events, np.int32)
    write_block(NewMatchBlock(0, 65_536, counts, NewMatchBlock.gap(0, 1).lists), file)
    assert len(file.getvalue()) < 20_000, "265,000 as they were written uncompressed"
