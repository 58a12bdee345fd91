"""The archive of everything that a cluster's workers need beyond Python and Spark, which unpacks it there.

It holds this package and the packages that its tasks import, as installed here: built for this system and
this minor version of Python, which the workers must have. Kernels compiled here are included, so a worker
with the same kind of CPU compiles none. An archive is written once for its content, and kept.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import fieldfare
from fieldfare.files import remove_abandoned, sync_folder, temporary_file

DISTRIBUTIONS = (
    *("msgspec", "numpy", "numba", "llvmlite", "pyarrow", "crc32c"),
    *("confluent-kafka", "hdfs-native", "typing-extensions"),
)
"""Distribution names of the packages that tasks import; those for Kafka and HDFS only if installed."""

_LEFT_OUT = ("/tests/", "/include/", "/pyarrow/src/", "/libarrow_flight.", "/_flight.")
"""Path parts left out of these packages: files for building and testing, and 30 MB that are never loaded."""

_KEPT = 4
"""Archives that are kept, including those of other versions, which other services may use."""


def write_worker_archive(folder: Path) -> Path:
    """Return the path of the archive, writing it to a folder if it is not there.

    Raises
    ------
    OSError
        There is no place for it.
    """
    files = dict(_package_files())
    for name in DISTRIBUTIONS:
        files.update(_distribution_files(name))
    path = folder / f"workers-{_digest(files)}.tar.gz"
    if path.exists():
        os.utime(path)
        return path
    folder.mkdir(parents=True, exist_ok=True)
    remove_abandoned(folder)
    with temporary_file(path) as temporary:
        # Unpacking takes the same time at any level; writing takes at most ten seconds at this one.
        with tarfile.open(temporary, "w:gz", compresslevel=1) as archive:
            for name, file in sorted(files.items()):
                # A kernel compiled meanwhile replaces a file of the list: then the new file is archived.
                with suppress(FileNotFoundError), file.open("rb") as opened:
                    archive.addfile(_described(name, os.fstat(opened.fileno())), opened)
        os.rename(temporary, path)
    sync_folder(folder)
    older = sorted(folder.glob("workers-*.tar.gz"), key=lambda each: each.stat().st_mtime, reverse=True)
    for each in older[_KEPT:]:
        each.unlink(missing_ok=True)
    return path


def _package_files() -> Iterator[tuple[str, Path]]:
    root = Path(fieldfare.__file__).parent
    for path in root.rglob("*"):
        if path.is_file() and not path.name.startswith(".") and not path.name.endswith(".tmp"):
            yield f"fieldfare/{path.relative_to(root)}", path


def _distribution_files(name: str) -> Iterator[tuple[str, Path]]:
    try:
        files = distribution(name).files or ()
    except PackageNotFoundError:
        return
    for each in files:
        path = Path(str(each.locate()))
        if ".." not in each.parts and path.is_file() and not any(part in f"/{each}" for part in _LEFT_OUT):
            yield str(each), path


def _described(name: str, found: os.stat_result) -> tarfile.TarInfo:
    described = tarfile.TarInfo(name)
    described.size = found.st_size
    described.mode = 0o644
    # To the nanosecond: a compiled kernel is valid only for the exact file that it was compiled from.
    described.pax_headers = {"mtime": f"{found.st_mtime_ns // 10**9}.{found.st_mtime_ns % 10**9:09d}"}
    return described


def _digest(files: dict[str, Path]) -> str:
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        found = path.stat()
        digest.update(f"{name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:24]
