"""The service under systemd: what its manager is told, and the unit file."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from fieldfare.cli.app import load_command
from fieldfare.runtimes.process.notify import ServiceManager
from fieldfare.runtimes.process.reexec import Inheritance
from fieldfare.runtimes.process.supervisor import Supervisor
from fieldfare.runtimes.service.serve import STOP_S

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "fieldfare.service"


def received(manager: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(manager.recv(4096).decode())
        except BlockingIOError:
            return found


@pytest.fixture
def listening(tmp_path: Path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.setblocking(False)
        yield manager, str(tmp_path / "notify")


def test_a_manager_hears_of_life_twice_in_each_interval(listening) -> None:
    manager, address = listening
    environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "4000000", "WATCHDOG_PID": str(os.getpid())}
    service = ServiceManager(environment)
    assert environment == {}, "children would report to the manager, too"
    for tenth in range(100):
        service.alive(tenth / 10)
    assert received(manager) == ["WATCHDOG=1"] * 5
    service.ready()
    service.stopping()
    assert received(manager) == ["READY=1", "STOPPING=1"]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "vsock:2:1234", "WATCHDOG_USEC": "1000"},
        {"NOTIFY_SOCKET": "/nothing/listens", "WATCHDOG_USEC": "1000"},
        {"NOTIFY_SOCKET": "", "WATCHDOG_USEC": "many"},
    ],
)
def test_a_manager_that_cannot_be_reached_is_no_obstacle(environment: dict[str, str]) -> None:
    service = ServiceManager(environment)
    service.alive(0.0)
    service.ready()


def test_the_watchdog_of_another_process_is_not_answered(listening) -> None:
    manager, address = listening
    service = ServiceManager({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"})
    service.alive(0.0)
    assert received(manager) == []


def test_an_abstract_address_is_used() -> None:
    name = f"\0fieldfare-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name)
        manager.setblocking(False)
        ServiceManager({"NOTIFY_SOCKET": "@" + name[1:]}).ready()
        assert received(manager) == ["READY=1"]


def test_a_supervisor_tells_its_manager_what_it_does(listening, tmp_path) -> None:
    manager, address = listening
    supervisor = Supervisor(
        [],
        say=lambda line: None,
        inheritance=Inheritance(str(tmp_path), ("127.0.0.1", 0), -1, -1, ends_with_terminal=False),
        state=tmp_path / "serve.json",
        manager=ServiceManager({"NOTIFY_SOCKET": address}),
    )
    supervisor.request_stop()
    assert supervisor.run() == 0
    assert received(manager) == ["STATUS=stopping", "STOPPING=1", "STATUS=stopped"]


def test_the_unit_starts_a_command_that_exists_and_waits_for_its_stop() -> None:
    text = UNIT.read_text()
    (command,) = re.findall("^ExecStart=(.*)$", text, re.MULTILINE)
    program, name, *options = shlex.split(command)
    assert program.endswith("/bin/fieldfare")
    known = {option for param in load_command(name).params for option in param.opts}
    assert set(options[::2]) <= known
    (stop_s,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert int(stop_s) > sum(STOP_S.values())


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
def test_systemd_finds_no_fault_with_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/fieldfare/bin/fieldfare", "/bin/true"))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60
    )
    assert unit.name not in checked.stderr, checked.stderr
