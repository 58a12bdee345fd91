"""`fieldfare publish --deliver-after` and `fieldfare delayed` on a real gateway."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_support import Fieldfare
from real_gateway import running_gateway

pytestmark = pytest.mark.long


def test_events_are_published_for_later_listed_and_taken_back(fieldfare: Fieldfare, tmp_path: Path) -> None:
    with running_gateway(tmp_path / "data") as gateway:
        url = ("--url", gateway.url)
        assert fieldfare("delayed", "list", *url).stdout == "nothing waits for its time\n"
        lines = "\n".join(json.dumps({"source": "/s", "type": "t", "data": {"n": n}}) for n in range(5))
        said = fieldfare("publish", "--deliver-after", "900", "--batch", "2", *url, input=f"{lines}\n{{oops")
        assert said.exit_code == 1 and said.stdout.startswith("published 5 events, 1 not in ")
        assert "line 6" in said.stderr
        found = json.loads(fieldfare("delayed", "list", "--json", *url).stdout)
        assert [each["events"] for each in found] == [2, 2, 1]
        first = found[0]["id"]
        assert fieldfare("delayed", "cancel", first, *url).stdout == f"{first} does not come\n"
        gone = fieldfare("delayed", "cancel", first, *url)
        assert gone.exit_code == 1 and "Nothing waits" in gone.stderr
        assert fieldfare("delayed", "list", *url).stdout.count(" events\n") == 2
        refused = fieldfare("publish", "--deliver-after", "99999999", *url, input=lines)
        assert refused.exit_code == 1 and "at most 2592000 s" in refused.stderr


def test_a_table_cannot_wait(fieldfare: Fieldfare, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    said = fieldfare("publish", str(tmp_path / "x.parquet"), "--deliver-after", "9")
    assert said.exit_code == 2 and "cannot wait for their time" in said.stderr
