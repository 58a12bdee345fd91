"""Tasks that match replays: ranges of the log, each for one subscription with a `start` in the past.

Matching is the same as of live records, with an index of one filter: the one that the subscription was
created with. Its matches go into a match log of the subscription's own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark import SparkContext

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
from fieldfare.storage.registry import Replay

MATCHERS_KEPT = 8


@dataclass(frozen=True, slots=True)
class Piece:
    """Records to match for one subscription."""

    replay: Replay
    partition: int
    start: int
    end: int


class ReplayIndexes:
    """The index of one replay, independent of manifests: it covers every stamp."""

    def __init__(self, replay: Replay) -> None:
        # The range bounds the replay: within it the filter is valid for every stamp.
        entry = IndexEntry(
            replay.revision, replay.number, 0, OPEN_END, replay.compiled, replay.filter, replay.dialect
        )
        part = build_part([entry])
        self._indexes = {replay.space: Index((part,))}

    def indexes(self, number: int, stamp: int) -> Mapping[str, Searched]:
        return self._indexes

    def check_unmatched(self, number: int, log: MatchPartition, start: int) -> None:
        """Accept every block: nothing that a replay needs is removed while it is matched."""


class ReplayMatcher(RangeMatcher):
    """Matches ranges of the log for one subscription."""

    _syncs_blocks = True  # what is matched of a replay is noted elsewhere, durably

    def __init__(
        self, folder: DataFolder, replay: Replay, clock_ms: Callable[[], float] | None = None
    ) -> None:
        super().__init__(folder, clock_ms)
        self._folder = folder
        self._replay = replay
        self._indexes = ReplayIndexes(replay)

    def _aside(self, partition: int) -> Collection[int]:
        """Return the offsets of records that were set aside."""
        return set(Quarantine(self._folder.quarantine).offsets(partition))

    def _writer(self, partition: int) -> BlockWriter:
        replay = self._replay
        return open_match_log(self._folder.replay_url(replay.number, replay.revision)).partition(partition)

    def _read(self, wanted: RecordRange) -> Iterator[Record]:
        """Read the records of the subscription's space, except those that were set aside."""
        aside = self._aside(wanted.partition)
        for record in self._still_there(wanted):
            if record.space == self._replay.space and record.offset not in aside:
                yield record

    def _still_there(self, wanted: RecordRange) -> Iterator[Record]:
        """Read records, skipping those that retention removes meanwhile."""
        at = wanted.start
        while at < wanted.end:
            try:
                for record in super()._read(replace(wanted, start=at)):
                    at = record.offset + 1
                    yield record
                return
            except TrimmedError:
                start = self.log.partitions[wanted.partition].start()
                if start <= at:
                    raise
                at = start


class AwayReplayMatcher(ReplayMatcher):
    """A `ReplayMatcher` on a machine without the data directory's files: it returns the blocks to write.

    An event matches one subscription or not, so the blocks take a few bytes for thousands of events.
    """

    def __init__(self, folder: DataFolder, replay: Replay) -> None:
        super().__init__(folder, replay)
        self._set_aside: Collection[int] = ()
        self._held = BlockCollector()

    def match_away(self, wanted: RecordRange, set_aside: Collection[int]) -> tuple[int, BlockCollector]:
        """Match a range; return its number of events, and the blocks to write."""
        self._set_aside, self._held = set_aside, BlockCollector()
        return self.match(wanted)["events"], self._held

    def _aside(self, partition: int) -> Collection[int]:
        return self._set_aside

    def _writer(self, partition: int) -> BlockWriter:
        return self._held


class BlockCollector:
    """A `BlockWriter` that collects its input, for another process to write."""

    def __init__(self) -> None:
        self._steps: list[NewMatchBlock | tuple[int, int]] = []

    def write(self, block: NewMatchBlock, *, synced: bool = True) -> int:
        """Keep a block; return 0, because it takes no disk space yet."""
        self._steps.append(replace(block, lists=merge_lists(list(block.pieces()))))
        return 0

    def fill(self, start: int, end: int) -> Sequence[object]:
        """Keep the range of a hole, to be filled for readers."""
        if start < end:
            self._steps.append((start, end))
        return ()

    def write_to(self, writer: BlockWriter) -> None:
        """Write the collected blocks and holes."""
        for step in self._steps:
            if isinstance(step, NewMatchBlock):
                writer.write(step)
            else:
                writer.fill(*step)


_matchers: OrderedDict[tuple[Path, int, int], ReplayMatcher] = OrderedDict()


def _matcher_of(folder: DataFolder, replay: Replay) -> ReplayMatcher:
    """Return this process's matcher for a replay; at most `MATCHERS_KEPT` are kept."""
    key = folder.root, replay.number, replay.revision
    kind = ReplayMatcher if folder.machine is None else AwayReplayMatcher
    matcher = _matchers.pop(key, None) or kind(folder, replay)
    _matchers[key] = matcher
    if len(_matchers) > MATCHERS_KEPT:
        _matchers.popitem(last=False)
    return matcher


@dataclass(frozen=True, slots=True)
class MatchPiece:
    """The function of a task: matches a piece; returns its number of events, and the blocks still to write.

    `set_aside` are the (partition, offset) pairs of records that were set aside.
    """

    folder: DataFolder
    set_aside: tuple[tuple[int, int], ...]

    def __call__(self, piece: Piece) -> tuple[int, BlockCollector | None]:
        wanted = RecordRange(piece.partition, piece.start, piece.end, 0)
        matcher = _matcher_of(self.folder, piece.replay)
        if not isinstance(matcher, AwayReplayMatcher):
            return matcher.match(wanted)["events"], None
        aside = {offset for partition, offset in self.set_aside if partition == piece.partition}
        return matcher.match_away(wanted, aside)


def match_pieces(context: SparkContext, folder: DataFolder, pieces: Sequence[Piece]) -> int:
    """Match pieces, each in a task of its own; return the number of events."""
    set_aside = tuple(Quarantine(folder.quarantine).places())
    work = MatchPiece(tasks_folder(context, folder), set_aside)
    found = context.parallelize(pieces, len(pieces)).map(work).collect()
    for piece, (_, blocks) in zip(pieces, found, strict=True):
        if blocks is not None:
            url = folder.replay_url(piece.replay.number, piece.replay.revision)
            blocks.write_to(open_match_log(url).partition(piece.partition))
    return sum(events for events, _ in found)
