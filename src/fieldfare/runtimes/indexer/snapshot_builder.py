"""Build the snapshots of all spaces, directly or in a background process.

``python -m fieldfare.runtimes.indexer.snapshot_builder`` is that process. It runs with low priority, exits
when the process that started it does, and prints one JSON object: the files of each space's slices, and the
new cuts of spaces that were to be cut again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from fieldfare.matching.index import entry_of
from fieldfare.matching.part import ENTRIES_BATCH_SIZE, Part
from fieldfare.matching.versions import IndexEntry
from fieldfare.partitioning import ONE_SLICE, Partitioning
from fieldfare.partitioning.encoding import EncodedPartitioning, decoded_partitioning, encoded_partitioning
from fieldfare.pipeline.placing import SlicesBuilder
from fieldfare.planning.cuts import Cut
from fieldfare.runtimes.indexer.planning import plan_cuts
from fieldfare.storage import open_event_log, open_index_store, open_registry
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.quarantine import Quarantine
from fieldfare.storage.registry import SubscriptionHistory

NICENESS = 10
_SCRATCH = "snapshot-"


def build_snapshots(
    registry: SubscriptionHistory,
    revision: int,
    floor: int,
    cut_of: Callable[[str], Partitioning] = lambda space: ONE_SLICE,
    alive: Callable[[], object] = lambda: None,
) -> dict[str, list[Part]]:
    """Build a part for each slice of each space, of the versions at a revision valid from stamp `floor` on.

    Parameters
    ----------
    cut_of : callable
        Returns a space's cut.
    alive : callable
        Called repeatedly meanwhile.
    """
    builders: dict[str, SlicesBuilder] = {}
    versions = registry.versions(revision, floor)
    while page := list(islice(versions, ENTRIES_BATCH_SIZE)):
        by_space: dict[str, list[IndexEntry]] = {}
        for version in page:
            by_space.setdefault(version.space, []).append(entry_of(version))
        for space, entries in by_space.items():
            if space not in builders:
                builders[space] = SlicesBuilder(cut_of(space))
            builders[space].add(entries)
            alive()
    parts = {}
    for space in list(builders):
        parts[space] = builders.pop(space).finish()
        alive()
    return parts


class Built(NamedTuple):
    """The result of a build: the files of each space's slices, and the cuts of spaces with a new cut."""

    files: Mapping[str, list[Path]]
    cuts: Mapping[str, Partitioning]

    @classmethod
    def decoded(cls, said: bytes) -> Self:
        """Decode the output of `build_files`."""
        result = msgspec.json.decode(said, type=_Result)
        return cls(
            {space: [Path(path) for path in paths] for space, paths in result.files.items()},
            {space: decoded_partitioning(cut) for space, cut in result.cuts.items()},
        )


class _Result(msgspec.Struct):
    files: dict[str, list[str]]
    cuts: dict[str, EncodedPartitioning]


class SnapshotBuild:
    """A build that runs in a process of its own."""

    def __init__(self, process: subprocess.Popen[bytes], scratch: Path, revision: int) -> None:
        self._process = process
        self._scratch = scratch
        self.started_s = time.monotonic()
        self.revision = revision
        self.problem = ""

    @classmethod
    def start(cls, folder: DataFolder, revision: int, floor: int, wanted: Mapping[str, Cut]) -> Self:
        """Start building all spaces' snapshots at a revision; spaces in `wanted` are cut again."""
        scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH, dir=folder.run))
        command = [
            sys.executable, "-m", "fieldfare.runtimes.indexer.snapshot_builder", "--data", str(folder.root),
            "--revision", str(revision), "--floor", str(floor), "--out", str(scratch),
            "--cut", msgspec.json.encode(wanted).decode(),
        ]  # fmt: skip
        with (
            (scratch / "result.json").open("wb") as result,
            (scratch / "problems.txt").open("wb") as problems,
        ):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=result, stderr=problems)
        return cls(process, scratch, revision)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def result(self) -> Built | None:
        """Wait for the end and return the result; None if it failed: then `problem` has the reason."""
        if self._process.wait() != 0:
            lines = (self._scratch / "problems.txt").read_text(errors="replace").strip().splitlines()
            status = f"exit status {self._process.returncode}"
            self.problem = f"{lines[-1].strip()} ({status})" if lines else status
            self.close()
            return None
        return Built.decoded((self._scratch / "result.json").read_bytes())

    def kill(self) -> None:
        """Kill the process if it still runs, which makes the build a failure."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Kill the process if it still runs, and remove its files."""
        self.kill()
        if self._process.stdin is not None:
            self._process.stdin.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def remove_leftovers(folder: DataFolder) -> None:
    """Remove the files of builds whose process was killed; no build may be running."""
    for scratch in folder.run.glob(f"{_SCRATCH}*"):
        shutil.rmtree(scratch, ignore_errors=True)


def build_files(folder: DataFolder, revision: int, floor: int, wanted: Mapping[str, Cut], out: Path) -> bytes:
    """Plan cuts for `wanted` spaces, and build all snapshots into a folder; return JSON for `Built`."""
    registry = open_registry(folder.registry_url)
    newest = open_index_store(folder.index_url).newest()
    spaces = newest.spaces if newest else {}
    cuts: dict[str, Partitioning] = {}

    def cut_of(space: str) -> Partitioning:
        return cuts.get(space) or (spaces[space].partitioning if space in spaces else ONE_SLICE)

    if wanted:
        log, quarantine = open_event_log(folder.log_url), Quarantine(folder.quarantine)
        planned = plan_cuts(registry, log, quarantine, revision, floor, wanted, cut_of)
        cuts |= {space: cut for space, cut in planned.items() if cut != cut_of(space)}
    built = build_snapshots(registry, revision, floor, cut_of)
    files: dict[str, list[str]] = {}
    for place, (space, parts) in enumerate(built.items()):
        paths = {id(part): out / f"{place}-{number}.part" for number, part in enumerate(parts)}
        for part in {id(part): part for part in parts}.values():
            part.save(paths[id(part)])
        files[space] = [str(paths[id(part)]) for part in parts]
    encoded = {space: encoded_partitioning(cut) for space, cut in cuts.items()}
    return msgspec.json.encode(_Result(files, encoded))


def _end_with_parent() -> None:
    """End this process when the one that holds the other end of its standard input exits."""
    # Unbuffered: a thread that waits inside a buffered file aborts the interpreter at its exit.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(1)


def main() -> int:
    """Run the background process."""
    parser = argparse.ArgumentParser(description="Build the snapshots of all spaces.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--revision", type=int, required=True)
    parser.add_argument("--floor", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cut", default="{}", help="spaces to be cut again, as JSON")
    options = parser.parse_args()
    os.nice(NICENESS)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    wanted = msgspec.json.decode(options.cut, type=dict[str, Cut])
    folder = DataFolder.at(options.data)
    print(build_files(folder, options.revision, options.floor, wanted, options.out).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
