"""What outlives processes: logs, registry, index, small files; and what a power failure takes of it.

Each verb that a fiber calls is a step of its own, and each that writes has another one behind it: what was
written is durable there, and nobody has been told.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "storage"))

from memory_log import MemoryEventLog
from memory_matches import MemoryMatchPartition
from memory_registry import MemoryRegistry

from fieldfare.model import Offsets
from fieldfare.pipeline.manifest import Manifest
from fieldfare.storage.errors import CorruptBlockError, IndexStoreError
from fieldfare.storage.event_log import RetentionPolicy
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.match_log import BlockRange, LostBlock, NewMatchBlock

from .steps import Event, Now, pause

READS = frozenset(
    (
        *("read", "first_since", "bound", "split", "backlog_events", "lowest_stamp", "first_stamped"),
        *("last_stamp", "start", "end", "sizes", "size_bytes", "block_at", "next_start", "greatest_end"),
        *("unfinished_spaces", "spaces", "has_space", "key_of_space", "stored_spaces", "get", "list"),
        *("pushed", "count", "held", "costs", "revision", "changes", "versions", "pasts", "past"),
        *("count_open_pasts", "load_cursors", "letters", "count_letters", "known_ends", "newest", "manifest"),
        *("greatest_number",),
    )
)
"""Verbs behind which nothing has happened."""


class Stepped:
    """Something whose verbs are steps of the fiber that calls them."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        if not callable(value):
            return value
        is_read = name in READS

        def verb(*arguments: Any, **named: Any) -> Any:
            pause()
            result = value(*arguments, **named)
            if not is_read:
                pause()
            elif hasattr(result, "__next__"):
                return iter(list(result))
            return result

        self.__dict__[name] = verb
        return verb


class SteppedLog(Stepped):
    """An event log."""

    def __init__(self, log: MemoryEventLog) -> None:
        super().__init__(log)
        self.partitions = tuple(map(Stepped, log.partitions))

    def close(self) -> None:
        """Nothing is open."""

    def retain(self, policy: RetentionPolicy, keep_from: Offsets) -> None:
        pause()
        before = [partition.start() for partition in self.inner.partitions]
        self.inner.retain(policy, keep_from)
        for number, partition in enumerate(self.inner.partitions):
            if partition.start() > before[number]:
                self.on_trim(number, before[number], partition.start())
        pause()

    def on_trim(self, number: int, before: int, start: int) -> None:
        """Retention took the records between."""
        Now.machine.disk.on_trim(number, before, start)


