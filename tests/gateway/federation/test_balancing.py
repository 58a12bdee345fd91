"""`fieldfare balance`: loads from real figures, what a broker would do, and doing it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from federation_support import Site, sites
from gateway_support import until
from typer.testing import CliRunner

from fieldfare.balancing.advice import Peer, Share, advise, spread, state_of
from fieldfare.balancing.load import Load
from fieldfare.balancing.messages import State
from fieldfare.balancing.poset import Poset
from fieldfare.balancing.press import Profile
from fieldfare.balancing.settings import BalancingSettings
from fieldfare.cli.app import app
from fieldfare.filters import compile_filter
from fieldfare.filters.covering import region_of
from fieldfare.gateway.federation.balancing import balancer, meter
from fieldfare.gateway.federation.balancing.balancer import SpaceRegion
from fieldfare.gateway.federation.balancing.window import Window, last_matches
from fieldfare.gateway.federation.load_board import LoadBoard
from fieldfare.gateway.federation.wire import LoadRow

SETTINGS = BalancingSettings()


def load(input_ratio: float, output_ratio: float, subscriptions: int = 10) -> Load:
    return Load(
        input_per_s=100.0,
        matching_s=input_ratio / 100.0,
        subscriptions=subscriptions,
        deliveries_per_s=output_ratio * 100,
        output_bytes_per_s=output_ratio * 1e6,
        output_bytes_per_s_max=1e6,
    )


def test_the_state_is_that_of_the_paper() -> None:
    def state(load: Load, **more: bool) -> State:
        return state_of(load, SETTINGS, **{"is_busy": False, "is_stabilizing": False} | more)

    assert state(load(0.1, 0.1)) is State.OK
    assert state(load(0.1, 0.91)) is State.NOT_AVAILABLE
    assert state(load(0.1, 0.1), is_stabilizing=True) is State.STABILIZING
    assert state(load(0.1, 0.91), is_busy=True) is State.BUSY


def advised(peers: dict[str, Peer], pinned: tuple[int, ...] = ()) -> list[Any]:
    """Four subscriptions of a broker whose output is at 60 %, each with a quarter of it."""
    poset = Poset(
        (str(number), SpaceRegion("s", region_of(compile_filter(f"data.n = {number}"))))
        for number in range(4)
    )
    keys = tuple(poset.nodes)
    bits = np.array([[sample % 4 == number for sample in range(40)] for number in range(4)])
    profile = Profile(keys, bits, np.zeros(40, bool), 100.0, 6_000.0)
    movable = {poset.key_of(str(number)): int(number not in pinned) for number in range(4)}
    return advise(load(0.5, 0.6, 4), peers, poset, lambda _: profile, movable, SETTINGS)


def test_the_broker_with_room_is_given_what_balances_and_no_more() -> None:
    [advice] = advised({"b": Peer(load(0.45, 0.1, 4), State.OK)})
    assert advice.action.broker == "b" and advice.action.metric == "output"
    # One of the four: then the input is balanced, and the paper's second phase ends.
    assert len(advice.plan.moved) == 1
    assert advice.plan.mine.output_ratio == pytest.approx(0.45)
    assert advice.plan.theirs.output_ratio == pytest.approx(0.25)
    assert advised({"b": Peer(load(0.45, 0.1, 4), State.BUSY)}) == []
    [advice] = advised({"b": Peer(load(0.45, 0.1, 4), State.OK)}, pinned=(0, 1, 2))
    assert len(advice.plan.moved) == 1
    [advice] = advised({"b": Peer(load(0.45, 0.1, 4), State.OK)}, pinned=(0, 1, 2, 3))
    assert advice.plan is None


def test_no_move_is_advised_that_only_gives_the_other_broker_more_to_do() -> None:
    """Events of publishers here are input here in any case; the difference shrank all the same."""
    poset = Poset([("1", SpaceRegion("s", region_of(compile_filter("data.n > 0"))))])
    key = poset.key_of("1")
    poset.add(balancer.PUBLISHERS.key, balancer.PUBLISHERS)
    bits = np.ones((2, 40), bool)
    profile = Profile((key, balancer.PUBLISHERS.key), bits, np.zeros(40, bool), 100.0, 60.0)
    mine, theirs = (dataclasses.replace(load(0.5, 0.1), is_calibrated=True) for _ in range(2))
    theirs = dataclasses.replace(theirs, input_per_s=10.0, cost=mine.cost)
    [advice] = advise(mine, {"b": Peer(theirs, State.OK)}, poset, lambda _: profile, {key: 1}, SETTINGS)
    assert advice.action.metric == "input" and advice.plan is None


def test_a_drained_broker_gives_each_subscription_to_the_one_with_the_most_room() -> None:
    shares = [Share(number, 1.0, 2e5) for number in range(4)] + [Share(9, 1.0, 1.0)]
    found = spread(shares, {"b": load(0.1, 0.1), "c": load(0.1, 0.5)})
    assert Counter(found[number] for number in range(4)) == {"b": 3, "c": 1}
    assert spread([], {"b": load(0, 0)}) == {}


def test_a_region_covers_filters_of_its_space_only() -> None:
    wide, narrow = (region_of(compile_filter(text)) for text in ("data.n > 0", "data.n > 5"))
    assert SpaceRegion("s", wide).covers(SpaceRegion("s", narrow))
    assert not SpaceRegion("s", wide).covers(SpaceRegion("t", narrow))
    assert SpaceRegion("s", wide).key != SpaceRegion("t", wide).key


def test_a_load_goes_along_until_it_was_answered_and_only_the_newest_counts() -> None:
    class Known:
        def cluster_of(self, name: str) -> str | None:
            return "" if name in ("b", "c") else None

    now_s = [0.0]
    board = LoadBoard(Known(), lambda: now_s[0])  # type: ignore[arg-type]
    row = LoadRow("a", 5, "OK", 1.0, 0.0, 3, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
    board.put(row)
    assert board.rows_for("b") == (row,) == board.rows_for("b")
    board.sent("b")
    assert board.rows_for("b") == () and board.rows_for("c") == (row,)
    rename = msgspec.structs.replace
    board.merge([rename(row, name="c"), rename(row, name="x"), rename(row, name="b", cpu=math.nan)])
    assert [each.name for each, _ in board.known()] == ["a", "c"]
    board.merge([rename(row, name="c", number=4, subscriptions=99)])
    now_s[0] = 7.0
    assert [(each.subscriptions, age_s) for each, age_s in board.known()] == [(3, 7.0), (3, 7.0)]


def test_a_window_is_read_from_the_logs_as_it_was_matched(tmp_path: Path) -> None:
    with sites(tmp_path, "ab", "ab") as (a, _):
        a.subscribe("even", "data.n % 2 = 0")
        a.subscribe("few", "data.n < 3")
        for first in range(0, 40, 10):
            a.publish(*range(first, first + 10))
        until(
            lambda: len(a.pull("even")) == 0 and a.gateway.match_log.partition(0).end() == a.gateway.log.end()
        )
        window = last_matches(a.gateway.log, a.gateway.match_log, 1 << 50)
        assert window.events == 0, "too old"
        now_ms = max(each.appended_ms for each in a.gateway.log.read(0, 100))
        window = last_matches(a.gateway.log, a.gateway.match_log, now_ms)
        even, few = (a.gateway.registry.get("default", id).number for id in ("even", "few"))
        numbers, counts = window.matches()
        assert window.events == 40
        assert dict(zip(numbers.tolist(), counts.tolist(), strict=True)) == {even: 20, few: 3}
        assert window.origins(a.gateway.log) == [None] * 40
        bits = window.bits([[even], [few], [even, few], [999]])
        assert bits.shape == (4, 40)
        assert bits.sum(axis=1).tolist() == [20, 3, 21, 0]


def loads(site: Site) -> dict[str, dict[str, Any]]:
    answer = site.client.get("/v1/balance")
    assert answer.status_code == 200, answer.text
    return {each["name"]: each for each in answer.json()["brokers"]}


def test_a_broker_is_drained_for_maintenance_but_for_what_is_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balancer, "MEASURED_S", 0.1)
    monkeypatch.setattr(meter, "_cpu", lambda: 0.1)
    monkeypatch.setattr(meter, "_memory", lambda: 0.1)
    with sites(tmp_path, "abc", "ab bc ac") as (a, b, c):
        for number in range(4):
            a.subscribe(f"s{number}", f"data.n % 4 = {number}")
        a.subscribe("stays", "data.n >= 0")
        url = "/v1/spaces/default/subscriptions/stays"
        a.client.patch(url, json={"delivery": {"pinned": True}}).raise_for_status()
        until(lambda: set(loads(a)) == {"a", "b", "c"})
        a.publish(*range(8))
        for number in range(4):
            a.take(f"s{number}", 2)
        until(lambda: {each["state"] for each in loads(a).values()} == {"OK"})
        document = a.client.get("/v1/balance?drain=true").json()
        assert {each["id"] for each in document["moves"]} == {f"s{number}" for number in range(4)}
        assert document["pinned"] == 1
        assert not a.brokers()["moves"], "it was shown, not done"
        result = CliRunner().invoke(app, ["balance", "--drain", "--url", a.url])
        assert result.exit_code == 0 and "1 pinned subscriptions stay" in result.output, result.output
        result = CliRunner().invoke(app, ["balance", "--drain", "--apply", "--url", a.url])
        assert result.exit_code == 0 and "moves to" in result.output, result.output
        until(lambda: a.brokers()["moves"].get("moved") == 4)
        assert [each.id for each in a.gateway.registry.list("default")] == ["stays"]
        until(lambda: (b.brokers()["moves"].get("here", 0) + c.brokers()["moves"].get("here", 0)) == 4)
        a.publish(*range(8, 16))
        found = []
        for site in (b, c):
            for each in site.gateway.registry.list("default"):
                found += site.take(each.id, 2)
        assert sorted(found) == list(range(8, 16))


def test_a_broker_without_room_elsewhere_says_so(tmp_path: Path) -> None:
    with sites(tmp_path, "a", "") as (a,):
        a.subscribe("mine", "data.n > 0")
        answer = a.client.get("/v1/balance?drain=true")
        assert answer.status_code == 409 and answer.json()["type"].endswith(":no-room")
        assert a.client.get("/v1/balance").json()["moves"] == []
        assert a.client.get("/v1/balance?drain=yes").status_code == 400, "it is no balance without a drain"
        result = CliRunner().invoke(app, ["balance", "--url", a.url])
        assert result.exit_code == 0 and "nothing is to be moved" in result.output


def timed(window: Window) -> Window:
    window.spent_s = window.events * 0.004
    return window


@pytest.mark.slow
def test_three_sites_with_all_load_at_one_come_into_balance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator applies what each site advises; their output bandwidths are as 1 to 1 to 2."""
    monkeypatch.setattr(balancer, "MEASURED_S", 0.2)
    monkeypatch.setattr(meter, "_cpu", lambda: 0.1)
    monkeypatch.setattr(meter, "_memory", lambda: 0.1)
    # The pipeline of this test does not measure itself: an event takes 4 ms.
    monkeypatch.setattr(meter, "last_matches", lambda *given: timed(last_matches(*given)))
    with sites(tmp_path, "abc", "ab bc ac") as found, contextlib.ExitStack() as stack:
        a = found[0]
        for number in range(12):
            a.subscribe(f"s{number}", f"data.n % 12 = {number}")
        stop, published = threading.Event(), list[int]()

        def publish() -> None:
            while not stop.wait(0.1):
                some = range(len(published), len(published) + 12)
                a.publish(*some)
                published.extend(some)

        revision = a.gateway.registry.revision()
        until(lambda: a.counts(revision, "b", "c"))
        thread = threading.Thread(target=publish)
        thread.start()
        stack.callback(thread.join)
        stack.callback(stop.set)
        read: list[int] = []

        def read_all() -> None:
            for site in found:
                for each in site.gateway.registry.list("default"):
                    with contextlib.suppress(KeyError):
                        read.extend(site.pull(each.id))

        until(lambda: loads(a)["a"]["deliveries_per_s"] > 20)
        for site, bandwidth in zip(found, (30e3, 30e3, 60e3), strict=True):
            own = site.gateway.federation.balancer  # type: ignore[union-attr]
            own._settings = dataclasses.replace(own._settings, stabilise_s=3.0)
            own._meter = dataclasses.replace(own._meter, output_bytes_per_s=bandwidth)

        def is_at_rest() -> bool:
            read_all()
            return all({each["state"] for each in loads(site).values()} == {"OK"} for site in found)

        for _ in range(12):
            until(is_at_rest)
            begun = [site.client.post("/v1/balance", json={}).json()["begun"] for site in found]
            if not any(begun):
                break
            until(lambda: not is_at_rest() or True)
        until(is_at_rest)
        ratios = [loads(site)[site.name]["output"] for site in found]
        homes = [len(list(site.gateway.registry.list("default"))) for site in found]
        assert sum(homes) == 12 and min(homes) > 0, homes
        assert max(ratios) - min(ratios) <= 0.15, (ratios, homes)
        stop.set()
        thread.join()
        until(lambda: read_all() or len(read) >= len(published))
        assert Counter(read) == Counter(published)
