"""With subscriptions spread over matchers, every event meets exactly the subscriptions that it matches."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from pipeline_support import payload_of, random_event, random_filter
from pyspark.sql import SparkSession

from fieldfare.filters import compile_filter
from fieldfare.matching.build import IndexEntry
from fieldfare.matching.naive import match_naive
from fieldfare.model import OPEN_END
from fieldfare.partitioning import Extents
from fieldfare.pipeline.access_point import by_space, decode, record_batch
from fieldfare.runtimes.spark.partitioned.log_matcher import LogMatcher, read_matches
from fieldfare.runtimes.spark.partitioned.sliced_index import (
    PARTITIONINGS,
    SlicedIndex,
    choose_partitioning,
    read_extents,
)
from fieldfare.runtimes.spark.partitioned.tasks import POLICIES
from fieldfare.storage import open_event_log
from fieldfare.storage.event_log import NewRecord

SEED = 20
MATCHERS = 3


class Scene:
    """A log of two spaces, subscriptions of one, and what must come out."""

    def __init__(self, folder: Path) -> None:
        random = Random(SEED)
        filters = [compile_filter(random_filter(random)) for _ in range(60)]
        filters += [compile_filter(f"data.x >= {n / 50} AND data.y < {n / 40}") for n in range(200)]
        self.entries = [
            IndexEntry(n + 1, n, 0, OPEN_END, f.compiled, f.text, "sql") for n, f in enumerate(filters)
        ]
        self.log_url = f"sqlite:///{folder / 'log.db'}"
        self.expected: list[list[int]] = []
        records, sample = [], []
        for _ in range(40):
            space = random.choice(["mine", "mine", "other"])
            events = [random_event(random) for _ in range(random.randrange(1, 12))]
            records.append(NewRecord(space, payload_of(events, random), len(events), None, None, 0))
            found = match_naive(events, list(enumerate(filters)))
            self.expected += found if space == "mine" else [[] for _ in events]
            sample += events if space == "mine" else []
        with_log = open_event_log(self.log_url)
        with_log.append(records)
        self.end = with_log.end()
        self.extents: Extents = read_extents(self.entries)
        mine = [
            events for events in by_space(record_batch(with_log.read(0, self.end))) if events.space == "mine"
        ]
        self.sample = decode(mine[0], tuple(self.extents.attributes))
        with_log.close()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("scene"))


@pytest.mark.parametrize("name", PARTITIONINGS)
def test_matchers_together_find_what_a_naive_matcher_does(
    session: SparkSession, scene: Scene, tmp_path: Path, name: str
) -> None:
    partitioning = choose_partitioning(name, MATCHERS, scene.extents, scene.sample, 2)
    sliced = SlicedIndex.write(tmp_path / "slices", scene.entries, scene.extents, partitioning)
    for policy in POLICIES if name == "attribute_space" else POLICIES[:1]:
        for fused in (False, True):
            folder = tmp_path / f"{policy}-{fused}"
            matcher = LogMatcher(
                session, scene.log_url, "mine", sliced, folder, forwarding=policy, fused=fused, seed=SEED
            )
            first = matcher.match(0, scene.end // 2)
            second = matcher.match(scene.end // 2, scene.end)
            assert read_matches(folder, 0, scene.end).lists() == scene.expected, (policy, fused)
            assert first.matches + second.matches == sum(map(len, scene.expected))
            assert len(list(folder.iterdir())) == (1 if fused else MATCHERS)
            visited = np.flatnonzero(first.visits + second.visits)
            assert (matcher.loads.matches_per_s[visited] > 0).all()
            assert (matcher.loads.at_s[visited] > 0).all()


def test_what_does_not_exist_is_refused_by_name(session: SparkSession, scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'rnd'.*adaptive, response_time"):
        sliced = SlicedIndex.write(
            tmp_path,
            scene.entries,
            scene.extents,
            choose_partitioning("hash", 1, scene.extents, scene.sample),
        )
        LogMatcher(session, scene.log_url, "mine", sliced, tmp_path, forwarding="rnd")
    with pytest.raises(ValueError, match=r"'mPartition'.*attribute_space"):
        choose_partitioning("mPartition", 2, scene.extents, scene.sample)
    with pytest.raises(ValueError, match="0 matchers"):
        choose_partitioning("hash", 0, scene.extents, scene.sample)
