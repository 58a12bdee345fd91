"""The writer of index files: it runs the indexer, in the only process that writes manifests.

Changes of subscriptions become delta parts as they come, in milliseconds. When these have grown large, a
process of its own builds new snapshots in the background, and the manifest moves over to them when they are
done.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from fieldfare.matching.files import IndexFileError
from fieldfare.matching.part import Part
from fieldfare.matching.versions import Closings
from fieldfare.pipeline.indexer import Indexer, Step, snapshot_revision
from fieldfare.pipeline.manifest import Manifest
from fieldfare.planning.cuts import Cut, Cuts, CutSettings, Searching, Standing
from fieldfare.runtimes.indexer.snapshot_builder import (
    Built,
    SnapshotBuild,
    build_snapshots,
    remove_leftovers,
)
from fieldfare.runtimes.indexer.steps import write_step
from fieldfare.storage import IndexStore
from fieldfare.storage.errors import IndexStoreError, RegistryError
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.registry import Registry

RETRY_S = 30.0
BUILD_MAX_S = 3_600.0
"""A build that takes longer hangs: it is ended, and begun anew."""
CHANGES_AT_ONCE = 20_000
"""More changes than this are taken in as several deltas, so that none is ever much larger."""
REPLAYED_MAX = 50_000
"""When more changes than this came since the last snapshot, a restart builds a new one instead."""

_log = logging.getLogger("fieldfare.indexer")


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """When a new snapshot is worth building.

    Attributes
    ----------
    share : float
        The rows in deltas, relative to the whole index, from which on one is built. More: building costs less
        of the processor; matching goes through more deltas.
    fewest_rows, most_rows : int
        Never for fewer rows than the first, always for more than the second.
    """

    share: float = 0.1
    fewest_rows: int = 2_000
    most_rows: int = 20_000

    def is_due(self, delta_rows: int, rows: int) -> bool:
        return delta_rows > max(self.fewest_rows, min(self.most_rows, self.share * rows))


class IndexWriter:
    """Keeps the index files up to date with the registry. One process at a time may have one.

    Parameters
    ----------
    folder : DataFolder
    registry : Registry
    store : IndexStore
    floor : callable
        Gives a stamp: nothing of a lower one is ever matched again.
    snapshots : SnapshotSettings, optional
    alive : callable
        Called again and again during work that may take long.
    cuts : CutSettings, optional
        How spaces are to be held. Default: each in one slice.

    Attributes
    ----------
    manifest : Manifest
        The newest.
    cut_number : int
        The number of the manifest by which a space was last cut anew here; 0 before.
    """

    def __init__(
        self,
        folder: DataFolder,
        registry: Registry,
        store: IndexStore,
        floor: Callable[[], int],
        snapshots: SnapshotSettings | None = None,
        alive: Callable[[], object] = lambda: None,
        cuts: CutSettings | None = None,
    ) -> None:
        self._folder = folder
        self._registry = registry
        self._store = store
        self._floor = floor
        self._settings = snapshots or SnapshotSettings()
        self._alive = alive
        self._build: SnapshotBuild | None = None
        self._build_again_s = 0.0
        self._cuts = Cuts(cuts or CutSettings())
        self._wanted: Mapping[str, Cut] = {}
        self.cut_number = 0
        remove_leftovers(folder)
        self._indexer, self.manifest = self._start()

    @property
    def snapshot_revision(self) -> int:
        """The registry revision that the snapshots of the newest manifest were built from."""
        return snapshot_revision(self.manifest)

    def _start(self) -> tuple[Indexer, Manifest]:
        """Go on from the newest manifest, or build everything from the registry."""
        revision = self._registry.revision()
        try:
            newest = self._store.newest()
            resumed = self._resume(newest, revision) if newest else None
        except (IndexStoreError, IndexFileError, OSError, RegistryError, ValueError) as error:
            # All of it is in the registry, so nothing that is wrong with it is worth stopping for.
            _log.warning("the index is built anew: %s", error)
            resumed = None
        if resumed is not None:
            indexer, step = resumed
            return indexer, self._write(step)
        started_s = time.monotonic()
        # No number is used twice, not even that of a manifest that cannot be read: workers know it by that.
        new_cut = self._cuts.settings.new_cut
        indexer = Indexer(Manifest(self._store.greatest_number(), 0), new_cut=new_cut)
        parts = build_snapshots(self._registry, revision, self._floor(), new_cut, self._alive)
        manifest = self._write(indexer.rebase(parts, revision))
        _log.info("indexed %d subscriptions in %.1f s", indexer.size, time.monotonic() - started_s)
        # What was before is of no more use, and some of it may be broken.
        self.collect(manifest.number)
        return indexer, manifest

    def _resume(self, newest: Manifest, revision: int) -> tuple[Indexer, Step]:
        """The index that a manifest names, and the step from it to the registry's revision."""
        if newest.revision > revision:
            raise RegistryError(f"it is at revision {newest.revision}, the registry at {revision}")
        if revision - snapshot_revision(newest) > REPLAYED_MAX:
            raise RegistryError(f"{revision - snapshot_revision(newest)} changes since the last snapshot")
        snapshots = {
            space: [
                Part.open(self._store.path(part.snapshot.file), verify=True) if part.snapshot else None
                for part in files.slices
            ]
            for space, files in newest.spaces.items()
        }
        indexer = Indexer(newest, snapshots, new_cut=self._cuts.settings.new_cut)
        changes = self._registry.changes(indexer.revision, revision)
        return indexer, indexer.apply(changes, revision)

    @property
    def is_building(self) -> bool:
        """Whether snapshots are being built in the background: `catch_up` takes them when they are done."""
        return self._build is not None

    def catch_up(self, revision: int) -> Manifest:
        """A manifest that covers a revision of the registry; written if there was none."""
        self._take_snapshots()
        while self.manifest.revision < revision:
            upto = min(revision, self.manifest.revision + CHANGES_AT_ONCE)
            changes = self._registry.changes(self.manifest.revision, upto)
            self.manifest = self._write(self._indexer.apply(changes, upto))
            self._alive()
        self._start_snapshots()
        return self.manifest

    def look_at_cuts(self, searching: Mapping[str, Searching]) -> None:
        """See whether spaces are to be cut anew: `catch_up` sees to it.

        Parameters
        ----------
        searching : mapping from space to Searching
            What was last measured of the spaces that are cut.
        """
        if self._build is None:
            self._wanted = self._cuts.due(self._standing(searching), time.monotonic())

    def _standing(self, searching: Mapping[str, Searching]) -> dict[str, Standing]:
        found = {}
        for name, space in self.manifest.spaces.items():
            parts = [space.slices[number] for number in sorted(set(space.partitioning.originals))]
            snapshots = [self._store.path(part.snapshot.file) for part in parts if part.snapshot]
            rows, size_bytes = sum(part.size for part in parts), sum(map(_size_bytes, snapshots))
            found[name] = Standing(space.partitioning, rows, size_bytes, searching.get(name))
        return found

    def check(self, *, every_byte: bool = False) -> None:
        """See whether the index is there as it was written; with `every_byte` also what the files hold.

        Raises
        ------
        IndexStoreError, IndexFileError, OSError
            Something has rotted, or somebody has removed it: a new writer builds it anew.
        """
        if self._store.newest() != self.manifest:
            raise IndexStoreError(f"manifest {self.manifest.number} is not the newest any more")
        for files in self.manifest.spaces.values():
            for name in files.files():
                if not self._store.path(name).is_file():
                    raise IndexStoreError(f"{self._store.path(name)} is gone")
            if every_byte:
                closings = {part.closings for part in files.slices}
                for name in files.files():
                    kind = Closings if name in closings else Part
                    kind.open(self._store.path(name), verify=True)
                    self._alive()

    def collect(self, keep_from: int) -> None:
        """Remove the manifests before a number, and what only they need; failing stops nothing."""
        try:
            self._store.collect(keep_from)
        except (IndexStoreError, OSError) as error:
            _log.warning("the index is cleaned up later: %s", error)

    def _write(self, step: Step, in_place: Collection[str] = ()) -> Manifest:
        return write_step(self._store, step, in_place)

    def _start_snapshots(self) -> None:
        if self._build is not None or time.monotonic() < self._build_again_s:
            return
        if self._wanted or self._settings.is_due(self._indexer.delta_size, self._indexer.size):
            revision, floor = self.manifest.revision, self._floor()
            self._build = SnapshotBuild.start(self._folder, revision, floor, self._wanted)

    def _take_snapshots(self) -> None:
        if self._build is None:
            return
        if self._build.is_running:
            if time.monotonic() - self._build.started_s < BUILD_MAX_S:
                return
            self._build.kill()
        build, self._build = self._build, None
        built = build.result()
        # Also when it failed: planning may be what fails, and a space can be matched as it is.
        wanted, self._wanted = self._wanted, {}
        rows = {name: each.rows for name, each in self._standing({}).items() if name in wanted}
        self._cuts.tried(rows, time.monotonic())
        if built is None:
            _log.error("building a snapshot failed: %s; it is tried again", build.problem)
            self._build_again_s = time.monotonic() + RETRY_S
            return
        self._rebase(built, build.revision)
        build.close()

    def _rebase(self, built: Built, revision: int) -> None:
        """Go on from snapshots; of spaces that are cut anew, with all that has changed since."""
        parts = {space: [Part.open(path) for path in paths] for space, paths in built.files.items()}
        later = self._registry.changes(revision, self.manifest.revision) if built.cuts else ()
        step = self._indexer.rebase(parts, revision, built.cuts, later)
        paths = [
            (part, path)
            for space in built.files
            for part, path in zip(parts[space], built.files[space], strict=True)
        ]
        in_place = set()
        for name, part in step.parts.items():
            for known, path in paths:
                if part is known:
                    path.replace(self._store.path(name))
                    in_place.add(name)
        self.manifest = self._write(step, in_place)
        for name, cut in built.cuts.items():
            self.cut_number = self.manifest.number
            _log.info("space %s is cut anew: %d slices, %s", name, len(cut.slices), type(cut).__name__)

    def close(self) -> None:
        """End the background build, if there is one."""
        if self._build is not None:
            self._build.close()


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
