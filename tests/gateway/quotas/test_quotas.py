"""Publishing rates of spaces: the average is limited, refusals come before any work, and affect one space
only."""

from __future__ import annotations

import pytest
from gateway_support import BATCH, EVENTS, encode, event, run, running
from hypothesis import given, settings
from hypothesis import strategies as st
from test_publish_http import problem

from doses import drawn
from fieldfare.gateway.admission.quotas import BURST_S, NAMES, RETRY_MAX_S, Quotas, Used
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.token_bucket import TokenBucket

STEPS = st.lists(st.tuples(st.floats(0, 5), st.integers(0, 500)), max_size=60)


@settings(max_examples=drawn(200))
@given(st.floats(0.5, 1000), STEPS)
def test_no_more_gets_in_than_the_rate_a_burst_and_one_request(rate: float, steps: list) -> None:
    """For any sequence of requests; and a client that waits for the given time is admitted."""
    bucket = TokenBucket(rate, rate * BURST_S, rate * BURST_S, 0.0)
    now_s = taken = largest = 0.0
    for passed_s, amount in steps:
        now_s += passed_s
        if bucket.wait_s(now_s) == 0:
            bucket.take(amount, now_s)
            taken += amount
            largest = max(largest, amount)
        assert taken <= rate * (now_s + BURST_S) + largest + 1e-6
    wait_s = bucket.wait_s(now_s)
    assert bucket.wait_s(now_s + wait_s + 1e-6) == 0


def test_spaces_do_not_pay_for_each_other() -> None:
    quotas = Quotas({"events_per_s": 10, "bytes_per_s": 0, "changes_per_s": 1})
    quotas.check("a", 0.0)
    quotas.spend("a", 0.0, events_per_s=100, bytes_per_s=1 << 30)
    with pytest.raises(HttpProblem) as caught:
        quotas.check("a", 5.0)
    assert caught.value.headers["Retry-After"] == "5" and caught.value.place["quota"] == "events_per_s"
    quotas.check("b", 5.0)
    quotas.check("a", 10.0)


@pytest.mark.parametrize("rate", [1e-9, 5e-324])
def test_a_very_small_rate_still_gives_a_retry_time(rate: float) -> None:
    """A typing error in a quota answered every event of the space with 500."""
    quotas = Quotas({})
    quotas.configure("a", {"events_per_s": rate})
    quotas.spend("a", 0.0, events_per_s=100)
    with pytest.raises(HttpProblem) as caught:
        quotas.check("a", 1.0)
    assert int(caught.value.headers["Retry-After"]) == RETRY_MAX_S


def test_a_quota_may_be_removed_while_a_request_is_refused_for_it() -> None:
    quotas = Quotas({})
    quotas.configure("a", {})
    for name in NAMES:
        problem = quotas.problem("a", name)
        assert "was removed" in problem.detail and problem.place["limit"] is None


def test_a_space_may_be_used_for_the_first_time_while_bytes_are_counted() -> None:
    """A round of maintenance, on its own thread, ended there, and did nothing of what comes behind."""

    class Busy(Used):
        @property
        def later_bytes(self) -> int:  # type: ignore[override]
            quotas.used("new")
            return 3

        @later_bytes.setter
        def later_bytes(self, value: int) -> None: ...

    quotas = Quotas({})
    quotas._used["old"] = Busy()
    quotas.count_stored(lambda: {"old": 7, "new": 5})
    assert quotas.used("old").counted_bytes == 7 and quotas.used("new").stored_event_bytes == 5


def test_a_space_that_floods_is_told_to_wait_and_another_is_not(tmp_path):
    async def work() -> None:
        async with running(tmp_path, quota_events_per_s=0.001, quota_bytes_per_s=10_000_000) as r:
            await r.client.post("/v1/spaces", json={"name": "calm"})
            assert (await r.publish(*[event(i) for i in range(50)]))["count"] == 50
            # Not even looked at: what is no event at all is refused for the quota.
            answer = await r.client.post(EVENTS, content=b"junk", headers=BATCH)
            told = problem(answer, 429)
            assert told["quota"] == "events_per_s" and int(answer.headers["retry-after"]) > 40_000
            calm = await r.client.post("/v1/spaces/calm/events", content=encode([event()]), headers=BATCH)
            assert calm.status_code == 200
            assert r.gateway.log.end() == 2

    run(work)


def test_without_a_quota_nothing_is_counted(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.publish(event())
            assert not r.gateway.quotas._buckets.get("default")

    run(work)
