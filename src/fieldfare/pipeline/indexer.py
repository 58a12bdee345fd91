"""The indexer: a machine without I/O that turns changes of subscriptions into files and the next manifest.

    registry changes ─▶ apply  ─┐
                                ├─▶ Step: files to write, then the manifest that names them
    finished snapshots ▶ rebase ┘

Each space has an index of its own. Files are named by the manifest that first needed them, so that no name
is ever used for two contents; a snapshot's name also says which registry revision it was built from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fieldfare.matching.index import Applied, Change, LiveIndex
from fieldfare.matching.libraries import PLAIN
from fieldfare.matching.library import Library
from fieldfare.matching.part import Part, build_part
from fieldfare.matching.versions import Closings
from fieldfare.pipeline.manifest import Manifest, SpaceManifest

_SNAPSHOT_NAME = re.compile(r"snapshot-(\d+)-(\d+)-(\d+)\.part")


class SpaceChange(Protocol):
    """A change of the registry, as the indexer needs it."""

    @property
    def revision(self) -> int: ...
    @property
    def space(self) -> str: ...
    @property
    def number(self) -> int: ...
    @property
    def filter(self) -> str | None: ...
    @property
    def dialect(self) -> str | None: ...
    @property
    def compiled(self) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class Step:
    """What must be written, the manifest last: once it is there, it may be used."""

    parts: Mapping[str, Part]
    closings: Mapping[str, Closings]
    manifest: Manifest


@dataclass(slots=True)
class _Space:
    live: LiveIndex
    files: SpaceManifest = field(default_factory=SpaceManifest)
    delta_names: dict[int, str] = field(default_factory=dict)
    """The names of the delta parts by identity, which is how a LiveIndex tells them apart."""


class Indexer:
    """Keeps the indexes of all spaces.

    Parameters
    ----------
    manifest : Manifest, optional
        What was written last. The indexer starts from its snapshots alone, and must be given all changes
        after `revision` again.
    snapshots : mapping from space to Part
        The snapshots that `manifest` names.
    library : Library
        Of the filters.
    """

    def __init__(
        self,
        manifest: Manifest | None = None,
        snapshots: Mapping[str, Part] | None = None,
        library: Library = PLAIN,
    ) -> None:
        self._library = library
        self._number = manifest.number if manifest else 0
        self.revision = snapshot_revision(manifest) if manifest else 0
        self._base_revision = self.revision
        self._spaces: dict[str, _Space] = {}
        for space, part in (snapshots or {}).items():
            name = manifest.spaces[space].snapshot if manifest else None
            self._spaces[space] = _Space(self._live(part, self.revision), SpaceManifest(name))

    def _live(self, snapshot: Part | None, revision: int) -> LiveIndex:
        return LiveIndex(snapshot, revision, library=self._library)

    @property
    def size(self) -> int:
        """How many subscription versions are indexed."""
        return sum(space.live.index.size for space in self._spaces.values())

    @property
    def delta_size(self) -> int:
        """How many rows a new snapshot would take in: versions in deltas, and closings."""
        return sum(space.live.delta_size + len(space.live.index.closings) for space in self._spaces.values())

    def apply(self, changes: Iterable[SpaceChange], revision: int) -> Step:
        """Take in the changes up to a revision, in order.

        Parameters
        ----------
        changes : iterable of SpaceChange
            All with ``self.revision < change.revision <= revision``.
        revision : int
            What the new manifest covers.
        """
        by_space: dict[str, list[Change]] = {}
        for change in changes:
            by_space.setdefault(change.space, []).append(
                Change(
                    change.revision,
                    change.number,
                    change.filter,
                    change.dialect,
                    change.compiled,
                )
            )
        self._number += 1
        writer = _StepWriter(self._number)
        for name, found in by_space.items():
            space = self._spaces.get(name)
            if space is None:
                space = self._spaces[name] = _Space(self._live(None, self._base_revision))
            writer.take(space, space.live.apply(found), space.files.snapshot)
        self.revision = revision
        return self._step(writer)

    def rebase(self, snapshots: Mapping[str, Part], revision: int) -> Step:
        """Go on from snapshots, as of a revision, of all spaces with versions; later changes stay deltas."""
        self._number += 1
        writer = _StepWriter(self._number)
        self._base_revision = revision
        for place, name in enumerate(sorted({*snapshots, *self._spaces})):
            space = self._spaces.setdefault(name, _Space(self._live(None, revision)))
            # A space without versions has an empty snapshot, so that all snapshots are of one revision.
            snapshot = snapshots.get(name) or build_part((), self._library)
            file = f"snapshot-{revision}-{self._number}-{place}.part"
            # A LiveIndex counts its own space's changes only; there were none between the two revisions.
            applied = space.live.rebase(snapshot, min(revision, space.live.revision))
            writer.take(space, applied, file)
            writer.parts[file] = snapshot
        self.revision = max(self.revision, revision)
        return self._step(writer)

    def _step(self, writer: _StepWriter) -> Step:
        spaces = {name: space.files for name, space in self._spaces.items()}
        return Step(writer.parts, writer.closings, Manifest(self._number, self.revision, spaces))


class _StepWriter:
    """Gives names to what one step writes."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._names = self._name()
        self.parts: dict[str, Part] = {}
        self.closings: dict[str, Closings] = {}

    def _name(self) -> Iterator[str]:
        count = 0
        while True:
            yield f"{self._number}-{count}"
            count += 1

    def take(self, space: _Space, applied: Applied, snapshot: str | None) -> None:
        """Bring a space's files up to date with what its index did."""
        for part in applied.dropped:
            space.delta_names.pop(id(part), None)
        for part in applied.written:
            name = f"delta-{next(self._names)}.part"
            space.delta_names[id(part)] = name
            self.parts[name] = part
        closings = space.files.closings
        if applied.closings_changed:
            closings = None
            if len(applied.index.closings):
                closings = f"closings-{next(self._names)}.arrays"
                self.closings[closings] = applied.index.closings
        deltas = tuple(
            space.delta_names[id(part)] for part in applied.index.parts if id(part) in space.delta_names
        )
        space.files = SpaceManifest(snapshot, deltas, closings)


def snapshot_revision(manifest: Manifest) -> int:
    """The registry revision that a manifest's snapshots were built from; 0 when it names none."""
    revisions = [
        int(found[1])
        for files in manifest.spaces.values()
        if files.snapshot and (found := _SNAPSHOT_NAME.fullmatch(files.snapshot))
    ]
    return min(revisions, default=0)
