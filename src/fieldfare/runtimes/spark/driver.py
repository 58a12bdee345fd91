"""The pipeline's process: ``python -m fieldfare.runtimes.spark.driver --data DIR``.

It runs the streaming query over one data directory until SIGTERM (exit status 0) or until the query
fails (1, with the reason in the last line of its log). Every second it writes ``run/pipeline.json``::

    {"pid": 4711, "state": "running", "time_ms": 1763718000000,
     "offset": 340, "revision": 12, "manifest": 9, "snapshot_revision": 7}

`state` is starting, running, stopping, stopped or failed; `offset` is what the query has committed (null
until the first batch after a start), `revision` and `manifest` those that its last batch was matched with,
and `snapshot_revision` that of the manifest's snapshots: nothing that the registry remembers of offsets
before `offset` and revisions up to `snapshot_revision` is needed any more, not even after a crash.
It can be killed at any moment; the next one goes on from the checkpoint. What Spark itself and its Python
workers have to say is in ``logs/spark.log``.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from fieldfare.pipeline.indexer import snapshot_revision
from fieldfare.runtimes.spark.folder import DataFolder
from fieldfare.runtimes.spark.locks import FileLock, LockTimeoutError, end_process_of
from fieldfare.runtimes.spark.query import reason, start_query
from fieldfare.runtimes.spark.session import SparkSettings, service_session, standard_error_to
from fieldfare.runtimes.spark.source import BatchSettings
from fieldfare.runtimes.spark.warmup import WarmKeeper, warm_workers
from fieldfare.storage import IndexStore
from fieldfare.storage.errors import IndexStoreError

HEARTBEAT_S = 1.0
LOOK_S = 0.1
PREDECESSOR_WAIT_S = 10.0
_READY_MESSAGES = ("Waiting for data to arrive", "Processing new data")
"""What Spark says a query is doing once its source answers."""

_log = logging.getLogger("fieldfare.pipeline")


class Heartbeat:
    """Writes what the pipeline is doing to a file, for the gateway and whoever watches."""

    def __init__(self, folder: DataFolder) -> None:
        self._path = folder.heartbeat
        self._store = IndexStore(folder.index)
        self._due_s = 0.0
        self._beat: dict[str, Any] = dict.fromkeys(("offset", "revision", "manifest", "snapshot_revision"))

    def beat(self, state: str, committed: Mapping[str, int] | None = None) -> None:
        """Write the file now; `committed` is the source's offset up to which all is committed."""
        self._due_s = time.monotonic() + HEARTBEAT_S
        if committed:
            if committed["manifest"] != self._beat["manifest"]:
                # A manifest that has gone already leaves an older figure, which is as true.
                with suppress(IndexStoreError):
                    manifest = self._store.manifest(committed["manifest"])
                    self._beat["snapshot_revision"] = snapshot_revision(manifest)
            self._beat.update(committed)
        beat = {"pid": os.getpid(), "state": state, "time_ms": int(time.time() * 1000), **self._beat}
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps(beat))
        partial.replace(self._path)

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._due_s


