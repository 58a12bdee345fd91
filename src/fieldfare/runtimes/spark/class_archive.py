"""Spark's Java classes in an archive: read and checked once, and mapped into memory at every start.

Until a query runs, its Java process loads some ten thousand classes, which takes half of its start. Java can
write what it has loaded to a file when it ends, and begin with that file the next time. It does so only with
the Java and the jars that wrote it; with any other it starts as it does where there is no such file.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from fieldfare.files import temporary_path
from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.query import start_query
from fieldfare.runtimes.spark.session import CLASS_ARCHIVE, SparkSettings, service_session
from fieldfare.runtimes.spark.warmup import run_kernels_once, warm_workers
from fieldfare.storage import open_event_log, open_registry
from fieldfare.storage.folder import DataFolder

WRITTEN_WITHIN_S = 300.0


def write_class_archive(path: Path = CLASS_ARCHIVE) -> None:
    """Start Spark as the service does, run an empty query, and let Java write down what it has loaded.

    Raises
    ------
    OSError, RuntimeError
        There is no place for it, or this Java does not write archives.
    """
    # The archive names the jars, so they must be where they stay.
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    written = temporary_path(path)
    with tempfile.TemporaryDirectory(prefix="fieldfare-") as scratch:
        folder = DataFolder(Path(scratch))
        folder.make()
        open_event_log(folder.log_url).close()
        open_registry(folder.registry_url).close()
        session = service_session(
            SparkSettings(cores=1),
            folder.spark_scratch,
            java_options=[f"-XX:ArchiveClassesAtExit={written}", "-Xlog:disable"],
        )
        java: subprocess.Popen[bytes] = session.sparkContext._gateway.proc
        try:
            warm_workers(session, 1)
            start_query(session, folder, MicroBatchSettings(), until_end=True).awaitTermination()
        finally:
            session.stop()
            if java.stdin is not None:
                java.stdin.close()  # at its end it ends
            java.wait(WRITTEN_WITHIN_S)
    if not written.is_file():
        raise RuntimeError("this Java does not write archives of classes")
    written.rename(path)


if __name__ == "__main__":
    run_kernels_once()
    try:
        write_class_archive()
    except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
        print(f"Spark will start more slowly, without an archive of its classes: {error}", file=sys.stderr)
