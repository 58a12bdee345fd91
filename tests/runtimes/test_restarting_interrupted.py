"""Restarts that something interferes with: signals, deaths, other addresses, slow programs."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

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
from stand_ins import DEADLINE_S, GATEWAY, INDEXER, PIPELINE, Service, alive, service, until

from fieldfare.runtimes.process import reexec
from fieldfare.runtimes.process.heartbeat import read_beat
from fieldfare.runtimes.process.reexec import Inheritance
from fieldfare.runtimes.process.supervisor import Supervisor
from fieldfare.runtimes.spark import starting
from fieldfare.runtimes.spark.session import SparkSettings
from fieldfare.storage.folder import DataFolder
from fieldfare_lab.ports import find_free_port

pytestmark = pytest.mark.long

NAMES = ("gateway", "indexer", "pipeline")


@contextlib.contextmanager
def running_service(tmp_path, serve=READS_PROGRAMS, **programs):
    data = tmp_path / "data"
    data.mkdir()
    install(data, **programs)
    with service(data, serve=serve) as found:
        yield found.ready()


@pytest.fixture
def running(tmp_path):
    with running_service(tmp_path) as found:
        yield found


def prepare_long(running: Service, name: str) -> None:
    """Begin a restart in which the successors of the other children wait for one."""
    text = {"gateway": GATEWAY, "indexer": INDEXER, "pipeline": PIPELINE}[name]
    install(running.data, **{name: taking_turns(name, text, PREPARES_LONG)})
    running.process.send_signal(signal.SIGUSR2)
    until(lambda: state(running).get("state") == "preparing" and len(children(running)) >= 6)


def end_restart(running: Service) -> str | None:
    (running.data / "go").touch()
    until(lambda: state(running)["restarts"] == 1)
    return state(running)["error"]


STARTS_SLOWLY = """
import os, sys, time
from pathlib import Path
if "FIELDFARE_INHERITED" in os.environ:
    Path(sys.argv[1], "replaced").touch()
    time.sleep(1)
"""


def test_a_stop_while_the_program_is_replaced_is_a_clean_stop(tmp_path) -> None:
    with running_service(tmp_path, STARTS_SLOWLY + READS_PROGRAMS) as running:
        family = children(running)
        running.process.send_signal(signal.SIGUSR2)
        until((running.data / "replaced").exists)
        running.process.terminate()
        assert running.wait() == 0
        assert sorted((running.data / "stopped").read_text().split()) == sorted(NAMES)
        assert not any(map(alive, family))


def test_a_stop_is_not_lost_before_the_program_is_replaced(monkeypatch, tmp_path) -> None:
    executed = []
    monkeypatch.setattr(os, "execve", lambda *arguments: executed.append(arguments))
    monkeypatch.setattr(os, "set_inheritable", lambda descriptor, is_inheritable: None)
    inheritance = Inheritance(str(tmp_path), ("127.0.0.1", 0), -1, -1, ends_with_terminal=False)
    inheritance.execute(lambda: True)
    assert not executed
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    inheritance.execute(lambda: False)
    assert executed


def test_a_restart_goes_on_if_no_child_runs_when_the_program_is_replaced(tmp_path) -> None:
    """All may wait for their next start after a crash."""
    state_file = tmp_path / "serve.json"
    Supervisor(
        [],
        say=lambda line: None,
        inheritance=Inheritance(
            str(tmp_path), ("127.0.0.1", 0), -1, -1, ends_with_terminal=False, is_restart=True
        ),
        state=state_file,
    )
    assert read_beat(state_file)["state"] == "preparing"


@pytest.mark.parametrize(("name", "slow"), [("gateway", "pipeline"), ("pipeline", "indexer")])
def test_a_child_that_dies_is_not_missing_until_all_successors_are_prepared(running, name, slow) -> None:
    (first,) = running.pids(name)
    prepare_long(running, slow)
    os.kill(first, signal.SIGKILL)
    until(lambda: len(running.pids(name)) == 2)
    assert state(running)["state"] == "preparing"
    assert urllib.request.urlopen(running.url, timeout=DEADLINE_S).read() == b"alive"
    assert end_restart(running) is None
    assert [len(running.pids(each)) for each in NAMES] == [2, 2, 2], "each was replaced once"


def test_a_child_that_is_dead_before_the_restart_is_started_once(tmp_path) -> None:
    broken = "print('it is broken'); raise SystemExit(7)"
    counted = "open(sys.argv[2] + '/starts', 'a').write('x')"
    with contextlib.ExitStack() as stack:
        data = tmp_path / "data"
        data.mkdir()
        install(data, pipeline=broken)
        serve = READS_PROGRAMS.replace("backoff_max_s=0.05", "backoff_max_s=60").replace(
            "backoff_s=0.01", "backoff_s=60"
        )
        running = stack.enter_context(service(data, serve=serve))
        until(lambda: "pipeline ended with exit code 7" in running.console)
        install(data, pipeline=taking_turns("pipeline", PIPELINE, counted))
        assert restarted(running) is None
        assert (data / "starts").read_text() == "x"


def test_log_files_are_opened_again_after_a_restart_that_began_before_they_were_renamed(tmp_path) -> None:
    hears = """
