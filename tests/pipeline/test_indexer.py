"""The indexer's manifests, read back from what it wrote, index every space as it stood."""

from __future__ import annotations

from random import Random

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_library import each_library
from pipeline_support import SPACES, Change, History, payload_of, random_event, random_filter

from fieldfare.filters import compile_filter
from fieldfare.matching.index import Index
from fieldfare.matching.library import Library
from fieldfare.matching.part import Part, build_part
from fieldfare.matching.versions import Closings, IndexEntry
from fieldfare.model import OPEN_END
from fieldfare.pipeline.access_point import RECORDS
from fieldfare.pipeline.indexer import Indexer, Step, snapshot_revision
from fieldfare.pipeline.match_batch import match_batch

randoms = st.randoms(use_true_random=False)


class Files:
    """A store in memory, which keeps what the newest manifest names and nothing else."""

    def __init__(self) -> None:
        self.files: dict[str, Part | Closings] = {}

    def write(self, step: Step) -> None:
        for name, written in (*step.parts.items(), *step.closings.items()):
            assert name not in self.files, "a name was used twice"
            self.files[name] = written
        self.files = {name: self.files[name] for name in step.manifest.files()}

    def indexes(self, step: Step) -> dict[str, Index]:
        return {
            space: Index(
                [self.files[name] for name in (files.snapshot, *files.deltas) if name],
                self.files[files.closings] if files.closings else None,
            )
            for space, files in step.manifest.spaces.items()
        }


def snapshots_of(history: History, revision: int, floor: int, library: Library) -> dict[str, Part]:
    """What a background build makes of the versions known at a revision."""
    found: dict[str, list[IndexEntry]] = {}
    for v in history.versions:
        closed_by = v.closed_by if v.closed_by <= revision else OPEN_END
        if v.revision <= revision and closed_by > floor:
            form = compile_filter(v.filter).normal_form
            entry = IndexEntry(v.revision, v.number, v.revision, closed_by, form, v.filter, "sql")
            found.setdefault(v.space, []).append(entry)
    return {space: build_part(entries, library) for space, entries in found.items()}


def check(history: History, indexes: dict[str, Index], floor: int, random: Random) -> None:
    """Match an event of every stamp that may still come, in every space."""
    event = random_event(random)
    rows = [(stamp, space) for stamp in range(floor, history.revision + 1) for space in SPACES]
    batch = pa.record_batch(
        [
            pa.array(range(len(rows)), pa.int64()),
            pa.array([stamp for stamp, _ in rows]),
            pa.array([space for _, space in rows]),
            pa.array(np.ones(len(rows), np.int32)),
            pa.array([payload_of([event], random)] * len(rows), pa.large_binary()),
        ],
        schema=RECORDS,
    )
    expected = [history.expected(space, stamp, event) for stamp, space in rows]
    assert match_batch(batch, indexes).lists() == expected


@each_library
@settings(max_examples=40, deadline=None, derandomize=True)
@given(randoms)
def test_every_manifest_matches_like_a_replay_also_after_snapshots_and_restarts(
    library: Library, random: Random
) -> None:
    history, files, indexer = History(), Files(), Indexer(library=library)
    step: Step | None = None
    changes: list[Change] = []
    floor = 0
    for _ in range(random.randrange(2, 9)):
        for _ in range(random.randrange(5)):
            number = random.randrange(8)
            text = random_filter(random, 1) if random.random() < 0.7 else None
            changes.append(history.change(SPACES[number % 2], number, text))
        what = random.choice(["apply", "apply", "apply", "snapshot", "restart"])
        if what == "restart" and step is not None:
            snapshots = {
                space: files.files[found.snapshot]
                for space, found in step.manifest.spaces.items()
                if found.snapshot
            }
            indexer = Indexer(step.manifest, snapshots, library)
            assert indexer.revision == snapshot_revision(step.manifest)
        new = [change for change in changes if change.revision > indexer.revision]
        step = indexer.apply(new, history.revision)
        files.write(step)
        assert step.manifest.revision == history.revision
        check(history, files.indexes(step), floor, random)
        if what == "snapshot":
            floor = random.randint(floor, history.revision)
            revision = random.randint(snapshot_revision(step.manifest), history.revision)
            step = indexer.rebase(snapshots_of(history, revision, floor, library), revision)
            files.write(step)
            assert step.manifest.revision == history.revision
            check(history, files.indexes(step), floor, random)
