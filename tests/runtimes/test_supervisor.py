"""Starting, watching and stopping processes, with stand-ins for gateway and pipeline."""

from __future__ import annotations

import contextlib
import json
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

from fieldfare.runtimes.process.logs import set_aside_large
from fieldfare.runtimes.process.restarts import Restarts, RestartSettings
from fieldfare.runtimes.process.watching import HangWatch

pytestmark = pytest.mark.long

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
    restarts=RestartSettings(quick_s=0.0, deaths_told=3, backoff_s=0.01, backoff_max_s=0.05), stall_s=2.0))
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
            [sys.executable, "-c", SERVE, str(data), str(port), gateway, INDEXER, pipeline],
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


def test_all_are_started_and_stopped_in_order_and_nothing_is_left(tmp_path):
    with service(tmp_path / "data") as running:
        running.ready()
        assert urllib.request.urlopen(running.url, timeout=5).read() == b"alive"
        assert "gateway stands in" in (running.data / "logs" / "gateway.log").read_text()
        helper = int((running.data / "helper").read_text())
        running.process.send_signal(signal.SIGTERM)
        assert running.wait() == 0
        assert (running.data / "stopped").read_text() == "gateway\nindexer\npipeline\n"
        until(lambda: not alive(helper))
        assert running.console.endswith("fieldfare: stopping\nfieldfare: stopped\n")


@pytest.mark.parametrize("name", ["gateway", "indexer", "pipeline"])
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


def test_a_pipeline_that_dies_again_and_again_never_takes_the_gateway_with_it(tmp_path):
    """The disk is full, or Java is missing: publishers are still answered, and told to come back."""
    dying = "print('no java here'); raise SystemExit(7)"
    with service(tmp_path / "data", pipeline=dying) as running:
        until(lambda: running.console.count("pipeline ended with exit code 7") >= 8)
        assert running.process.poll() is None
        assert urllib.request.urlopen(running.url, timeout=DEADLINE_S).read() == b"alive"
        assert running.console.count("  | no java here") == 1, "its last words are shown once"
        assert "pipeline.log" in running.console
        assert len(running.pids("gateway")) == 1


def test_a_pipeline_of_another_format_ends_the_service_and_says_why(tmp_path):
    """No restart can help there: a person must choose another directory, or another version."""
    foreign = "print('format 9'); raise SystemExit(4)"
    with service(tmp_path / "data", pipeline=foreign) as running:
        assert running.wait() == 1
        assert "pipeline ended with exit code 4; giving up" in running.console
        assert "  | format 9" in running.console


HANGS_ONCE = """
import json, os, signal, sys, time
data = sys.argv[2]
first = not os.path.exists(data + "/hung")
open(data + "/hung", "w").close()
signal.signal(signal.SIGTERM, signal.SIG_DFL if not first else signal.SIG_IGN)
while True:
    beat = {"pid": os.getpid(), "state": "running", "time_ms": 0, "offset": 5, "log_end": 9 if first else 5}
    with open(data + "/run/new", "w") as file:
        json.dump(beat | {"sign": time.time_ns()}, file)
    os.replace(data + "/run/new", data + "/run/pipeline.json")
    if first and "silent" in data:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.05)
"""


@pytest.mark.parametrize("kind", ["silent", "busy"])
def test_a_pipeline_that_hangs_is_ended_and_started_again(tmp_path, kind):
    """It was stopped with SIGSTOP, or one of its tasks waits for ever while it says that all is well."""
    with service(tmp_path / kind, pipeline=HANGS_ONCE) as running:
        running.ready()
        until(lambda: len(running.pids("pipeline")) == 2)
        why = "gave no sign of life" if kind == "silent" else "matched nothing"
        assert f"pipeline {why} for" in running.console
        assert "pipeline was killed by SIGKILL; starting it again" in running.console
        first, second = running.pids("pipeline")
        assert not alive(first) and alive(second)


@pytest.mark.parametrize("name", ["gateway", "indexer"])
def test_a_process_that_hangs_is_ended_and_started_again(tmp_path, name):
    """It waits for a dead network disk: clients, or events, wait, and nobody tells them anything."""
    with service(tmp_path / "data") as running:
        running.ready()
        (first,) = running.pids(name)
        os.kill(first, signal.SIGSTOP)
        until(lambda: len(running.pids(name)) == 2)
        assert f"{name} gave no sign of life for" in running.console
        assert urllib.request.urlopen(running.url, timeout=DEADLINE_S).read() == b"alive"


class Beats:
    """A pipeline's heartbeat, written by hand; the time is moved by hand too."""

    def __init__(self, path: Path, stall_s: float = 10.0) -> None:
        self.pid = 7
        self._path = path
        self._watch = HangWatch(path, stall_s)
        self._count = 0
        self._now_s = 0.0

    def hang(self, now_s: float, **beat: object) -> str:
        """What the watch says, which looks every second, after a new beat if one is given."""
        while self._now_s < now_s - 1:
            self._now_s += 1
            if said := self._watch(self.pid, self._now_s):
                return said
        return self.look(now_s, **beat)

    def look(self, now_s: float, **beat: object) -> str:
        """The same when nobody looked since the last time."""
        self._now_s = now_s
        if beat:
            self._count += 1
            self._path.write_text(json.dumps({"pid": self.pid, "n": self._count, "state": "running", **beat}))
        return self._watch(self.pid, now_s)


