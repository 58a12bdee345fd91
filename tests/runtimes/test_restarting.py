"""Restarts without a pause: all processes are replaced by new ones, the supervisor's program included."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import pytest
from restart_support import (
    PREPARES_LONG,
    PROGRAMS,
    READS_PROGRAMS,
    children,
    install,
    restarted,
    state,
    taking_turns,
)
from stand_ins import DEADLINE_S, PIPELINE, alive, service, until

from fieldfare.runtimes.process.locks import FileLock

pytestmark = pytest.mark.long


@pytest.fixture
def running(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    install(data, **PROGRAMS)
    with service(data, serve=READS_PROGRAMS) as found:
        yield found.ready()


def test_all_processes_are_replaced_in_the_same_supervisor_and_every_request_is_answered(running):
    answers, ends = [], threading.Event()

    def ask():
        while not ends.is_set():
            # The stand-in ends amid a request; but nobody is refused.
            with contextlib.suppress(http.client.HTTPException, ConnectionResetError):
                answers.append(urllib.request.urlopen(running.url, timeout=DEADLINE_S).read())

    asking = threading.Thread(target=ask)
    asking.start()
    names = ("gateway", "indexer", "pipeline")
    for times in (1, 2):  # The next program inherits what this one did.
        before = {name: running.pids(name)[-1] for name in names}
        assert restarted(running) is None
        after = {name: running.pids(name)[-1] for name in names}
        assert not set(before.values()) & set(after.values())
        assert not any(map(alive, before.values())) and all(map(alive, after.values()))
        assert state(running)["restarts"] == times and state(running)["pid"] == running.process.pid
    ends.set()
    asking.join()
    assert set(answers) == {b"alive"}
    stopped = (running.data / "stopped").read_text().split()
    assert sorted(stopped) == sorted(names * 2), "predecessors stopped by themselves"
    running.process.terminate()
    assert running.wait() == 0
    assert not children(running)


def test_a_new_version_is_used_for_children_and_supervisor(running):
    install(running.data, gateway=PROGRAMS["gateway"].replace('b"alive"', 'b"newer"'))
    assert restarted(running) is None
    assert urllib.request.urlopen(running.url, timeout=DEADLINE_S).read() == b"newer"


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_a_successor_that_cannot_start_changes_nothing(running, name):
    before = children(running)
    install(running.data, **{name: "print('no such setting'); raise SystemExit(4)"})
    assert restarted(running) == (
        f"the new {name} ended with exit code 4: no such setting; the running processes continue"
    )
    assert children(running) == before
    # A child that dies later is started from the new program: it is what is installed.
    install(running.data)
    assert restarted(running) is None


def test_a_program_that_cannot_start_changes_nothing(running):
    """Half an installation, or a setting that is not valid."""
    before = children(running)
    (running.data / "programs.json").write_text("not JSON")
    why = restarted(running)
    assert why.startswith("the new program cannot start: json.decoder.JSONDecodeError")
    assert children(running) == before
    install(running.data)
    assert restarted(running) is None


@pytest.mark.parametrize("name", ["gateway", "indexer"])
def test_a_child_that_dies_while_its_successor_prepares_is_replaced_by_it(running, name):
    (first,) = running.pids(name)
    install(running.data, pipeline=taking_turns("pipeline", PIPELINE, PREPARES_LONG))
    running.process.send_signal(signal.SIGUSR2)
    until(lambda: state(running).get("state") == "preparing" and len(children(running)) >= 6)
    os.kill(first, signal.SIGKILL)
    until(lambda: f"{name} was killed by SIGKILL" in running.console)
    (running.data / "go").touch()
    until(lambda: state(running)["restarts"] == 1)
    assert state(running)["error"] is None
    assert len(running.pids(name)) == 2, "no third one was started"
    assert urllib.request.urlopen(running.url, timeout=DEADLINE_S).read() == b"alive"


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_service_ends_while_successors_prepare(running, end):
    install(running.data, pipeline=taking_turns("pipeline", PIPELINE, PREPARES_LONG))
    running.process.send_signal(signal.SIGUSR2)
    until(lambda: state(running).get("state") == "preparing" and len(children(running)) >= 6)
    family = children(running)
    running.process.send_signal(end)
    assert running.wait() == (0 if end == signal.SIGTERM else -signal.SIGKILL)
    if end == signal.SIGKILL:
        helper = int((running.data / "helper").read_text())  # It is in no supervisor's care any more.
        os.kill(helper, signal.SIGKILL)
    until(lambda: not any(map(alive, family)))


def test_signals_of_all_kinds_while_the_program_is_replaced_end_nothing(running):
    """SIGUSR2 and SIGHUP would end a program that does not handle them yet."""
    until_s, sent = time.monotonic() + DEADLINE_S / 3, 0
    while state(running).get("restarts", 0) < 2 and time.monotonic() < until_s:
        running.process.send_signal((signal.SIGUSR2, signal.SIGHUP)[sent % 2])
        sent += 1
        time.sleep(0.005)
        assert running.process.poll() is None, running.console
    until(lambda: state(running)["state"] == "running")
    assert state(running)["error"] is None
    assert urllib.request.urlopen(running.url, timeout=DEADLINE_S).read() == b"alive"


def test_a_predecessor_that_does_not_end_is_killed_and_its_successor_takes_over(running):
    stubborn = PROGRAMS["indexer"].replace("def stop(*_):", "def stop(*_):\n    return", 1)
    install(running.data, indexer=stubborn)
    assert restarted(running) is None
    (_, second) = running.pids("indexer")
    install(running.data)
    assert restarted(running) is None
    assert not alive(second)
    assert len(running.pids("indexer")) == 3


def restart_command(data) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "from fieldfare.cli import main; main()", "restart", "--data", str(data)]
    return subprocess.run(
        command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True
    )


def test_the_command_reports_the_end_of_the_restart(running):
    done = restart_command(running.data)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("restarted in ")
    install(running.data, pipeline="print('it is broken'); raise SystemExit(7)")
    done = restart_command(running.data)
    assert done.returncode == 1
    assert (
        "the service was not restarted: the new pipeline ended with exit code 7: it is broken" in done.stderr
    )


def test_the_command_names_why_it_cannot_restart_a_running_service(tmp_path):
    """It is of a version that has no state file, or has its process id in another container."""
    (tmp_path / "run").mkdir()
    with FileLock(tmp_path / "run" / "serve.lock", 0.0):
        done = restart_command(tmp_path)
    assert done.returncode == 1
    assert "runs in another container, or it is an earlier version" in done.stderr


def test_the_command_finds_no_service_to_restart(running, tmp_path):
    running.process.terminate()
    running.wait()
    for folder in (running.data, tmp_path / "elsewhere"):
        done = restart_command(folder)
        assert done.returncode == 1
        assert "no service that can be restarted runs on" in done.stderr
