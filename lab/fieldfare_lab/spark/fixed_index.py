"""The index of subscriptions that do not change."""

from __future__ import annotations

from collections.abc import Sequence

from fieldfare.matching.versions import IndexEntry
from fieldfare.partitioning import Extents, Partitioning
from fieldfare.pipeline.indexer import Indexer
from fieldfare.pipeline.manifest import Manifest
from fieldfare.pipeline.placing import SlicesBuilder
from fieldfare.runtimes.indexer.index_writer import write_step
from fieldfare.storage import IndexStore


def write_space(
    store: IndexStore,
    space: str,
    entries: Sequence[IndexEntry],
    partitioning: Partitioning,
    extents: Extents | None = None,
) -> Manifest:
    """Write the slices of one space, whose subscriptions do not change, and the manifest that names them.

    Parameters
    ----------
    extents : Extents, optional
        The subscriptions' extents, in the same order, if they have been computed already.
    """
    builder = SlicesBuilder(partitioning)
    builder.add(entries, extents)
    indexer = Indexer(Manifest(store.greatest_number(), 0))
    return write_step(store, indexer.rebase({space: builder.finish()}, 0, {space: partitioning}))
