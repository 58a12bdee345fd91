"""Files left behind by killed writers are found and removed, and no others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fieldfare.files import remove_abandoned, temporary_path, write_file
from fieldfare.pipeline.manifest import Manifest
from fieldfare.storage.files.index_store import FileIndexStore

KILLED = """
import os, signal, sys
from pathlib import Path
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
path = Path(sys.argv[1])
if sys.argv[2] == "part":
    from fieldfare.matching.part import build_part
    build_part([]).save(path)
elif sys.argv[2] == "closings":
    from fieldfare.matching.versions import Closings
    Closings().save(path)
else:
    from fieldfare.files import write_file
    write_file(path, lambda file: file.write(b"x"))
"""


@pytest.mark.parametrize("kind", ["part", "closings", "file"])
def test_index_files_of_a_killed_writer_are_removed(tmp_path: Path, kind: str) -> None:
    """Each kill of the planning process left a part as large as the index: the disk filled up in the end."""
    store = FileIndexStore(tmp_path)
    store.write_manifest(Manifest(1, 0, {}))
    path = store.path("a-part")
    path.parent.mkdir(exist_ok=True)
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path), kind])
    assert ended.returncode == -signal.SIGKILL
    assert len(list(path.parent.iterdir())) == 1 and not path.exists()
    store.collect(1)
    assert list(path.parent.iterdir()) == []


def test_what_older_versions_left_is_removed_too(tmp_path: Path) -> None:
    store = FileIndexStore(tmp_path)
    store.write_manifest(Manifest(1, 0, {}))
    path = store.path("a-part")
    path.parent.mkdir(exist_ok=True)
    path.with_name("a-part.4711.tmp").write_bytes(b"x")
    store.collect(1)
    assert list(path.parent.iterdir()) == []


def test_a_file_that_is_being_written_stays_however_old_the_clock_says_it_is(tmp_path: Path) -> None:
    """A clock that jumped by a day must not take a snapshot from under its writer."""
    mine = temporary_path(tmp_path / "file")
    mine.write_bytes(b"x")
    os.utime(mine, (0, 0))
    write_file(tmp_path / "other", lambda file: file.write(b"y"))
    remove_abandoned(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([mine.name, "other"])
