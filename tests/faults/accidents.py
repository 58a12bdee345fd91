"""What happens to a service: killed and frozen processes, disks that are full or lose what was not synced."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from service_support import MARKS, RunningService, is_running, until

HOOKS = Path(__file__).parent / "hooks"
MIB = 1 << 20


def present(service: RunningService, kind: str) -> list[int]:
    """The processes of a kind that there are at this moment."""
    found = service.processes(MARKS[kind])
    return found[:1] if kind in ("gateway", "driver", "indexer", "java") else found


def victims_of(service: RunningService, kind: str) -> list[int]:
    """The processes that a kind of accident befalls, as soon as there are such."""
    if kind == "both":
        return [*victims_of(service, "driver"), *victims_of(service, "gateway")]
    return until(lambda: present(service, kind), why=f"(there is a {kind} to strike)")


def kill(pids: list[int]) -> set[int]:
    """``kill -9``, and wait until they have ended; gives those that ran until then."""
    ran = {pid for pid in pids if is_running(pid)}
    for pid in pids:
        with suppress(ProcessLookupError):  # it went with its parent
            os.kill(pid, signal.SIGKILL)
    until(lambda: not any(map(is_running, pids)))
    return ran


def readiness(service: RunningService) -> dict[str, str] | None:
    """What keeps the service from being ready; nothing when it is, None when nobody answers."""
    try:
        answer = httpx.get(f"{service.url}/readyz", timeout=10)  # the gateway itself may wait for 2 s
    except httpx.TransportError:
        return None
    return {name: state for name, state in answer.json()["checks"].items() if state != "ready"}


@contextmanager
def frozen(pids: list[int]) -> Iterator[None]:
    """Processes that hang; whichever is left in the end goes on."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _mounted(*command: str, at: Path) -> None:
    at.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", *command, str(at)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a file system of its own needs root and mount: {done.stderr.strip()}")


def _unmount(at: Path) -> None:
    # A process that was just killed may hold a file for a moment yet.
    until(
        lambda: subprocess.run(["umount", str(at)], capture_output=True).returncode == 0, 20, f"(umount {at})"
    )


@contextmanager
def small_disk(at: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of its own that is soon full."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a file system of its own needs root and mount")
    _mounted("-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", at=at)
    try:
        yield at
    finally:
        _unmount(at)


def fill(folder: Path, *, leave_bytes: int = 0) -> Path:
    """Fill the file system of a folder with one file; remove that to free it again."""
    ballast = folder / "ballast"
    size_bytes = max(0, shutil.disk_usage(folder).free - leave_bytes)
    with ballast.open("wb", buffering=0) as file:
        with suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, size_bytes)
        file.seek(0, os.SEEK_END)
        with suppress(OSError):
            while not leave_bytes:  # Others write meanwhile: until not one more page is to be had.
                file.write(b"\0" * 4096)
    return ballast


class LossyDisk:
    """A disk in a file, mounted as ext4; its power can fail.

    The file holds at any moment what the kernel has written to the disk: all that was synced, and of the rest
    what it came to. A copy of the file, mounted, is what a machine finds when its power is back.
    """

    def __init__(self, folder: Path, size_bytes: int = 400 * MIB) -> None:
        if os.geteuid() != 0 or not all(map(shutil.which, ("mount", "mkfs.ext4"))):
            pytest.skip("a disk whose power fails needs root, mount and mkfs.ext4")
        self._folder = folder
        self._image = folder / "disk-0.img"
        self._failures = 0
        with self._image.open("wb") as file:
            file.truncate(size_bytes)
        subprocess.run(["mkfs.ext4", "-q", str(self._image)], check=True)
        self.at = folder / "mounted-0"
        _mounted("-o", "loop", str(self._image), at=self.at)

    def fail(self) -> Path:
        """The power fails now; gives where the same disk is mounted afterwards.

        Whoever writes at this moment must be killed after it, and before the old place is unmounted.
        """
        self._failures += 1
        image = self._folder / f"disk-{self._failures}.img"
        subprocess.run(["cp", "--sparse=always", str(self._image), str(image)], check=True)
        self._image, self._old = image, self.at
        self.at = self._folder / f"mounted-{self._failures}"
        _mounted("-o", "loop", str(image), at=self.at)
        return self.at

    def drop_old(self) -> None:
        """Unmount what was before the last failure."""
        _unmount(self._old)

    def close(self) -> None:
        _unmount(self.at)


@contextmanager
def lossy_disk(folder: Path, size_bytes: int = 400 * MIB) -> Iterator[LossyDisk]:
    disk = LossyDisk(folder, size_bytes)
    try:
        yield disk
    finally:
        disk.close()


def newest(folder: Path, count: int = 1) -> list[Path]:
    """The files of a folder and those below that were changed last."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(files, key=lambda path: path.stat().st_mtime_ns)[-count:]


def empty(paths: list[Path]) -> None:
    """What is left of files that were renamed into place and never synced."""
    for path in paths:
        path.write_bytes(b"")


def tear(paths: list[Path]) -> None:
    """Files of which only the first half came to the disk."""
    for path in paths:
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2])
