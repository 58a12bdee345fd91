"""`fieldfare balance`: loads from real figures, what a broker would do, and doing it."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from federation_support import Site, sites
from gateway_support import until
from typer.testing import CliRunner

from fieldfare.balancing.advice import Peer, Share, advise, joint_target, spread
from fieldfare.balancing.detection import exceeding
from fieldfare.balancing.load import Load, Resource
from fieldfare.balancing.messages import State
from fieldfare.balancing.press import Profile
from fieldfare.cli.app import app
from fieldfare.delivery.keys import INDEX_BITS, OFFSET_MASK
from fieldfare.gateway.federation.balance_board import FORGOTTEN_S, LETTER_S, BalanceBoard
from fieldfare.gateway.federation.balancing import meter
from fieldfare.gateway.federation.balancing.edge_runner import balancing_settings, window_s
from fieldfare.gateway.federation.balancing.planning import PUBLISHERS
from fieldfare.gateway.federation.balancing.window import SAMPLES_MAX, WINDOW_S, Window, last_matches
from fieldfare.gateway.federation.wire import LETTER_HOPS_MAX, LETTERS_MAX, Letter, LoadRow
from fieldfare.gateway.setting_values import RATIOS
from fieldfare.gateway.settings import GatewaySettings


def load(input_ratio: float, output_ratio: float, subscriptions: int = 10) -> Load:
    return Load(
        input_per_s=100.0,
        matching_s=input_ratio / 100.0,
        subscriptions=subscriptions,
        deliveries_per_s=output_ratio * 100,
        output_bytes_per_s=output_ratio * 1e6,
        output_bytes_per_s_max=1e6,
    )


SERVICE = balancing_settings(10.0, 30, RATIOS)


def profile_of(count: int, *, event_bytes: float = 6_000.0) -> Profile:
    """Subscriptions that take turns in matching the events of publishers elsewhere."""
    bits = np.array([[sample % count == number for sample in range(10 * count)] for number in range(count)])
    return Profile(tuple(range(count)), bits, np.zeros(10 * count, bool), 100.0, event_bytes)


def advised(peers: dict[str, Peer], pinned: tuple[int, ...] = ()) -> list[Any]:
    """Eight subscriptions of a broker whose output is at 60 %, each with an eighth of it."""
    movable = {number: int(number not in pinned) for number in range(8)}
    return advise(load(0.001, 0.6, 8), peers, lambda _: profile_of(8), movable, SERVICE)


def test_the_broker_with_room_is_given_its_share_and_no_more() -> None:
    [advice] = advised({"b": Peer(load(0.001, 0.0, 4), State.OK)})
    assert advice.action.broker == "b" and advice.action.metric == "output"
    assert len(advice.plan.moved) == 4
    assert advice.plan.mine.output_ratio == pytest.approx(0.3) == advice.plan.theirs.output_ratio
    assert advised({"b": Peer(load(0.001, 0.0, 4), State.BUSY)}) == []
    [advice] = advised({"b": Peer(load(0.001, 0.0, 4), State.OK)}, pinned=tuple(range(7)))
    assert len(advice.plan.moved) == 1
    [advice] = advised({"b": Peer(load(0.001, 0.0, 4), State.OK)}, pinned=tuple(range(8)))
    assert advice.plan is None


def test_a_broker_is_left_what_the_others_are_to_have() -> None:
    """Half of the difference would be four of eight; c would then have to be given some of them by b."""
    idle = load(0.001, 0.0, 0)
    peers = {
        "b": Peer(idle, State.OK),
        "c": Peer(dataclasses.replace(idle, output_bytes_per_s_max=2e6), State.OK),
    }
    [advice] = advised(peers)
    assert advice.action.broker == "b" and len(advice.plan.moved) == 2
    [advice] = advised(peers | {"b": Peer(idle, State.BUSY)})
    assert advice.action.broker == "c" and len(advice.plan.moved) == 4


def test_a_broker_without_room_has_no_weight_in_the_mean() -> None:
    """It claimed an enormous load: all others had less than their share, and balanced nothing."""
    peers = {"b": Peer(load(0.001, 0.0, 4), State.OK), "c": Peer(load(0.9, 1e9, 4), State.NOT_AVAILABLE)}
    [advice] = advised(peers)
    assert len(advice.plan.moved) == 4
    assert joint_target(load(0.001, 0.6), peers.values()).output_ratio == pytest.approx(0.3)


def test_no_move_is_advised_that_only_gives_the_other_broker_more_to_do() -> None:
    """Events of publishers here are input here in any case; the difference shrank all the same."""
    bits = np.ones((2, 40), bool)
    profile = Profile((1, PUBLISHERS), bits, np.zeros(40, bool), 100.0, 60.0)
    mine, theirs = (dataclasses.replace(load(0.5, 0.1), is_calibrated=True) for _ in range(2))
    theirs = dataclasses.replace(theirs, input_per_s=10.0, cost=mine.cost)
    [advice] = advise(mine, {"b": Peer(theirs, State.OK)}, lambda _: profile, {1: 1}, SERVICE)
    assert advice.action.metric == "input" and advice.plan is None


def test_no_subscription_leaves_for_the_sake_of_other_programs_of_the_machine() -> None:
    """A backup takes the processors: shedding everything would not end that."""
    keys = tuple(range(4))
    profile = Profile(keys, np.ones((4, 40), bool), np.zeros(40, bool), 100.0, 60.0)

    def moved(cpu: float, matching: float) -> int:
        mine = dataclasses.replace(load(matching, 0.1, 4), cpu=cpu, input_queue_s=0.0)
        peers = {"b": Peer(load(0.01, 0.01, 4), State.OK)}
        found = advise(mine, peers, lambda _: profile, dict.fromkeys(keys, 1), SERVICE)
        return sum(each.number for advice in found if advice.plan for each in advice.plan.moved)

    assert moved(cpu=0.99, matching=0.05) == 0
    assert moved(cpu=0.99, matching=0.8) > 0


def test_a_ratio_that_is_left_out_is_no_overload() -> None:
    busy = dataclasses.replace(load(0.1, 0.1), cpu=1.0, memory=0.99)
    counted = balancing_settings(10.0, 30, RATIOS)
    assert set(exceeding(busy, counted, higher=True)) == {Resource.CPU, Resource.MEMORY}
    assert not exceeding(busy, balancing_settings(10.0, 30, ("input", "output")), higher=False)


def test_the_mean_follows_what_each_can_take() -> None:
    small, large = load(0.2, 0.6), dataclasses.replace(load(0.1, 0.0), output_bytes_per_s_max=2e6)
    target = joint_target(small, [Peer(large, State.OK)])
    assert target.output_ratio == pytest.approx(0.2)
    assert target.input_ratio == pytest.approx(200 / (1 / 0.002 + 1 / 0.001))


def test_every_difference_lasts_as_long_as_the_load_is_measured() -> None:
    for interval_s in (0.5, 10.0, 60.0):
        found = balancing_settings(interval_s, 30, RATIOS)
        assert found.lasting_s == window_s(interval_s) <= WINDOW_S
        assert found.session_moves_max == 20 and found.moves_per_min == 30


def test_serve_refuses_to_balance_with_a_routing_without_moves(tmp_path: Path) -> None:
    given = ["--data", str(tmp_path / "d"), "--broker", "a", "--routing", "fbr", "--balance"]
    result = CliRunner().invoke(app, ["serve", *given])
    assert result.exit_code != 0 and "--balance needs --routing ddbr" in result.output, result.output
    result = CliRunner().invoke(app, ["serve", "--data", str(tmp_path / "d"), "--balance"])
    assert result.exit_code != 0 and "--balance needs --broker" in result.output, result.output


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"balance": True}, "--balance needs --broker"),
        ({"broker": "a", "balance": True, "routing": "fbr"}, "--balance needs --routing ddbr"),
        (
            {"broker": "a", "balance": True, "routing": "merc", "clusters": "n"},
            "--balance needs --routing ddbr: subscriptions do not move between brokers with --routing merc",
        ),
        ({"broker": "a", "balance_overload": "input,disk"}, "'disk' is none of input, output, cpu, memory"),
        ({"broker": "a", "balance_moves_per_min": 0}, "greater than or equal to 1"),
    ],
)
def test_a_service_that_cannot_balance_by_itself_says_why(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        GatewaySettings.model_validate(settings)


def test_a_drained_broker_gives_each_subscription_to_the_one_with_the_most_room() -> None:
    shares = [Share(number, 1.0, 2e5) for number in range(4)] + [Share(9, 1.0, 1.0)]
    found = spread(shares, {"b": load(0.1, 0.1), "c": load(0.1, 0.5)})
    assert Counter(found[number] for number in range(4)) == {"b": 3, "c": 1}
    assert spread([], {"b": load(0, 0)}) == {}


class Known:
    """The topology of the broker a: its neighbour b, c behind it, and d, which both b and a are linked to."""

    name = "a"

    def cluster_of(self, name: str) -> str | None:
        return "" if name in ("b", "c", "d") else None

    def are_linked(self, one: str, other: str) -> bool:
        return {one, other} in ({"b", "c"}, {"b", "d"})

    def path(self, name: str) -> str | None:
        return "b" if name in ("b", "c") else None


def board(now_s: list[float]) -> BalanceBoard:
    return BalanceBoard(Known(), lambda: now_s[0])  # type: ignore[arg-type]


def test_a_load_goes_along_until_it_was_answered_and_only_the_newest_counts() -> None:
    now_s = [0.0]
    found = board(now_s)
    heard: list[LoadRow] = []
    found.on_row = heard.append
    row = LoadRow("a", 5, "OK", 1.0, 0.0, 3, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
    found.put(row)
    assert found.rows_for("b") == (row,) == found.rows_for("b")
    found.sent("b")
    assert found.rows_for("b") == () and found.rows_for("c") == (row,)
    rename = msgspec.structs.replace
    found.merge([rename(row, name="c"), rename(row, name="x"), rename(row, name="b", cpu=math.nan)])
    assert [each.name for each, _ in found.known()] == ["a", "c"]
    found.merge([rename(row, name="c", number=4, subscriptions=99), rename(row, number=9)])
    now_s[0] = 7.0
    assert [(each.subscriptions, age_s) for each, age_s in found.known()] == [(3, 7.0), (3, 7.0)]
    assert [each.name for each in heard] == ["c"], "of its own load it hears nothing"
    found.merge([rename(row, name="d")])
    assert [each.name for each in found.rows_for("b")] == [], "c and d tell it themselves"
    assert [each.name for each in found.rows_for("c")] == ["a", "d"]


def test_a_very_high_number_does_not_silence_a_broker_for_ever() -> None:
    """A hostile neighbour sent it in another broker's name, or a clock was set back."""
    now_s = [0.0]
    found = board(now_s)
    found.merge([LoadRow("c", 2**63 - 1, "OK", 1.0, 0.0, 3, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)])
    honest = LoadRow("c", 5, "OK", 1.0, 0.0, 7, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
    now_s[0] = FORGOTTEN_S - 1
    assert not found.put(honest)
    now_s[0] = FORGOTTEN_S + 1
    assert found.put(honest) and not found.put(honest), "the same load is not new again"
    now_s[0] = 3 * FORGOTTEN_S
    assert not found.put(honest)


def test_a_letter_goes_along_until_it_was_answered_and_is_passed_on() -> None:
    now_s = [0.0]
    found = board(now_s)
    heard: list[Letter] = []
    found.on_letter = heard.append
    mine = Letter("a", "c", 0, 1, 1, "request")
    found.post(mine)
    found.post(Letter("a", "nowhere", 0, 1, 2, "request"))
    found.rows_for("b")
    assert found.has_letters("b") and found.letters_for("b") == (mine,) == found.letters_for("b")
    assert found.letters_for("c") == ()
    found.post(later := Letter("a", "b", 0, 1, 1, "cancel"))
    found.sent("b")
    assert found.letters_for("b") == (later,), "it came after the request was made"
    now_s[0] = LETTER_S + 1
    assert not found.has_letters("b"), "it is too old to count"
    bad = LoadRow("b", 1, "OK", math.nan, 0.0, 3, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
    found.receive(
        [
            Letter("b", "a", 0, 7, 1, "request"),
            Letter("x", "a", 0, 7, 1, "request"),
            Letter("a", "a", 0, 7, 1, "request"),
            Letter("b", "a", 0, 7, 1, "reply", "OK", bad),
            Letter("b", "c", 2, 7, 1, "request"),
            Letter("b", "c", LETTER_HOPS_MAX, 7, 2, "request"),
        ]
    )
    assert heard == [Letter("b", "a", 0, 7, 1, "request")]
    assert found.letters_for("b") == (Letter("b", "c", 3, 7, 1, "request"),)
    for number in range(2 * LETTERS_MAX):
        found.post(Letter("a", "b", 0, 1, number, "request"))
    assert len(found.letters_for("b")) == LETTERS_MAX


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
        window = last_matches(a.gateway.log, a.gateway.match_log, now_ms - 3_600_000)
        assert window.events == 0, "the clock was set back: they seemed to have come in one second"
        window = last_matches(a.gateway.log, a.gateway.match_log, now_ms)
        even, few = (a.gateway.registry.get("default", id).number for id in ("even", "few"))
        numbers, counts = window.matches()
        assert window.events == 40
        assert dict(zip(numbers.tolist(), counts.tolist(), strict=True)) == {even: 20, few: 3}
        assert window.origins(a.gateway.log) == [None] * 40
        bits = window.bits([[even], [few], [even, few], [999]])
        assert bits.shape == (4, 40)
        assert bits.sum(axis=1).tolist() == [20, 3, 21, 0]


def test_samples_are_of_all_publishers_also_where_they_take_turns() -> None:
    """Every twelfth event was that of one of twelve subscriptions: the others seemed to match nothing."""

    class Block:
        start, counts = 0, np.full(12 * SAMPLES_MAX, 1, np.int64)

    window = Window()
    window.blocks.append((0, Block(), 0, Block.counts.size))  # type: ignore[arg-type]
    turns = np.bincount((window.samples() >> INDEX_BITS & OFFSET_MASK) % 12, minlength=12)
    assert turns.sum() == SAMPLES_MAX and turns.min() > SAMPLES_MAX / 24 and turns.max() < SAMPLES_MAX / 6
    assert window.samples().tolist() == sorted(set(window.samples().tolist())), "the same each time"


def loads(site: Site) -> dict[str, dict[str, Any]]:
    answer = site.client.get("/v1/balance")
    assert answer.status_code == 200, answer.text
    return {each["name"]: each for each in answer.json()["brokers"]}


def test_a_broker_is_drained_for_maintenance_but_for_what_is_pinned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "_cpu", lambda: 0.1)
    monkeypatch.setattr(meter, "_memory", lambda: 0.1)
    with sites(tmp_path, "abc", "ab bc ac", balance_interval_s=0.1) as (a, b, c):
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
        until(lambda: loads(b)["a"]["state"] == "N/A")
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
        document = a.client.get("/v1/balance").json()
        assert document["moves"] == [] and not document["automatic"]["is_automatic"]
        assert a.client.get("/v1/balance?drain=yes").status_code == 400, "it is no balance without a drain"
        result = CliRunner().invoke(app, ["balance", "--url", a.url])
        assert result.exit_code == 0 and "nothing is to be moved" in result.output
        assert "does not balance automatically" in result.output
