"""Publishing programs die by kill -9 at any moment; what `publish` took is in the log once, in order."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from faulty_service import Fault, FaultyService
from real_gateway import RealGateway

from fieldfare.storage import open_event_log
from fieldfare.storage.folder import DataFolder

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).with_name("outbox_program.py")


def run_and_kill(kind: str, url: str, outbox: Path, round_number: int, kill_after: int | None) -> int:
    """Run the program, kill it after ``kill_after`` events; return how many it reported."""
    count = 10_000 if kill_after is not None else 20
    process = subprocess.Popen(
        [sys.executable, PROGRAM, kind, url, outbox, str(round_number), str(count)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    said: list[bytes] = []
    for line in process.stdout:
        said.append(line)
        if kill_after is not None and len(said) > kill_after:
            process.kill()
            break
    said += process.stdout.read().splitlines(keepends=True)  # Its output before the kill.
    process.stdout.close()
    process.wait(60)
    if kill_after is None:
        assert said.pop() == b"end\n", "the last program ends by itself"
    return sum(line.endswith(b"\n") for line in said)


def check(log: list[dict[str, Any]], taken: list[int]) -> None:
    """Everything taken is there once, rounds and numbers in order; at most the one event more that was being
    published when the program died."""
    found = [(event["data"]["round"], event["data"]["n"]) for event in log]
    assert found == sorted(set(found)), "doubled, or out of order"
    for round_number, count in enumerate(taken):
        numbers = [number for which, number in found if which == round_number]
        assert numbers == list(range(len(numbers)))
        assert count <= len(numbers) <= count + 1, f"round {round_number}: {count} were published"


@pytest.mark.parametrize(("kind", "seed"), [("sync", 1), ("sync", 2), ("async", 3)])
def test_accepted_events_are_in_the_log_once_and_in_order(
    service: FaultyService, tmp_path: Path, kind: str, seed: int
) -> None:
    """Six lives of a program against a service that drops requests before and after it appends them."""
    chance = random.Random(seed)
    taken: list[int] = []
    for round_number in range(6):
        kinds = chance.choices(["drop_before", "drop_after", "status"], [1, 3, 1], k=20)
        service.fail_next("events", *(Fault(each, 429) for each in kinds))
        service.events_delay_s = chance.choice([0.0, 0.0, 0.02])
        kill_after = chance.randrange(200)
        taken.append(run_and_kill(kind, service.url, tmp_path / "outbox", round_number, kill_after))
    service.faults["events"].clear()
    taken.append(run_and_kill(kind, service.url, tmp_path / "outbox", len(taken), None))
    check(service.events(), taken)
    assert service.duplicates > 0, "no answer was lost: the test has become too kind"


def test_events_survive_kills_of_programs_and_gateway(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    gateway = RealGateway(data)
    gateway.start()
    chance = random.Random(4)
    outbox = tmp_path / "outbox"
    taken: list[int] = []

    def live_and_die() -> None:
        taken.append(run_and_kill("sync", gateway.url, outbox, len(taken), chance.randrange(200)))

    try:
        for _ in range(2):
            live_and_die()
            live_and_die()
            gateway.kill()
            live_and_die()
            gateway.start()
        taken.append(run_and_kill("sync", gateway.url, outbox, len(taken), None))
    finally:
        gateway.stop()
    log = open_event_log(DataFolder(data).log_url)
    try:
        lines = [line for record in log.read(0, log.end()) for line in record.payload.splitlines()]
    finally:
        log.close()
    check([json.loads(line) for line in lines], taken)
