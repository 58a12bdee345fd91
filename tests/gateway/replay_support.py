"""The pipeline's part for subscriptions that began in the past, without Spark: the same matching."""

from __future__ import annotations

from fieldfare.gateway.context import Gateway
from fieldfare.runtimes.spark.range_task import RecordRange
from fieldfare.runtimes.spark.replay_planner import ReplayPlanner
from fieldfare.runtimes.spark.replay_task import ReplayMatcher


class ReplayPipeline:
    """Matches pieces as the driver would have its tasks do."""

    def __init__(self, gateway: Gateway) -> None:
        self._folder = gateway.settings.folder
        self._planner = ReplayPlanner(self._folder)

    def round(self, most: int = 1) -> int:
        """Match one round with a limited number of pieces; return their number."""
        pieces = self._planner.next_round(most)
        for piece in pieces:
            ReplayMatcher(self._folder, piece.replay).match(
                RecordRange(piece.partition, piece.start, piece.end, 0)
            )
        return len(pieces)

    def finish(self) -> None:
        """Match everything."""
        while self.round():
            pass
