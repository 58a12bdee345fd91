"""Lists of subscriptions by owner and label, of a million in one space.

Run ``python benchmarks/labels.py [COUNT]``. A registry is filled, and a gateway without a pipeline starts on
it, in a process of its own. For each list it prints the median time of 9 answers over HTTP with the first
page, of up to 100 subscriptions. Goal: 200 ms.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx
from backlog import LISTS, gateway

from fieldfare.storage import Registry, open_registry
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.registry import Put

BATCH = 10_000
REPEATS = 9


def tier(number: int, count: int) -> str:
    """Return the tier of a subscription: that of the last tenth comes last in the order by backlog, too."""
    return "late" if number >= count * 9 // 10 else str(number // 4 % 2)


def fill(registry: Registry, count: int) -> None:
    """Create subscriptions of 1,000 teams, in 4 environments, each with an owner and 3 labels."""
    registry.create_space("default")
    for first in range(0, count, BATCH):
        puts = [
            Put(
                "default",
                f"s{number * 7_919 % count:07}",
                f"data.value > {number}",
                "sql",
                b"",
                owner=f"owner-{number % 10_000}",
                labels=(
                    ("env", ("prod", "test", "dev", "lab")[number % 4]),
                    ("rare", "yes") if number % 250_000 == 0 else ("tier", tier(number, count)),
                    ("team", f"team-{number % 1_000}"),
                ),
            )
            for number in range(first, min(first + BATCH, count))
        ]
        registry.apply(puts, (0,), 0)


LISTED = {
    "owner, 100 have it": "owner=owner-77",
    "team, 1,000 have it": "label=team=team-77",
    "env=prod, a quarter has it": "label=env=prod",
    "key env, all have it": "label=env",
    "env and team, 1,000 have both": "label=env=prod&label=team=team-4",
    "env and team that exclude each other": "label=env=prod&label=team=team-77",
    "env and tier, an eighth has both": "label=env=prod&label=tier=1",
    "tier=late, a tenth has it, the last by backlog": "label=tier=late",
    "env and tier, none has the second": "label=env=prod&label=tier=2",
    "env, rarest among those with the key rare": "label=env=prod&label=rare",
    "env, with a text that none has": "label=env=prod&search=nowhere",
    "a text that none has": "search=nowhere",
    "all": "",
}
BY_BACKLOG = ("owner", "team", "tier", "env=prod", "key", "env and", "all")


def timed(client: httpx.Client, query: str) -> tuple[float, str]:
    """Return the median time of an answer, in milliseconds, and what it has."""
    times = []
    for _ in range(REPEATS):
        begun_s = time.perf_counter()
        answer = client.get(f"{LISTS}?limit=100&{query}")
        times.append(1000 * (time.perf_counter() - begun_s))
        assert answer.status_code == 200, answer.text
    found = answer.json()
    more = ", more may follow" if found["next"] is not None else ""
    return statistics.median(times), f"{len(found['subscriptions'])} found{more}"


def main() -> None:
    """Fill a registry and print the time of each list."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as name:
        folder = DataFolder(Path(name))
        registry = open_registry(folder.registry_url)
        begun_s = time.perf_counter()
        fill(registry, count)
        registry.close()
        size = folder.registry_path.stat().st_size >> 20
        print(f"{count:,} created in {time.perf_counter() - begun_s:.0f} s, {size} MiB", flush=True)
        with gateway(Path(name)) as (client, _):
            while client.get(f"{LISTS}?limit=1&sort=backlog", timeout=60).status_code == 503:
                time.sleep(1)
            for shown, query in LISTED.items():
                spent_ms, found = timed(client, query)
                print(f"{spent_ms:7.1f} ms  {shown}: {found}", flush=True)
                if shown.startswith(BY_BACKLOG) and "search" not in query:
                    spent_ms, found = timed(client, f"{query}&sort=backlog")
                    print(f"{spent_ms:7.1f} ms      by backlog: {found}", flush=True)


if __name__ == "__main__":
    main()
