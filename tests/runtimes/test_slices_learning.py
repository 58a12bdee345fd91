"""The driver learns from a batch, in the form in which its tasks report it."""

from __future__ import annotations

from pathlib import Path

from test_spread_tasks import Scene

from fieldfare.partitioning import HashPartitioning
from fieldfare.runtimes.process.heartbeat import read_beat
from fieldfare.runtimes.spark.distributed.learning import Learner
from fieldfare.runtimes.spark.distributed.loads import MatcherWork, last_loads


def test_measurements_of_a_batch_reach_the_planner_of_the_next(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    space = scene.store.manifest(scene.index(HashPartitioning(2))).spaces["mine"]
    number = scene.store.greatest_number()
    learner = Learner(scene.folder)

    def learnt(manifest: int, *blocks: list[MatcherWork]) -> tuple[float, ...]:
        summaries = [{"work": [each._asdict() for each in done]} for done in blocks]
        learner.learn(manifest, summaries, 0.0, 0.25)
        return tuple(load.matches_per_s for load in last_loads("mine", space, scene.folder.slices))

    assert learnt(number) == (0.0, 0.0)
    done = [MatcherWork(0, "mine", 0, 600, 0.5, 0), MatcherWork(0, "mine", -1, 600, 9.0, 99)]
    assert learnt(number, done) == (1200.0, 0.0)
    more = [MatcherWork(1, "mine", 1, 300, 0.1, 0)], [MatcherWork(0, "gone", 0, 1, 1, 0)]
    assert learnt(number, *more) == (1200.0, 3000.0)
    assert learnt(4711, *more) == (1200.0, 3000.0), "of a manifest that is gone nothing is learnt"
    assert read_beat(scene.folder.slices)["manifest"] == 4711
