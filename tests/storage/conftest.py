"""Fixtures of the storage tests: stores that are opened repeatedly, and programs that are killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import kafka_rig
import programs
import pytest
from memory_registry import MemoryRegistry

import fieldfare
from fieldfare.storage import Registry, open_registry
from fieldfare.storage.sqlite.log import SqliteEventLog

SOURCES = str(Path(fieldfare.__file__).parents[1])


@pytest.fixture(scope="session", autouse=True)
def no_broker_stays() -> Iterator[None]:
    """Stops the Kafka broker, if one was started, after the tests."""
    yield
    kafka_rig.stop()


@pytest.fixture
def open_log(tmp_path: Path) -> Callable[[], SqliteEventLog]:
    """Opens the same event log, again with every call."""
    return lambda: SqliteEventLog(tmp_path / "log.db")


@pytest.fixture
def log(open_log: Callable[[], SqliteEventLog]) -> SqliteEventLog:
    return open_log()


@pytest.fixture(params=["sqlite", "memory"])
def open_the_registry(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Registry]:
    """Opens the same registry, again with every call."""
    if request.param == "memory":
        memory = MemoryRegistry()
        return lambda: memory
    return lambda: open_registry(f"sqlite:///{tmp_path}/registry.db")


@pytest.fixture
def registry(open_the_registry: Callable[[], Registry]) -> Registry:
    registry = open_the_registry()
    registry.create_space("birds")
    return registry


@pytest.fixture
def stored_registry(tmp_path: Path) -> Registry:
    """A registry in a file, for features that only files have."""
    registry = open_registry(f"sqlite:///{tmp_path}/registry.db")
    registry.create_space("birds")
    return registry


@pytest.fixture
def start_program(tmp_path: Path) -> Callable[[str], subprocess.Popen[str]]:
    """Starts a Python program in another process; its standard output is a pipe."""

    def start(program: str) -> subprocess.Popen[str]:
        environment = os.environ | {"PYTHONPATH": SOURCES}
        return subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
        )

    return start


@pytest.fixture
def run_program(tmp_path: Path) -> Callable[[str], tuple[int, str]]:
    """Runs a Python program in another process to its end: exit status and standard output."""
    return lambda program: programs.run(program, tmp_path)
