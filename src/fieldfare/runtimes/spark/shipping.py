"""Send the files of an index to every executor, once."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from weakref import WeakKeyDictionary

from pyspark import SparkFiles
from pyspark.sql import DataFrame, SparkSession

from fieldfare.pipeline.manifest import SpaceManifest
from fieldfare.runtimes.spark.saved_index import NAMES_FILE, SavedIndex
from fieldfare.runtimes.spark.worker_python import is_remote


@cache
def _shipping_folder() -> Path:
    """Return the folder of files that executors may still request; it exists as long as the driver.

    A forked child of the driver that ends does not remove it.
    """
    folder, driver = Path(tempfile.mkdtemp(prefix="fieldfare-shipping-")), os.getpid()

    def remove() -> None:
        if os.getpid() == driver:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


@dataclass(frozen=True, slots=True)
class ShippedIndex:
    """A saved index that every executor has.

    Attributes
    ----------
    name : str
        Identifies the files' content.
    space : SpaceManifest
        The slices in the files.
    """

    name: str
    space: SpaceManifest

    def path(self, file: str) -> Path:
        """Return the path of a file on an executor."""
        return Path(SparkFiles.get(f"{self.name}.{file}"))

    def open(self) -> SavedIndex:
        """Open the index in a task; a Python worker maps a slice once, on first use."""
        return _open(self)


@lru_cache(maxsize=4)
def _open(shipped: ShippedIndex) -> SavedIndex:
    return SavedIndex.open_files(shipped.space, shipped.path)


def ship_index(session: SparkSession, saved: SavedIndex, folder: Path) -> ShippedIndex:
    """Send the files of an index, which are in `folder`, to every executor."""
    files = {name: folder / name for name in (*sorted(saved.space.files()), NAMES_FILE)}
    digest = hashlib.sha256()
    for path in files.values():
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    shipped = ShippedIndex(f"fieldfare-{digest.hexdigest()[:24]}", saved.space)
    there = _shipped(session)
    for name, path in files.items():
        if f"{shipped.name}.{name}" not in there:
            copy = _shipping_folder() / f"{shipped.name}.{name}"
            if not copy.exists():
                shutil.copyfile(path, copy)
            if is_remote(session):
                session.addArtifacts(str(copy), file=True)
                there.add(copy.name)
            else:
                session.sparkContext.addFile(str(copy))
    return shipped


_artifacts: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()


_ISOLATION = "spark.sql.artifact.isolation.enabled"


def check_stream(events: DataFrame) -> None:
    """Raise ValueError if a stream's tasks would not have the files of its session.

    A Connect server runs a stream in a session of its own, and each session has its own files.
    """
    session = events.sparkSession
    if is_remote(session) and events.isStreaming and session.conf.get(_ISOLATION, "true") != "false":
        raise ValueError(
            "under Spark Connect a stream does not see the files of its session: before the first match call"
            f" spark.conf.set({_ISOLATION!r}, 'false')"
        )


def _shipped(session: SparkSession) -> set[str]:
    """Return the names of files that a session's executors have; a Connect server does not list them."""
    if is_remote(session):
        return _artifacts.setdefault(session, set())
    return {Path(path).name for path in session.sparkContext.listFiles}
