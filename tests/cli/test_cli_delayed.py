"""`fieldfare publish --deliver-after` and `fieldfare delayed` on a real gateway."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_support import Fieldfare
from faulty_service import Fault, FaultyService
from real_gateway import running_gateway

from fieldfare.gateway.delivery.expiry import expiry_s
from fieldfare.gateway.delivery.record_lines import all_lines
from fieldfare.storage import open_event_log
from fieldfare.storage.folder import DataFolder

pytestmark = pytest.mark.long


def test_delayed_events_are_published_listed_and_cancelled(fieldfare: Fieldfare, tmp_path: Path) -> None:
    with running_gateway(tmp_path / "data") as gateway:
        url = ("--url", gateway.url)
        assert fieldfare("delayed", "list", *url).stdout == "no delayed events\n"
        lines = "\n".join(json.dumps({"source": "/s", "type": "t", "data": {"n": n}}) for n in range(5))
        said = fieldfare("publish", "--deliver-after", "900", "--batch", "2", *url, input=f"{lines}\n{{oops")
        assert said.exit_code == 1 and said.stdout.startswith("published 5 events in ")
        assert said.stdout.endswith(", 1 failed\n")
        assert "line 6" in said.stderr
        found = json.loads(fieldfare("delayed", "list", "--json", *url).stdout)
        assert [each["events"] for each in found] == [2, 2, 1]
        first = found[0]["id"]
        assert fieldfare("delayed", "cancel", first, *url).stdout == f"canceled {first}\n"
        gone = fieldfare("delayed", "cancel", first, *url)
        assert gone.exit_code == 1 and "There are no delayed events" in gone.stderr
        assert fieldfare("delayed", "list", *url).stdout.split("\n")[0].endswith("  2 events")
        assert fieldfare("delayed", "list", *url).stdout.endswith("  1 event\n")
        refused = fieldfare("publish", "--deliver-after", "99999999", *url, input=lines)
        assert refused.exit_code == 1 and "longer than 2592000 s" in refused.stderr


def test_a_request_for_later_that_takes_long_is_told_of(service: FaultyService, fieldfare: Fieldfare) -> None:
    """`publish --deliver-after` waited without a word for the two minutes that it repeats a request."""
    line = json.dumps({"source": "/s", "type": "t"})
    service.fail_next("events", *[Fault("status", 503, {"Retry-After": "1"})] * 50)
    said = fieldfare("publish", "--deliver-after", "5min", "--retry-for", "2.5s", input=line)
    assert said.exit_code == 1
    assert "waiting for the service, for up to 2.5 s (--retry-for): " in said.stderr
    assert said.stderr.count("waiting") == 1 and "told to fail" in said.stderr.split("--retry-for")[1]


def test_a_table_cannot_wait(fieldfare: Fieldfare, tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    said = fieldfare("publish", str(tmp_path / "x.parquet"), "--deliver-after", "9")
    assert said.exit_code == 2 and "not available for tables" in said.stderr


def test_expiry_counts_from_the_delayed_publication(fieldfare: Fieldfare, tmp_path: Path) -> None:
    own = "2030-01-01T00:00:00Z"
    whole = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
    lines = [
        whole,
        whole | {"id": "2", "expirytime": own},
        {"source": "/s", "type": "t", "id": "3"},
        {"x": 1},
        7,
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, lines)))
    pq.write_table(pa.table({"x": [1, 2]}), tmp_path / "x.parquet")
    with running_gateway(tmp_path / "data") as gateway:
        told = ("--type", "t", "--url", gateway.url)
        before_s = time.time()
        for more in (("x.jsonl", "60"), ("x.parquet", "60"), ("x.jsonl", "60", "--deliver-after", "0.5")):
            name, lasts_s, *rest = more
            said = fieldfare("publish", str(tmp_path / name), "--expires-after", lasts_s, *rest, *told)
            assert said.exit_code == 0, said.stderr
        log = open_event_log(DataFolder(tmp_path / "data").log_url)
        give_up_s = time.time() + 180
        # A client that is held up sends a file in several requests, each of which is a record.
        while (
            len(found := [line for each in log.read(0, log.end()) for line in all_lines(each.payload)]) < 12
        ):
            assert time.time() < give_up_s
            time.sleep(0.02)
        log.close()
    ends = [json.loads(line)["expirytime"] for line in found]
    for published, later_s in ((ends[:5], 0), (ends[5:7], 0), (ends[7:], 0.5)):
        if len(published) == 5:
            assert published.pop(1) == own, "what says it itself is believed"
        for end in published:
            assert later_s <= expiry_s(end) - before_s - 60 < later_s + 60
    assert fieldfare("publish", "-", "--expires-after", "-1", input="").exit_code == 2
