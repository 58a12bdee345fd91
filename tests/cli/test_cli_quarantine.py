"""`fieldfare quarantine` on a real gateway."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_support import Fieldfare
from real_gateway import running_gateway

from fieldfare import Client
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.quarantine import Quarantine, QuarantinedRecord

pytestmark = pytest.mark.long


def test_records_set_aside_are_listed_and_published_again(fieldfare: Fieldfare, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running_gateway(data) as gateway:
        assert fieldfare("quarantine", "list", "--url", gateway.url).stdout == "no quarantined records\n"
        with Client(gateway.url) as client:
            client.publish({"source": "/s", "type": "t", "data": {"x": 1}})
        Quarantine(DataFolder(data).quarantine).add(
            QuarantinedRecord(0, "default", 1, "it cannot be matched: ValueError: [odd]", 5)
        )
        shown = fieldfare("quarantine", "list", "--url", gateway.url).stdout
        assert shown == "0-0-0  default  1 events\n  matching it raised ValueError\n"
        (record,) = json.loads(fieldfare("quarantine", "list", "--json", "--url", gateway.url).stdout)
        assert (record["position"], record["events"]) == ("0-0-0", 1)
        again = fieldfare("quarantine", "retry", "0-0-0", "--url", gateway.url)
        assert again.stdout == "0-0-0 is published again at 0-1-0\n"
        gone = fieldfare("quarantine", "retry", "0-0-0", "--url", gateway.url)
        assert gone.exit_code == 1 and "set aside" in gone.stderr and "Traceback" not in gone.stderr