class TornMatches(MemoryMatchPartition):
    """A partition of a match log that knows which blocks a power failure may take, or tear."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.unsynced: set[BlockRange] = set()
        self.torn: set[BlockRange] = set()

    def block_at(self, offset: int) -> Any:
        found = super().block_at(offset)
        if found is not None and BlockRange(found.start, found.end) in self.torn:
            block = BlockRange(found.start, found.end)
            raise CorruptBlockError(self.number, block, f"block {block.start}-{block.end} is torn")
        return found

    def end(self, from_offset: int = 0) -> int:
        while (block := super().block_at(from_offset)) is not None:
            from_offset = block.end
        return from_offset

    def write(self, block: NewMatchBlock, *, synced: bool = True) -> int:
        at = BlockRange(block.start, block.end)
        if at not in self.blocks or at in self.torn:  # what takes a name that there is is synced first
            self.unsynced.add(at)
        self.torn.discard(at)
        return super().write(block)

    def sync(self, from_offset: int) -> int:
        end = from_offset
        while (block := MemoryMatchPartition.block_at(self, end)) is not None:
            at = BlockRange(block.start, block.end)
            if at in self.torn:
                break
            self.unsynced.discard(at)
            end = block.end
        return end

    def recover(self, from_offset: int) -> int:
        for block in [block for block in self.torn if block.end > from_offset]:
            self.forget_block(block)
        return self.sync(from_offset)

    def forget_block(self, block: BlockRange) -> None:
        """It is there no more."""
        self.blocks.pop(block, None)
        self.torn.discard(block)
        self.unsynced.discard(block)

    def trim(self, before: int) -> int:
        old = [block for block in self.blocks if block.end <= before]
        for block in old:
            self.forget_block(block)
        return len(old)

    def trouble(self, block: tuple[int, int]) -> str | None:
        return "it is torn" if BlockRange(*block) in self.torn else None

    def set_aside(self, block: tuple[int, int]) -> object:
        self.forget_block(BlockRange(*block))
        self.fill(*block)
        return "aside"

    def fail(self, random: Random) -> None:
        """The power is off: what was not synced is there, torn, or gone."""
        for block in sorted(self.unsynced):
            lot = random.random()
            if lot < 0.4:
                self.forget_block(block)
            elif lot < 0.6:
                self.torn.add(block)
        self.unsynced.clear()


class Deaf(Event):
    """A waiter of the simulation, which hears nothing."""

    hears = False

    def close(self) -> None:
        """Nothing is held."""


class Matches:
    """A match log."""

    url = "memory:"
    look_every_s = 0.0
    on_broken: Callable[[CorruptBlockError], None] | None = None

    def __init__(self, partitions: int) -> None:
        self.all = [TornMatches(number) for number in range(partitions)]
        self._stepped = [Stepped(each) for each in self.all]

    def listen(self, partition: int) -> Deaf:
        return Deaf()

    def partition(self, number: int) -> Any:
        return self._stepped[number]

    def lost(self) -> list[LostBlock]:
        return []

    def size_bytes(self) -> int:
        return 0

    def sizes(self) -> dict[str, int]:
        return {}

    @property
    def is_empty(self) -> bool:
        return not any(each.blocks for each in self.all)


class IndexFile:
    """Where an index file lies."""

    def __init__(self, store: Index, name: str) -> None:
        self.store = store
        self.name = name

    @property
    def parent(self) -> IndexFile:
        return self

    def mkdir(self, **options: object) -> None:
        """It is there."""

    def is_file(self) -> bool:
        return self.name in self.store.files

    def stat(self) -> Any:
        return Sign(*self.store.files[self._there()])

    def replace(self, to: IndexFile) -> None:
        self.store.files[to.name] = self.store.files.pop(self._there())

    def save(self, content: Any) -> None:
        pause()
        self.store.written += 1
        self.store.files[self.name] = self.store.written, content
        pause()

    def open(self) -> Any:
        pause()
        return self.store.files[self._there()][1]

    def _there(self) -> str:
        if self.name not in self.store.files:
            raise FileNotFoundError(self.name)
        return self.name


@dataclass
class Sign:
    """What tells a file from another one of its name."""

    st_ino: int
    content: Any
    st_size: int = 1


class Index:
    """An index store."""

    url = "memory:"

    def __init__(self) -> None:
        self.files: dict[str, tuple[int, Any]] = {}
        self.written = 0
        self._manifests: dict[int, Manifest] = {}

    def path(self, name: str) -> IndexFile:
        return IndexFile(self, name)

    def write_manifest(self, manifest: Manifest) -> None:
        if self._manifests and manifest.number <= self.greatest_number():
            raise IndexStoreError(f"manifest {manifest.number} comes too late")
        for name in sorted(manifest.files() - self.files.keys()):
            raise IndexStoreError(f"it names {name}, which is not there")
        self._manifests[manifest.number] = manifest

    def manifest(self, number: int) -> Manifest:
        if number not in self._manifests:
            raise IndexStoreError(f"there is no manifest {number}")
        return self._manifests[number]

    def newest(self) -> Manifest | None:
        return self._manifests[self.greatest_number()] if self._manifests else None

    def greatest_number(self) -> int:
        return max(self._manifests, default=0)

    def collect(self, keep_from: int) -> int:
        newest = self.greatest_number()
        for number in [n for n in self._manifests if n < keep_from and n != newest]:
            del self._manifests[number]
        needed = set().union(*(manifest.files() for manifest in self._manifests.values()))
        gone = [name for name in self.files if name not in needed]
        for name in gone:
            del self.files[name]
        return len(gone)


class SmallFile:
    """A file in ``run/``: what is there, and what a power failure leaves of it."""

    def __init__(self, disk: Disk, name: str) -> None:
        self._disk = disk
        self.name = name

    def read_bytes(self) -> bytes:
        pause()
        if self.name not in self._disk.small:
            raise FileNotFoundError(self.name)
        return self._disk.small[self.name]

    def stat(self) -> Any:
        if self.name not in self._disk.small:
            raise FileNotFoundError(self.name)
        return self

    @property
    def st_mtime_ns(self) -> int:
        return int(Now.steps.now_s * 1e9)

    def write_bytes(self, text: bytes) -> None:
        pause()
        self._disk.small[self.name] = text

    def with_suffix(self, suffix: str) -> SmallFile:
        return SmallFile(self._disk, self.name + suffix)

    def replace(self, to: SmallFile) -> None:
        pause()
        self._disk.small[to.name] = self._disk.small.pop(self.name)

    def unlink(self, missing_ok: bool = False) -> None:
        pause()
        self._disk.small.pop(self.name, None)
        self._disk.synced.pop(self.name, None)

    def write(self, write: Callable[[Any], object]) -> int:
        """As ``write_file``: durable on return."""
        file = io.BytesIO()
        write(file)
        pause()
        self._disk.small[self.name] = self._disk.synced[self.name] = file.getvalue()
        pause()
        return len(file.getvalue())


def link_file(path: SmallFile, other: SmallFile) -> None:
    """Another name for a file that is synced."""
    pause()
    disk = path._disk
    disk.small[other.name] = disk.synced[other.name] = disk.synced[path.name]


class NoFolder:
    """A folder in which there is nothing."""

    def glob(self, pattern: str) -> list[Path]:
        return []


@dataclass(frozen=True)
class Folder(DataFolder):
    """A data directory of the simulation."""

    disk: Any = None

    def heartbeat_of(self, process: str) -> Any:
        return SmallFile(self.disk, process)

    @property
    def suspects(self) -> Any:
        return SmallFile(self.disk, "suspects")

    @property
    def wanted(self) -> Any:
        return SmallFile(self.disk, "wanted")

    @property
    def run(self) -> Any:
        return NoFolder()

    @property
    def quarantine(self) -> Any:
        return self.disk

    def replay_url(self, number: int, revision: int) -> str:
        return f"past {number}-{revision}"


class Disk:
    """All of it.

    Attributes
    ----------
    log, registry, matches, index
        As nobody's steps: for who looks from outside.
    """

    def __init__(self, seed: int, partitions: int, holes: float) -> None:
        self.log = MemoryEventLog(partitions, seed, holes)
        self.registry = MemoryRegistry()
        self.matches = Matches(partitions)
        self.replays: dict[str, Matches] = {}
        self.index = Index()
        self.small: dict[str, bytes] = {}
        self.synced: dict[str, bytes] = {}
        self.aside: dict[tuple[int, int], Any] = {}
        self.on_trim: Callable[[int, int, int], None] = lambda number, before, start: None
        self.folder = Folder(Path("/simulated"), disk=self)
        self._log = SteppedLog(self.log)
        self._registry = Stepped(self.registry)
        self._index = Stepped(self.index)
        self._index.__dict__["path"] = self.index.path

    def open_event_log(self, url: str) -> Any:
        return self._log

    def open_registry(self, url: str) -> Any:
        return self._registry

    def open_index_store(self, url: str, copy: str | None = None) -> Any:
        return self._index

    def open_match_log(self, url: str) -> Any:
        if url.startswith("past "):
            partitions = len(self.log.partitions)
            return self.replays.setdefault(url.removeprefix("past "), Matches(partitions))
        return self.matches

    def replay_folders(self) -> set[str]:
        """The pasts of which something is there."""
        return {name for name, matches in self.replays.items() if not matches.is_empty}

    def remove_replay(self, name: str) -> None:
        pause()
        for partition in self.replays[name].all if name in self.replays else ():
            partition.trim(1 << 62)

    def fail(self, random: Random) -> None:
        """The power is off."""
        for matches in (self.matches, *self.replays.values()):
            for partition in matches.all:
                partition.fail(random)
        for name in list(self.small):
            lot = random.random()
            if self.small[name] == self.synced.get(name):
                continue
            if lot < 0.3:
                self.small[name] = b""
            elif lot < 0.6:
                self.small[name] = self.synced.get(name, b"")


class MemoryQuarantine:
    """Records that were set aside; stands in the place of `Quarantine`."""

    def __init__(self, folder: Disk) -> None:
        self._aside = folder.aside

    def add(self, record: Any) -> None:
        pause()
        self._aside[record.partition, record.offset] = record

    def get(self, partition: int, offset: int) -> Any:
        return self._aside.get((partition, offset))

    def places(self) -> list[tuple[int, int]]:
        pause()
        return sorted(self._aside)

    def offsets(self, partition: int) -> list[int]:
        return [offset for number, offset in self.places() if number == partition]

    def remove(self, partition: int, offset: int) -> None:
        self._aside.pop((partition, offset), None)

    def forget_before(self, starts: Offsets) -> None:
        for partition, offset in self.places():
            if offset < starts[partition]:
                self.remove(partition, offset)
