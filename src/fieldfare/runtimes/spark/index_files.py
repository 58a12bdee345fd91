"""Writing what the indexer made, and the index of subscriptions that do not change."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from fieldfare.matching.versions import IndexEntry
from fieldfare.partitioning import Extents, Partitioning
from fieldfare.pipeline.indexer import Indexer, Step
from fieldfare.pipeline.manifest import Manifest
from fieldfare.pipeline.placing import SlicesBuilder
from fieldfare.storage import IndexStore


def write_step(store: IndexStore, step: Step, in_place: Collection[str] = ()) -> Manifest:
    """Write a step's files, except those that are in place, and then its manifest."""
    # Parts and closings save themselves whole or not at all, and durably. A file that is there already is
    # a predecessor's that was killed before it wrote its manifest: it lacks what changed since.
    store.path("any").parent.mkdir(parents=True, exist_ok=True)
    for name, part in step.parts.items():
        if name not in in_place:
            part.save(store.path(name))
    for name, closings in step.closings.items():
        closings.save(store.path(name))
    store.write_manifest(step.manifest)
    return step.manifest


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
        Where the subscriptions lie, in the same order, if that has been read already.
    """
    builder = SlicesBuilder(partitioning)
    builder.add(entries, extents)
    indexer = Indexer(Manifest(store.greatest_number(), 0))
    return write_step(store, indexer.rebase({space: builder.finish()}, 0, {space: partitioning}))
