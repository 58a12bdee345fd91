"""Index a data directory for tests: once, or continuously in an indexer process."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from fieldfare.pipeline.manifest import Manifest
from fieldfare.planning.cuts import CutSettings
from fieldfare.runtimes.indexer.index_writer import IndexWriter
from fieldfare.storage import open_index_store, open_registry
from fieldfare.storage.folder import DataFolder


def bring_index_up_to_date(
    folder: DataFolder, cuts: CutSettings | None = None, *, cut: bool = True
) -> Manifest:
    """Index everything that is registered, as the indexer does at startup, and cut spaces as `cuts` says."""
    with closing(open_registry(folder.registry_url)) as registry:
        writer = IndexWriter(folder, registry, open_index_store(folder.index_url), lambda: 0, cuts=cuts)
        with closing(writer):
            if cuts is not None and cut:
                writer.review_partitioning({})
                writer.catch_up(registry.revision())
                while writer.is_building:
                    time.sleep(0.05)
                    writer.catch_up(registry.revision())
            return writer.catch_up(registry.revision())


@contextmanager
def indexer(folder: DataFolder) -> Iterator[subprocess.Popen[bytes]]:
    """A process that follows the registry until the context ends."""
    folder.make()
    command = [sys.executable, "-m", "fieldfare.runtimes.indexer", "--data", str(folder.root)]
    with folder.log_of("indexer").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