def reload(*_):
    with open(sys.argv[2] + "/reloaded", "a") as file:
        file.write(f"{os.getpid()}\\\\n")
import os
signal.signal(signal.SIGHUP, reload)
data = sys.argv[2]
"""
    # A successor handles the signal only when it works, as a gateway does.
    indexer = PROGRAMS["indexer"].replace("data = sys.argv[2]\n", hears.replace("\\\\", "\\"), 1)
    with running_service(tmp_path, indexer=indexer) as running:
        gateway = taking_turns("gateway", GATEWAY, PREPARES_LONG)
        install(running.data, indexer=indexer, gateway=gateway)
        running.process.send_signal(signal.SIGUSR2)
        until(lambda: state(running).get("state") == "preparing" and len(children(running)) >= 6)
        running.process.send_signal(signal.SIGHUP)
        until((running.data / "reloaded").exists)
        assert end_restart(running) is None
        new = str(running.pids("indexer")[-1])
        until(lambda: new in (running.data / "reloaded").read_text().split())


def test_a_service_starts_at_once_after_a_supervisor_was_killed_while_a_program_was_checked(tmp_path) -> None:
    """What is being checked may run on for a while; it holds neither lock nor port."""
    checked = STARTS_SLOWLY.replace("INHERITED", "CHECK_START").replace("sleep(1)", "sleep(20)")
    with running_service(tmp_path, checked + READS_PROGRAMS) as running:
        running.process.send_signal(signal.SIGUSR2)
        until((running.data / "replaced").exists)
        (check,) = (
            set(children(running))
            - {pid for name in NAMES for pid in running.pids(name)}
            - {int((running.data / "helper").read_text())}
        )
        running.process.kill()
        running.wait()
        try:
            with service(running.data, port=int(running.url.rpartition(":")[2])) as next_one:
                next_one.ready()
        finally:
            os.kill(check, signal.SIGKILL)


WAITS_LONG = f"""
import fieldfare.runtimes.service.serve as module
module.STOP_S = dict.fromkeys(module.STOP_S, {4 * DEADLINE_S})
"""


def test_a_second_signal_stops_at_once_though_predecessors_do_not_end(tmp_path) -> None:
    stubborn = PROGRAMS["indexer"].replace("def stop(*_):", "def stop(*_):\n    return", 1)
    patient = READS_PROGRAMS.replace("commands = {", f"{WAITS_LONG}commands = {{", 1)
    with running_service(tmp_path, patient, indexer=stubborn) as running:
        running.process.send_signal(signal.SIGUSR2)
        until(lambda: state(running).get("state") == "replacing")
        running.process.terminate()
        until(lambda: "fieldfare: stopping\n" in running.console)
        running.process.terminate()
        assert running.wait() == 0, "a predecessor has longer than that"


COMPILES = """
import fieldfare.runtimes.service.serve as module
from pathlib import Path
module.are_kernels_compiled = lambda: Path(sys.argv[1], "compiled").exists()
"""
COMPILER = "import time; print('compiling', flush=True); time.sleep(600)"


def test_a_restart_while_kernels_are_compiled_leaves_no_process(tmp_path) -> None:
    serve = READS_PROGRAMS.replace("sys.exit(serve(", f"{COMPILES}sys.exit(serve(").replace(
        "commands=commands", f"commands=commands | {{'compiler': (sys.executable, '-c', {COMPILER!r})}}"
    )
    data = tmp_path / "data"
    data.mkdir()
    install(data)
    with service(data, serve=serve) as running:
        until(lambda: "compiling" in running.console and running.pids("gateway"))
        (compiler,) = {*children(running)} - {*running.pids("gateway")}
        (data / "compiled").touch()
        assert restarted(running) is None
        assert not Path(f"/proc/{compiler}").exists(), "not even as a zombie"


READS_HOST = READS_PROGRAMS.replace('"127.0.0.1", int', 'Path(sys.argv[1], "host").read_text(), int')


def fetch(url: str) -> bytes:
    return urllib.request.urlopen(url, timeout=DEADLINE_S).read()


@pytest.fixture
def movable(tmp_path):
    """A service on port 0, whose host is read from a file; its gateway listens when it works."""
    data = tmp_path / "data"
    data.mkdir()
    port = find_free_port()
    listens = PROGRAMS["gateway"].replace("def stop", "server.server_activate()\ndef stop", 1)
    (data / "host").write_text("127.0.0.1")
    install(data, gateway=listens)
    with service(data, serve=READS_HOST, port=port) as found:
        yield found.ready(), listens


def test_the_host_can_change_and_the_port_remain(movable) -> None:
    running, _ = movable
    for host in ("0.0.0.0", "127.0.0.1"):
        (running.data / "host").write_text(host)
        answers, ends = [], threading.Event()

        def ask(answers=answers, ends=ends) -> None:
            while not ends.is_set():
                with contextlib.suppress(
                    OSError, http.client.HTTPException
                ):  # While the gateways change, a connection may be refused.
                    answers.append(fetch(running.url))

        asking = threading.Thread(target=ask)
        asking.start()
        assert restarted(running) is None
        ends.set()
        asking.join()
        assert fetch(running.url) == b"alive" and set(answers) == {b"alive"}


def test_a_host_that_was_changed_and_not_used_can_be_changed_back(movable) -> None:
    running, gateway = movable
    (running.data / "host").write_text("0.0.0.0")
    install(running.data, gateway=gateway, indexer="raise SystemExit(7)")
    assert "the new indexer ended with exit code 7" in restarted(running)
    assert fetch(running.url) == b"alive"
    (running.data / "host").write_text("127.0.0.1")
    install(running.data, gateway=gateway)
    assert restarted(running) is None
    assert fetch(running.url) == b"alive"


def test_an_address_of_another_service_is_refused(movable) -> None:
    running, _ = movable
    with socket.socket(socket.AF_INET6) as other:
        other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        other.bind(("::1", int(running.url.rpartition(":")[2])))
        other.listen()
        (running.data / "host").write_text("::1")
        assert "cannot listen on ::1" in restarted(running)
    assert fetch(running.url) == b"alive"


def test_a_reason_in_json_is_shown_as_text(monkeypatch) -> None:
    line = json.dumps({"process": "supervisor", "message": "cannot listen"})
    text = f"import sys; print({line!r}, file=sys.stderr); sys.exit(3)"
    monkeypatch.setattr(reexec, "_command", lambda: [sys.executable, "-c", text])
    check = reexec.ProgramCheck(Inheritance("", ("", 0), -1, -1, ends_with_terminal=False))
    assert until(check.problem) == "the new program cannot start: cannot listen"


def test_a_request_for_a_restart_does_not_end_a_service_that_starts() -> None:
    text = """
import os, signal
from fieldfare.runtimes.process.early_signals import early_signals
with early_signals():
    os.kill(os.getpid(), signal.SIGUSR2)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", text], env=environment).returncode == 0


def test_files_of_a_killed_pipeline_with_the_same_process_id_are_removed(tmp_path, monkeypatch) -> None:
    """In a container the processes of each start have the same ids."""
    folder = DataFolder(tmp_path)
    left = starting.scratch_of(folder, os.getpid()) / "blockmgr"
    left.mkdir(parents=True)

    class Started(Exception):
        pass

    def start(*arguments):
        assert not left.exists()
        raise Started

    monkeypatch.setattr(starting, "service_context", start)
    with pytest.raises(Started):
        starting.start_spark(folder, SparkSettings(), {}, threading.Event())
