"""The indexer's manifests, read back from the files written, index the correct versions of every space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import numpy as np
import pyarrow as pa
import pytest
from encrypted_library import as_sent, drawn_for, every_library
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_support import (
    SPACES,
    History,
    payload_of,
    random_event,
    random_filter,
    random_partitioning,
)
from tests.doses import drawn

from fieldfare.matching.index import Index
from fieldfare.matching.libraries import PLAIN
from fieldfare.matching.library import Library
from fieldfare.matching.part import Part
from fieldfare.matching.versions import Closings, IndexEntry
from fieldfare.model import OPEN_END, Change
from fieldfare.partitioning import ONE_SLICE, HashPartitioning, Partitioning, Replicated
from fieldfare.pipeline.access_point import RECORDS
from fieldfare.pipeline.indexer import Indexer, Step
from fieldfare.pipeline.manifest import SliceManifest, decode_manifest, encode_manifest
from fieldfare.pipeline.match_batch import match_batch
from fieldfare.pipeline.placing import SlicesBuilder
from fieldfare.pipeline.slices import Searched, Slices

randoms = st.randoms(use_true_random=False)


class Files:
    """An in-memory store that keeps only the files named by the newest manifest."""

    def __init__(self) -> None:
        self.files: dict[str, Part | Closings] = {}

    def write(self, step: Step) -> None:
        for name, written in (*step.parts.items(), *step.closings.items()):
            assert name not in self.files, "a name was used twice"
            self.files[name] = written
        self.files = {name: self.files[name] for name in step.manifest.files()}

    def indexes(self, step: Step) -> dict[str, Slices]:
        """Open the index of each space from the manifest after an encoding round trip."""
        manifest = decode_manifest(encode_manifest(step.manifest))
        assert manifest == step.manifest
        return {space: Slices(files, self._open) for space, files in manifest.spaces.items()}

    def _open(self, files: SliceManifest) -> Index:
        parts = [self.files[name] for name in files.parts]
        assert files.size == sum(part.size for part in parts)
        return Index(parts, self.files[files.closings] if files.closings else None)


def snapshots_of(
    history: History, revision: int, floor: int, library: Library, cut: Mapping[str, Partitioning]
) -> dict[str, list[Part]]:
    """The parts that a background build makes of the versions known at a revision."""
    found: dict[str, list[IndexEntry]] = {}
    for v in history.versions:
        closed_by = v.closed_by if v.closed_by <= revision else OPEN_END
        if v.revision <= revision and closed_by > floor:
            form = library.compile(v.filter, "sql")
            entry = IndexEntry(v.revision, v.number, v.revision, closed_by, form, v.filter, "sql")
            found.setdefault(v.space, []).append(entry)
    builders = {space: SlicesBuilder(cut.get(space, ONE_SLICE), library) for space in found}
    for space, builder in builders.items():
        builder.add(found[space])
    return {space: builder.finish() for space, builder in builders.items()}


def check(
    history: History,
    indexes: Mapping[str, Searched],
    floor: int,
    random: Random,
    library: Library = PLAIN,
) -> None:
    """Match an event of every stamp that may still occur, in every space."""
    event = drawn_for(library, lambda: random_event(random))
    payload = as_sent(library, payload_of([event], random))
    rows = [(stamp, space) for stamp in range(floor, history.revision + 1) for space in SPACES]
    batch = pa.record_batch(
        [
            pa.array(range(len(rows)), pa.int64()),
            pa.array([stamp for stamp, _ in rows]),
            pa.array([space for _, space in rows]),
            pa.array(np.ones(len(rows), np.int32)),
            pa.array([payload] * len(rows), pa.large_binary()),
        ],
        schema=RECORDS,
    )
    expected = [history.expected(space, stamp, event) for stamp, space in rows]
    assert match_batch(batch, indexes).lists() == expected


def live(
    library: Library,
    random: Random,
    cut: Mapping[str, Partitioning],
    random_cut: Callable[[Random], Partitioning] = random_partitioning,
) -> None:
    """Apply changes, snapshots and restarts in any order: every manifest matches like a replay of the
    changes."""
    history, files, indexer = History(), Files(), Indexer(library=library)
    step: Step | None = None
    if cut:
        step = indexer.rebase({}, 0, cut)
        files.write(step)
    changes: list[Change] = []
    floor = 0
    for _ in range(random.randrange(2, 9)):
        for _ in range(random.randrange(5)):
            number = random.randrange(8)
            text = drawn_for(library, lambda: random_filter(random, 1)) if random.random() < 0.7 else None
            changes.append(history.change(SPACES[number % 2], number, text))
        what = random.choice(["apply", "apply", "apply", "snapshot", "restart", *(["recut"] if cut else [])])
        if what == "restart" and step is not None:
            snapshots = {
                space: [files.files[part.snapshot.file] if part.snapshot else None for part in found.slices]
                for space, found in step.manifest.spaces.items()
            }
            indexer = Indexer(step.manifest, snapshots, library)
            assert indexer.revision == step.manifest.snapshot_revision
        new = [change for change in changes if change.revision > indexer.revision]
        step = indexer.apply(new, history.revision)
        files.write(step)
        assert step.manifest.revision == history.revision
        check(history, files.indexes(step), floor, random, library)
        if what in ("snapshot", "recut"):
            floor = random.randint(floor, history.revision)
            revision = random.randint(step.manifest.snapshot_revision, history.revision)
            recut = {space: random_cut(random) for space in cut if what == "recut"}
            cut = {**cut, **recut}
            later = [change for change in changes if change.revision > revision]
            step = indexer.rebase(
                snapshots_of(history, revision, floor, library, cut), revision, recut, later
            )
            files.write(step)
            assert step.manifest.revision == history.revision
            assert step.manifest.snapshot_revision == (revision if step.manifest.spaces else 0)
            check(history, files.indexes(step), floor, random, library)
    if step is not None:
        for space, found in step.manifest.spaces.items():
            assert found.partitioning == cut.get(space, ONE_SLICE)


@every_library
@settings(max_examples=drawn(40))
@given(randoms)
def test_every_manifest_matches_like_a_replay(library: Library, random: Random) -> None:
    live(library, random, {})


@settings(max_examples=drawn(60))
@given(randoms)
def test_every_manifest_matches_like_a_replay_for_any_partitioning(random: Random) -> None:
    live(PLAIN, random, {SPACES[0]: random_partitioning(random)})


@every_library
@settings(max_examples=drawn(20))
@given(randoms, st.sampled_from([HashPartitioning(2, 3), Replicated(3)]))
def test_partitionings_without_attributes_accept_filters_of_any_library(
    library: Library, random: Random, partitioning: Partitioning
) -> None:
    live(
        library,
        random,
        dict.fromkeys(SPACES, partitioning),
        lambda random: HashPartitioning(2, 1 + random.randrange(4)),
    )


@settings(max_examples=drawn(40))
@given(randoms)
def test_repartitioning_requires_all_later_changes(random: Random) -> None:
    history, files, indexer = History(), Files(), Indexer()
    for _ in range(12):
        history.change(SPACES[0], random.randrange(8), random_filter(random, 1))
    changes = [
        Change(v.revision, v.space, v.number, v.filter, "sql", PLAIN.compile(v.filter, "sql"))
        for v in history.versions
    ]
    files.write(indexer.apply(changes, 12))
    for _ in range(2):
        cut = {SPACES[0]: random_partitioning(random)}
        for known in ([], changes[10:11]):
            with pytest.raises(ValueError, match="alpha has changed since revision 10"):
                indexer.rebase(snapshots_of(history, 10, 0, PLAIN, cut), 10, cut, known)
        step = indexer.rebase(snapshots_of(history, 10, 0, PLAIN, cut), 10, cut, changes[10:])
        files.write(step)
        assert step.manifest.spaces[SPACES[0]].partitioning == cut[SPACES[0]]
        check(history, files.indexes(step), 0, random)


def test_a_new_space_gets_the_partitioning_of_new_cut() -> None:
    indexer = Indexer(new_cut=lambda space: HashPartitioning(3) if space == SPACES[1] else ONE_SLICE)
    history = History()
    changes = [history.change(SPACES[n % 2], n, "data.x > 1") for n in range(20)]
    manifest = indexer.apply(changes, 20).manifest
    assert [manifest.spaces[space].partitioning for space in SPACES] == [ONE_SLICE, HashPartitioning(3)]
    assert manifest.matchers == 3
    assert sum(part.size for part in manifest.spaces[SPACES[1]].slices) == 10
