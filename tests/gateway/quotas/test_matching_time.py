"""The quota on matching time: a space waits for the time of matching its own events, and no other space
does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gateway_support import BATCH, EVENTS, Running, encode, event, run, running
from hypothesis import given, settings
from hypothesis import strategies as st
from test_publish_http import problem
from tests.pipeline.indexing import bring_index_up_to_date

from doses import drawn
from fieldfare.gateway.admission.matching_time import PRIOR_BYTES, PRIOR_MS, MatchingTime
from fieldfare.gateway.admission.quotas import BURST_S, MATCHING, Quotas
from fieldfare.gateway.problems import HttpProblem
from fieldfare.runtimes.spark import range_task
from fieldfare.runtimes.spark.range_task import RangeMatcher, RecordRange
from fieldfare.storage.match_log import MatchBlock, spent_by_space

RATE = 100.0


class Charged:
    """Two spaces' charges, with a clock that is set by hand."""

    def __init__(self, rate: float = RATE) -> None:
        self.now_s = 0.0
        self.quotas = Quotas({MATCHING: rate})
        self.time = MatchingTime(self.quotas, lambda: self.now_s)
        self.offset = 0

    def publish(self, space: str, size_bytes: int) -> int | None:
        """Append a record if it is let in; gives its offset."""
        if self.wait_s(space) > 0:
            return None
        with self.time.expecting(space, size_bytes) as expected:
            expected.place = 0, self.offset
        self.offset += 1
        return self.offset - 1

    def wait_s(self, space: str) -> float:
        return self.quotas.wait_s(space, MATCHING, self.now_s)

    def level(self, space: str) -> float:
        bucket = self.quotas._buckets[space][MATCHING]
        assert bucket.reserved >= 0
        return bucket.level


def test_what_matching_took_is_charged_to_its_space_and_no_other() -> None:
    charged = Charged()
    for space in ("flood", "calm"):
        assert charged.publish(space, 100) is not None
    charged.time.matched(0, 2, {"flood": 5_000.0, "calm": 2.0})
    assert charged.publish("flood", 100) is None
    assert charged.publish("calm", 100) is not None
    charged.now_s += 49.5
    assert charged.publish("flood", 100) is not None, "the debt of 5 s is paid by 100 ms/s"


def test_until_the_first_events_are_matched_only_a_few_get_in() -> None:
    """The cost of a record is known only once it is matched: until then ten thousand were in the log."""
    charged = Charged()
    let_in = 0
    while charged.publish("flood", 3_500) is not None:
        let_in += 1
    assert let_in == int(RATE * BURST_S // (3_500 * PRIOR_MS / PRIOR_BYTES)) + 1


def test_a_space_that_only_waits_for_an_estimate_may_retry_soon() -> None:
    charged = Charged()
    charged.publish("cheap", 200_000)
    assert 0 < charged.wait_s("cheap") <= 1 / RATE
    with pytest.raises(HttpProblem) as caught:
        charged.quotas.check("cheap", charged.now_s)
    assert caught.value.headers["Retry-After"] == "1"
    charged.time.matched(0, 1, {"cheap": 3.0})
    assert charged.publish("cheap", 200_000) is not None


def test_a_space_whose_events_are_cheap_gets_more_of_them_in_at_a_time() -> None:
    charged = Charged()
    before = charged.time.ms_per_byte("cheap")
    for _ in range(10):
        charged.publish("cheap", 100_000)
        charged.time.matched(0, charged.offset, {"cheap": 1.0})
        charged.now_s += 1
    assert charged.time.ms_per_byte("cheap") < before / 100
    charged.now_s += 1_000
    assert charged.time.ms_per_byte("cheap") < before / 100, "nothing newer is known"
    charged.publish("cheap", 1_000)
    charged.time.matched(0, charged.offset, {"cheap": 150.0})
    assert charged.time.ms_per_byte("cheap") == pytest.approx(2 * before), "what is older is forgotten"


def test_a_record_that_is_not_appended_costs_nothing() -> None:
    charged = Charged()
    with pytest.raises(RuntimeError), charged.time.expecting("a", 10_000):
        raise RuntimeError("the disk is full")
    assert charged.level("a") == RATE * BURST_S


def test_a_record_that_is_lost_is_charged_no_longer_than_until_those_behind_it_are_matched() -> None:
    """A record that was set aside, or removed by retention: no block has its matching time."""
    charged = Charged()
    charged.publish("a", 10_000)
    charged.time.matched(0, 1, {})
    assert charged.level("a") == RATE * BURST_S


STEPS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(1, 5_000), st.floats(0, 2), st.booleans()), max_size=40
)