def test_a_pipeline_without_anything_to_do_does_not_hang(tmp_path):
    """An idle night, in which the wall clock jumps too."""
    beats = Beats(tmp_path / "beat")
    for second in range(0, 1000, 5):
        assert beats.hang(second, offset=4, log_end=4, time_ms=-second * 10**9) == ""
    assert beats.hang(1000, offset=4, log_end=5) == ""
    assert beats.hang(1004, offset=4, log_end=5) == ""
    assert "matched nothing" in beats.hang(1016, offset=4, log_end=5)


def test_progress_is_a_record_not_a_batch_and_who_waits_for_the_index_does_not_hang(tmp_path):
    """A day's backlog, and a million filters that are indexed first."""
    beats = Beats(tmp_path / "beat")
    for second in range(0, 100, 5):
        assert beats.hang(second, offset=4, log_end=50, indexed=False) == ""
    for second in range(100, 200, 5):
        assert beats.hang(second, offset=second, log_end=500) == ""
    for second in range(200, 300, 5):
        assert beats.hang(second, offset=200, log_end=500, state="recovering") == ""


def test_a_pipeline_may_be_silent_for_longer_while_it_starts(tmp_path):
    beats = Beats(tmp_path / "beat")
    assert beats.hang(0.0) == ""
    assert beats.hang(20.0) == ""
    assert beats.hang(30.0, offset=0, log_end=9, state="starting") == ""
    assert beats.hang(75.0) == ""
    assert "sign of life" in beats.hang(90.0)


def test_a_start_that_was_ended_for_its_silence_is_given_twice_as_long_the_next_time(tmp_path):
    """Much else runs on the machine: Spark alone takes a minute to start, where it took seven seconds.

    Each start that is ended is one more that the next one has to wait for; with the same patience for all
    of them the service would never be ready again.
    """
    beats = Beats(tmp_path / "beat")
    now_s = 0.0
    for patience_s in (50, 100, 200, 400, 400):
        beats.pid += 1
        waiting = {"offset": 0, "log_end": 9, "state": "starting"}
        assert beats.hang(now_s + 1, **waiting) == ""
        assert beats.hang(now_s + patience_s - 2, **waiting) == ""
        assert "matched nothing" in beats.hang(now_s + patience_s + 20, **waiting)
        now_s += patience_s + 20
    beats.pid += 1
    assert beats.hang(now_s + 1, offset=0, log_end=9) == ""
    assert "sign of life" in beats.hang(now_s + 30), "who runs has no longer"
    beats.pid += 1
    assert beats.hang(now_s + 31, **waiting) == ""
    assert "sign of life" in beats.hang(now_s + 100), "once it ran, all begins anew"


def test_a_pipeline_that_was_paused_with_its_supervisor_does_not_hang(tmp_path):
    """A laptop's lid is closed over night with events waiting: nobody had the time to do anything."""
    beats = Beats(tmp_path / "beat")
    assert beats.hang(0.0, offset=4, log_end=50) == ""
    for pause in range(1, 4):
        assert beats.look(pause * 30_000.0) == ""
    assert "sign of life" in beats.hang(90_020.0), "who hangs is found all the same"


def test_a_log_that_grows_while_its_writer_runs_is_set_aside(tmp_path):
    """Spark may report the same error every second for a month."""
    path = tmp_path / "spark.log"
    with open(path, "ab", buffering=0) as writer:
        writer.write(b"old\n" * 10)
        set_aside_large(path, max_bytes=100)
        assert path.stat().st_size == 40
        set_aside_large(path, max_bytes=39)
        writer.write(b"new\n")
    assert path.read_bytes() == b"new\n"
    assert (tmp_path / "spark.log.1").read_bytes() == b"old\n" * 10
    set_aside_large(tmp_path / "none.log")


def test_a_child_that_cannot_open_its_storage_is_not_tried_again(tmp_path):
    with service(tmp_path / "data", gateway="print('broken log'); raise SystemExit(4)") as running:
        assert running.wait() == 1
        assert running.console.count("gateway ended") == 1
        assert "  | broken log" in running.console


def test_a_second_service_on_the_same_directory_is_told_who_is_there(tmp_path):
    with service(tmp_path / "data") as running:
        running.ready()
        second = subprocess.run(
            [sys.executable, "-c", SERVE, str(running.data), "0", GATEWAY, INDEXER, PIPELINE],
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
        pids = [*running.pids("gateway"), *running.pids("indexer"), *running.pids("pipeline")]
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
    restarts = Restarts(RestartSettings(quick_s=2.0, deaths_told=2, backoff_s=1.0, backoff_max_s=3.0))
    assert restarts.died(0.0) == 1.0 and not restarts.is_told
    assert restarts.died(1.0) == 2.0 and restarts.is_told
    restarts.ready(3.0)
    assert restarts.died(6.0) == 1.0, "it lived"
    restarts.ready(7.0)
    assert restarts.died(8.0) == 1.0
    assert restarts.died(9.0) == 2.0 and restarts.is_told
    assert restarts.died(10.0) == 3.0 and not restarts.is_told


def test_the_pause_grows_to_its_bound_and_no_further():
    restarts = Restarts(RestartSettings(backoff_s=0.5, backoff_max_s=3.0))
    assert [restarts.died(0.0) for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert [restarts.died(0.0) for _ in range(5000)][-1] == 3.0
