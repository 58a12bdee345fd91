"""Giving every executor the files of an index, once."""

from __future__ import annotations

import hashlib
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
def _shipping_folder() -> tempfile.TemporaryDirectory[str]:
    """Where the files lie that executors may still ask the driver for: it stays as long as the driver."""
    return tempfile.TemporaryDirectory(prefix="fieldfare-shipping-")


@dataclass(frozen=True, slots=True)
class ShippedIndex:
    """A saved index that every executor has.

    Attributes
    ----------
    name : str
        It says what is in the files.
    space : SpaceManifest
        The slices that they are of.
    """

    name: str
    space: SpaceManifest

    def path(self, file: str) -> Path:
        """Where an executor has a file."""
        return Path(SparkFiles.get(f"{self.name}.{file}"))

    def open(self) -> SavedIndex:
        """The index, in a task; a Python worker maps a slice once, when it first needs it."""
        return _open(self)


@lru_cache(maxsize=4)
def _open(shipped: ShippedIndex) -> SavedIndex:
    return SavedIndex.open_files(shipped.space, shipped.path)


def ship_index(session: SparkSession, saved: SavedIndex, folder: Path) -> ShippedIndex:
    """Give every executor the files of an index, which lie in a folder."""
    files = {name: folder / name for name in (*sorted(saved.space.files()), NAMES_FILE)}
    digest = hashlib.sha256()
    for path in files.values():
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    shipped = ShippedIndex(f"fieldfare-{digest.hexdigest()[:24]}", saved.space)
    there = _shipped(session)
    for name, path in files.items():
        if f"{shipped.name}.{name}" not in there:
            copy = Path(_shipping_folder().name) / f"{shipped.name}.{name}"
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
    """ValueError where a stream's tasks would not have the files of its session.

    A Connect server runs a stream in a session of its own, and each session's files are its own, too.
    """
    session = events.sparkSession
    if is_remote(session) and events.isStreaming and session.conf.get(_ISOLATION, "true") != "false":
        raise ValueError(
            "under Spark Connect a stream does not see the files of its session: before the first match call"
            f" spark.conf.set({_ISOLATION!r}, 'false')"
        )


def _shipped(session: SparkSession) -> set[str]:
    """The names of the files that a session's executors have; a Connect server does not list them."""
    if is_remote(session):
        return _artifacts.setdefault(session, set())
    return {Path(path).name for path in session.sparkContext.listFiles}
