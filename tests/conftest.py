"""Which tests share a worker where several run at once, which begin first, and what a process prepares once.

The tests of a file share a worker, as they share what the file prepares; files that share a broker, a Spark
session or a table do, too. Whole services come in two chains: more at once would only wait for each other.
(`pytest.mark.xdist_group` is without effect: what pytest-xdist 3.8 notes down, pytest 9.2 does not read.)
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx._transports.default
import pytest
import sqlalchemy as sa
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from doses import SHARE

TOGETHER = {
    "faults": ("tests/faults/",),
    "services": ("tests/scenarios/",),
    "session": tuple(
        f"tests/runtimes/test_{name}.py"
        for name in (
            *(
                "following",
                "following_on_spark",
                "match_loop",
                "placed_tasks",
                "slices_in_loop",
                "spark_batch",
                "spark_distributed",
            ),
            *(
                "spark_encrypted",
                "spark_files",
                "spark_match",
                "spark_odd_tables",
                "spark_past",
                "worker_output",
            ),
        )
    ),
    "flights": ("tests/cli/demo/",),
}
"""Folders and files whose tests go to one worker; so do all tests that have Kafka in their names."""
LONGEST = (
    *("faults", "services", "kafka", "session", "tests/runtimes/test_cluster.py"),
    *("tests/runtimes/", "tests/gateway/federation/", "tests/cli/", "tests/client/", "tests/docs/"),
)
"""Units and folders that take longest, and so begin first: begun last, they would leave workers idle."""
for named in {*itertools.chain(*TOGETHER.values()), *LONGEST} - {*TOGETHER, "kafka"}:
    assert (Path(__file__).parents[1] / named).exists(), f"{named} has another name now"


IN_MEMORY = Path("/dev/shm")
ROOM_KIB = 4 << 20
"""Minimum free memory for tests' files, in KiB; with less they are on a disk. A small dose takes a tenth."""


def has_room_in_memory() -> bool:
    """Whether files can be in memory, programs among them."""
    try:
        found = os.statvfs(IN_MEMORY)
        said = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        free = min(found.f_bavail * found.f_frsize >> 10, int(said["MemAvailable"].split()[0]))
    except (OSError, KeyError):
        return False
    return free >= ROOM_KIB and not found.f_flag & (os.ST_NOEXEC | os.ST_RDONLY) and os.access(IN_MEMORY, 7)


# An example has no time limit, as a machine may be slow; and a test draws the same examples each time.
settings.register_profile("fieldfare", deadline=None, derandomize=True)
settings.load_profile("fieldfare")

# Each plain client of httpx would read all authorities of the system, also where no TLS is spoken.
httpx._transports.default.create_ssl_context = functools.cache(httpx._transports.default.create_ssl_context)


class SharedStatements(dict[tuple[Any, ...], Any]):
    """Compiled SQL by statement and kind of database: each engine would compile all of its statements."""

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        return super().get((key[0].name, *key[1:]), default)

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        super().__setitem__((key[0].name, *key[1:]), compiled)


STATEMENTS = SharedStatements()


@sa.event.listens_for(sa.Engine, "engine_connect")
def share_statements(connection: sa.Connection) -> None:
    connection.execution_options(compiled_cache=STATEMENTS)


# Thousands of tests would wait for a disk at each transaction. With all examples, they are on a disk.
if SHARE < 1 and has_room_in_memory():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))


class Chains(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        if "kafka" in nodeid.lower():
            return "kafka"  # One broker is enough.
        file = nodeid.partition("::")[0]
        return next((name for name, paths in TOGETHER.items() if file.startswith(paths)), file)

    def _assign_work_unit(self, node: Any) -> None:
        def place(unit: str) -> tuple[int, int]:
            ranks = (rank for rank, longest in enumerate(LONGEST) if unit.startswith(longest))
            return next(ranks, len(LONGEST)), -len(self.workqueue[unit])

        self.workqueue.move_to_end(min(self.workqueue, key=place), last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Chains:
    return Chains(config, log)


@pytest.fixture(autouse=True)
def forget_variables() -> Iterator[None]:
    """A command sets variables for its process; tests that come later would have them, too."""
    before = {name: value for name, value in os.environ.items() if name.startswith("FIELDFARE_")}
    yield
    for name in set(os.environ) - set(before):
        if name.startswith("FIELDFARE_"):
            del os.environ[name]
    os.environ.update(before)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Any:
    """Collect tests without looking for garbage, and exempt them from it: they are a million objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
