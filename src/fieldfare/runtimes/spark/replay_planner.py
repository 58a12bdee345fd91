"""Plan the matching of replays (subscriptions with a `start` in the past); runs in the driver's process.

A replay ends at the first record that its subscription received live, or, while there is none, at the log's
end. Its progress is determined by its match log alone: a killed driver leaves blocks, and the next one
resumes after the contiguous ones.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fieldfare.pipeline.suspects import Suspects
from fieldfare.runtimes.spark.recovery import named_records
from fieldfare.runtimes.spark.replay_task import Piece
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
from fieldfare.storage.registry import Replay
from fieldfare.storage.sqlite.watch import SqliteWatch

PIECE_BYTES = 64 << 20
PIECE_EVENTS = 131_072
"""Maximum events that one task matches: half as many as a block may hold."""

FIRST_SHARE = 16
"""Divisor for the size of a replay's first piece: a subscriber may be waiting for its first messages."""

LOOKED_AGAIN_S = 5.0
"""Interval, in seconds, at which progress is read from the start: corrupt blocks may be removed."""

_log = logging.getLogger("fieldfare.pipeline")


@dataclass
class _Open:
    """An open replay in one partition: its begin, and how far it is matched, planned and bounded."""

    replay: Replay
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
        return self.replay.number, self.log.number

    def update(self, from_offset: int) -> None:
        """Update how far the replay is matched, and where it ends."""
        if not self.is_bounded:
            end = self.log.end()  # first: records before it without a later stamp belong to the replay
            first = self.log.first_stamped(self.replay.revision)
            self.is_bounded = first is not None
            self.target = end if first is None else first
        self.begin = max(self.replay.starts[self.log.number], self.log.start())
        self.reached = self.match_log.end(max(from_offset, self.begin))
        self.planned = self.reached
        if self.suspects is not None:
            self.suspects = self.suspects.passed(self.reached)

    def next_piece(self, share: int) -> Piece | None:
        """Return the piece after the planned ones; None if there is none."""
        start = self.planned
        if start >= self.target or (self.suspects is not None and start > self.reached):
            return None
        if start == self.begin:
            share = FIRST_SHARE
        end = min(self.log.bound(start, PIECE_BYTES // share, PIECE_EVENTS // share), self.target)
        if self.suspects is not None:
            end = min(end, self.suspects.upto)
        self.planned = end
        return Piece(self.replay, self.log.number, start, end)

    def failed(self, piece: Piece, report: str, said: str) -> None:
        """Narrow the suspects after a failed round with this piece; skip a record proven at fault."""
        tip = self.match_log.end(max(self.replay.starts[piece.partition], self.log.start()))
        tried = self.suspects or Suspects(piece.partition, piece.start, piece.end, piece.end)
        named = named_records(report)
        its_own = named[1:] if named and named.partition == piece.partition else None
        found = tried.failed(tip, said, its_own)
        if found is not None and found.is_proven():
            self.match_log.write(NewMatchBlock.gap(found.start, found.start + 1))
            _log.error(
                "record %d of partition %d is not replayed for subscription number %d: %s",
                *(found.start, found.partition, self.replay.number, brief(found.error)),
            )
            found = found.passed(found.start + 1)
        self.suspects = found


class ReplayPlanner:
    """Selects the pieces to match next, from all open replays in turn.

    Parameters
    ----------
    clock_s : callable
        Monotonic clock, in seconds.
    """

    def __init__(self, folder: DataFolder, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._log = open_event_log(folder.log_url)
        self._registry = open_registry(folder.registry_url)
        self._watch = SqliteWatch(folder.registry_path)
        self._replays: Sequence[Replay] | None = None
        self._clock_s = clock_s
        self._open: dict[tuple[int, int], _Open] = {}
        self._turn = (0, 0)
        self._looked_s = clock_s()

    def next_round(self, most: int, share: int = 1) -> list[Piece]:
        """Return the pieces to match next.

        Parameters
        ----------
        most : int
            Maximum number of pieces; the result is empty if nothing is to be matched.
        share : int
            Divisor for the size of a piece. Larger: first messages come sooner, and live batches,
            which wait for a core, are delayed less. Smaller: less planning.

        Raises
        ------
        StorageError
            The registry, the log or a match log cannot be read.
        """
        if self._watch.changed():
            self._replays = None
        if self._replays is None:
            self._replays = self._registry.replays(only_open=True)
        self._absorb(self._replays)
        # Continue after the replay that was served last.
        waiting = sorted(self._open.values(), key=lambda each: (each.turn <= self._turn, each.turn))
        pieces: list[Piece] = []
        while waiting and len(pieces) < most:
            each = waiting.pop(0)
            try:
                piece = each.next_piece(share)
            except TrimmedError:
                continue  # Retention removed these records: the next round begins after them.
            if piece is not None:
                pieces.append(piece)
                waiting.append(each)
                self._turn = each.turn
        return pieces

    def close(self) -> None:
        """Stop watching the registry."""
        self._watch.close()

    def failed(self, pieces: Sequence[Piece], report: str, said: str) -> None:
        """Handle a failure caused by records: smaller pieces are tried next, in the end single records."""
        for piece in pieces:
            each = self._open.get((piece.replay.number, piece.partition))
            if each is not None:
                each.failed(piece, report, said)

    def _absorb(self, replays: Sequence[Replay]) -> None:
        """Update the open replays and their progress."""
        is_again = self._clock_s() - self._looked_s >= LOOKED_AGAIN_S
        if is_again:
            self._looked_s = self._clock_s()
        before, self._open = self._open, {}
        for replay in replays:
            for log in self._log.partitions:
                key = replay.number, log.number
                each = before.get(key)
                if each is None or each.replay.revision != replay.revision:
                    each = self._begin(replay, log)
                self._open[key] = each
                if is_again or each.reached < each.target or not each.is_bounded:
                    each.update(replay.starts[log.number] if is_again else each.reached)

    def _begin(self, replay: Replay, log: LogPartition) -> _Open:
        match_log = open_match_log(self._folder.replay_url(replay.number, replay.revision))
        start = replay.starts[log.number]
        return _Open(replay, log, match_log.partition(log.number), start, start)
