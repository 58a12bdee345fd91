"""Three services that balance by themselves: they converge, and kills and cuts lose and double nothing.

The criterion: no service is in a session and nothing moves for ten measurements; then the output ratios
differ by at most 0.15 (the threshold of 0.1, and half a subscription), and no subscription has moved twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from accidents import kill, victims_of
from service_support import RunningService, is_running, until

from fieldfare_lab.link_proxy import LinkProxy
from fieldfare_lab.ports import find_free_port
from fieldfare_lab.skewed_load import SkewedLoad

pytestmark = [pytest.mark.service, pytest.mark.slow, pytest.mark.timeout(1800)]

BANDWIDTHS = {"one": 1e4, "two": 1e4, "three": 2e4}
INTERVAL_S = 2.0
REST_S = 10 * INTERVAL_S
PACE_S = 0.2
READY_S, CONVERGE_S, ARRIVAL_S = 300.0, 240.0, 180.0
SESSION_S = 15 * INTERVAL_S
ACCIDENTS = ("gateway", "supervisor", "driver", "cut", "freeze")


class Triangle:
    """Three services, each linked to both others through a proxy for each direction."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.ports = {name: find_free_port() for name in BANDWIDTHS}
        self.proxies = {(a, b): LinkProxy(self.ports[b]) for a, b in permutations(BANDWIDTHS, 2)}
        self.services = {name: self._start(name) for name in BANDWIDTHS}

    def _start(self, name: str) -> RunningService:
        peers = [
            f"{other}=http://127.0.0.1:{proxy.port}"
            for (one, other), proxy in self.proxies.items()
            if one == name
        ]
        return RunningService(
            self._root / name,
            port=self.ports[name],
            broker=name,
            peers=",".join(peers),
            balance=1,
            balance_interval_s=INTERVAL_S,
            # All services share this machine, so that its processors say nothing about one of them.
            balance_overload="input,output",
            output_bytes_per_s=BANDWIDTHS[name],
            maintenance_s=1,
        )

    @property
    def urls(self) -> dict[str, str]:
        return {name: f"http://127.0.0.1:{port}" for name, port in self.ports.items()}

    def suffer(self, kind: str, random: Random) -> str:
        """Let an accident happen, and go on once it is over; return what it was."""
        if kind in ("cut", "freeze"):
            one, other = random.sample(list(BANDWIDTHS), 2)
            for pair in ((one, other), (other, one)):
                getattr(self.proxies[pair], kind)()
            time.sleep(random.uniform(0.5, 5.0))
            for pair in ((one, other), (other, one)):
                self.proxies[pair].heal()
            return f"{kind} {one} {other}"
        name = random.choice(list(BANDWIDTHS))
        service = self.services[name]
        if kind == "supervisor":
            children = service.processes("")
            kill([service.process.pid])
            service.process.wait()
            until(lambda: not any(map(is_running, children)), 180)
            self.services[name] = service = self._start(name)
        else:
            kill(victims_of(service, kind))
        service.wait_ready(READY_S)
        return f"kill {kind} {name}"

    def is_moving(self) -> bool:
        for url in self.urls.values():
            moves = httpx.get(f"{url}/v1/brokers", timeout=20).json()["moves"]
            if set(moves) - {"moved", "here"}:
                return True
        return False

    def close(self) -> None:
        for service in self.services.values():
            if service.process.poll() is None:
                service.kill()
        for proxy in self.proxies.values():
            proxy.close()


@contextmanager
def skewed(root: Path) -> Iterator[tuple[Triangle, SkewedLoad]]:
    found = Triangle(root)
    try:
        for service in found.services.values():
            service.wait_ready(READY_S)
        load = SkewedLoad(found.urls, pause_s=PACE_S)
        load.subscribe(READY_S)
        yield found, load
    except BaseException:
        for service in found.services.values():
            print(service.console[-3000:])
        raise
    finally:
        found.close()


def judge(load: SkewedLoad) -> None:
    assert not load.failures, load.failures[0]
    lost, doubled = load.ledger.lost(), load.ledger.doubled()
    assert not lost and not doubled, {"lost": lost[:10], "doubled": dict(list(doubled.items())[:10])}


def test_three_services_with_all_load_at_one_come_into_balance(tmp_path: Path) -> None:
    with skewed(tmp_path) as (_, load):
        with load.running(ARRIVAL_S):
            seconds = load.converge(REST_S, CONVERGE_S)
            ratios, homes = load.ratios(), load.at_homes()
            print(f"in balance after {seconds:.1f} s: {ratios}, {dict(homes)}")
            assert max(ratios.values()) - min(ratios.values()) <= 0.15, (ratios, homes)
            assert set(homes) == set(BANDWIDTHS)
            assert max(load.ledger.moves.values()) == 1, load.ledger.homes
        judge(load)


@pytest.mark.parametrize("seed", [1, 2])
def test_kills_and_cuts_in_sessions_lose_and_double_nothing(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    kinds: list[Any] = list(ACCIDENTS)
    random.shuffle(kinds)
    with skewed(tmp_path) as (found, load):
        with load.running(ARRIVAL_S):
            for kind in kinds[:4]:
                end_s = time.monotonic() + SESSION_S  # Later there may be no session any more.
                until(lambda end_s=end_s: found.is_moving() or time.monotonic() > end_s, 2 * SESSION_S)
                time.sleep(random.uniform(0, 1.0))  # the moment is what is random here
                print(f"seed {seed}: {found.suffer(kind, random)}", flush=True)
            load.converge(REST_S, CONVERGE_S)
        judge(load)
