"""Spark's Java classes in archives (class data sharing): loaded and verified once, mapped at every start.

Until a job runs, its Java process loads about ten thousand classes, which takes half of its start time.
Java can write the loaded classes to a file when it exits, and map that file at the next start. It does so
only with the Java and the jars that wrote it; otherwise it starts as it does without an archive.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from pyspark.sql import SparkSession

from fieldfare.files import remove_abandoned, sync_file, sync_folder, temporary_path
from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.compile_kernels import compile_kernels
from fieldfare.runtimes.spark.match_loop import MatchLoop
from fieldfare.runtimes.spark.range_jobs import RangeJobs
from fieldfare.runtimes.spark.session import (
    CLASS_ARCHIVES,
    PLAIN,
    QUERIES,
    SparkSettings,
    archive_name,
    end_java,
    link_home,
    service_context,
    standard_error_to,
)
from fieldfare.runtimes.spark.warmup import warm_workers
from fieldfare.storage import open_event_log, open_registry
from fieldfare.storage.folder import DataFolder

WRITTEN_WITHIN_S = 300.0
OUTPUT_SHOWN_CHARS = 2_000
"""Characters of Spark's output that are shown where it fails."""


def write_class_archives(archives: Path = CLASS_ARCHIVES) -> None:
    """Start Spark as the service does, run an empty job, and let Java archive its loaded classes.

    Then once more with a session and a query. Earlier archives are replaced.

    Raises
    ------
    OSError, RuntimeError
        There is no place for them, or this Java does not write archives.
    """
    archives.mkdir(parents=True, exist_ok=True)
    # The archives name the jars by these paths, which must exist whenever they are used.
    link_home(archives / "home")
    os.environ.setdefault("SPARK_HOME", str(archives / "home"))
    for older in archives.glob("*.jsa"):
        older.unlink(missing_ok=True)
    remove_abandoned(archives)
    # A process for each: Python keeps its Java process until the end.
    with ProcessPoolExecutor(2, get_context("spawn"), max_tasks_per_child=1) as pool:
        for written in [pool.submit(_write_class_archive, archives, kind) for kind in (PLAIN, QUERIES)]:
            written.result()


def _write_class_archive(archives: Path, kind: str) -> None:
    written = temporary_path(archives / f"{kind}.jsa")
    with (
        tempfile.TemporaryDirectory(dir=archives, prefix=".spark-") as scratch,
        standard_error_to(output := Path(scratch) / "output.log", 1),
    ):
        folder = DataFolder(Path(scratch))
        folder.make()
        open_event_log(folder.log_url).close()
        open_registry(folder.registry_url).close()
        context = service_context(
            SparkSettings(cores=1),
            folder.spark_scratch,
            java_options=[f"-XX:ArchiveClassesAtExit={written}", "-Xlog:disable"],
        )
        java: subprocess.Popen[bytes] = context._gateway.proc
        try:
            if kind == QUERIES:
                found = SparkSession(context).range(1).mapInArrow(lambda batches: batches, "id long")
                found.write.format("noop").mode("overwrite").save()
            warm_workers(context, 1)
            jobs = RangeJobs(context, folder, MicroBatchSettings())
            jobs.match([[]])
            MatchLoop(context, folder, MicroBatchSettings(), jobs, until_end=True).wait()
        finally:
            context.stop()
            end_java(java, WRITTEN_WITHIN_S)
        if java.returncode != 0 or not written.is_file():
            written.unlink(missing_ok=True)
            said = output.read_text(errors="replace")[-OUTPUT_SHOWN_CHARS:]
            raise RuntimeError(
                f"Java ended with status {java.returncode} and wrote no archive. {said}".strip()
            )
    sync_file(written)
    written.rename(archives / archive_name(kind, written.stat().st_size))
    sync_folder(archives)


if __name__ == "__main__":
    compile_kernels()
    try:
        write_class_archives()
    except Exception as error:  # an archive only saves time
        print(f"Spark will start more slowly, without an archive of its classes: {error}", file=sys.stderr)
