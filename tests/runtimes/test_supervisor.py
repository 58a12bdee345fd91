"""Starting, watching and stopping processes, with stand-ins for gateway and pipeline."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import termios
import urllib.request
from pathlib import Path

import pytest
from stand_ins import DEADLINE_S, GATEWAY, INDEXER, PIPELINE, SERVE, SOON_HANGS, alive, service, until

from fieldfare.runtimes.process.logs import set_aside_large
from fieldfare.runtimes.process.restarts import Restarts, RestartSettings
from fieldfare.runtimes.service.serve import CannotStart, take_directory
from fieldfare.storage.folder import DataFolder

pytestmark = pytest.mark.long


def test_all_are_started_and_stopped_in_order_and_nothing_is_left(tmp_path):
    with service(tmp_path / "data") as running:
        running.ready()
        assert urllib.request.urlopen(running.url, timeout=DEADLINE_S).read() == b"alive"
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


def test_a_pipeline_of_another_format_stops_the_service_with_the_reason(tmp_path):
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
    with service(tmp_path / kind, pipeline=HANGS_ONCE, serve=SOON_HANGS) as running:
        running.ready()
        until(lambda: len(running.pids("pipeline")) == 2)
        why = "sent no heartbeat" if kind == "silent" else "matched nothing"
        assert f"pipeline {why} for" in running.console
        assert "pipeline was killed by SIGKILL; starting it again" in running.console
        first, second = running.pids("pipeline")
        assert not alive(first) and alive(second)


@pytest.mark.parametrize("name", ["gateway", "indexer"])
def test_a_process_that_hangs_is_ended_and_started_again(tmp_path, name):
    """It waits for a dead network disk: clients, or events, wait without an answer."""
    with service(tmp_path / "data", serve=SOON_HANGS) as running:
        running.ready()
        (first,) = running.pids(name)
        os.kill(first, signal.SIGSTOP)
        until(lambda: len(running.pids(name)) == 2)
        assert f"{name} sent no heartbeat for" in running.console
        assert urllib.request.urlopen(running.url, timeout=DEADLINE_S).read() == b"alive"


COMPILES = """
import sys, time
from pathlib import Path
data = Path(sys.argv[1])
print("compiling", flush=True)
while not (data / "go").exists():
    time.sleep(0.02)
print("compiled", flush=True)
"""


def test_kernels_are_compiled_before_indexer_and_pipeline_start_and_the_gateway_answers_meanwhile(tmp_path):
    """A first start was silent for minutes, in which three processes compiled the same kernels."""
    data = tmp_path / "data"
    serve = SERVE.replace(
        "sys.exit(",
        "import fieldfare.runtimes.service.serve as service\n"
        "service.are_kernels_compiled = lambda: False\n"
        f"commands['compiler'] = (sys.executable, '-c', {COMPILES!r}, sys.argv[1])\nsys.exit(",
    )
    with service(data, serve=serve) as running:
        until(lambda: "fieldfare: compiling\n" in running.console and running.pids("gateway"))
        assert urllib.request.urlopen(running.url, timeout=DEADLINE_S).read() == b"alive"
        assert not running.pids("pipeline") and not running.pids("indexer")
        (data / "go").touch()
        running.ready()
        assert "fieldfare: compiled\n" in running.console


def heartbeat_pid(data: Path) -> int:
    """The process whose heartbeat is the pipeline's; 0 before the first."""
    try:
        return int(json.loads((data / "run" / "pipeline.json").read_text())["pid"])
    except (OSError, ValueError):
        return 0


def test_a_closed_console_does_not_stop_the_service(tmp_path):
    """``serve 2>&1 | grep -m1 ready``, or a log collector that ended."""
    data = tmp_path / "data"
    data.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(data), "0", GATEWAY, INDEXER, PIPELINE],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert "starting on" in process.stdout.readline()
        process.stdout.close()
        first = until(lambda: heartbeat_pid(data))
        os.kill(first, signal.SIGKILL)
        until(lambda: heartbeat_pid(data) not in (0, first))
        assert process.poll() is None
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()


LOGS_BEATS = """
import json, logging, os, sys, time
from pathlib import Path
from fieldfare.runtimes.process.program import begin
data = Path(sys.argv[2])
stop = begin("pipeline")
while not stop.wait(0.02):
    logging.info("beat of %d", os.getpid())
    (data / "run" / "new").write_text(json.dumps({"pid": os.getpid(), "state": "ready", "n": time.time_ns()}))
    (data / "run" / "new").replace(data / "run" / "pipeline.json")
"""


def test_sighup_has_logs_opened_again_and_ends_nothing(tmp_path):
    """It ended the supervisor, with a status that systemd takes for a clean stop."""
    with service(tmp_path / "data", pipeline=LOGS_BEATS) as running:
        running.ready()
        log = running.data / "logs" / "pipeline.log"
        log.rename(log.with_name("pipeline.log.yesterday"))
        running.process.send_signal(signal.SIGHUP)
        (pid,) = running.pids("pipeline")
        until(lambda: log.exists() and f"beat of {pid}" in log.read_text())
        assert "fieldfare: reloading\n" in running.console
        assert all(len(running.pids(name)) == 1 for name in ("gateway", "indexer", "pipeline"))
        assert urllib.request.urlopen(running.url, timeout=DEADLINE_S).read() == b"alive"


