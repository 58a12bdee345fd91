"""Three sites in a line, each a whole service: kills of each and a cut lose and double nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from service_support import Api, RunningService, cloud_event, descendants, until

from fieldfare_lab.ports import find_free_port

pytestmark = [pytest.mark.service, pytest.mark.timeout(1800)]

LINE = ("west", "middle", "east")


class Line:
    """The services of three sites, each a neighbour of the next."""

    def __init__(self, root: Path, routing: str = "ddbr") -> None:
        self.root = root
        self.routing = routing
        self.ports = {name: find_free_port() for name in LINE}
        self.services: dict[str, RunningService] = {}
        self.apis = {name: Api(f"http://127.0.0.1:{port}") for name, port in self.ports.items()}

    def start(self, name: str) -> None:
        place = LINE.index(name)
        neighbours = [LINE[each] for each in (place - 1, place + 1) if 0 <= each < len(LINE)]
        clusters: tuple[str, ...] = ()
        if self.routing == "merc":
            clusters = (("atlantic",), ("atlantic", "pacific"), ("pacific",))[place]
        prefixes = (
            dict(zip(("west", "east"), ("atlantic/", "pacific/"), strict=True)) if len(clusters) == 2 else {}
        )
        peers = ",".join(
            f"{prefixes.get(each, '')}{each}=http://127.0.0.1:{self.ports[each]}" for each in neighbours
        )
        self.services[name] = RunningService(
            self.root / name,
            port=self.ports[name],
            broker=name,
            peers=peers,
            routing=self.routing,
            clusters=",".join(clusters),
            maintenance_s=1,
        )

    def kill(self, name: str) -> None:
        self.services[name].kill()

    @contextmanager
    def without_gateway(self, name: str) -> Iterator[None]:
        """Kill a site's gateway, which alone has to do with links; no other is started within the context."""
        gateway = self.services[name].gateway
        os.kill(self.services[name].process.pid, signal.SIGSTOP)
        os.kill(gateway, signal.SIGKILL)
        yield
        os.kill(self.services[name].process.pid, signal.SIGCONT)

    def publish(self, name: str, *ids: int) -> None:
        events = [cloud_event(str(each), {"n": each}) for each in ids]
        self.apis[name].publish("default", events)

    def broker(self, at: str, name: str) -> dict[str, Any]:
        state = self.apis[at].http.get("/v1/brokers").json()
        return next((each for each in state["brokers"] if each["name"] == name), {})

    def take(self, at: str, id: str, wanted: int) -> list[int]:
        """Take and acknowledge messages until as many have come; then there must be no more."""
        path, found = f"/v1/spaces/default/subscriptions/{id}", list[int]()

        def pull(wait_s: float) -> None:
            answer = self.apis[at].http.post(f"{path}/pull", json={"max": 1000, "wait_s": wait_s})
            messages = answer.json()["messages"]
            if messages:
                positions = [each["position"] for each in messages]
                self.apis[at].http.post(f"{path}/ack", json={"positions": positions}).raise_for_status()
            found.extend(int(each["event"]["id"]) for each in messages)

        until(lambda: pull(1) or len(found) >= wanted)
        pull(1)
        return found


def test_three_services_in_a_line_lose_and_double_nothing(tmp_path: Path) -> None:
    line = Line(tmp_path)
    try:
        for name in LINE:
            line.start(name)
        for name in LINE:
            line.services[name].wait_ready(400)
        line.apis["east"].put("default", "far", "data.n >= 0")
        line.apis["west"].put("default", "near", "data.n >= 1000")
        until(lambda: line.broker("east", "west").get("counts_through", 0) >= 1)
        until(lambda: line.broker("west", "east").get("counts_through", 0) >= 1)
        line.publish("west", *range(10))
        assert line.take("east", "far", 10) == list(range(10))
        line.publish("east", 1000)
        assert line.take("west", "near", 1) == [1000] == line.take("east", "far", 1)

        with line.without_gateway("middle"):
            line.publish("west", 20, 21)
        line.publish("west", 22)
        assert sorted(line.take("east", "far", 3)) == [20, 21, 22]

        line.kill("east")
        line.publish("west", 30, 31)
        line.start("east")
        assert line.services["east"].wait_ready(400)
        assert sorted(line.take("east", "far", 2)) == [30, 31]

        line.publish("west", 40, 41)
        with line.without_gateway("west"):
            pass
        assert line.services["west"].wait_ready(400)
        line.publish("west", 42)
        assert sorted(line.take("east", "far", 3)) == [40, 41, 42]

        frozen = [line.services["middle"].process.pid, *descendants(line.services["middle"].process.pid)]
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        line.publish("west", 50, 51)
        until(lambda: not link(line, "west")["is_up"])
        for pid in frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        assert sorted(line.take("east", "far", 2)) == [50, 51]

        state = line.broker("east", "west")
        assert state["sent_twice"] == 0
        assert state["events_received"] == line.broker("west", "east")["events_sent"]
        assert line.take("west", "near", 0) == []
        assert line.services["middle"].folder.log_path.exists()
        assert line.apis["middle"].http.get("/v1/stats").json()["log_end"] == 0, "it only passes on"
    finally:
        for name, service in line.services.items():
            print(name, service.console[-2000:])
            if service.process.poll() is None:
                service.kill()


@pytest.mark.slow
@pytest.mark.parametrize("routing", ["fbr", "merc"])
def test_three_services_match_again_in_the_middle(tmp_path: Path, routing: str) -> None:
    """By filter, and by cluster with the one in the middle as the edge; it is killed on the way."""
    line = Line(tmp_path, routing)
    try:
        for name in LINE:
            line.start(name)
        for name in LINE:
            line.services[name].wait_ready(400)
        line.apis["east"].put("default", "far", "data.n >= 5")
        line.apis["middle"].put("default", "own", "data.n = 7")
        until(lambda: line.broker("west", "middle").get("filters") == 2)
        line.publish("west", *range(10))
        assert sorted(line.take("east", "far", 5)) == [5, 6, 7, 8, 9]
        assert line.take("middle", "own", 1) == [7]
        assert line.broker("west", "east") == {} == line.broker("east", "west")

        line.kill("middle")
        line.publish("west", 20, 21)
        line.start("middle")
        assert line.services["middle"].wait_ready(400)
        line.publish("west", 7)
        assert sorted(line.take("east", "far", 3)) == [7, 20, 21]
        assert line.take("middle", "own", 1) == [7]
        assert line.apis["middle"].http.get("/v1/stats").json()["log_end"] > 0, "it matches them, too"
        for name in LINE:
            state = line.apis[name].http.get("/v1/brokers").json()
            assert not any(each.get("sent_twice") for each in state["brokers"])
    finally:
        for name, service in line.services.items():
            print(name, service.console[-2000:])
            if service.process.poll() is None:
                service.kill()


def link(line: Line, at: str) -> dict[str, Any]:
    return dict(line.apis[at].http.get("/v1/brokers").json()["links"][0])