@settings(max_examples=drawn(100))
@given(STEPS)
def test_when_all_is_matched_each_space_has_paid_what_it_took(steps: list[Any]) -> None:
    """After any sequence of charged and refunded estimates nothing is left of them."""
    charged = Charged()
    waiting = dict.fromkeys("ab", 0.0)
    spent = dict.fromkeys("ab", 0.0)
    for space, size_bytes, passed_s, is_matched in steps:
        charged.now_s += passed_s
        if charged.publish(space, size_bytes) is not None:
            waiting[space] += size_bytes / 50
        if is_matched:
            charged.time.matched(0, charged.offset, {name: ms for name, ms in waiting.items() if ms})
            spent = {name: spent[name] + waiting[name] for name in spent}
            waiting = dict.fromkeys("ab", 0.0)
    charged.time.matched(0, charged.offset, waiting)
    for space, buckets in charged.quotas._buckets.items():
        bucket = buckets[MATCHING]
        assert bucket.reserved == pytest.approx(0, abs=1e-6)
        spent_ms = spent[space] + waiting[space]
        assert bucket.level >= RATE * BURST_S - spent_ms - 1e-6
        assert spent_ms <= RATE * (charged.now_s + BURST_S) + 2 * 5_000 * PRIOR_MS / PRIOR_BYTES + 100


HEAVY = "ANY x IN data.a SATISFIES (ANY y IN data.a SATISFIES (x[0] = y[1]))"
"""A filter that takes a step for each pair of elements."""


def heavy_event(elements: int = 150) -> dict[str, Any]:
    return event(data={"a": [[number, -1 - number] for number in range(elements)]})


async def _two_spaces(r: Running) -> None:
    for space, filter in (("flood", HEAVY), ("calm", "data.x >= 0")):
        await r.client.post("/v1/spaces", json={"name": space})
        path = f"/v1/spaces/{space}/subscriptions/all"
        assert (await r.client.put(path, json={"filter": filter})).status_code == 201


def _match(r: Running) -> list[MatchBlock]:
    """Match all of the log as a task of the pipeline does; gives the blocks."""
    folder, log = r.gateway.settings.folder, r.gateway.log
    start, end = r.gateway.match_log.end(log.start()), log.end()
    manifest = bring_index_up_to_date(folder)
    RangeMatcher(folder).match(RecordRange(0, start, end, manifest.number))
    blocks = []
    while start < end:
        block = r.gateway.match_log.block_at(start)
        assert block is not None
        blocks.append(block)
        start = block.end
    return blocks


def test_a_space_that_has_used_up_its_matching_time_is_told_to_wait_and_another_is_not(
    tmp_path: Path,
) -> None:
    """Six filters with ANY inside ANY took seconds of all cores for an event, and no quota counted that."""

    async def work() -> None:
        async with running(tmp_path, quota_matching_ms_per_s=10) as r:
            await _two_spaces(r)
            await r.publish(*[heavy_event(400)] * 5, space="flood")
            await r.publish(event(data={"x": 1}), space="calm")
            spent_ms = spent_by_space(_match(r)[-1].extra)
            assert spent_ms["flood"] > 20 * spent_ms["calm"] > 0
            await r.gateway.figures.observe()
            refused = await r.client.post("/v1/spaces/flood/events", content=encode([event()]), headers=BATCH)
            told = problem(refused, 429)
            assert told["quota"] == MATCHING and told["type"].endswith("quota-matching-ms-per-s")
            assert r.gateway.quotas.wait_s("flood", MATCHING, r.gateway.matching_time._clock_s()) > 1
            await r.publish(event(data={"x": 2}), space="calm")
            text = (await r.client.get("/metrics")).text
            line = next(
                line for line in text.splitlines() if line.startswith("fieldfare_matching_seconds_total")
            )
            assert float(line.split()[1]) >= spent_ms["flood"] / 1000

    run(work)


def test_others_matches_are_there_before_all_of_a_costly_range_is_matched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range of many costly records was one block: what stood before them waited for all of them."""
    monkeypatch.setattr(range_task, "SHARED_BLOCK_MS_MAX", 1.0)
    monkeypatch.setattr(range_task, "GROUP_EVENTS", 1)

    async def work() -> None:
        async with running(tmp_path) as r:
            await _two_spaces(r)
            await r.publish(event(data={"x": 1}), space="calm")
            for _ in range(4):
                await r.publish(heavy_event(), space="flood")
            blocks = _match(r)
            assert len(blocks) >= 3
            assert int(np.sum([block.events for block in blocks])) == 5
            assert blocks[0].matches == 1 and all(block.end <= 5 for block in blocks)

    run(work)


def test_after_a_group_that_took_long_those_that_follow_have_fewer_events() -> None:
    size = range_task.GroupSize()
    size.took(28, 6_000.0)
    assert size.events == 1
    for _ in range(20):
        size.took(size.events, 1.0)
    assert size.events == range_task.GROUP_EVENTS


def test_without_the_quota_no_record_is_noted(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.publish(event())
            assert not r.gateway.matching_time._waiting
            answer = await r.client.post(EVENTS, content=encode([event()]), headers=BATCH)
            assert answer.status_code == 200

    run(work)
