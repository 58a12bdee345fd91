"""Connections that are closed while others use them."""

from __future__ import annotations

import gc
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fieldfare.storage.sqlite.connections import SqliteConnections

DEADLINE_S = 180.0


def open_files(path: Path) -> int:
    """Return how many times this process has a file open."""
    found = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return sum(each.exists() and each.resolve() == path for each in found)


def test_a_connection_is_not_closed_while_a_reader_uses_it(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    connections = SqliteConnections(path, ())
    with connections.writing() as writer:
        writer.execute("CREATE TABLE numbers (number INTEGER)")
        writer.executemany("INSERT INTO numbers VALUES (?)", [(number,) for number in range(3)])
    reading, goes_on = threading.Event(), threading.Event()

    def slowly(number: int) -> int:
        reading.set()
        assert goes_on.wait(DEADLINE_S)
        return number

    def read() -> list[tuple[int]]:
        reader = connections.reader()
        reader.create_function("slowly", 1, slowly)
        return reader.execute("SELECT slowly(number) FROM numbers").fetchall()

    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(read)
        assert reading.wait(DEADLINE_S)
        connections.close()
        goes_on.set()
        assert found.result(DEADLINE_S) == [(0,), (1,), (2,)]
        assert thread.submit(lambda: connections.reader().execute("SELECT 1").fetchone()).result() == (1,)
        connections.close()
        del found
        gc.collect()
        assert open_files(path) == 0
