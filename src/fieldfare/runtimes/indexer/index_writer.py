"""The writer of index files: runs the indexer machine, in the only process that writes manifests.

Changes of subscriptions become delta parts immediately, within milliseconds. When these have grown large, a
separate process builds new snapshots in the background, and the manifest switches to them when they are
complete.
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
from fieldfare.pipeline.indexer import Indexer, Step
from fieldfare.pipeline.manifest import Manifest
from fieldfare.planning.cuts import Cut, Cuts, CutSettings, Searching, SpaceState
from fieldfare.runtimes.indexer.snapshot_builder import (
    Built,
    SnapshotBuild,
    build_snapshots,
    remove_leftovers,
)
from fieldfare.storage import IndexStore
from fieldfare.storage.errors import IndexStoreError, RegistryError
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.registry import SubscriptionHistory

RETRY_S = 30.0
BUILD_MAX_S = 3_600.0
"""Maximum seconds for a snapshot build; a longer one is considered hung, killed and restarted."""
CHANGES_BATCH_SIZE = 20_000
"""Maximum changes in one delta; more changes become several deltas."""
REPLAYED_MAX = 50_000
"""Maximum changes since the last snapshot for a restart to resume; with more it rebuilds the index."""

_log = logging.getLogger("fieldfare.indexer")


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """When to build a new snapshot.

    Attributes
    ----------
    share : float
        Rows in deltas, relative to the whole index, that make a build due. Higher: fewer builds, which saves
        CPU time; matching searches more deltas.
    fewest_rows, most_rows : int
        No build with at most `fewest_rows` rows in deltas, and always one with more than `most_rows`.
    """

    share: float = 0.1
    fewest_rows: int = 2_000
    most_rows: int = 20_000

    def is_due(self, delta_rows: int, rows: int) -> bool:
        return delta_rows > max(self.fewest_rows, min(self.most_rows, self.share * rows))


class IndexWriter:
    """Keeps the index files up to date with the registry; only one process at a time may have one.

    Parameters
    ----------
    floor : callable
        Returns the lowest stamp that may still be matched.
    alive : callable
        Called repeatedly during long work.
    cuts : CutSettings, optional
        How spaces are to be cut. Default: each is one slice.

    Attributes
    ----------
    manifest : Manifest
        The newest manifest.
    cut_number : int
        Number of the manifest with which this writer last changed a space's cut; 0 if none.
    """

    def __init__(
        self,
        folder: DataFolder,
        registry: SubscriptionHistory,
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

    def _start(self) -> tuple[Indexer, Manifest]:
        """Resume from the newest manifest, or build everything from the registry."""
        revision = self._registry.revision()
        try:
            newest = self._store.newest()
            resumed = self._resume(newest, revision) if newest else None
        except (IndexStoreError, IndexFileError, OSError, RegistryError, ValueError) as error:
            # The registry holds everything, so no fault of the index is a reason to stop.
            _log.warning("rebuilding the index: %s", error)
            resumed = None
        if resumed is not None:
            indexer, step = resumed
            return indexer, write_step(self._store, step)
        started_s = time.monotonic()
        # No number is used twice, not even that of an unreadable manifest: workers identify manifests by it.
        # Nor one of an index that was lost: fewer than a thousand manifests are written in a second.
        number = self._store.greatest_number() or time.time_ns() // 1_000_000
        new_cut = self._cuts.settings.new_cut
        indexer = Indexer(Manifest(number, 0), new_cut=new_cut)
        parts = build_snapshots(self._registry, revision, self._floor(), new_cut, self._alive)
        manifest = write_step(self._store, indexer.rebase(parts, revision))
        _log.info("indexed %d subscriptions in %.1f s", indexer.size, time.monotonic() - started_s)
        # Earlier files are of no more use, and some may be corrupt.
        self.collect(manifest.number)
        return indexer, manifest

    def _resume(self, newest: Manifest, revision: int) -> tuple[Indexer, Step]:
        """Return the index that a manifest names, and the step from it to the registry's revision."""
        if newest.revision > revision:
            raise RegistryError(f"it is at revision {newest.revision}, the registry at {revision}")
        if revision - newest.snapshot_revision > REPLAYED_MAX:
            raise RegistryError(f"{revision - newest.snapshot_revision} changes since the last snapshot")
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
        """Whether snapshots are being built in the background; `catch_up` takes complete ones."""
        return self._build is not None

    def catch_up(self, revision: int) -> Manifest:
        """Return a manifest that covers a revision of the registry, writing one if there is none."""
        self._take_snapshots()
        while self.manifest.revision < revision:
            upto = min(revision, self.manifest.revision + CHANGES_BATCH_SIZE)
            changes = self._registry.changes(self.manifest.revision, upto)
            self.manifest = write_step(self._store, self._indexer.apply(changes, upto))
            self._alive()
        self._start_snapshots()
        return self.manifest

    def review_partitioning(self, searching: Mapping[str, Searching]) -> None:
        """Decide whether spaces are to be cut again; `catch_up` carries it out.

        Parameters
        ----------
        searching : mapping from space to Searching
            The last measurements of spaces with several slices.
        """
        if self._build is None:
            self._wanted = self._cuts.due(self._standing(searching), time.monotonic())

    def _standing(self, searching: Mapping[str, Searching]) -> dict[str, SpaceState]:
        found = {}
        for name, space in self.manifest.spaces.items():
            parts = [space.slices[number] for number in sorted(set(space.partitioning.originals))]
            snapshots = [self._store.path(part.snapshot.file) for part in parts if part.snapshot]
            rows, size_bytes = sum(part.size for part in parts), sum(map(_size_bytes, snapshots))
            found[name] = SpaceState(space.partitioning, rows, size_bytes, searching.get(name))
        return found

    def check(self, *, every_byte: bool = False) -> None:
        """Check that the index files exist and the manifest is unchanged; with `every_byte` verify the files.

        Raises
        ------
        IndexStoreError, IndexFileError, OSError
            A file is corrupt or was removed; a new writer rebuilds the index.
        """
        if self._store.newest() != self.manifest:
            raise IndexStoreError(f"manifest {self.manifest.number} is no longer the newest")
        for files in self.manifest.spaces.values():
            for name in files.files():
                if not self._store.path(name).is_file():
                    raise IndexStoreError(f"{self._store.path(name)} is missing")
            if every_byte:
                closings = {part.closings for part in files.slices}
                for name in files.files():
                    kind = Closings if name in closings else Part
                    kind.open(self._store.path(name), verify=True)
                    self._alive()

    def collect(self, keep_from: int) -> None:
        """Remove the manifests before a number, and files that only they need; a failure is only logged."""
        try:
            self._store.collect(keep_from)
        except (IndexStoreError, OSError) as error:
            _log.warning("old index files could not be removed; retrying later: %s", error)

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
        # Also after a failure: planning may be what failed, and a space can be matched with its present cut.
        wanted, self._wanted = self._wanted, {}
        rows = {name: each.rows for name, each in self._standing({}).items() if name in wanted}
        self._cuts.tried(rows, time.monotonic())
        if built is None:
            _log.error("building a snapshot failed: %s; retrying later", build.problem)
            self._build_again_s = time.monotonic() + RETRY_S
            return
        self._rebase(built, build.revision)
        build.close()

    def _rebase(self, built: Built, revision: int) -> None:
        """Switch to new snapshots; to spaces with a new cut, apply the changes since the build."""
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
        self.manifest = write_step(self._store, step, in_place)
        for name, cut in built.cuts.items():
            self.cut_number = self.manifest.number
            _log.info(
                "space %s is partitioned again: %d slices, %s", name, len(cut.slices), type(cut).__name__
            )

    def close(self) -> None:
        """Stop the background build, if there is one."""
        if self._build is not None:
            self._build.close()


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


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
