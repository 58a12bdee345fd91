"""Cutting the attribute space anew when the load has drifted (the paper's future work, on Spark)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import Path as AttributePath
from fieldfare.partitioning import Extents
from fieldfare.partitioning.planning import Plan, PlanSettings, Recutter, plan
from fieldfare.runtimes.spark.partitioned.sliced_index import SlicedIndex


class Recutting:
    """Keeps what it takes to cut again: all subscriptions, where they lie, and the plan that holds.

    Parameters
    ----------
    folder : Path
        Each cut gets a folder of its own here. Old ones stay: a task that runs again may need them.
    entries, extents
        All subscriptions, and where they lie, in the same order.
    sample : ColumnBatch
        Events to cut by at first, with the attributes of `extents`.
    matchers : int
    settings : PlanSettings, optional
    patience : int
        After how many batches in a row that a new plan would have served better it is taken.

    Raises
    ------
    ValueError
        No attribute narrows the search: there is nothing to cut.
    """

    def __init__(
        self,
        folder: Path,
        entries: Sequence[IndexEntry],
        extents: Extents,
        sample: ColumnBatch,
        matchers: int,
        settings: PlanSettings | None = None,
        patience: int = 3,
    ) -> None:
        settings = settings or PlanSettings(replicated=False)
        first = plan(extents, sample, matchers, settings)
        if first is None:
            raise ValueError(
                "no attribute narrows the search of these subscriptions: they can only be hashed"
            )
        self._folder, self._entries, self._extents, self._matchers = folder, entries, extents, matchers
        self._machine = Recutter(first, settings, patience=patience)
        self._cuts = 0
        self.sliced = self._write(first)

    @property
    def paths(self) -> tuple[AttributePath, ...]:
        """The attributes that samples must have."""
        return tuple(self._extents.attributes)

    def observe(self, sample: ColumnBatch) -> SlicedIndex | None:
        """Take in a sample of a batch; the new slices, if it is time for them."""
        better = self._machine.observe(self._extents, sample, self._matchers)
        if better is None:
            return None
        self.sliced = self._write(better)
        return self.sliced

    def _write(self, chosen: Plan) -> SlicedIndex:
        self._cuts += 1
        folder = self._folder / f"cut-{self._cuts:04d}"
        return SlicedIndex.write(folder, self._entries, self._extents, chosen.partitioning)