@pytest.mark.parametrize("nohup", [False, True])
def test_a_terminal_that_is_closed_ends_the_service_in_order_unless_by_nohup(tmp_path, nohup):
    """Its SIGHUP is no request for a reload: the service would run on unnoticed."""
    data = tmp_path / "data"
    data.mkdir()
    terminal, its_end = os.openpty()

    def take_terminal() -> None:
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN if nohup else signal.SIG_DFL)
        fcntl.ioctl(its_end, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(data), "0", GATEWAY, INDEXER, PIPELINE],
        stdin=its_end,
        stdout=its_end,
        stderr=its_end,
        preexec_fn=take_terminal,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        os.close(its_end)
        os.set_blocking(terminal, False)
        shown = b""

        def shows(text: bytes) -> bool:
            nonlocal shown
            with contextlib.suppress(BlockingIOError):
                shown += os.read(terminal, 4096)
            return text in shown

        until(lambda: shows(b"fieldfare: ready"))  # each process ends in order from here on
        process.send_signal(signal.SIGHUP)
        until(lambda: shows(b"reloading"))
        assert process.poll() is None
        os.close(terminal)
        if nohup:
            first = heartbeat_pid(data)
            os.kill(first, signal.SIGKILL)
            until(lambda: heartbeat_pid(data) not in (0, first))
            process.terminate()
        assert process.wait(DEADLINE_S) == 0
        assert (data / "stopped").read_text() == "gateway\nindexer\npipeline\n"
    finally:
        process.kill()
        process.wait()


LEAVES_AN_ORPHAN = (
    """
import subprocess, sys
subprocess.run(["sh", "-c", f"(sleep 0.1; : >{sys.argv[2]}/orphan) &"])
"""
    + PIPELINE
)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root, and unshare")
def test_as_the_first_process_of_a_container_it_leaves_no_zombies(tmp_path):
    """Spark's Python workers outlive the Java process that started them, so it cannot reap them."""
    data = tmp_path / "data"
    data.mkdir()
    namespace = subprocess.Popen(
        [
            *("unshare", "--pid", "--fork", "--kill-child", "--"),
            *(sys.executable, "-c", SERVE, str(data), "0", GATEWAY, INDEXER, LEAVES_AN_ORPHAN),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
    )

    def children_of(pid: int) -> list[int]:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    try:
        (supervisor,) = until(lambda: children_of(namespace.pid))
        until(lambda: heartbeat_pid(data) and (data / "orphan").exists())
        until(lambda: all(alive(child) for child in children_of(supervisor)))
        os.kill(supervisor, signal.SIGTERM)
        assert namespace.wait(DEADLINE_S) == 0
    finally:
        namespace.kill()
        namespace.wait()


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


def test_last_lines_are_announced_only_if_there_are_some(tmp_path):
    with service(tmp_path / "data", gateway="raise SystemExit(4)") as running:
        assert running.wait() == 1
        assert "giving up\n" in running.console and "Its last lines" not in running.console


def test_a_data_directory_that_cannot_be_used_is_named_in_words(tmp_path):
    (tmp_path / "file").touch()
    data = tmp_path / "file" / "data"
    with pytest.raises(CannotStart, match=rf"cannot use the data directory {data}: .*: Not a directory$"):
        take_directory(DataFolder(data))


def test_a_second_service_on_the_same_directory_is_refused_with_the_holder(tmp_path):
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


def test_a_port_in_use_is_reported_before_anything_starts(tmp_path):
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


def test_no_file_is_repaired_while_a_child_of_a_killed_supervisor_still_writes(tmp_path):
    """What the child acknowledges would be lost in the files that the repair replaces."""
    stops_late = (
        "def stop(*_):\n"
        "    while not os.path.exists(data + '/awaited'):\n"
        "        time.sleep(0.05)\n"
        "    time.sleep(0.5)"
    )
    slow = PIPELINE.replace("def stop(*_):", stops_late).replace(
        "while True:",
        "from pathlib import Path\n"
        "from fieldfare.runtimes.process.locks import FileLock\n"
        "lock = FileLock(Path(data, 'run', 'pipeline.lock'), 0.0)\n"
        "lock.acquire()\n"
        "while True:",
        1,
    )
    with service(tmp_path / "data", pipeline=slow) as running:
        running.ready()
        [child] = running.pids("pipeline")
        running.process.kill()
        running.wait()
        assert alive(child)
        note = f"import os; print('while it runs', os.path.exists('/proc/{child}/exe'), flush=True)"
        watched = SERVE.replace("commands =", f"import fieldfare.runtimes.service.serve as module\n"
            f"mend = module.mend_databases\n"
            f"def mend_databases(*given):\n    {note}\n    mend(*given)\n"
            f"module.mend_databases = mend_databases\n"
            f"end = module._end_predecessors\n"
            f"def end_predecessors(folder):\n    (folder.root / 'awaited').touch()\n    end(folder)\n"
            f"module._end_predecessors = end_predecessors\ncommands =", 1)  # fmt: skip
        with service(running.data, serve=watched) as again:
            again.ready()
            assert "while it runs False" in again.console
            assert (running.data / "stopped").read_text().count("pipeline") == 1, "it stopped by itself"


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
