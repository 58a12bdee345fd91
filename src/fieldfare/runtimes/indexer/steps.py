"""Write the indexer's output."""

from __future__ import annotations

from collections.abc import Collection

from fieldfare.pipeline.indexer import Step
from fieldfare.pipeline.manifest import Manifest
from fieldfare.storage import IndexStore


def write_step(store: IndexStore, step: Step, in_place: Collection[str] = ()) -> Manifest:
    """Write a step's files, except those that are in place, and then its manifest."""
    # Parts and closings save themselves atomically and durably. An existing file is of a predecessor that was
    # killed before it wrote its manifest: it lacks later changes.
    store.path("any").parent.mkdir(parents=True, exist_ok=True)
    for name, part in step.parts.items():
        if name not in in_place:
            part.save(store.path(name))
    for name, closings in step.closings.items():
        closings.save(store.path(name))
    store.write_manifest(step.manifest)
    return step.manifest
