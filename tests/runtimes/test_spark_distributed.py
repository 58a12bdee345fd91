"""With slices at several matchers, every event meets exactly the subscriptions that it matches."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from naive_library import match_naive
from pipeline_support import TYPED, arrow_payload_of, payload_of, random_event, random_filter, typed_event
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from fieldfare.filters import compile_filter
from fieldfare.forwarding import POLICIES
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END
from fieldfare.partitioning import Extents, HashPartitioning
from fieldfare.partitioning.placing import read_extents
from fieldfare.pipeline.access_point import by_space, decode, record_batch
from fieldfare.planning.choosing import PARTITIONINGS, choose_partitioning
from fieldfare.runtimes.spark.distributed import rows
from fieldfare.runtimes.spark.distributed.rows import RouteRows
from fieldfare.spark import Partitioned, match, save_index
from fieldfare.storage import open_event_log, open_index_store, open_match_log
from fieldfare.storage.errors import IndexStoreError
from fieldfare.storage.event_log import NewRecord
from fieldfare.storage.folder import DataFolder
from fieldfare_lab.spark.batches import LogBatches
from fieldfare_lab.spark.fixed_index import write_space

pytestmark = pytest.mark.spark

SEED = 20
MATCHERS = 3


def written(folder: DataFolder, end: int) -> list[list[int]]:
    """Return the match log's matches of each event."""
    log, found, at = open_match_log(folder.matches_url).partition(0), [], 0
    while at < end:
        block = log.block_at(at)
        assert block is not None and block.start == at, "there is one block for each range"
        indptr, numbers = block.by_event()
        found += [
            numbers[first:last].tolist()
            for first, last in zip(indptr.tolist(), indptr[1:].tolist(), strict=False)
        ]
        at = block.end
    return found


class Scene:
    """A log of two spaces, subscriptions of one, and what must come out."""

    def __init__(self, root: Path) -> None:
        random = Random(SEED)
        self.folder = DataFolder(root)
        self.folder.make()
        filters = [compile_filter(random_filter(random)) for _ in range(60)]
        filters += [compile_filter(f"data.x >= {n / 50} AND data.y < {n / 40}") for n in range(200)]
        self.entries = [
            IndexEntry(n + 1, n, 0, OPEN_END, f.compiled, f.text, "sql") for n, f in enumerate(filters)
        ]
        self.expected: list[list[int]] = []
        records, sample = [], []
        for _ in range(40):
            space = random.choice(["mine", "mine", "other"])
            as_arrow = random.random() < 0.3
            events = [
                (typed_event if as_arrow else random_event)(random) for _ in range(random.randrange(1, 12))
            ]
            payload = arrow_payload_of(events, TYPED) if as_arrow else payload_of(events, random)
            records.append(NewRecord(space, payload, len(events), None, None, 0))
            found = match_naive(events, list(enumerate(filters)))
            self.expected += found if space == "mine" else [[] for _ in events]
            sample += events if space == "mine" else []
        with_log = open_event_log(self.folder.log_url)
        with_log.append(records)
        self.end = with_log.partitions[0].end()
        self.extents: Extents = read_extents(self.entries)
        mine = [
            events
            for events in by_space(record_batch(with_log.partitions[0].read(0, self.end)))
            if events.space == "mine"
        ]
        self.sample = decode(mine[0], tuple(self.extents.attributes))
        with_log.close()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("scene"))


