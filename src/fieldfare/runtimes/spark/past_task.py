"""What a task does for subscriptions that began in the past: match ranges of the log for one of them each.

The same matching as the query's, with an index of one filter: that which the subscription was created with.
What it finds goes into a match log of the subscription's own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from fieldfare.matching.index import Index
from fieldfare.matching.part import build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END
from fieldfare.pipeline.slices import Searched
from fieldfare.runtimes.spark.range_task import SUMMARY, RangeMatcher, RecordRange
from fieldfare.storage import open_match_log
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


class PastMatcher(RangeMatcher):
    """Matches ranges of the log for one subscription."""

    def __init__(self, folder: DataFolder, past: Past, clock_ms: Callable[[], float] | None = None) -> None:
        super().__init__(folder, clock_ms)
        self._space = past.space
        self._quarantine = Quarantine(folder.quarantine)
        self._match_log = open_match_log(folder.past_url(past.number, past.revision))
        self._indexes = PastIndexes(past)

    def _read(self, wanted: RecordRange) -> Iterator[Record]:
        """The records of its space; what could not be matched when it came is not tried again."""
        aside = set(self._quarantine.offsets(wanted.partition))
        for record in super()._read(wanted):
            if record.space == self._space and record.offset not in aside:
                yield record


_matchers: OrderedDict[tuple[Path, int, int], PastMatcher] = OrderedDict()


def _matcher_of(folder: DataFolder, past: Past) -> PastMatcher:
    """This process's matcher for a past."""
    key = folder.root, past.number, past.revision
    matcher = _matchers.pop(key, None) or PastMatcher(folder, past)
    _matchers[key] = matcher
    if len(_matchers) > MATCHERS_KEPT:
        _matchers.popitem(last=False)
    return matcher


@dataclass(frozen=True, slots=True)
class MatchPieces:
    """The function that ``mapInArrow`` runs: numbers of pieces in, a summary row for each out."""

    folder: DataFolder
    pieces: tuple[Piece, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                piece = self.pieces[number]
                wanted = RecordRange(piece.partition, piece.start, piece.end, 0)
                found = _matcher_of(self.folder, piece.past).match(wanted)
                yield pa.RecordBatch.from_pylist([found], schema=SUMMARY)


def match_pieces(session: SparkSession, folder: DataFolder, pieces: Sequence[Piece]) -> int:
    """Match pieces, each in a task of its own; how many events these were."""
    numbers = session.range(0, len(pieces), numPartitions=len(pieces))
    found = numbers.mapInArrow(MatchPieces(folder, tuple(pieces)), from_arrow_schema(SUMMARY))
    return sum(row.events for row in found.select("events").collect())
