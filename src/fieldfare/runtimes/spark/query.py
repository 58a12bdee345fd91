"""The streaming query: ranges of the log in, matched by the tasks themselves, one summary row per task out.

    fieldfare_log ─▶ mapInArrow(match a range, write its blocks) ─▶ noop
    fieldfare_log ─▶ AP ─▶ shuffle ─▶ M ─▶ shuffle ─▶ EP (writes the blocks) ─▶ noop      several matchers

Everything happens in the streaming plan. Matching in a separate job inside ``foreachBatch`` would plan every
batch a second time, and returning matches through the Java process halves the throughput.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming import StreamingQuery

from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.cluster import tasks_folder
from fieldfare.runtimes.spark.distributed.tasks import Spread, spread_ranges
from fieldfare.runtimes.spark.range_task import SUMMARY, MatchRanges
from fieldfare.runtimes.spark.source import SOURCE_NAME, register_source
from fieldfare.storage.folder import DataFolder

WORK_METRIC = "work"
"""Metric in which a query with several matchers reports a batch's work: rows of ``WORK``."""


def start_query(
    session: SparkSession,
    folder: DataFolder,
    settings: MicroBatchSettings,
    *,
    until_end: bool = False,
    forwarding: str = "adaptive",
) -> StreamingQuery:
    """Start matching a service's log.

    Parameters
    ----------
    session : SparkSession
    folder : DataFolder
        The service's data directory; the query resumes where the match log ends, see `BatchPlanner.first`.
    settings : MicroBatchSettings
    until_end : bool
        Stop when everything that is in the log now is matched, instead of waiting for more.
    forwarding : str
        With several matchers, to which of its candidates an event goes: one of ``forwarding.POLICIES``.
    """
    register_source(session)
    # Spark does not sync its checkpoint: after a power failure it may be torn, older or newer than the match
    # log, which is synced and is the authority. Only the running query needs the checkpoint.
    remove(folder.checkpoint)
    options = {"data": str(folder.root.resolve()), **settings.as_options()}
    ranges = session.readStream.format(SOURCE_NAME).options(**options).load()
    spread = None
    if settings.matchers > 1:
        spread = Spread(settings.matchers, settings.tasks, forwarding)
    seen = tasks_folder(session, replace(folder, root=folder.root.resolve()))
    matched = matched_ranges(ranges, seen, spread)
    if spread is not None:
        matched = matched.observe(WORK_METRIC, F.collect_list("work").alias(WORK_METRIC))
    writer = (
        matched.writeStream.format("noop")
        .queryName("fieldfare")
        .option("checkpointLocation", str(folder.checkpoint.resolve()))
    )
    writer = writer.trigger(availableNow=True) if until_end else writer.trigger(processingTime="0 seconds")
    return writer.start()


def matched_ranges(ranges: DataFrame, folder: DataFolder, spread: Spread | None = None) -> DataFrame:
    """Match ranges of a log, streaming or not: tasks write to its match log and return rows of ``SUMMARY``.

    Parameters
    ----------
    ranges : DataFrame
        Columns of `RecordRange`.
    spread : Spread, optional
        Send events to the matchers that hold their slices. Default: the task that reads a range matches it.
    """
    if spread is not None:
        return spread_ranges(ranges, folder, spread)
    return ranges.mapInArrow(MatchRanges(folder), from_arrow_schema(SUMMARY))


def remove(path: Path) -> None:
    """Remove a file or a folder with its contents, if it exists."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        path.unlink()


def reason(error: StreamingQueryException | BaseException) -> str:
    """Return why a query failed, in one line: the innermost Python error, else the message's first line."""
    text = re.sub(r"\AAn error occurred while calling .*\n: ", "", str(error))
    python_errors = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b.*$", text, re.MULTILINE)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = python_errors[-1] if python_errors else (lines[0] if lines else type(error).__name__)
    return " ".join(found.split())