def run(folder: DataFolder, spark: SparkSettings, batches: BatchSettings, stop: threading.Event) -> int:
    """Run the query until `stop` is set or it fails; gives the process's exit status."""
    folder.make()
    heartbeat = Heartbeat(folder)
    heartbeat.beat("starting")
    end_process_of(folder.run / "jvm.pid", str(folder.spark_scratch.resolve()), PREDECESSOR_WAIT_S)
    started_s = time.monotonic()
    with standard_error_to(folder.spark_log):
        session = service_session(spark, folder.spark_scratch.resolve())
    jvm: subprocess.Popen[bytes] = session.sparkContext._gateway.proc
    (folder.run / "jvm.pid").write_text(str(jvm.pid))
    try:
        warm_workers(session, spark.cores_used)
        query = start_query(session, folder, replace(batches, tasks=spark.cores_used))
        keeper = WarmKeeper(session, folder, spark.cores_used)
        ready = False
        while not stop.wait(LOOK_S):
            if not query.isActive:
                heartbeat.beat("failed")
                error = query.exception() or RuntimeError("no reason given")
                with folder.spark_log.open("a") as spark_log:
                    spark_log.write(f"{error}\n")
                _log.error("the query failed: %s (more in %s)", reason(error), folder.spark_log)
                return 1
            if not ready and query.status["message"] in _READY_MESSAGES:
                ready = True
                heartbeat.beat("running")
                _log.info("ready after %.1f s, %d cores", time.monotonic() - started_s, spark.cores_used)
            if heartbeat.due:
                state = "running" if ready else "starting"
                progress = query.lastProgress
                heartbeat.beat(state, _committed(progress))
                keeper.look(progress["batchId"] if progress else None, time.monotonic())
        # Whoever asks a whole process group to stop has asked the Java process too: it may be gone by now.
        with suppress(Py4JError, OSError):
            heartbeat.beat("stopping", _committed(query.lastProgress))
            query.stop()
    except (Py4JError, OSError) as error:
        heartbeat.beat("failed")
        ended = jvm.poll()
        _log.error("%s", reason(error) if ended is None else f"the Java process ended with status {ended}")
        return 1
    finally:
        _end(session, jvm)
    heartbeat.beat("stopped")
    _log.info("stopped")
    return 0


def _committed(progress: Any) -> dict[str, int]:
    """The offset that the query has committed, from its last progress report."""
    if not progress or not progress["sources"]:
        return {}
    end = progress["sources"][0]["endOffset"]
    if isinstance(end, str):
        end = json.loads(end)
    return {name: end[name] for name in ("revision", "offset", "manifest")} if end else {}


def _end(session: SparkSession, jvm: subprocess.Popen[bytes]) -> None:
    """Stop the session and its Java process, which ends when its standard input closes."""
    with suppress(Py4JError, OSError):
        session.stop()
    if jvm.stdin is not None:
        jvm.stdin.close()
    try:
        jvm.wait(PREDECESSOR_WAIT_S)
    except subprocess.TimeoutExpired:
        jvm.kill()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m fieldfare.runtimes.spark.driver", description="Match a service's event log on Spark."
    )
    spark, batches = SparkSettings(), BatchSettings()
    parser.add_argument("--data", type=Path, required=True, help="the service's data directory")
    parser.add_argument("--cores", type=int, default=0, help="tasks at once (default: all cores)")
    parser.add_argument(
        "--driver-memory", default=spark.driver_memory, help="Java heap (default: %(default)s)"
    )
    parser.add_argument("--max-batch-bytes", type=int, default=batches.max_bytes)
    parser.add_argument("--max-batch-events", type=int, default=batches.max_events)
    parser.add_argument("--spark-log-level", default=spark.log_level, help="default: %(default)s")
    parser.add_argument(
        "--lock-wait", type=float, default=30.0, metavar="SECONDS",
        help="how long to wait for another pipeline on this directory to end (default: %(default)s)",
    )  # fmt: skip
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; gives its exit status."""
    options = parse(arguments)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO,
        format="%(asctime)s.%(msecs)03d %(levelname)s pipeline: %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
    )  # fmt: skip
    logging.getLogger("pyspark").setLevel(logging.ERROR)
    # Its errors are tracebacks of calls that fail here too, and are reported in a line.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    stop = threading.Event()

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, ask_to_stop)
    signal.signal(signal.SIGINT, ask_to_stop)
    folder = DataFolder(options.data.resolve())
    folder.make()
    spark = SparkSettings(options.cores, options.driver_memory, options.spark_log_level)
    batches = BatchSettings(max_bytes=options.max_batch_bytes, max_events=options.max_batch_events)
    try:
        with FileLock(folder.run / "pipeline.lock", options.lock_wait):
            return run(folder, spark, batches, stop)
    except LockTimeoutError as error:
        _log.error("another pipeline runs on this data directory: %s", error)
    except Exception as error:
        _log.error("the pipeline failed: %s", reason(error))
        _log.debug("traceback", exc_info=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
