"""Lists by backlog over HTTP: ``python benchmarks/backlog.py --subscriptions 1000000 --json``.

A registry is filled with subscriptions of one space, and a match log with blocks in which a share of them has
matches. Then a gateway without a pipeline starts on them, in a process of its own.

counted_s
    Seconds from the gateway's start until all backlogs are counted.
starting_ms
    Longest answer to ``GET /healthz`` in that time, asked every 10 ms: others are served meanwhile.
page_ms, next_page_ms, sums_ms
    Median of 20 answers: the first 100 subscriptions of the space by backlog, the 100 after them, and
    ``GET /v1/backlogs``. Goal: 200 ms.
page_max_ms
    The longest of the answers with the first page.
block_ms
    Milliseconds from a new block with matches of all these subscriptions until a list shows it.
memory_bytes
    Resident memory of the gateway at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from fieldfare.filters import compile_filter
from fieldfare.matching.libraries import library_of
from fieldfare.matching.pairs import MatchLists
from fieldfare.storage import NewMatchBlock, open_match_log, open_registry
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.registry import Put

AT_ONCE = 20_000
BLOCKS = 20
EVENTS = 10
LISTS = "/v1/spaces/default/subscriptions"
FILTER = "data.x = 1"


@contextmanager
def gateway(data: Path) -> Iterator[tuple[httpx.Client, int]]:
    """A gateway process on a data directory, a client for it, and its process id."""
    command = [sys.executable, "-m", "fieldfare.gateway", "--data", str(data), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        url = line.split("ready on ")[1].split()[0]
        with httpx.Client(base_url=url, timeout=300) as client:
            yield client, process.pid
    finally:
        process.terminate()
        process.wait(60)


def fill(data: Path, subscriptions: int) -> None:
    """Store subscriptions, numbered from 1, in an order of ids that is not that of their numbers."""
    registry = open_registry(DataFolder(data).registry_url)
    compiled = library_of("sql").compile(FILTER, "sql")
    assert compile_filter(FILTER)
    order = np.random.default_rng(1).permutation(subscriptions).tolist()
    for start in range(0, subscriptions, AT_ONCE):
        some = order[start : start + AT_ONCE]
        registry.apply([Put("default", f"sub-{n:032d}", FILTER, "sql", compiled) for n in some], (0,), 0)
    registry.close()


def publish(client: httpx.Client, records: int) -> None:
    events = [
        {"specversion": "1.0", "id": str(at), "source": "/b", "type": "t", "data": {"x": 1}}
        for at in range(EVENTS)
    ]
    headers = {"content-type": "application/cloudevents-batch+json"}
    for _ in range(records):
        client.post(
            "/v1/spaces/default/events", content=json.dumps(events), headers=headers
        ).raise_for_status()


def write_block(data: Path, offset: int, numbers: np.ndarray[Any, Any]) -> None:
    """Write a block of one record of which these subscriptions match one to `EVENTS` events."""
    lengths = 1 + (numbers.astype(np.int64) * 7 + offset) % EVENTS
    starts = np.concatenate(([0], np.cumsum(lengths)))
    ordinals = (np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)).astype(np.uint16)
    block = NewMatchBlock(
        offset,
        offset + 1,
        np.array([EVENTS], np.int32),
        MatchLists(numbers, starts, ordinals),
        {"appended_ms": time.time_ns() // 1_000_000},
        {"default": int(starts[-1])},
    )
    open_match_log(DataFolder(data).matches_url).partition(0).write(block)


class Asking(threading.Thread):
    """Asks whether the gateway is alive, until it is stopped."""

    def __init__(self, url: httpx.URL) -> None:
        super().__init__()
        self._url = url
        self.longest_ms = 0.0
        self.is_over = threading.Event()

    def run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=300) as client:
            while not self.is_over.wait(0.01):
                begun_s = time.monotonic()
                client.get("/healthz")
                self.longest_ms = max(self.longest_ms, 1000 * (time.monotonic() - begun_s))


def timed(client: httpx.Client, path: str) -> tuple[list[float], dict[str, Any]]:
    took_ms = []
    answer: dict[str, Any] = {}
    for _ in range(20):
        begun_s = time.monotonic()
        response = client.get(path)
        took_ms.append(1000 * (time.monotonic() - begun_s))
        response.raise_for_status()
        answer = response.json()
    return took_ms, answer


def measure(data: Path, subscriptions: int, share: float) -> dict[str, Any]:
    behind = max(200, round(share * subscriptions))
    numbers = np.sort(np.random.default_rng(2).permutation(subscriptions)[:behind]).astype(np.uint32) + 1
    with gateway(data) as (client, _):
        publish(client, BLOCKS)
        offset = client.get("/v1/stats").json()["log_end"] - BLOCKS
    for at in range(offset, offset + BLOCKS):
        write_block(data, at, numbers)
    begun_s = time.monotonic()
    with gateway(data) as (client, pid):
        asking = Asking(client.base_url)
        asking.start()
        while True:
            answer = client.get("/v1/backlogs?limit=1")
            if answer.status_code == 200 and answer.json()["total"]["is_exact"]:
                break
            time.sleep(0.1)
        counted_s = time.monotonic() - begun_s
        asking.is_over.set()
        asking.join()
        page_ms, page = timed(client, f"{LISTS}?sort=backlog&limit=100")
        next_ms, _ = timed(client, f"{LISTS}?sort=backlog&limit=100&after={page['next']}")
        sums_ms, sums = timed(client, "/v1/backlogs?limit=10")
        greatest = page["subscriptions"][0]["backlog"]["pending"]
        publish(client, 1)
        write_block(data, offset + BLOCKS, numbers)
        begun_s = time.monotonic()
        while (
            client.get(f"{LISTS}?sort=backlog&limit=1").json()["subscriptions"][0]["backlog"]["pending"]
            <= greatest
        ):
            pass
        block_s = time.monotonic() - begun_s
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return {
        "subscriptions": subscriptions,
        "behind": sums["total"]["behind"],
        "pending": sums["total"]["pending"],
        "counted_s": round(counted_s, 2),
        "starting_ms": round(asking.longest_ms, 1),
        "page_ms": round(statistics.median(page_ms), 1),
        "page_max_ms": round(max(page_ms), 1),
        "next_page_ms": round(statistics.median(next_ms), 1),
        "sums_ms": round(statistics.median(sums_ms), 1),
        "block_ms": round(1000 * block_s, 1),
        "memory_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subscriptions", type=int, default=1_000_000)
    parser.add_argument("--share", type=float, default=1.0, help="share of them that has a backlog")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        with gateway(data):
            pass  # makes the space
        fill(data, given.subscriptions)
        found = measure(data, given.subscriptions, given.share)
    print(json.dumps(found) if given.json else "\n".join(f"{name}: {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
