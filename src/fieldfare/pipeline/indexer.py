"""The indexer: a state machine without I/O that turns subscription changes into files and manifests.

    registry changes ─▶ apply  ─┐
                                ├─▶ Step: files to write, then the manifest that names them
    finished snapshots ▶ rebase ┘

Each slice of a space has its own index. A file's name contains the number of the manifest that first needed
it, so a name is never reused for different content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from fieldfare.matching.index import Applied, LiveIndex
from fieldfare.matching.libraries import library_of
from fieldfare.matching.library import Library
from fieldfare.matching.part import Part
from fieldfare.matching.versions import Closings
from fieldfare.model import Change
from fieldfare.partitioning import ONE_SLICE, Partitioning
from fieldfare.partitioning.placing import Placed, place
from fieldfare.pipeline.manifest import Manifest, SliceManifest, Snapshot, SpaceManifest
from fieldfare.pipeline.placing import SlicesBuilder


@dataclass(frozen=True, slots=True)
class Step:
    """The files to write, and the manifest, which is written last: from then on readers may use it."""

    parts: Mapping[str, Part]
    closings: Mapping[str, Closings]
    manifest: Manifest


@dataclass(slots=True)
class _Slice:
    live: LiveIndex
    files: SliceManifest = field(default_factory=SliceManifest)
    delta_names: dict[int, str] = field(default_factory=dict)
    """The names of the delta parts by `id()`, which is how a LiveIndex distinguishes them."""


@dataclass(slots=True)
class _Space:
    """A space's slices by number, without those whose content equals another slice's."""

    slices: Mapping[int, _Slice]
    files: SpaceManifest

    def name_files(self) -> None:
        """Set `files` to the current files of the slices."""
        held = zip(self.files.partitioning.originals, self.files.slices, strict=True)
        slices = tuple(replace(self.slices[number].files, matcher=part.matcher) for number, part in held)
        self.files = replace(self.files, slices=slices)


class Indexer:
    """The indexes of all spaces, kept up to date.

    Parameters
    ----------
    manifest : Manifest, optional
        The last manifest written. The indexer starts from its snapshots only; the caller must apply all
        changes after `revision` again.
    snapshots : mapping from space to parts
        The snapshots that `manifest` names, by slice; None for a slice without a snapshot.
    library : Library, optional
        The library of all filters. Default: the library of each filter's dialect.
    new_cut : callable
        Returns the partitioning of a space that has no subscriptions yet.
    """

    def __init__(
        self,
        manifest: Manifest | None = None,
        snapshots: Mapping[str, Sequence[Part | None]] | None = None,
        library: Library | None = None,
        new_cut: Callable[[str], Partitioning] = lambda space: ONE_SLICE,
    ) -> None:
        self._library = library
        self._new_cut = new_cut
        manifest = manifest or Manifest(0, 0)
        self._number = manifest.number
        self.revision = self._base_revision = manifest.snapshot_revision
        self._spaces: dict[str, _Space] = {}
        for name, parts in (snapshots or {}).items():
            files = manifest.spaces[name]
            space = self._space(name, files)
            for number, slice_ in space.slices.items():
                snapshot, part = files.slices[number].snapshot, parts[number]
                if snapshot is not None and part is not None:
                    slice_.live = self._live(part, snapshot.revision)
                    slice_.files = replace(
                        slice_.files, library=part.library, snapshot=snapshot, size=part.size
                    )
            space.name_files()

    def _live(self, snapshot: Part | None, revision: int) -> LiveIndex:
        return LiveIndex(snapshot, revision, library=self._library)

    def _space(self, name: str, cut: SpaceManifest | Partitioning | None = None) -> _Space:
        """Create a space, or replace an existing one, without versions."""
        cut = cut or self._new_cut(name)
        if not isinstance(cut, SpaceManifest):
            cut = SpaceManifest(tuple(SliceManifest(part.matcher) for part in cut.slices), cut)
        empty = SliceManifest()
        numbers = sorted(set(cut.partitioning.originals))
        slices = {number: _Slice(self._live(None, self._base_revision), empty) for number in numbers}
        space = self._spaces[name] = _Space(slices, cut)
        space.name_files()
        return space

    @property
    def _slices(self) -> Iterator[_Slice]:
        return (slice_ for space in self._spaces.values() for slice_ in space.slices.values())

    @property
    def size(self) -> int:
        """The number of indexed subscription versions."""
        return sum(slice_.live.index.size for slice_ in self._slices)

    @property
    def delta_size(self) -> int:
        """The number of rows that a new snapshot would absorb: versions in deltas, and closings."""
        return sum(slice_.live.delta_size + len(slice_.live.index.closings) for slice_ in self._slices)

    def apply(self, changes: Iterable[Change], revision: int) -> Step:
        """Apply the changes up to a revision, in order.

        Parameters
        ----------
        changes : iterable of Change
            All changes with ``self.revision < change.revision <= revision``.
        revision : int
            The revision that the new manifest covers.
        """
        by_space: dict[str, list[Change]] = {}
        for change in changes:
            by_space.setdefault(change.space, []).append(change)
        self._number += 1
        writer = _StepWriter(self._number)
        for name, found in by_space.items():
            self._absorb(writer, self._spaces.get(name) or self._space(name), found)
        self.revision = revision
        return self._step(writer)

    def _absorb(self, writer: _StepWriter, space: _Space, changes: list[Change]) -> None:
        """Apply changes of a space, and update its files."""
        for number, mine in self._by_slice(space, changes) if changes else ():
            slice_ = space.slices[number]
            writer.take(slice_, slice_.live.apply(mine), slice_.files.snapshot)
        space.name_files()

    def _by_slice(self, space: _Space, changes: list[Change]) -> Iterator[tuple[int, list[Change]]]:
        """Yield the changes for each slice; a put of another slice's version only ends the old version."""
        if len(space.slices) == 1:
            yield next(iter(space.slices)), changes
            return
        puts = [
            (at, self._compiled(change)) for at, change in enumerate(changes) if change.filter is not None
        ]
        placement = place(space.files.partitioning, cast("list[Placed]", [put for _, put in puts]))
        for number in space.slices:
            held = {puts[i][0]: puts[i][1] for i in placement.of(number).tolist()}
            mine = [
                held.get(at) or Change(change.revision, change.space, change.number, None)
                for at, change in enumerate(changes)
            ]
            yield number, mine

    def _compiled(self, change: Change) -> Change:
        if change.compiled is not None:
            return change
        library = self._library or library_of(change.dialect)
        return replace(change, compiled=library.compile(change.filter or "", change.dialect or "sql"))

    def rebase(
        self,
        snapshots: Mapping[str, Sequence[Part]],
        revision: int,
        partitionings: Mapping[str, Partitioning] | None = None,
        later: Iterable[Change] = (),
    ) -> Step:
        """Replace the snapshots of all spaces with versions by newer ones; later changes stay deltas.

        Parameters
        ----------
        snapshots : mapping from space to parts
            The new parts, by slice.
        revision : int
            The registry revision of the snapshots.
        partitionings : mapping from space to Partitioning, optional
            The new partitioning of the spaces that are cut differently from now on, and of new spaces with
            more than one slice.
        later : iterable of Change, optional
            All changes after `revision` to the spaces in `partitionings`, in order: they are placed again.

        Raises
        ------
        ValueError
            A space in `partitionings` has a change after `revision` that is not in `later`.
        """
        again: dict[str, list[Change]] = {name: [] for name in partitionings or {}}
        for change in later:
            if change.space in again:
                again[change.space].append(change)
        for name, changes in again.items():
            known = self._revision_of(name)
            if known > revision and (not changes or changes[-1].revision < known):
                raise ValueError(
                    f"space {name} has changed since revision {revision}: pass its later changes"
                )
        self._number += 1
        self._base_revision = revision
        for name, partitioning in (partitionings or {}).items():
            self._space(name, partitioning)
        writer = _StepWriter(self._number)
        for name in sorted({*snapshots, *self._spaces}):
            space = self._spaces.get(name) or self._space(name)
            # Snapshots of spaces without versions are empty, so that all snapshots are of one revision.
            parts = snapshots.get(name) or SlicesBuilder(space.files.partitioning, self._library).finish()
            for number, slice_ in space.slices.items():
                part = parts[number]
                file = writer.name("snapshot-{}.part")
                # A LiveIndex counts changes of its own slice only; it had none between the two revisions.
                applied = slice_.live.rebase(part, min(revision, slice_.live.revision))
                writer.take(slice_, applied, Snapshot(file, revision))
                writer.parts[file] = part
            self._absorb(writer, space, again.get(name, []))
        self.revision = max(self.revision, revision)
        return self._step(writer)

    def _revision_of(self, name: str) -> int:
        """The revision of the last applied change of a space."""
        space = self._spaces.get(name)
        return max((slice_.live.revision for slice_ in space.slices.values()), default=0) if space else 0

    def _step(self, writer: _StepWriter) -> Step:
        spaces = {name: space.files for name, space in self._spaces.items()}
        return Step(writer.parts, writer.closings, Manifest(self._number, self.revision, spaces))


class _StepWriter:
    """Collects the files of one step and assigns their names."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._count = 0
        self.parts: dict[str, Part] = {}
        self.closings: dict[str, Closings] = {}

    def name(self, pattern: str) -> str:
        """Return a new, unique file name."""
        self._count += 1
        return pattern.format(f"{self._number}-{self._count - 1}")

    def take(self, slice_: _Slice, applied: Applied, snapshot: Snapshot | None) -> None:
        """Update a slice's files after a change to its index."""
        for part in applied.dropped:
            slice_.delta_names.pop(id(part), None)
        for part in applied.written:
            name = self.name("delta-{}.part")
            slice_.delta_names[id(part)] = name
            self.parts[name] = part
        closings = slice_.files.closings
        if applied.closings_changed:
            closings = None
            if len(applied.index.closings):
                closings = self.name("closings-{}.arrays")
                self.closings[closings] = applied.index.closings
        names = slice_.delta_names
        deltas = tuple(names[id(part)] for part in applied.index.parts if id(part) in names)
        index = applied.index
        library = index.parts[-1].library if index.parts else slice_.files.library
        slice_.files = replace(
            slice_.files,
            library=library,
            snapshot=snapshot,
            deltas=deltas,
            closings=closings,
            size=index.size,
        )
