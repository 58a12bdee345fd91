"""Cutting the attribute space anew when the load has drifted (the paper's future work, on Spark)."""

from __future__ import annotations

from collections.abc import Sequence

from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import Path as AttributePath
from fieldfare.partitioning import Extents
from fieldfare.pipeline.manifest import Manifest
from fieldfare.planning.plans import PlanSettings, Recutter, plan
from fieldfare.storage import IndexStore
from fieldfare_lab.spark.fixed_index import write_space


class Recutting:
    """Keeps what it takes to cut again: a space's subscriptions, where they lie, and the plan that holds.

    Parameters
    ----------
    store : IndexStore
        Each cut is a new manifest here. Old ones stay: a task that runs again may need them.
    space : str
    entries, extents
        All subscriptions, and where they lie, in the same order.
    sample : ColumnBatch
        Events to cut by at first, with the attributes of `extents`.
    matchers : int
    settings : PlanSettings, optional
    patience : int
        After how many batches in a row that a new plan would have served better it is taken.

    Attributes
    ----------
    manifest : Manifest
        Of the plan that holds.

    Raises
    ------
    ValueError
        No attribute narrows the search: there is nothing to cut.
    """

    def __init__(
        self,
        store: IndexStore,
        space: str,
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
        self.space = space
        self._store, self._entries, self._extents, self._matchers = store, entries, extents, matchers
        self._machine = Recutter(first, settings, patience=patience)
        self.manifest = self._write()

    @property
    def paths(self) -> tuple[AttributePath, ...]:
        """The attributes that samples must have."""
        return tuple(self._extents.attributes)

    def observe(self, sample: ColumnBatch) -> Manifest | None:
        """Take in a sample of a batch; the new manifest, if it is time for one."""
        if self._machine.observe(self._extents, sample, self._matchers) is None:
            return None
        self.manifest = self._write()
        return self.manifest

    def _write(self) -> Manifest:
        partitioning = self._machine.current.partitioning
        return write_space(self._store, self.space, self._entries, partitioning, self._extents)
