"""Giving every executor the files of an index, once."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pyspark import SparkFiles
from pyspark.sql import SparkSession


@cache
def _shipping_folder() -> tempfile.TemporaryDirectory[str]:
    """Where the files lie that executors may still ask the driver for: it stays as long as the driver."""
    return tempfile.TemporaryDirectory(prefix="fieldfare-shipping-")


def ship_files(session: SparkSession, files: Sequence[Path]) -> str:
    """Give every executor some files, under a name that says what is in them."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    shipped = f"fieldfare-{digest.hexdigest()[:24]}"
    context = session.sparkContext
    there = {Path(path).name for path in context.listFiles}
    for path in files:
        if f"{shipped}.{path.name}" not in there:
            copy = Path(_shipping_folder().name) / f"{shipped}.{path.name}"
            if not copy.exists():
                shutil.copyfile(path, copy)
            context.addFile(str(copy))
    return shipped


def shipped_file(shipped: str, name: str) -> Path:
    """Where an executor has a file that was shipped."""
    return Path(SparkFiles.get(f"{shipped}.{name}"))
