"""`serve --balance`: sites with skewed load come into balance without an operator, and stay there.

The criterion: no site is in a session or moves a subscription for `REST_S` seconds, and then the output
ratios differ by at most `SPREAD`: the threshold of 0.1, and half a subscription. Until then each subscription
has moved at most once, and in the end each event has come once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from federation_support import Site, sites
from gateway_support import until
from typer.testing import CliRunner

from fieldfare.cli.app import app
from fieldfare.gateway.federation.balancing import meter
from fieldfare.gateway.federation.balancing.window import Window, last_matches
from fieldfare_lab.skewed_load import SkewedLoad

INTERVAL_S = 0.5
REST_S = 6 * INTERVAL_S
SPREAD = 0.15
DEADLINE_S = 180.0


def timed(window: Window) -> Window:
    window.spent_s = window.events * 0.004
    return window


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pipeline of these tests does not measure itself: an event takes 4 ms."""
    monkeypatch.setattr(meter, "_cpu", lambda: 0.1)
    monkeypatch.setattr(meter, "_memory", lambda: 0.1)
    monkeypatch.setattr(meter, "last_matches", lambda *given: timed(last_matches(*given)))


@contextlib.contextmanager
def skewed(
    tmp_path: Path, bandwidths: dict[str, float], **more: Any
) -> Iterator[tuple[list[Site], SkewedLoad]]:
    """Sites that know one another, with these output bandwidths, and all load at the first."""
    names = "".join(bandwidths)
    links = " ".join(f"{one}{other}" for place, one in enumerate(names) for other in names[place + 1 :])
    of = {name: {"output_bytes_per_s": bandwidth} for name, bandwidth in bandwidths.items()}
    given = {"balance": True, "balance_interval_s": INTERVAL_S} | more
    with sites(tmp_path, names, links, of, **given) as found:
        load = SkewedLoad({site.name: site.url for site in found})
        load.subscribe(DEADLINE_S)
        yield found, load


def judge(load: SkewedLoad) -> None:
    assert not load.failures, load.failures[0]
    assert not load.ledger.lost() and not load.ledger.doubled(), (load.ledger.lost(), load.ledger.doubled())


@pytest.mark.long
@pytest.mark.parametrize(
    "bandwidths", [{"a": 2e4, "b": 2e4}, pytest.param({"a": 3e4, "b": 3e4, "c": 6e4}, marks=pytest.mark.slow)]
)
def test_sites_come_into_balance_by_themselves(tmp_path: Path, bandwidths: dict[str, float]) -> None:
    with skewed(tmp_path, bandwidths) as (_, load):
        with load.running():
            load.converge(REST_S, DEADLINE_S)
            ratios, homes = load.ratios(), load.at_homes()
            assert max(ratios.values()) - min(ratios.values()) <= SPREAD, (ratios, homes)
            assert set(homes) == set(bandwidths), homes
            assert set(load.ledger.moves.values()) == {0, 1}, load.ledger.homes
        judge(load)


@pytest.mark.long
def test_nothing_moves_where_no_site_was_told_to_balance(tmp_path: Path) -> None:
    """One that was not is neither asked nor asks; it still says how loaded it is."""
    with skewed(tmp_path, {"a": 2e4, "b": 2e4}, balance=False) as (found, load), load.running():
        until(lambda: load.ratios()["a"] > 0.1)
        until(lambda: load.balance("b")["automatic"]["state"] == "OK")
        end_s = time.monotonic() + REST_S
        until(lambda: time.monotonic() > end_s)
        assert not any(site.brokers()["moves"] for site in found)
        rows = {each["name"]: (each["is_automatic"], each["counts"]) for each in load.balance("b")["brokers"]}
        assert rows == {"a": (False, True), "b": (False, True)}
        until(lambda: load.balance("a")["moves"])
        shown = load.balance("a")
        here, there = (each["output"] for each in shown["brokers"])
        assert shown["target"]["output"] == pytest.approx((here + there) / 2, abs=0.01)
        assert {each["to"] for each in shown["moves"]} == {"b"} and 5 <= len(shown["moves"]) <= 7
        assert shown["actions"][0]["here"]["output"] == pytest.approx(shown["target"]["output"], abs=0.05)
        assert shown["resting"] == 0 and shown["actions"][0]["waits_s"] == 0.0
        result = CliRunner().invoke(app, ["balance", "--url", found[0].url])
        assert result.exit_code == 0 and "each is to have the mean: input" in result.output, result.output
        assert "output is 0." in result.output and "would move to b" in result.output


@pytest.mark.slow
def test_nothing_is_offered_while_a_site_cannot_be_reached(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No offer could be accepted: each was cancelled after a minute, and offered again."""
    with skewed(tmp_path, {"a": 3e4, "b": 3e4, "c": 6e4}) as (found, load):
        found[2].stop()
        with load.running(DEADLINE_S):
            until(lambda: "nothing can move while c cannot be reached" in caplog.text)
            assert not any(site.brokers()["moves"] for site in found[:2])
            found[2].start()
            load.converge(REST_S, DEADLINE_S)
        judge(load)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_stops_and_starts_in_sessions_lose_and_double_nothing(seed: int, tmp_path: Path) -> None:
    """Two sites or all three have moves under way when one stops, which is anywhere in its session."""
    random = Random(seed)
    with skewed(tmp_path, {"a": 3e4, "b": 3e4, "c": 6e4}) as (found, load):
        with load.running(DEADLINE_S):
            for _ in range(3):
                end_s = time.monotonic() + 12 * INTERVAL_S  # Later there may be no session any more.
                until(lambda end_s=end_s: any(map(under_way, found)) or time.monotonic() > end_s)
                time.sleep(random.uniform(0, 0.5))  # the moment is what is random here
                victim = random.choice(found)
                victim.stop()
                time.sleep(random.uniform(0, 1.0))
                victim.start()
            load.converge(REST_S, 2 * DEADLINE_S)
        judge(load)


def under_way(site: Site) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return bool(set(site.brokers()["moves"]) - {"moved", "here"})
    return False


@pytest.mark.long
def test_a_site_that_always_says_it_is_idle_is_given_no_more_than_the_limit(tmp_path: Path) -> None:
    with skewed(tmp_path, {"a": 2e4, "b": 2e4}, balance_moves_per_min=2) as (found, load), load.running():
        edge = found[1].gateway.federation.balancer.edge  # type: ignore[union-attr]
        measure = edge._measure

        def lies(since_s: float) -> Any:
            true, window = measure(since_s)
            return replace(true, input_per_s=0.0, output_bytes_per_s=0.0, deliveries_per_s=0.0), window

        edge._measure = lies
        until(lambda: sum(load.ledger.moves.values()) >= 2)
        until(lambda: load.balance("a")["automatic"]["state"] == "OK")
        end_s = time.monotonic() + REST_S
        until(lambda: time.monotonic() > end_s)
        assert load.ratios()["a"] > 0.2 and sum(load.ledger.moves.values()) == 2
