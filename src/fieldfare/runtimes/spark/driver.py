"""The pipeline's process: ``python -m fieldfare.runtimes.spark.driver --data DIR``.

It runs the loop that matches one data directory's log (`match_loop`) until SIGTERM (exit status 0), or until
it cannot continue (1, with the reason in the last line of its log; `EXIT_FORMAT` if no other process could
continue either). A loop that fails is restarted by this process: see `recovery`. Every second it writes
``run/pipeline.json``::

    {"pid": 4711, "state": "running", "time_ms": 1763718000000, "offset": 340, "matched": [340],
     "log_end": 340, "indexed": true, "matchers": 1, "activity": "follows", "tasks": 1, "records": 0,
     "cores": 2, "executors": null, "started_ms": 1763710000000, "error": null}

`state` is starting, running, recovering, stopping, stopped or failed, and `error` is the reason for
recovering or failed. Up to `matched`, by partition, everything is matched and durable: versions that only
earlier records need are never used again, not even after a crash. `offset` and `log_end` are sums over all
partitions. `indexed` says whether the index covers the first records that wait; else they wait for it.
`activity`, `tasks` and `records` say what the loop does (`match_loop.Activity`).

Beside it, replays are matched, for subscriptions with a `start` in the past: see `replays`.

It can be killed at any time; the next one resumes at the end of the match log. The output of Spark itself and
of its Python workers is in ``logs/spark.log``.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException

from fieldfare.elasticity.bounds import HostSchedule
from fieldfare.files import remove_abandoned
from fieldfare.forwarding import POLICIES
from fieldfare.runtimes.process.locks import LockTimeoutError, end_process_of, write_pid
from fieldfare.runtimes.process.program import EXIT_FAILED, EXIT_FORMAT, begin, only_one
from fieldfare.runtimes.process.successors import is_successor, wait_for_turn
from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.cluster import ExecutorSlots
from fieldfare.runtimes.spark.distributed.jobs import SpreadJobs, connected_jobs
from fieldfare.runtimes.spark.distributed.learning import Learner
from fieldfare.runtimes.spark.distributed.tasks import Spread
from fieldfare.runtimes.spark.elastic.control import CALM_S, ElasticControl, ElasticSettings
from fieldfare.runtimes.spark.elastic.executors import ELASTIC_CONFIG
from fieldfare.runtimes.spark.elastic.jobs import PinnedJobs
from fieldfare.runtimes.spark.failures import reason
from fieldfare.runtimes.spark.heartbeat import PipelineHeartbeat
from fieldfare.runtimes.spark.master import is_cluster, read_properties
from fieldfare.runtimes.spark.match_loop import Jobs, MatchLoop
from fieldfare.runtimes.spark.range_jobs import RangeJobs
from fieldfare.runtimes.spark.recovery import Recovery, is_the_records_fault
from fieldfare.runtimes.spark.replays import ReplayRunner
from fieldfare.runtimes.spark.session import SparkSettings, standard_error_to
from fieldfare.runtimes.spark.starting import RunningSpark, remove_scratch, start_spark
from fieldfare.runtimes.spark.warmup import WarmKeeper
from fieldfare.storage import open_event_log, open_match_log
from fieldfare.storage.errors import FormatError
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.quarantine import brief

LOOK_S, READY_LOOK_S = 0.1, 0.5
"""Seconds between two looks at the loop and the heartbeat, while the loop starts and afterwards."""
PREDECESSOR_WAIT_S = 10.0
JAVA_ENDS_S = 1.0

_log = logging.getLogger("fieldfare.pipeline")


@dataclass
class Pipeline:
    """Everything that runs in a driver's process, from the start of its Java process to its end."""

    folder: DataFolder
    spark: SparkSettings
    batches: MicroBatchSettings
    stop: threading.Event
    heartbeat: PipelineHeartbeat
    recovery: Recovery
    forwarding: str = "adaptive"
    elastic: ElasticSettings | None = None
    is_ready: bool = False
    loop: MatchLoop | None = None
    warmer: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1, "fieldfare-warming"))
    warming: Future[None] | None = None

    def run(self, running: RunningSpark | None) -> int:
        """Run loops until `stop` is set or recovery fails; return the process's exit status.

        `running` is Spark, if it has been started already.
        """
        started_s = time.monotonic()
        end_process_of(self.folder.jvm_pid, PREDECESSOR_WAIT_S)
        self.recovery.start(predecessor_died=self.heartbeat.predecessor_died, told=self.heartbeat.told)
        self.heartbeat.beat("starting")
        # Remove what killed processes left: Java's scratch folder, and unfinished files.
        remove_scratch(self.folder)
        shutil.rmtree(self.folder.checkpoint, ignore_errors=True)
        for folder in (self.folder.run, self.folder.quarantine):
            remove_abandoned(folder)
        try:
            if running is None:
                running = start_pipelines_spark(
                    self.folder, self.spark, self.stop, self._still_starting,
                    is_elastic=self.elastic is not None, pid_file=self.folder.jvm_pid,
                )  # fmt: skip
            else:
                write_pid(self.folder.jvm_pid, running.java.pid)
            _log.info(
                "Spark runs after %.1f s, %d cores", time.monotonic() - started_s, running.slots.planned
            )
            status = self._run_all(running.context, running.slots)
        except Exception as error:
            ended = None if running is None else running.java.poll()
            said = reason(error) if ended is None else f"the Java process ended with status {ended}"
            self.heartbeat.beat("failed", error=said)
            _log.error("%s", said)
            return 1
        finally:
            if running is not None:
                running.end()
        if status == 0:
            self.heartbeat.beat("stopped")
            _log.info("stopped")
        return status

    def _still_starting(self) -> None:
        if self.heartbeat.due:
            self.heartbeat.beat("starting")

    def _run_all(self, context: SparkContext, slots: ExecutorSlots) -> int:
        status = None
        while status is None:
            replays = ReplayRunner(context, self.folder, slots.plan(), self._room)
            replays.start()
            try:
                status = self._run_loops(context, slots)
            finally:
                replays.close()
        return status

    def _run_loops(self, context: SparkContext, slots: ExecutorSlots) -> int | None:
        """Run loops; return 0 after a stop, 1 if none can continue, None to replan for more slots."""
        while not self.stop.is_set():
            report = self._run_loop(context, slots)
            if report is None:  # stopped, for more slots, or for another number of matchers
                self.recovery.stopped()
                if slots.has_grown():
                    _log.info("there are more cores")
                    return None
                continue
            self.is_ready = False
            self.heartbeat.work = {}
            _raise_if_java_ended(context, report)
            said = reason(report)
            _log.error("matching failed: %s (more in %s)", said, self.folder.spark_log)
            pause_s = self.recovery.failed(str(report), said)
            if pause_s is None:
                self.heartbeat.beat("failed", error=said)
                return 1
            # The heartbeat is readable by everyone; the error of a record may quote events.
            self._wait(pause_s, brief(said) if is_the_records_fault(str(report)) else said)
        return 0

    def _run_loop(self, context: SparkContext, slots: ExecutorSlots) -> BaseException | None:
        """Run a loop until it fails or its settings change; return the failure, or None."""
        matchers = self.heartbeat.matchers
        batches = replace(self.batches, tasks=slots.planned, matchers=matchers)
        self.recovery.batches = batches
        try:
            loop = MatchLoop(context, self.folder, batches, self._jobs(context, batches))
        except (Py4JJavaError, PySparkException) as refusal:  # Java runs, and reports why not
            return cast(Exception, refusal)
        self.loop = loop
        keeper = WarmKeeper(self.folder, loop.jobs.open)
        matched = self.heartbeat.offset
        while not self.stop.wait(self._look_s) and self.heartbeat.matchers == matchers:
            if not loop.is_active:
                error = loop.exception() or RuntimeError("no reason given")
                with suppress(OSError), self.folder.spark_log.open("a") as spark_log:
                    spark_log.write(f"{error}\n")
                return error
            if not self.is_ready and loop.is_ready:
                self.is_ready = True
                self.heartbeat.work = self._work_of(loop, slots)
                self.heartbeat.beat("running")
                _log.info("ready")
            if self.heartbeat.due:
                self.heartbeat.work = self._work_of(loop, slots)
                self.heartbeat.beat("running" if self.is_ready else "starting")
                # An elastic service's control follows the slots itself.
                if self.elastic is None and slots.has_grown():
                    break
                if self.heartbeat.offset > matched:
                    self.recovery.works()
                if self.is_ready:
                    self._keep_warm(keeper)
        # A signal to the whole process group stops the Java process too: it may have exited by now.
        with suppress(Py4JError, OSError):
            if self.stop.is_set():
                self.heartbeat.beat("stopping")
            elif self.heartbeat.matchers != matchers:
                _log.info(
                    "the index is held at %d matchers now, not at %d", self.heartbeat.matchers, matchers
                )
            loop.stop()
        return None

    def _room(self) -> AbstractContextManager[None]:
        """Return a context in which a job beside the present loop gets a slot."""
        return nullcontext() if self.loop is None else self.loop.room()

    @property
    def _look_s(self) -> float:
        return READY_LOOK_S if self.is_ready else LOOK_S

    def _work_of(self, loop: MatchLoop, slots: ExecutorSlots) -> dict[str, object]:
        doing = loop.activity
        work = {"activity": doing.kind, "tasks": doing.tasks, "records": doing.records}
        with suppress(Py4JError, OSError):  # Java has ended, which the loop notices, too
            return work | slots.figures()
        return work

    def _jobs(self, context: SparkContext, batches: MicroBatchSettings) -> Jobs:
        """Return the jobs for the way in which the index is held."""
        if batches.matchers == 1:
            return RangeJobs(context, self.folder, batches)
        learner, spread = Learner(self.folder), Spread(batches.matchers, batches.tasks, self.forwarding)
        if self.elastic is None:
            following = (
                connected_jobs(context, self.folder, batches, spread, learner)
                if is_cluster(context.master)
                else RangeJobs(context, self.folder, batches)
            )
            return SpreadJobs(context, self.folder, spread, learner, following)
        control = ElasticControl(context, self.folder, self.elastic, batches.matchers)
        return PinnedJobs(context, self.folder, batches, spread, control, learner)

    def _keep_warm(self, keeper: WarmKeeper) -> None:
        """Warm the workers in a thread: on a cluster its tasks may wait for tasks that follow the log."""
        if self.warming is None or self.warming.done():
            self.warming = self.warmer.submit(self._warm, keeper)

    def _warm(self, keeper: WarmKeeper) -> None:
        try:
            keeper.warm_if_due(self.heartbeat.offset, time.monotonic())
        except Exception as error:
            # Warming only saves time. A real fault also makes the loop fail.
            _log.warning("the workers could not be kept warm: %s", reason(error))

    def _wait(self, pause_s: float, why: str) -> None:
        until_s = time.monotonic() + pause_s
        self.heartbeat.beat("recovering", error=why)
        while not self.stop.wait(LOOK_S) and time.monotonic() < until_s:
            if self.heartbeat.due:
                self.heartbeat.beat("recovering", error=why)


