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

from fieldfare.files import remove_abandoned, sync_folder, temporary_path
from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.query import start_query
from fieldfare.runtimes.spark.session import CLASS_ARCHIVES, SparkSettings, archive_name, service_session
from fieldfare.runtimes.spark.warmup import run_kernels_once, warm_workers
from fieldfare.storage import open_event_log, open_registry
from fieldfare.storage.folder import DataFolder

WRITTEN_WITHIN_S = 300.0


def write_class_archive(archives: Path = CLASS_ARCHIVES) -> None:
    """Start Spark as the service does, run an empty query, and let Java write down what it has loaded.

    What was written before is replaced.

    Raises
    ------
    OSError, RuntimeError
        There is no place for it, or this Java does not write archives.
    """
    # The archive names the jars, so they must be where they stay.
    os.environ.setdefault("SPARK_HOME", str(Path(pyspark.__file__).parent))
    archives.mkdir(parents=True, exist_ok=True)
    for older in archives.glob("*.jsa"):
        older.unlink(missing_ok=True)
    remove_abandoned(archives)
    written = temporary_path(archives / "spark.jsa")
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
            status = java.wait(WRITTEN_WITHIN_S)
    if status != 0 or not written.is_file():
        written.unlink(missing_ok=True)
        raise RuntimeError(f"Java ended with status {status} and wrote no archive")
    with written.open("rb") as file:
        os.fsync(file.fileno())
    written.rename(archives / archive_name(written.stat().st_size))
    sync_folder(archives)


def compile_kernels() -> None:
    """Run all kernels once, so that they are compiled and kept.

    numba compiles on one core. A process of its own begins with what this one needs last, and will only load.
    """
    ahead = (
        "from fieldfare.runtimes.spark import warmup\n"
        "warmup.run_independent_kernels_once()\nwarmup.run_seldom_kernels_once()"
    )
    with subprocess.Popen([sys.executable, "-c", ahead]):
        run_kernels_once()


if __name__ == "__main__":
    compile_kernels()
    try:
        write_class_archive()
    except Exception as error:  # whatever it is: it only saves time
        print(f"Spark will start more slowly, without an archive of its classes: {error}", file=sys.stderr)
