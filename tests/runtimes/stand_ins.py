"""Stand-ins for the processes of a service, under a real supervisor in a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

DEADLINE_S = 180.0

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
def live():
    while True:
        with open(arguments["--data"] + "/run/gateway.lock", "a") as file:
            os.utime(file.fileno())
        time.sleep(0.1)
import os, threading
threading.Thread(target=live, daemon=True).start()
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

INDEXER = """
import json, os, signal, sys, time
data = sys.argv[2]
def stop(*_):
    with open(data + "/stopped", "a") as file:
        file.write("indexer\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
while True:
    with open(data + "/run/new-index", "w") as file:
        json.dump({"pid": os.getpid(), "state": "running", "time_ms": 0, "sign": time.time_ns()}, file)
    os.replace(data + "/run/new-index", data + "/run/indexer.json")
    time.sleep(0.05)
"""

SERVE = """
import sys
from pathlib import Path
from fieldfare.runtimes.process.restarts import RestartSettings
from fieldfare.runtimes.service.serve import serve
commands = {name: (sys.executable, "-c", text)
            for name, text in zip(("gateway", "indexer", "pipeline"), sys.argv[3:], strict=True)}
sys.exit(serve(Path(sys.argv[1]), "127.0.0.1", int(sys.argv[2]), commands=commands,
    restarts=RestartSettings(quick_s=0.0, deaths_told=3, backoff_s=0.01, backoff_max_s=0.05), stall_s=60.0))
"""
SOON_HANGS = SERVE.replace("stall_s=60.0", "stall_s=2.0")
"""Ends a child that hangs soon; the others are given time also on a busy machine."""


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

    def __init__(
        self,
        data: Path,
        port: int = 0,
        gateway: str = GATEWAY,
        pipeline: str = PIPELINE,
        serve: str = SERVE,
    ) -> None:
        self.data = data
        data.mkdir(exist_ok=True)
        self._console = open(data / "console", "w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-c", serve, str(data), str(port), gateway, INDEXER, pipeline],
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
