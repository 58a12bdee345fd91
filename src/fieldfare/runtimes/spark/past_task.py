"""What a task does for subscriptions that began in the past: match ranges of the log for one of them each.

The same matching as the query's, with an index of one filter: that which the subscription was created with.
What it finds goes into a match log of the subscription's own.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from fieldfare.matching.index import Index
from fieldfare.matching.part import build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END
from fieldfare.pipeline.exit_point import merge_lists
from fieldfare.pipeline.slices import Searched
from fieldfare.runtimes.spark.cluster import tasks_folder
from fieldfare.runtimes.spark.range_task import BlockWriter, RangeMatcher, RecordRange
from fieldfare.storage import MatchPartition, NewMatchBlock, open_match_log
from fieldfare.storage.errors import TrimmedError
from fieldfare.storage.event_log import Record
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.quarantine import Quarantine
from fieldfare.storage.registry import Past

MATCHERS_KEPT = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """Records to match for one subscription."""

    past: Past
    partition: int
    start: int
    end: int


class PastIndexes:
    """The index of one past, whatever manifest is asked for: it covers every stamp there is."""

    def __init__(self, past: Past) -> None:
        # What is past is said by the range: it counts for every stamp there.
        entry = IndexEntry(past.revision, past.number, 0, OPEN_END, past.compiled, past.filter, past.dialect)
        part = build_part([entry])
        self._indexes = {past.space: Index((part,))}

    def indexes(self, number: int, stamp: int) -> Mapping[str, Searched]:
        return self._indexes

    def check_unmatched(self, number: int, log: MatchPartition, start: int) -> None:
        """Nothing of it is ever forgotten while this is matched."""


class PastMatcher(RangeMatcher):
    """Matches ranges of the log for one subscription."""

    def __init__(self, folder: DataFolder, past: Past, clock_ms: Callable[[], float] | None = None) -> None:
        super().__init__(folder, clock_ms)
        self._folder = folder
        self._past = past
        self._indexes = PastIndexes(past)

    def _aside(self, partition: int) -> Collection[int]:
        """The records that were set aside."""
        return set(Quarantine(self._folder.quarantine).offsets(partition))

    def _writer(self, partition: int) -> BlockWriter:
        past = self._past
        return open_match_log(self._folder.past_url(past.number, past.revision)).partition(partition)

    def _read(self, wanted: RecordRange) -> Iterator[Record]:
        """The records of its space; what could not be matched when it came is not tried again."""
        aside = self._aside(wanted.partition)
        for record in self._still_there(wanted):
            if record.space == self._past.space and record.offset not in aside:
                yield record

    def _still_there(self, wanted: RecordRange) -> Iterator[Record]:
        """Retention may take records until they are read: nobody is given those, as if it had been sooner."""
        at = wanted.start
        while at < wanted.end:
            try:
                for record in super()._read(replace(wanted, start=at)):
                    at = record.offset + 1
                    yield record
                return
            except TrimmedError:
                start = self._log.partitions[wanted.partition].start()
                if start <= at:
                    raise
                at = start


class AwayPastMatcher(PastMatcher):
    """The same on a machine that has none of the directory's files: it gives back what is to be written.

    An event matches one subscription or not, so that is a few bytes for thousands of them.
    """

    def __init__(self, folder: DataFolder, past: Past) -> None:
        super().__init__(folder, past)
        self._set_aside: Collection[int] = ()
        self._held = HeldBlocks()

    def match_away(self, wanted: RecordRange, set_aside: Collection[int]) -> tuple[int, HeldBlocks]:
        """Match a range; how many events it has, and the blocks to write."""
        self._set_aside, self._held = set_aside, HeldBlocks()
        return self.match(wanted)["events"], self._held

    def _aside(self, partition: int) -> Collection[int]:
        return self._set_aside

    def _writer(self, partition: int) -> BlockWriter:
        return self._held


class HeldBlocks:
    """A `BlockWriter` that keeps what it is given, for another process to write."""

    def __init__(self) -> None:
        self._steps: list[NewMatchBlock | tuple[int, int]] = []

    def write(self, block: NewMatchBlock) -> int:
        """Keep a block; it takes nothing yet."""
        self._steps.append(replace(block, lists=merge_lists(list(block.pieces()))))
        return 0

    def fill(self, start: int, end: int) -> Sequence[object]:
        """Keep that no reader is to wait at a hole there."""
        if start < end:
            self._steps.append((start, end))
        return ()

    def write_to(self, writer: BlockWriter) -> None:
        """Write what was kept."""
        for step in self._steps:
            if isinstance(step, NewMatchBlock):
                writer.write(step)
            else:
                writer.fill(*step)


_matchers: OrderedDict[tuple[Path, int, int], PastMatcher] = OrderedDict()


def _matcher_of(folder: DataFolder, past: Past) -> PastMatcher:
    """This process's matcher for a past."""
    key = folder.root, past.number, past.revision
    kind = PastMatcher if folder.machine is None else AwayPastMatcher
    matcher = _matchers.pop(key, None) or kind(folder, past)
    _matchers[key] = matcher
    if len(_matchers) > MATCHERS_KEPT:
        _matchers.popitem(last=False)
    return matcher


MATCHED = pa.schema([("piece", pa.int32()), ("events", pa.int64()), ("blocks", pa.binary())])
"""What a task says of a piece: how many events it has, and what is to be written, if that is not done."""


@dataclass(frozen=True, slots=True)
class MatchPieces:
    """The function that ``mapInArrow`` runs: numbers of pieces in, a row of ``MATCHED`` for each out.

    `set_aside` are the places of records that were.
    """

    folder: DataFolder
    pieces: tuple[Piece, ...]
    set_aside: tuple[tuple[int, int], ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                events, blocks = self._match(self.pieces[number])
                row = {"piece": number, "events": events, "blocks": blocks}
                yield pa.RecordBatch.from_pylist([row], schema=MATCHED)

    def _match(self, piece: Piece) -> tuple[int, bytes]:
        wanted = RecordRange(piece.partition, piece.start, piece.end, 0)
        matcher = _matcher_of(self.folder, piece.past)
        if not isinstance(matcher, AwayPastMatcher):
            return matcher.match(wanted)["events"], b""
        aside = {offset for partition, offset in self.set_aside if partition == piece.partition}
        events, held = matcher.match_away(wanted, aside)
        return events, pickle.dumps(held)


def match_pieces(session: SparkSession, folder: DataFolder, pieces: Sequence[Piece]) -> int:
    """Match pieces, each in a task of its own; how many events these were."""
    numbers = session.range(0, len(pieces), numPartitions=len(pieces))
    set_aside = tuple(Quarantine(folder.quarantine).places())
    work = MatchPieces(tasks_folder(session, folder), tuple(pieces), set_aside)
    rows = numbers.mapInArrow(work, from_arrow_schema(MATCHED)).collect()
    for row in rows:
        if row.blocks:
            piece = pieces[row.piece]
            url = folder.past_url(piece.past.number, piece.past.revision)
            held: HeldBlocks = pickle.loads(row.blocks)
            held.write_to(open_match_log(url).partition(piece.partition))
    return sum(row.events for row in rows)
