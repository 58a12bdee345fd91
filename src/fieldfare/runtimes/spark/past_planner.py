"""What is matched next for subscriptions that began in the past: decided in the driver's process.

A past ends where the first record stands that its subscription met as it came, or, while there is none, with
the log. How far it is matched its match log says, and nothing else: a driver that is killed leaves blocks,
and the next one goes on behind those that follow each other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fieldfare.pipeline.suspects import Suspects
from fieldfare.runtimes.spark.past_task import Piece
from fieldfare.runtimes.spark.recovery import named_records
from fieldfare.storage import (
    LogPartition,
    MatchPartition,
    NewMatchBlock,
    open_event_log,
    open_match_log,
    open_registry,
)
from fieldfare.storage.errors import TrimmedError
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.quarantine import brief
from fieldfare.storage.registry import Past

PIECE_BYTES = 64 << 20
PIECE_EVENTS = 131_072
"""What one task matches at most: blocks of twice as many as there may be events in one."""

FIRST_SHARE = 16
"""A past's first piece is of so small a part: somebody may wait for its first messages."""

LOOKED_AGAIN_S = 5.0
"""So often it is looked from the beginning what is matched: a broken block may have been taken out."""

_log = logging.getLogger("fieldfare.pipeline")


@dataclass
class _Open:
    """A past in one partition, at work: where it begins, and how far it is matched, planned, and to be."""

    past: Past
    log: LogPartition
    match_log: MatchPartition
    begin: int
    reached: int
    planned: int = 0
    target: int = 0
    is_bounded: bool = False
    suspects: Suspects | None = None

    @property
    def turn(self) -> tuple[int, int]:
        return self.past.number, self.log.number

    def look(self, from_offset: int) -> None:
        """Read how far it is, and how far it has to go."""
        if not self.is_bounded:
            end = self.log.end()  # first: what came before it and is not said to be later is part of it
            first = self.log.first_stamped(self.past.revision)
            self.is_bounded = first is not None
            self.target = end if first is None else first
        self.begin = max(self.past.starts[self.log.number], self.log.start())
        self.reached = self.match_log.end(max(from_offset, self.begin))
        self.planned = self.reached
        if self.suspects is not None:
            self.suspects = self.suspects.passed(self.reached)

    def next_piece(self, share: int) -> Piece | None:
        """What comes behind what is planned."""
        start = self.planned
        if start >= self.target or (self.suspects is not None and start > self.reached):
            return None
        if start == self.begin:
            share = FIRST_SHARE
        end = min(self.log.bound(start, PIECE_BYTES // share, PIECE_EVENTS // share), self.target)
        if self.suspects is not None:
            end = min(end, self.suspects.upto)
        self.planned = end
        return Piece(self.past, self.log.number, start, end)

    def failed(self, piece: Piece, report: str, said: str) -> None:
        """A round with this piece failed."""
        tip = self.match_log.end(max(self.past.starts[piece.partition], self.log.start()))
        tried = self.suspects or Suspects(piece.partition, piece.start, piece.end, piece.end)
        named = named_records(report)
        its_own = named[1:] if named and named.partition == piece.partition else None
        found = tried.failed(tip, said, its_own)
        if found is not None and found.is_proven():
            self.match_log.write(NewMatchBlock.gap(found.start, found.start + 1))
            _log.error(
                "record %d of partition %d is not matched for the past of subscription number %d: %s",
                *(found.start, found.partition, self.past.number, brief(found.error)),
            )
            found = found.passed(found.start + 1)
        self.suspects = found


class PastPlanner:
    """Which pieces are matched next: of all open pasts in turn.

    Parameters
    ----------
    folder : DataFolder
    clock_s : callable
        Seconds of a clock that nobody sets.
    """

    def __init__(self, folder: DataFolder, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._log = open_event_log(folder.log_url)
        self._registry = open_registry(folder.registry_url)
        self._clock_s = clock_s
        self._open: dict[tuple[int, int], _Open] = {}
        self._turn = (0, 0)
        self._looked_s = clock_s()

    def next_round(self, most: int, share: int = 1) -> list[Piece]:
        """What is matched next.

        Parameters
        ----------
        most : int
            So many pieces at most; there are none where there is nothing to be matched.
        share : int
            What part of the usual a piece has at most. Larger: first messages come sooner, and batches of the
            query, which wait for a core, are held up less. Smaller: less is spent on planning.

        Raises
        ------
        StorageError
            The registry, the log or a match log cannot be read.
        """
        self._take_in(self._registry.pasts(only_open=True))
        # Those behind the one that had the last turn come first.
        waiting = sorted(self._open.values(), key=lambda each: (each.turn <= self._turn, each.turn))
        pieces: list[Piece] = []
        while waiting and len(pieces) < most:
            each = waiting.pop(0)
            try:
                piece = each.next_piece(share)
            except TrimmedError:
                continue  # Retention took what comes next: in the next round it begins behind that.
            if piece is not None:
                pieces.append(piece)
                waiting.append(each)
                self._turn = each.turn
        return pieces

    def failed(self, pieces: Sequence[Piece], report: str, said: str) -> None:
        """Matching these failed because of records: less is tried next, a record alone in the end."""
        for piece in pieces:
            each = self._open.get((piece.past.number, piece.partition))
            if each is not None:
                each.failed(piece, report, said)

    def _take_in(self, pasts: Sequence[Past]) -> None:
        """Know what is open now, and how far each is."""
        is_anew = self._clock_s() - self._looked_s >= LOOKED_AGAIN_S
        if is_anew:
            self._looked_s = self._clock_s()
        before, self._open = self._open, {}
        for past in pasts:
            for log in self._log.partitions:
                key = past.number, log.number
                each = before.get(key)
                if each is None or each.past.revision != past.revision:
                    each = self._begin(past, log)
                self._open[key] = each
                if is_anew or each.reached < each.target or not each.is_bounded:
                    each.look(past.starts[log.number] if is_anew else each.reached)

    def _begin(self, past: Past, log: LogPartition) -> _Open:
        match_log = open_match_log(self._folder.past_url(past.number, past.revision))
        start = past.starts[log.number]
        return _Open(past, log, match_log.partition(log.number), start, start)
