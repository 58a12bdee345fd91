"""An event log in Kafka, read by Spark's tasks: with Spark's connector, and with fieldfare's reader.

    python benchmarks/spark_readers.py [--json] [--megabytes 400]

Both run in the service's session, with as many tasks as the topic has partitions, and the same function for
the data of a task: it counts records and bytes in Python, and records the time. The connector's rows come
from Java in a streaming query, including the header, which is read as in the service. Fieldfare's tasks get
ranges, planned as the service plans batches, and read them with consumers that they keep open. A broker with
one node on loopback stores the topic. Maven fetches the connector's jars once.

mb_per_s, records_per_s
    Rates for a backlog with records of 100 KB and of 1 KB, from the end of the first quarter to the last
    batch.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import functions as F

from fieldfare.pipeline.manifest import Manifest
from fieldfare.runtimes.spark.batch_planner import BatchPlanner
from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.range_task import RANGES_SQL
from fieldfare.runtimes.spark.session import SparkSettings, service_session
from fieldfare.storage import open_event_log, open_index_store
from fieldfare.storage.addresses import settle
from fieldfare.storage.event_log import NewRecord
from fieldfare.storage.folder import DataFolder
from fieldfare_lab.kafka_broker import KafkaBroker, why_no_broker
from fieldfare_lab.maven import fetched
from fieldfare_lab.spark.readers import ReadRanges, ReadRows

ARTIFACTS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.1.0-preview1",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
READERS = ("connector", "ours")
PARTITIONS = 2
SIZES = {"large": 100_000, "small": 1_000}
BATCHES = 10
FIRST_SHARE = 0.25
WITHIN_S = 240.0

Noted = list[tuple[float, int, int]]


class Rig:
    """A session, a broker, and one topic after another."""

    def __init__(self, scratch: Path, broker: KafkaBroker) -> None:
        self._scratch, self._broker = scratch, broker
        folder, reason = fetched("connector", ARTIFACTS, alone=True)
        if reason is not None:
            raise SystemExit(reason)
        jars = ",".join(map(str, sorted(folder.glob("*.jar"))))
        extra = {"spark.jars": jars, "spark.sql.shuffle.partitions": str(PARTITIONS)}
        self.session = service_session(SparkSettings(cores=PARTITIONS), scratch / "spark", extra)
        self._number = 0

    def folder(self) -> DataFolder:
        """A service's directory with an empty topic, and an index that covers all later events."""
        self._number += 1
        url = f"kafka://{self._broker.address}/t{self._number}?partitions={PARTITIONS}"
        folder = settle(self._scratch / f"data-{self._number}", url)
        folder.make()
        open_index_store(folder.index_url).write_manifest(Manifest(1, 0))
        return folder

    def run(self, reader: str, folder: DataFolder, records_a_batch: int, wanted: int) -> Noted:
        """Read until all appended records are read; return what the tasks recorded."""
        out = self._scratch / f"out-{self._number}"
        out.touch()
        if reader == "ours":
            self._read_ranges(folder, records_a_batch, out)
        else:
            self._read_rows(records_a_batch, out, wanted)
        return read_notes(out)

    def _read_ranges(self, folder: DataFolder, records_a_batch: int, out: Path) -> None:
        settings = MicroBatchSettings(
            max_bytes=1 << 40, max_events=records_a_batch, split_bytes=0, tasks=PARTITIONS
        )
        planner = BatchPlanner(folder, settings)
        planner.stop_at_present_end()
        start: dict[str, Any] = {"ends": planner.first(), "manifest": 0}
        while (end := planner.next_end(start))["ends"] != start["ends"]:
            tasks = planner.tasks(start["ends"], end["ends"])
            rows = [(*each, end["manifest"], None) for ranges in tasks for each in ranges]
            ranges = self.session.sparkContext.parallelize(rows, len(rows)).toDF(RANGES_SQL)
            ranges.mapInArrow(ReadRanges(out, folder.log_url), "done long").collect()
            start = end
        planner.close()

    def _read_rows(self, records_a_batch: int, out: Path, wanted: int) -> None:
        rows = (
            self.session.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._broker.address)
            .option("kafka.isolation.level", "read_committed")
            .option("subscribe", f"t{self._number}")
            .option("startingOffsets", "earliest")
            .option("includeHeaders", "true")
            .option("maxOffsetsPerTrigger", records_a_batch)
            .load()
            .select("value", F.col("headers")[0]["value"].cast("string").alias("header"))
        )
        checkpoint = self._scratch / f"checkpoint-{self._number}"
        query = (
            rows.mapInArrow(ReadRows(out), "done long")
            .writeStream.format("noop")
            .option("checkpointLocation", checkpoint.resolve().as_uri())
            .trigger(processingTime="0 seconds")
            .start()
        )
        give_up_s = time.monotonic() + WITHIN_S
        while sum(line[1] for line in read_notes(out)) < wanted:
            if not query.isActive or time.monotonic() > give_up_s:
                raise RuntimeError(f"the connector: {query.exception() or 'not all was read in time'}")
            time.sleep(0.2)
        query.stop()


def read_notes(path: Path) -> Noted:
    return [tuple(json.loads(line)) for line in path.read_text().splitlines() if line.endswith("]")]


def line(size_bytes: int) -> bytes:
    """An event of a given size; its content is not read."""
    return os.urandom((size_bytes - 1) // 2).hex().encode() + b"\n"


def append(folder: DataFolder, size_bytes: int, count: int, group: int) -> None:
    log = open_event_log(folder.log_url)
    payload = line(size_bytes)
    for first in range(0, count, group):
        now_ms = time.time_ns() // 1_000_000
        log.append([NewRecord("default", payload, 1, appended_ms=now_ms)] * min(group, count - first))
    log.close()


def rates(noted: Noted) -> tuple[float, float]:
    """Records and bytes per second after the first quarter of the data."""
    noted = sorted(noted)
    records, sizes = (np.cumsum([line[place] for line in noted]) for place in (1, 2))
    first = int(np.searchsorted(records, FIRST_SHARE * records[-1]))
    # Tasks of a batch end together, so measure from the end of one batch to the end of another.
    took_s = noted[-1][0] - noted[first][0]
    return float(records[-1] - records[first]) / took_s, float(sizes[-1] - sizes[first]) / took_s


def measure(rig: Rig, megabytes: int) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {reader: {} for reader in READERS}
    for name, size_bytes in SIZES.items():
        count = min(megabytes * 1_000_000 // size_bytes, 200_000)
        for reader in READERS:
            folder = rig.folder()
            append(folder, size_bytes, count, max(1, 4_000_000 // size_bytes))
            noted = rig.run(reader, folder, count // BATCHES, count)
            records_per_s, bytes_per_s = rates(noted)
            found[reader][name] = {
                "records_per_s": round(records_per_s),
                "mb_per_s": round(bytes_per_s / 1e6, 1),
            }
            print(reader, name, found[reader][name], file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--megabytes", type=int, default=400, help="megabytes of a backlog (default: %(default)s)"
    )
    options = parser.parse_args()
    if (reason := why_no_broker()) is not None:
        print(f"there can be no Kafka broker here: {reason}", file=sys.stderr)
        return 1
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="readers-")))
        rig = Rig(scratch, stack.enter_context(KafkaBroker()))
        stack.callback(rig.session.stop)
        found = measure(rig, options.megabytes)
    print(json.dumps(found) if options.json else json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
