"""The load's publishers keep several requests under way, and what they note down is what the log holds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from ledger import Ledger
from load import UNDER_WAY_MAX, Publisher
from service_support import until

sys.path.append(str(Path(__file__).parents[1] / "client"))

from real_gateway import RealGateway

from fieldfare.storage import open_event_log
from fieldfare.storage.folder import DataFolder

pytestmark = pytest.mark.slow

RECORDS = 150


def refused(answer: httpx.Response) -> None:
    assert answer.status_code == 503, answer.text


def test_a_gateway_killed_in_the_middle_of_chains_leaves_each_request_once_and_in_order(
    tmp_path: Path,
) -> None:
    ledger = Ledger()
    gateway = RealGateway(tmp_path)
    gateway.start()
    load: Any = SimpleNamespace(
        ledger=ledger, url=gateway.url, calls=0, pace_s=0.001, large_share=0.0, refused=refused
    )
    load.behind_max_bytes, load.behind_bytes = 1, lambda: 0
    publisher = Publisher(load, 0, "default", "chains")
    publisher.start()
    try:
        for kill in range(1, 4):
            until(lambda: publisher.check() or len(ledger.records) >= kill * RECORDS // 3, 180)  # noqa: B023
            gateway.kill()
            gateway.start()
        publisher.stop()
    finally:
        gateway.stop()
    assert publisher.most_at_once == UNDER_WAY_MAX
    ledger.check_order()
    log = open_event_log(DataFolder(tmp_path).log_url)
    (partition,) = log.partitions
    stored = {record.offset: record for record in partition.read(0, partition.end())}
    log.close()
    assert len(stored) >= RECORDS
    assert {at: record.count for at, record in stored.items()} == {
        at: len(events) for at, (_, events, _) in ledger.records.items()
    }
    lines = {at: record.payload for at, record in stored.items() if record.payload.startswith(b"{")}
    assert len(lines) > RECORDS // 3
    for at, payload in lines.items():
        assert [json.loads(line) for line in payload.splitlines()] == ledger.records[at][1]
