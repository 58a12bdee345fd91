"""The driver's loop over a real log and registry, against a naive replay of their history."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
from indexing import bring_index_up_to_date
from pipeline_support import SPACES, History, payload_of, random_event, random_filter
from pyspark.sql import SparkSession

from fieldfare.filters import compile_filter, encode_normal_form
from fieldfare.model import Subscription
from fieldfare.runtimes.spark.batches import MicroBatchSettings
from fieldfare.runtimes.spark.failures import reason
from fieldfare.runtimes.spark.match_loop import MatchLoop
from fieldfare.runtimes.spark.range_jobs import RangeJobs
from fieldfare.storage import open_event_log, open_registry
from fieldfare.storage.event_log import NewRecord, ends_of
from fieldfare.storage.files.match_log import FileMatchLog
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.registry import Put, Remove

pytestmark = pytest.mark.spark


class Service:
    """A log and a registry that are changed at random, and what must come out of them."""

    def __init__(self, root: Path, seed: int) -> None:
        self.folder = DataFolder(root)
        self.folder.make()
        self.log = open_event_log(self.folder.log_url)
        self.registry = open_registry(self.folder.registry_url)
        for space in SPACES:
            self.registry.create_space(space)
        self.random = Random(seed)
        self.history = History()
        self.numbers: dict[tuple[str, str], int] = {}
        self.stamp = 0
        self.records: list[tuple[str, int, list[dict[str, Any]]]] = []

    def live_a_little(self, steps: int) -> None:
        """Subscribe, replace, remove and publish at random."""
        for _ in range(steps):
            if self.random.random() < 0.5:
                self._publish()
            else:
                self._change()

    def _publish(self) -> None:
        space = self.random.choice(SPACES)
        events = [random_event(self.random) for _ in range(self.random.randrange(1, 5))]
        # The registry may have gone on meanwhile, but no stamp is lower than one before.
        self.stamp = self.random.randint(max(self.stamp, self.history.revision - 2), self.history.revision)
        payload = payload_of(events, self.random)
        record = NewRecord(space, payload, len(events), appended_ms=1, stamp=self.stamp)
        assert self.log.append([record])[0].offset == len(self.records)
        self.records.append((space, self.stamp, events))

    def _change(self) -> None:
        key = self.random.choice(SPACES), f"s{self.random.randrange(12)}"
        text = random_filter(self.random) if self.random.random() < 0.75 else None
        if text is None:
            change = Remove(*key)
        else:
            compiled = encode_normal_form(compile_filter(text).normal_form)
            change = Put(*key, text, "sql", compiled)
        (result,) = self.registry.apply([change], ends_of(self.log), 0)
        if isinstance(result, Subscription):
            self.numbers[key] = result.number
            self.history.change(key[0], self.numbers[key], text)

    def forget_history(self) -> int:
        """Purge what only records needed that are matched; those to come are stamped later."""
        self.stamp = self.registry.revision()
        return self.registry.purge(self.stamp)

    def run_to_the_end(self, session: SparkSession, **settings: int) -> None:
        bring_index_up_to_date(self.folder)
        batches = MicroBatchSettings(tasks=2, **settings)
        jobs = RangeJobs(session.sparkContext, self.folder, batches)
        assert MatchLoop(session.sparkContext, self.folder, batches, jobs, until_end=True).wait(300)

    def check(self) -> None:
        """Everything in the match log is what a naive replay finds, and nothing is missing."""
        matches = FileMatchLog(self.folder.matches)
        assert matches.end() == len(self.records)
        for offset, (space, stamp, events) in enumerate(self.records):
            block = matches.block_at(offset)
            assert block is not None
            indptr, subscriptions = block.by_event()
            first = int(block.counts[: offset - block.start].sum())
            last = first + len(events)
            found = [sorted(subscriptions[indptr[e] : indptr[e + 1]].tolist()) for e in range(first, last)]
            expected = [self.history.expected(space, stamp, event) for event in events]
            assert found == expected, f"record {offset}"


@pytest.mark.parametrize("name", ["at 12:30", "a%41?b", "journée, 'à' #2"])
def test_events_are_matched_in_a_data_directory_of_any_name(
    session: SparkSession, tmp_path: Path, name: str
) -> None:
    service = Service(tmp_path / name, seed=1)
    service.live_a_little(20)
    service.run_to_the_end(session)
    service.check()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_every_event_matches_the_subscriptions_as_they_stood_also_across_restarts(
    session: SparkSession, tmp_path: Path
) -> None:
    service = Service(tmp_path, seed=20131)
    service.live_a_little(60)
    service.run_to_the_end(session, max_events=20, split_bytes=500)
    service.check()
    service.live_a_little(80)
    service.run_to_the_end(session, max_events=30, split_bytes=500)
    service.check()
    # Killed within its last batch, of which a task was not done; the index is lost with it.
    shutil.rmtree(service.folder.index)
    blocks = sorted(service.folder.matches.rglob("*.arrow"), key=lambda path: path.stem)
    blocks[-2].unlink()
    service.live_a_little(20)
    service.run_to_the_end(session)
    service.check()


def test_the_loop_resumes_at_the_match_logs_end(session: SparkSession, tmp_path: Path) -> None:
    """The registry has forgotten what only matched records needed; lost blocks are new ones."""
    service = Service(tmp_path, seed=11)
    service.live_a_little(40)
    service.run_to_the_end(session, max_events=6)
    blocks = sorted(service.folder.matches.rglob("*.arrow"), key=lambda path: path.stem)
    for block in blocks[len(blocks) // 2 :]:
        block.unlink()
    service.live_a_little(20)
    service.run_to_the_end(session, max_events=6)
    service.check()
    assert service.forget_history() > 0
    service.live_a_little(20)
    service.run_to_the_end(session, max_events=6)
    service.check()


def test_the_reason_of_a_failure_is_one_line() -> None:
    python = "Job aborted\nTraceback:\n  File ...\nvalueless\nfieldfare.X.LogError: gone\n\n\tat java"
    assert reason(RuntimeError(python)) == "fieldfare.X.LogError: gone"
    assert reason(RuntimeError("no space left\n\tat java.lang")) == "no space left"
    java = "An error occurred while calling o256.start.\n: java.io.IOException: No space left\n\tat java.nio"
    assert reason(RuntimeError(java)) == "java.io.IOException: No space left"
    assert reason(RuntimeError()) == "RuntimeError"