def start_pipelines_spark(
    folder: DataFolder,
    spark: SparkSettings,
    stop: threading.Event,
    alive: Callable[[], None] = lambda: None,
    *,
    is_elastic: bool = False,
    pid_file: Path | None = None,
) -> RunningSpark:
    """Start Spark for a pipeline; its own output is in a log of its own."""
    more = ELASTIC_CONFIG if is_elastic else {}
    with standard_error_to(folder.spark_log):
        return start_spark(folder, spark, more, stop, alive, pid_file=pid_file)


def run(
    folder: DataFolder,
    spark: SparkSettings,
    batches: MicroBatchSettings,
    stop: threading.Event,
    forwarding: str = "adaptive",
    elastic: ElasticSettings | None = None,
    running: RunningSpark | None = None,
) -> int:
    """Run the pipeline on a data directory; return the process's exit status."""
    log, match_log = open_event_log(folder.log_url), open_match_log(folder.matches_url)
    recovery = Recovery(folder, log, match_log, batches)
    heartbeat = PipelineHeartbeat(folder, log, match_log)
    return Pipeline(folder, spark, batches, stop, heartbeat, recovery, forwarding, elastic).run(running)


def _raise_if_java_ended(context: SparkContext, error: BaseException) -> None:
    """Raise an error that does not come from Java, if Java has ended: no loop can run without it."""
    jvm: subprocess.Popen[bytes] = context._gateway.proc
    if not isinstance(error, (Py4JJavaError, PySparkException)):
        with suppress(subprocess.TimeoutExpired):
            jvm.wait(JAVA_ENDS_S)
        if jvm.poll() is not None:
            raise error


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m fieldfare.runtimes.spark.driver", description="Match a service's event log on Spark."
    )
    spark, batches = SparkSettings(), MicroBatchSettings()
    parser.add_argument("--data", type=Path, required=True, help="the service's data directory")
    parser.add_argument("--cores", type=int, default=0, help="maximum parallel tasks (default: all cores)")
    parser.add_argument(
        "--driver-memory", default=spark.driver_memory, help="Java heap (default: %(default)s)"
    )
    parser.add_argument("--master", help="a cluster's address (default: this machine)")
    parser.add_argument("--spark-properties", type=Path, help="a file of Spark's own settings")
    parser.add_argument("--max-batch-bytes", type=int, default=batches.max_bytes)
    parser.add_argument("--max-batch-events", type=int, default=batches.max_events)
    parser.add_argument(
        "--forwarding", choices=POLICIES, default="adaptive",
        help="how to choose among several possible matchers for an event (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--elastic", metavar="MIN..MAX", help="scale between MIN and MAX of the cluster's executors, by load"
    )
    parser.add_argument("--elastic-schedule", action="append", default=[], metavar="HH:MM-HH:MM=MIN..MAX")
    parser.add_argument(
        "--elastic-dry-run", action="store_true", help="log scaling decisions without carrying them out"
    )
    parser.add_argument("--elastic-calm", type=float, default=CALM_S, metavar="SECONDS")
    parser.add_argument("--spark-log-level", default=spark.log_level, help="default: %(default)s")
    parser.add_argument(
        "--lock-wait", type=float, default=30.0, metavar="SECONDS",
        help="how long to wait for another pipeline on this directory to end (default: %(default)s)",
    )  # fmt: skip
    return parser.parse_args(arguments)


