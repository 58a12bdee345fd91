"""The time that a space has for its changes while another publishes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from gateway_support import BATCH, EVENTS, encode, event, run, running
from hypothesis import given, settings
from hypothesis import strategies as st

from doses import drawn
from fieldfare.gateway.admission import change_rate_share as module
from fieldfare.gateway.admission.change_rate_share import (
    ACTIVE_S,
    BURST_S,
    DEBT_MAX_S,
    SHARE,
    WAIT_MIN_S,
    ChangeRateShare,
)

LONGEST_S = DEBT_MAX_S / SHARE + WAIT_MIN_S


def flood(shares: ChangeRateShare, took_s: float, until_s: float) -> tuple[int, float]:
    """Make changes one after another, each as soon as possible; return their number and total duration."""
    now_s, changes = 0.0, 0
    while now_s < until_s:
        shares.published("calm", now_s)
        wait_s = shares.wait_s("flood", now_s)
        assert wait_s <= LONGEST_S
        if wait_s:
            now_s += wait_s
            continue
        shares.change_started("flood", now_s)
        now_s += took_s
        shares.change_ended("flood", now_s)
        changes += 1
    return changes, changes * took_s


@pytest.mark.parametrize("took_s", [0.0005, 0.004, 0.05])
def test_a_flooding_space_gets_its_share_of_the_time_and_no_more(took_s: float) -> None:
    changes, busy_s = flood(ChangeRateShare(), took_s, 100.0)
    assert changes > 0
    assert 0.8 * SHARE * 100 < busy_s < SHARE * 100 + BURST_S + took_s


def test_the_debt_of_a_long_change_expires() -> None:
    changes, _ = flood(ChangeRateShare(), 5.0, 100.0)
    assert changes >= 100 / (5 + LONGEST_S) - 1


def test_changes_do_not_wait_while_no_other_space_publishes() -> None:
    shares = ChangeRateShare()
    for turn in range(1_000):
        now_s = turn / 100
        shares.published("flood", now_s)
        assert shares.wait_s("flood", now_s) == 0
        shares.change_started("flood", now_s)
        shares.change_started("other", now_s)
        shares.change_ended("flood", now_s + 0.01)
        shares.change_ended("other", now_s + 0.01)


def test_a_space_with_few_changes_does_not_wait_for_a_flooding_one() -> None:
    shares = ChangeRateShare()
    flood(shares, 0.004, 10.0)
    assert shares.wait_s("calm", 10.0) == 0
    assert shares.wait_s("flood", 10.0 + ACTIVE_S + LONGEST_S) == 0


def test_changes_do_not_wait_for_a_space_that_stopped_publishing() -> None:
    shares = ChangeRateShare()
    shares.published("calm", 0.0)
    shares.change_started("flood", 0.0)
    assert shares.wait_s("flood", ACTIVE_S * 0.9) > 0
    assert shares.wait_s("flood", ACTIVE_S * 1.1) == 0


@settings(max_examples=drawn(200))
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.floats(0, 2)), max_size=30))
def test_another_one_is_active_if_any_other_published_just_now(steps: list[tuple[str, float]]) -> None:
    shares, naive, now_s = ChangeRateShare(), dict[str, float](), 0.0
    for space, passed_s in steps:
        now_s += passed_s
        shares.published(space, now_s)
        naive[space] = now_s
        for each in "abcde":
            expected = any(other != each and now_s - at_s < ACTIVE_S for other, at_s in naive.items())
            assert shares._is_another_active(each, now_s) == expected
    assert len(shares._published) <= 2


def test_changes_under_way_together_take_the_time_of_one() -> None:
    together, alone = ChangeRateShare(), ChangeRateShare()
    for shares, count in ((together, 20), (alone, 1)):
        shares.published("calm", 0.0)
        for _ in range(count):
            shares.change_started("a", 0.0)
        for _ in range(count):
            shares.change_ended("a", 0.08)
    waited_s = alone.wait_s("a", 0.08)
    assert waited_s > 0 and together.wait_s("a", 0.08) == pytest.approx(waited_s)


def test_a_space_that_is_deleted_leaves_nothing() -> None:
    shares = ChangeRateShare()
    shares.published("a", 0.0)
    shares.change_started("a", 0.0)
    shares.forget("a")
    shares.change_ended("a", 1.0)
    assert shares == ChangeRateShare()


def test_every_kind_of_change_has_its_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another space publishes; a refused change is no longer in progress."""

    async def work() -> None:
        async with running(tmp_path) as r:
            for space in ("flood", "calm"):
                assert (await r.client.post("/v1/spaces", json={"name": space})).status_code == 201
            key = r.gateway.subscriptions.check_space("flood")
            shares, path = r.gateway.quotas.shares, "/v1/spaces/flood/subscriptions"

            async def waited(method: str, path: str, body: object = None) -> float:
                """How long a change waits after one that took long."""
                events = EVENTS.replace("default", "calm")
                published = await r.client.post(events, content=encode([event()]), headers=BATCH)
                assert published.status_code == 200
                shares.change_started(key, time.monotonic() - 10)
                begun_s = time.monotonic()
                shares.change_ended(key, begun_s)
                await r.client.request(method, path, json=body)
                assert shares._changes[key] == 0
                return time.monotonic() - begun_s

            monkeypatch.setattr(module, "DEBT_MAX_S", 0.02)
            monkeypatch.setattr(module, "ACTIVE_S", 60.0)
            least_s = 0.02 / SHARE * 0.9
            assert await waited("PUT", f"{path}/a", {"filter": "data.x = 1"}) > least_s
            assert await waited("PUT", f"{path}/b", {"filter": "no filter"}) > least_s
            assert await waited("POST", path, {"subscriptions": [{"filter": "data.x = 1"}]}) > least_s
            assert await waited("PATCH", f"{path}/a", {"delivery": {"max_attempts": 3}}) > least_s
            assert await waited("DELETE", f"{path}/a") > least_s

    run(work)


def test_changes_of_a_space_have_their_turns_in_the_order_of_the_calls() -> None:
    """A repeated request must not overtake the first one, which would then undo a later change."""

    async def work() -> None:
        shares, order = ChangeRateShare(), list[int]()

        async def change(number: int) -> None:
            async with shares.turn("flood"):
                order.append(number)
                shares.published("calm", time.monotonic())
                await asyncio.sleep(0.002)

        shares.published("calm", time.monotonic())
        shares.change_started("flood", time.monotonic() - 0.06)
        shares.change_ended("flood", time.monotonic())
        changes = []
        for number in range(20):
            changes.append(asyncio.create_task(change(number)))
            await asyncio.sleep(0.003)
        await asyncio.gather(*changes)
        assert order == list(range(20))

    run(work)
