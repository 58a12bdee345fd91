"""The driver's loop with several matchers, over spaces that are cut again: exact, and the driver learns."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random

import pytest
from indexing import bring_index_up_to_date
from pipeline_support import SPACES
from pyspark.sql import SparkSession
from test_match_loop import Service

from fieldfare.planning.cuts import CutSettings
from fieldfare.runtimes.process.heartbeat import read_beat
from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.distributed.jobs import SpreadJobs
from fieldfare.runtimes.spark.distributed.learning import Learner
from fieldfare.runtimes.spark.distributed.tasks import Spread
from fieldfare.runtimes.spark.match_loop import MatchLoop
from fieldfare.runtimes.spark.range_jobs import RangeJobs
from fieldfare.storage import open_index_store
from fieldfare.storage.event_log import ends_of
from fieldfare.storage.files.match_log import FileMatchLog

pytestmark = pytest.mark.spark

SEED = 31
CUTS = (
    ("hash:3", "replicated"),
    ("attribute_space:2", "hash:2"),
    ("single_attribute:3", "attribute_space:2"),
)


@pytest.mark.slow
def test_matches_are_exact_while_spaces_are_cut_again(session: SparkSession, tmp_path: Path) -> None:
    """One loop continues while its spaces are cut again; then another uses the new number of matchers.

    The second one follows the log, and falls behind at times.
    """
    print(f"seed {SEED}")
    service, random = Service(tmp_path, SEED), Random(SEED)
    matches = FileMatchLog(service.folder.matches)
    store = open_index_store(service.folder.index_url)
    service.live_a_little(60)
    for cuts in CUTS:
        named = [f"{space}={cut}" for space, cut in zip(SPACES, cuts, strict=False)]
        settings = CutSettings.parsed("auto", 1, named, 1 << 40)
        # An index with the old cut, with which the loop begins before the spaces are cut again.
        bring_index_up_to_date(service.folder, settings, cut=random.random() < 0.5)
        newest = store.newest()
        assert newest is not None
        batches = MicroBatchSettings(
            max_events=30, split_bytes=500, tasks=2, matchers=max(2, newest.matchers)
        )
        spread = Spread(batches.matchers, batches.tasks, random.choice(["adaptive", "random"]))
        ranges = RangeJobs(session.sparkContext, service.folder, batches) if cuts == CUTS[1] else None
        jobs = SpreadJobs(session.sparkContext, service.folder, spread, Learner(service.folder), ranges)
        loop = MatchLoop(session.sparkContext, service.folder, batches, jobs)
        try:
            for _ in range(3):
                service.live_a_little(25)
                bring_index_up_to_date(service.folder, settings)
                until_s = time.monotonic() + 240
                while matches.end() < len(service.records):
                    assert loop.is_active, loop.exception()
                    assert time.monotonic() < until_s
                    time.sleep(0.05)
        finally:
            loop.stop()
        service.check()
        newest = store.newest()
        assert newest is not None
        assert newest.matchers == max(settings.of(space).matchers for space in SPACES[:2])
    measured = read_beat(service.folder.slices)["spaces"]
    assert any(load[4] > 0 for space in measured.values() for load in space["loads"]), measured
    assert ends_of(service.log) == (len(service.records),)