@pytest.mark.parametrize("name", PARTITIONINGS)
def test_matchers_together_find_what_a_naive_matcher_does(
    session: SparkSession, scene: Scene, name: str
) -> None:
    """All of them write one match log, independent of the matchers."""
    partitioning = choose_partitioning(name, MATCHERS, scene.extents, scene.sample, 2)
    write_space(open_index_store(scene.folder.index_url), "mine", scene.entries, partitioning, scene.extents)
    policies = POLICIES if name == "attribute_space" else POLICIES[:1]
    for policy in (*policies, None):
        for path in scene.folder.matches.rglob("*.arrow"):
            path.unlink()
        batches = LogBatches(session, scene.folder, forwarding=policy, seed=SEED)
        first = batches.match(0, scene.end // 2)
        second = batches.match(scene.end // 2, scene.end)
        assert written(scene.folder, scene.end) == scene.expected, policy
        assert first.matches + second.matches == sum(map(len, scene.expected))
        assert first.events + second.events == len(scene.expected)
        loads = batches.loads["mine"]
        visited = [number for space, number in (*first.visits, *second.visits) if space == "mine"]
        assert bool(visited) == (policy is not None)
        assert (loads.at_s[visited] > 0).all()


def test_unknown_names_are_refused_with_the_name(session: SparkSession, scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'rnd'.*adaptive, response_time"):
        LogBatches(session, scene.folder, forwarding="rnd")
    with pytest.raises(IndexStoreError, match="has no index yet"):
        LogBatches(session, DataFolder(tmp_path)).match(0, 1)
    with pytest.raises(ValueError, match=r"'mPartition'.*attribute_space"):
        choose_partitioning("mPartition", 2, scene.extents, scene.sample)
    with pytest.raises(ValueError, match="number of matchers is 0"):
        choose_partitioning("hash", 0, scene.extents, scene.sample)


def test_a_record_that_no_matcher_can_read_is_named(session: SparkSession, tmp_path: Path) -> None:
    """Halving is told where to search, by AP as by M."""
    folder = DataFolder(tmp_path)
    folder.make()
    f = compile_filter("data.x > 1")
    entries = [IndexEntry(1, 1, 0, OPEN_END, f.compiled, f.text, "sql")]
    write_space(open_index_store(folder.index_url), "mine", entries, HashPartitioning(2))
    log = open_event_log(folder.log_url)
    log.append([NewRecord("mine", payload, 1, None, None, 0) for payload in (b'{"data":{"x":2}}\n', b"{]\n")])
    log.close()
    batches = LogBatches(session, folder)
    with pytest.raises(
        PythonException, match="RecordsError: records 1 to 1 of partition 0 cannot be matched"
    ):
        batches.match(1, 2)
    assert batches.match(0, 1).matches == 1


@pytest.fixture(scope="module")
def trades(session: SparkSession) -> DataFrame:
    rng = np.random.default_rng(SEED)
    rows = [
        (n, float(rng.integers(0, 4000)) / 100, "ABCDE"[int(rng.integers(5))] if rng.random() < 0.9 else None)
        for n in range(2_000)
    ]
    return session.createDataFrame(rows, "id int, price double, symbol string").repartition(3)


@pytest.fixture(scope="module")
def watchers(session: SparkSession) -> DataFrame:
    texts = [f"price >= {n / 10} AND price < {n / 10 + 4} AND id < {40 * n}" for n in range(60)]
    texts += ["symbol = 'A'", "symbol LIKE '%B%'", "symbol IS NULL OR price > 39", "price * 2 > id"]
    return session.createDataFrame(list(enumerate(texts)), "id string, filter string")


def triples(matches: DataFrame) -> list[tuple[str, int, float]]:
    return sorted((row.subscription, row.id, row.price) for row in matches.collect())


@pytest.mark.parametrize("name", PARTITIONINGS)
def test_a_frame_matches_the_same_however_it_is_partitioned(
    trades: DataFrame, watchers: DataFrame, name: str
) -> None:
    expected = triples(match(trades, watchers, keep=["id", "price"]))
    assert len(expected) > 5_000
    spread = Partitioned(name, matchers=3, forwarding="balanced", segments_per_matcher=2)
    assert triples(match(trades, watchers, keep=["id", "price"], partitioned=spread)) == expected


@pytest.mark.parametrize(("policy", "is_measured"), [("adaptive", True), ("subscription_count", False)])
def test_a_frames_events_are_forwarded_by_the_samples_measurements(
    trades: DataFrame, watchers: DataFrame, monkeypatch: pytest.MonkeyPatch, policy: str, is_measured: bool
) -> None:
    """Tasks match it before the plan is made; if no policy uses the slices' rates, they do not."""
    made: list[RouteRows] = []

    def route_rows(*arguments: object) -> RouteRows:
        made.append(RouteRows(*arguments))
        return made[-1]

    monkeypatch.setattr(rows, "RouteRows", route_rows)
    spread = Partitioned("attribute_space", matchers=3, forwarding=policy, segments_per_matcher=2)
    found = triples(match(trades, watchers, keep=["id", "price"], partitioned=spread))
    assert found == triples(match(trades, watchers, keep=["id", "price"]))
    (route,) = made
    loads = route.forwarding.loads
    assert loads is not None and route.forwarding.policy == policy
    assert (loads.measured_per_s > 0).any() == is_measured


def test_a_saved_index_can_be_spread_too(trades: DataFrame, watchers: DataFrame, tmp_path: Path) -> None:
    save_index(watchers, tmp_path / "index")
    spread = match(trades, tmp_path / "index", keep=["id", "price"], partitioned=Partitioned(matchers=2))
    assert triples(spread) == triples(match(trades, watchers, keep=["id", "price"]))


def test_streaming_events_need_a_sample(
    session: SparkSession, watchers: DataFrame, trades: DataFrame
) -> None:
    stream = (
        session.readStream.format("rate")
        .load()
        .selectExpr("int(value) id", "double(value) price", "'A' symbol")
    )
    with pytest.raises(ValueError, match="needs a sample"):
        match(stream, watchers, partitioned=Partitioned())
    spread = Partitioned(matchers=2, sample=trades.select("id", "price", "symbol"))
    assert match(stream, watchers, partitioned=spread).isStreaming
