"""A database on a disk that is full: the error says so, and not that the disk failed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_OPEN_ALL = """
import gc, os, sys
from fieldfare.storage import open_delayed, open_event_log, open_registry
from fieldfare.storage.errors import DiskFullError

folder = sys.argv[1]
for free in (0, 4_096, 16_384, 40_000):
    for name, open_one in (("log", open_event_log), ("registry", open_registry), ("delayed", open_delayed)):
        for each in os.listdir(folder):
            os.unlink(os.path.join(folder, each))
        gc.collect()  # A file that is still open keeps its blocks.
        disk = os.statvfs(folder)
        with open(os.path.join(folder, "fill"), "wb") as file:
            file.write(bytes(disk.f_bavail * disk.f_frsize - free))
        try:
            open_one(f"sqlite:///{folder}/{name}.db")
        except DiskFullError as error:
            assert f"{folder}/{name}.db cannot be written, the disk is full" in str(error), error
        else:
            sys.exit(f"{name} was opened with {free} bytes")
"""
_OWN_MOUNTS = ("unshare", "--user", "--map-root-user", "--mount")


def _can_mount() -> bool:
    if shutil.which("unshare") is None or shutil.which("mount") is None:
        return False
    return not subprocess.run([*_OWN_MOUNTS, "true"], capture_output=True).returncode


@pytest.mark.long
@pytest.mark.skipif(not _can_mount(), reason="needs unshare, and mounts of its own")
def test_a_full_disk_is_reported_as_full_whatever_error_sqlite_raises(tmp_path: Path) -> None:
    """SQLite says "disk I/O error" where the index of a WAL finds no room."""
    mounted = 'mount -t tmpfs -o size=1m tmpfs "$1" && exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        [*_OWN_MOUNTS, "sh", "-c", mounted, "sh", str(tmp_path), sys.executable, _OPEN_ALL],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
