"""Starting, watching and stopping processes, with stand-ins for gateway and pipeline."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from fieldfare.runtimes.service.restarts import Restarts, RestartSettings

DEADLINE_S = 20.0

GATEWAY = """
import http.server, signal, socket, sys, time
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "5")
        self.end_headers()
        self.wfile.write(b"alive")
    def log_message(self, *arguments): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
server.socket = socket.socket(fileno=int(arguments["--fd"]))
def stop(*_):
    with open(arguments["--data"] + "/stopped", "a") as file:
        file.write("gateway\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("gateway stands in", flush=True)
server.serve_forever()
"""

PIPELINE = """
import json, os, signal, subprocess, sys, time
data = sys.argv[2]
def stop(*_):
    with open(data + "/stopped", "a") as file:
        file.write("pipeline\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
with open(data + "/helper", "w") as file:
    file.write(str(helper.pid))
while True:
    with open(data + "/run/new", "w") as file:
        json.dump({"pid": os.getpid(), "state": "ready", "time_ms": time.time_ns() // 10**6}, file)
    os.replace(data + "/run/new", data + "/run/pipeline.json")
    time.sleep(0.05)
"""

SERVE = """
import sys
from pathlib import Path
from fieldfare.runtimes.service.restarts import RestartSettings
from fieldfare.runtimes.service.supervisor import serve
sys.exit(serve(Path(sys.argv[1]), "127.0.0.1", int(sys.argv[2]),
    gateway_command=(sys.executable, "-c", sys.argv[3]), pipeline_command=(sys.executable, "-c", sys.argv[4]),
    restarts=RestartSettings(quick_s=0.0, deaths_max=3, backoff_s=0.01)))
"""


def until(condition):
    deadline_s = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline_s, "it did not come true in time"
        time.sleep(0.01)
    return found


def alive(pid: int) -> bool:
    """Whether a process runs (one that has ended and waits for its parent does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


class Service:
    """A supervisor in a process of its own."""

    def __init__(self, data: Path, port: int = 0, gateway: str = GATEWAY, pipeline: str = PIPELINE) -> None:
        self.data = data
        data.mkdir(exist_ok=True)
        self._console = open(data / "console", "w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(data), str(port), gateway, pipeline],
            stdout=self._console,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    @property
    def console(self) -> str:
        return (self.data / "console").read_text()

    def ready(self) -> Service:
        until(lambda: "fieldfare: ready\n" in self.console or self.process.poll() is not None)
        assert self.process.poll() is None, self.console
        return self

    @property
    def url(self) -> str:
        return re.search(r"http://[\d.:]+", self.console)[0]

    def pids(self, name: str) -> list[int]:
        return [int(pid) for pid in re.findall(rf"{name} ready \(process (\d+)\)", self.console)]

    def wait(self) -> int:
        return self.process.wait(DEADLINE_S)


@contextlib.contextmanager
def service(data: Path, **more: object) -> Iterator[Service]:
    found = Service(data, **more)
    try:
        yield found
    finally:
        if found.process.poll() is None:
            found.process.terminate()
        found.wait()


def test_both_are_started_and_stopped_in_order_and_nothing_is_left(tmp_path):
    with service(tmp_path / "data") as running:
        running.ready()
        assert urllib.request.urlopen(running.url, timeout=5).read() == b"alive"
        assert "gateway stands in" in (running.data / "logs" / "gateway.log").read_text()
        helper = int((running.data / "helper").read_text())
        running.process.send_signal(signal.SIGTERM)
        assert running.wait() == 0
        assert (running.data / "stopped").read_text() == "gateway\npipeline\n"
        until(lambda: not alive(helper))
        assert running.console.endswith("fieldfare: stopping\nfieldfare: stopped\n")


@pytest.mark.parametrize("name", ["gateway", "pipeline"])
def test_a_child_that_is_killed_is_started_again_and_its_helpers_are_swept(tmp_path, name):
    with service(tmp_path / "data") as running:
        running.ready()
        helper = int((running.data / "helper").read_text())
        for times in (1, 2, 3, 4):
            os.kill(running.pids(name)[-1], signal.SIGKILL)
            # While the gateway is away, a request waits in the socket's queue.
            assert urllib.request.urlopen(running.url, timeout=DEADLINE_S).read() == b"alive"
            until(lambda times=times: len(running.pids(name)) == times + 1)
        assert f"{name} was killed by SIGKILL; starting it again" in running.console
        if name == "pipeline":
            assert not alive(helper)


def test_a_child_that_dies_again_and_again_is_given_up_with_its_last_words(tmp_path):
    with service(tmp_path / "data", pipeline="print('no java here'); raise SystemExit(7)") as running:
        assert running.wait() == 1
        assert "pipeline ended with exit code 7, 3 times in a row; giving up" in running.console
        assert "  | no java here" in running.console
        assert "pipeline.log" in running.console


def test_a_child_that_cannot_open_its_storage_is_not_tried_again(tmp_path):
    with service(tmp_path / "data", gateway="print('broken log'); raise SystemExit(4)") as running:
        assert running.wait() == 1
        assert running.console.count("gateway ended") == 1
        assert "  | broken log" in running.console


def test_a_second_service_on_the_same_directory_is_told_who_is_there(tmp_path):
    with service(tmp_path / "data") as running:
        running.ready()
        second = subprocess.run(
            [sys.executable, "-c", SERVE, str(running.data), "0", GATEWAY, PIPELINE],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert second.returncode == 3
        assert f"(process {running.process.pid})" in second.stdout
        assert "Traceback" not in second.stderr
    with service(tmp_path / "data") as again:
        again.ready()


def test_a_port_in_use_is_said_before_anything_starts(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with service(tmp_path / "data", port=port) as running:
            assert running.wait() == 3
            assert f"cannot listen on 127.0.0.1:{port}" in running.console
            assert not (running.data / "logs").exists()


def test_the_children_end_when_the_supervisor_is_killed(tmp_path):
    with service(tmp_path / "data") as running:
        running.ready()
        pids = [*running.pids("gateway"), *running.pids("pipeline")]
        running.process.kill()
        until(lambda: not any(map(alive, pids)))
        helper = int((running.data / "helper").read_text())
        with contextlib.suppress(ProcessLookupError):
            os.kill(helper, signal.SIGKILL)


def test_a_child_that_does_not_end_is_killed_at_the_second_signal(tmp_path):
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + PIPELINE.replace(
        "signal.signal(signal.SIGTERM, stop)", ""
    )
    with service(tmp_path / "data", pipeline=stubborn) as running:
        running.ready()
        pid = running.pids("pipeline")[0]
        running.process.send_signal(signal.SIGINT)
        until(lambda: "stopping" in running.console)
        running.process.send_signal(signal.SIGINT)
        assert running.wait() == 0
        assert not alive(pid)


def test_a_child_that_lived_is_forgiven_its_earlier_deaths():
    """Time is moved by hand."""
    restarts = Restarts(RestartSettings(quick_s=2.0, deaths_max=3, backoff_s=1.0, backoff_max_s=3.0))
    assert restarts.died(0.0) == 1.0
    assert restarts.died(1.0) == 2.0
    restarts.ready(3.0)
    assert restarts.died(6.0) == 1.0, "it lived"
    restarts.ready(7.0)
    assert restarts.died(8.0) == 1.0
    assert restarts.died(9.0) == 2.0
    assert restarts.died(10.0) is None


def test_the_pause_grows_to_its_bound():
    restarts = Restarts(RestartSettings(deaths_max=10, backoff_s=0.5, backoff_max_s=3.0))
    assert [restarts.died(0.0) for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
