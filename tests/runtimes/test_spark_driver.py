"""The pipeline's process: it can be asked to stop and can be killed, and leaves nothing running behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from indexing import indexer

from fieldfare.filters import compile_filter, encode_normal_form
from fieldfare.runtimes.process.locks import FileLock, LockTimeoutError
from fieldfare.storage import open_event_log, open_registry
from fieldfare.storage.event_log import NewRecord
from fieldfare.storage.files.match_log import FileMatchLog
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.registry import Put

pytestmark = pytest.mark.spark


def wait_for(condition: Callable[[], Any], wait_s: float = 300) -> Any:
    """The first true value of a condition."""
    until_s = time.monotonic() + wait_s
    while not (value := condition()):
        assert time.monotonic() < until_s, "it did not come about"
        time.sleep(0.05)
    return value


def start(root: Path) -> subprocess.Popen[bytes]:
    log = (root / "pipeline.txt").open("ab")
    command = [sys.executable, "-m", "fieldfare.runtimes.spark.driver", "--data", str(root), "--cores", "1"]
    with log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def heartbeat(folder: DataFolder) -> dict[str, Any]:
    try:
        return json.loads(folder.heartbeat.read_text())
    except FileNotFoundError:
        return {}


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that these have."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, waiting = [], [pid]
    while waiting:
        children = parents.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def all_ended(pids: list[int]) -> bool:
    return not any(map(is_running, pids))


@pytest.fixture
def indexed(tmp_path: Path) -> Iterator[None]:
    """Run an indexer: registered subscriptions are indexed immediately."""
    with indexer(DataFolder(tmp_path)):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("indexed")
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="it looks for processes in /proc")
def test_a_killed_pipeline_leaves_no_process_and_the_next_one_resumes(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    log, registry = open_event_log(folder.log_url), open_registry(folder.registry_url)
    registry.create_space("default")
    compiled = encode_normal_form(compile_filter("n > 1").normal_form)
    registry.apply([Put("default", "s", "n > 1", "sql", compiled)], (0,), 0)
    matches = FileMatchLog(folder.matches)
    driver = start(tmp_path)
    try:
        for round in range(2):
            for n in range(3):
                log.append([NewRecord("default", b'{"n": %d}\n' % n, 1, stamp=1)])
            block = wait_for(lambda: matches.block_at(log.end() - 1))
            assert block.by_event()[1].tolist() == [1]
            wait_for(lambda: heartbeat(folder).get("state") == "running")
            if round == 0:
                started = descendants(driver.pid)
                assert len(started) > 3
                driver.kill()
                driver.wait()
                driver = start(tmp_path)
                wait_for(partial(all_ended, started))
        wait_for(lambda: heartbeat(folder).get("offset") == log.end())
        driver.send_signal(signal.SIGTERM)
        assert driver.wait(180) == 0
    finally:
        if driver.poll() is None:
            driver.kill()
            driver.wait()
    assert heartbeat(folder)["state"] == "stopped"
    text = (tmp_path / "pipeline.txt").read_text()
    assert "Traceback" not in text, text
    assert text.rstrip().endswith("INFO fieldfare.pipeline: stopped")


def test_two_pipelines_cannot_have_one_data_directory(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path)
    folder.make()
    command = [
        sys.executable,
        "-m",
        "fieldfare.runtimes.spark.driver",
        "--data",
        str(tmp_path),
        "--lock-wait",
        "0",
    ]
    with FileLock(folder.lock_of("pipeline"), 0):
        ended = subprocess.run(command, capture_output=True, text=True, timeout=180)
        with pytest.raises(LockTimeoutError):
            FileLock(folder.lock_of("pipeline"), 0).acquire()
    assert ended.returncode == 1
    assert "another pipeline runs on this data directory" in ended.stderr
    assert not folder.heartbeat.exists()
    FileLock(folder.lock_of("pipeline"), 0).acquire()