def _elastic(options: argparse.Namespace) -> ElasticSettings | None:
    if options.elastic is None:
        return None
    schedule = HostSchedule.parsed(options.elastic, options.elastic_schedule)
    return ElasticSettings(schedule, options.elastic_dry_run, options.elastic_calm)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return its exit status."""
    options = parse(arguments)
    stop = begin("pipeline")
    logging.getLogger("pyspark").setLevel(logging.ERROR)
    # py4j logs tracebacks of calls that fail here too, where they are reported in one line.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(lambda record: record.module != "java_gateway")  # some without a name
    folder = DataFolder.at(options.data.resolve())
    batches = MicroBatchSettings(max_bytes=options.max_batch_bytes, max_events=options.max_batch_events)
    try:
        properties = read_properties(options.spark_properties) if options.spark_properties else {}
        spark = SparkSettings(
            options.cores, options.driver_memory, options.spark_log_level, options.master, properties
        )
        folder.make()
        running = None
        # On a cluster, its predecessor has the executors.
        if is_successor() and not is_cluster(spark.master):
            running = start_pipelines_spark(folder, spark, stop)
        if not wait_for_turn(stop):
            if running is not None:
                running.end()
            return EXIT_FAILED
        with only_one(folder.lock_of("pipeline"), options.lock_wait):
            return run(folder, spark, batches, stop, options.forwarding, _elastic(options), running)
    except LockTimeoutError as error:
        _log.error("another pipeline runs on this data directory: %s", error)
    except FormatError as error:
        _log.error("%s", error)
        return EXIT_FORMAT
    except Exception as error:
        _log.error("the pipeline failed: %s (more in %s)", reason(error), folder.spark_log)
        _log.debug("traceback", exc_info=True)
    return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
