"""The whole service as a user runs it, spoken to over HTTP, and its processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pyarrow as pa

from fieldfare.runtimes.process.heartbeat import read_beat
from fieldfare.storage.folder import DataFolder

DEADLINE_S = 400.0
SERVE = "from fieldfare.cli import main; main()"
ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
LINES = {"content-type": "application/x-ndjson"}
MARKS = {
    "gateway": "-m fieldfare.gateway",
    "driver": "-m fieldfare.runtimes.spark.driver",
    "indexer": "-m fieldfare.runtimes.indexer --",
    "java": "org.apache.spark.deploy.SparkSubmit",
    "task": "fieldfare.runtimes.spark.worker_daemon",
    "snapshot": "fieldfare.runtimes.indexer.snapshot_builder",
}
"""What a process of a kind has in its command line."""

Value = TypeVar("Value")


def until(
    condition: Callable[[], Value], deadline_s: float = DEADLINE_S, why: str = "", *, every_s: float = 0.02
) -> Value:
    """The first true value of a condition; fails when there is none in time."""
    until_s = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < until_s, f"it did not come true in {deadline_s:g} s {why}"
        time.sleep(every_s)
    return value


def is_running(pid: int) -> bool:
    """Whether a process runs (one that has ended and waits for its parent does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that these have; parents first."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, waiting = [], [pid]
    while waiting:
        children = parents.get(waiting.pop(0), [])
        found += children
        waiting += children
    return found


class RunningService:
    """``fieldfare serve`` in a process of its own.

    Parameters
    ----------
    data
        The data directory.
    console
        Where its console goes; default: a file in the data directory.
    port
        The port to listen on; 0 for a free one.
    environment
        Variables that it is started with besides those of the tests; ``PYTHONPATH`` goes before theirs.
    settings
        The gateway's knobs, as in ``maintenance_s=1``.
    """

    def __init__(
        self,
        data: Path,
        *,
        console: Path | None = None,
        port: int = 0,
        environment: Mapping[str, str] | None = None,
        **settings: object,
    ) -> None:
        self.folder = DataFolder(data)
        data.mkdir(parents=True, exist_ok=True)
        self._console_path = console or data / "console.txt"
        extra = dict(environment or {})
        own = (sys.prefix, sys.base_prefix)  # What Python finds by itself must not reach another Python.
        ours = [path for path in sys.path if not path.startswith(own)]
        paths = [*filter(None, [extra.pop("PYTHONPATH", "")]), *ours]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("FIELDFARE_")}
        knobs = {f"FIELDFARE_{name.upper()}": str(value) for name, value in settings.items()}
        with self._console_path.open("wb") as console:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVE, "serve", "--data", str(data), "--port", str(port)],
                stdout=console,
                stderr=subprocess.STDOUT,
                env={**clean, **knobs, **extra, "PYTHONPATH": os.pathsep.join(paths)},
            )
        found = until(lambda: re.search(r"starting on (http://[\d.:]+)", self.console) or self._ended())
        self.url = found[1]

    @property
    def console(self) -> str:
        return self._console_path.read_text()

    def _ended(self) -> None:
        assert self.process.poll() is None, self.console

    def processes(self, mark: str) -> list[int]:
        """The service's processes that have a text in their command line, parents first."""
        return [pid for pid in descendants(self.process.pid) if mark in command_line(pid)]

    @property
    def gateway(self) -> int:
        return until(lambda: self.processes(MARKS["gateway"]))[0]

    @property
    def driver(self) -> int:
        return until(lambda: self.processes(MARKS["driver"]))[0]

    @property
    def indexer(self) -> int:
        return until(lambda: self.processes(MARKS["indexer"]))[0]

    @property
    def jvm(self) -> int:
        return until(lambda: self.processes(MARKS["java"]))[0]

    @property
    def heartbeat(self) -> dict[str, Any]:
        """What the pipeline says of itself."""
        return read_beat(self.folder.heartbeat)

    def wait_ready(self, deadline_s: float = DEADLINE_S) -> RunningService:
        """Wait until the gateway answers and says that the pipeline of now works."""
        with httpx.Client(base_url=self.url, timeout=60) as client:

            def ready() -> bool:
                self._ended()
                # A look into a file first: to be asked all the time would slow the start down.
                if self.heartbeat.get("state") != "running":
                    return False
                try:
                    answered = client.get("/readyz").status_code == 200
                except httpx.HTTPError:
                    return False
                # A heartbeat outlives its writer by some seconds.
                indexer = read_beat(self.folder.heartbeat_of("indexer")).get("pid")
                return (
                    answered
                    and self.heartbeat["pid"] in self.processes("spark.driver")
                    and indexer in self.processes(MARKS["indexer"])
                )

            until(ready, deadline_s, why=self.console, every_s=0.1)
        return self

    def freeze(self) -> None:
        """Stop every process where it is, the one that would start others again first."""
        os.kill(self.process.pid, signal.SIGSTOP)
        for pid in descendants(self.process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

    def kill(self) -> None:
        """End every process at once, as a power failure does; nothing is written any more on return."""
        self.freeze()
        family = descendants(self.process.pid)
        for pid in [*family, self.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        until(lambda: not any(map(is_running, family)))

    def stop(self) -> None:
        """Stop it as Ctrl-C does; everything must end, and in peace."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(DEADLINE_S) == 0, self.console


@contextmanager
def running_service(data: Path, **options: Any) -> Iterator[RunningService]:
    """A service that is ready, and is stopped in the end; with the options of `RunningService`."""
    service = RunningService(data, **options)
    try:
        service.wait_ready()
        yield service
    except BaseException:
        print(service.console)
        if service.process.poll() is None:
            service.process.send_signal(signal.SIGTERM)
            service.process.wait(DEADLINE_S)
        raise
    if service.process.returncode != -signal.SIGKILL:
        service.stop()


class Api:
    """The HTTP API as directly as can be: one connection pool, no repeats."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=180, limits=httpx.Limits(max_keepalive_connections=8))

    def create_space(self, name: str) -> None:
        self.http.post("/v1/spaces", json={"name": name}).raise_for_status()

    def publish(self, space: str, events: list[dict[str, Any]], **headers: str) -> int:
        """The offset of the record that the events became."""
        return self.append(space, events, **headers)[0]

    def append(self, space: str, events: list[dict[str, Any]], **headers: str) -> tuple[int, int]:
        """Publish events; the offset of the record that they became, and its stamp."""
        body = "".join(json.dumps(event) + "\n" for event in events).encode()
        answer = self.http.post(f"/v1/spaces/{space}/events", content=body, headers=LINES | headers)
        assert answer.status_code == 200, answer.text
        document = answer.json()
        assert document["count"] == len(events)
        return document["offset"], document["stamp"]

    def publish_table(self, space: str, events: pa.RecordBatch) -> None:
        """Publish the rows of a table."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, events.schema) as writer:
            writer.write_batch(events)
        body = sink.getvalue().to_pybytes()
        answer = self.http.post(f"/v1/spaces/{space}/events", content=body, headers=ARROW)
        assert answer.status_code == 200, answer.text

    def create(self, space: str, id: str, filter: str) -> dict[str, Any]:
        answer = self.http.post(f"/v1/spaces/{space}/subscriptions", json={"id": id, "filter": filter})
        answer.raise_for_status()
        return dict(answer.json())

    def put(self, space: str, id: str, filter: str) -> dict[str, Any]:
        answer = self.http.put(f"/v1/spaces/{space}/subscriptions/{id}", json={"filter": filter})
        answer.raise_for_status()
        return dict(answer.json())

    def put_all(self, space: str, filters: dict[str, str]) -> None:
        items = [{"id": id, "filter": filter} for id, filter in filters.items()]
        answer = self.http.post(f"/v1/spaces/{space}/subscriptions", json={"subscriptions": items})
        answer.raise_for_status()
        assert answer.json()["refused"] == []

    def remove(self, space: str, id: str) -> bool:
        """Whether there was such a subscription."""
        answer = self.http.delete(f"/v1/spaces/{space}/subscriptions/{id}")
        assert answer.status_code in (204, 404), answer.text
        return answer.status_code == 204


def cloud_event(id: str, data: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": id, "source": "/scenario", "type": "t", "data": data}
