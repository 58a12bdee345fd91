"""`fieldfare publish`: good lines are published, bad ones are named, the exit code tells."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli_support import Fieldfare
from faulty_service import Fault, FaultyService

from fieldfare.cli import publishing

SUMMARY = re.compile(r"^published ([\d,]+) events(, [\d,]+ not)? in \d+\.\d\d s \([\d,]+ events/s\)\n$")


def event(number: int) -> str:
    return json.dumps({"source": "/test", "type": "count", "data": {"n": number}})


def test_the_events_of_a_file_are_published(
    service: FaultyService, fieldfare: Fieldfare, tmp_path: Path
) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text("\n".join(map(event, range(1200))) + "\n\n")
    result = fieldfare("publish", str(file))
    assert (result.exit_code, result.stderr) == (0, "")
    found = SUMMARY.match(result.stdout)
    assert found and found[1] == "1,200"
    assert [each["data"]["n"] for each in service.events()] == list(range(1200))


def test_complete_cloudevents_travel_byte_for_byte(service: FaultyService, fieldfare: Fieldfare) -> None:
    line = '{"id":"1" ,"specversion":"1.0","source":"/a","type":"t","data":{"price":18.50}}'
    assert fieldfare("publish", input=line).exit_code == 0
    assert service.records == [[line.encode()]]


def test_plain_json_becomes_the_data_of_events(service: FaultyService, fieldfare: Fieldfare) -> None:
    plain = '{"price": 18.50}\n7\n[1]\n'
    result = fieldfare("publish", "-", "--type", "quote", "--source", "/q", input=plain)
    assert (result.exit_code, result.stderr) == (0, "")
    assert b'"data":{"price": 18.50}' in service.records[0][0]
    events = service.events()
    assert [each["data"] for each in events] == [{"price": 18.5}, 7, [1]]
    assert {(each["type"], each["source"]) for each in events} == {("quote", "/q")}


def test_a_json_array_and_an_object_over_several_lines_are_read_whole(
    service: FaultyService, fieldfare: Fieldfare
) -> None:
    pretty = json.dumps([json.loads(event(1)), json.loads(event(2))], indent=2)
    assert fieldfare("publish", input=pretty).exit_code == 0
    assert fieldfare("publish", input=json.dumps(json.loads(event(3)), indent=2)).exit_code == 0
    assert [each["data"]["n"] for each in service.events()] == [1, 2, 3]


def test_bad_lines_are_named_and_the_others_published(service: FaultyService, fieldfare: Fieldfare) -> None:
    lines = [event(0), "{oops", '{"price": 1}', event(3), "17"]
    result = fieldfare("publish", input="\n".join(lines))
    assert result.exit_code == 1
    assert result.stdout.startswith("published 2 events in ") and ", 3 failed" in result.stdout
    assert result.stderr.splitlines() == [
        "error: line 2: not JSON: JSON is malformed: object keys must be strings (byte 1)",
        "error: line 3: an event needs 'source': a CloudEvent has source, type and data, e.g. "
        '{"source": "/quotes", "type": "quote", "data": {...}}; this one has price',
        "hint: --type NAME publishes plain JSON as the data of events",
        "error: line 5: a CloudEvent is a JSON object",
    ]
    assert [each["data"]["n"] for each in service.events()] == [0, 3]


@pytest.mark.parametrize("options", [[], ["--type", "t"]])
def test_a_line_that_is_deeply_nested_or_not_utf_8_does_not_stop_the_others(
    service: FaultyService, fieldfare: Fieldfare, options: list[str], tmp_path: Path
) -> None:
    deep = b'{"source":"/x","type":"t","data":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    lines = [event(0).encode(), deep, b'{"source":"/x","type":"t","data":"M\xfcnchen"}', event(3).encode()]
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"\n".join(lines))
    result = fieldfare("publish", str(path), *options)
    assert (result.exit_code, len(service.events())) == (1, 2)
    assert [line.split(":")[1:3] for line in result.stderr.splitlines()] == [
        [" line 2", " not JSON"],
        [" line 3", " not JSON"],
    ]


def test_refused_lines_are_named(service: FaultyService, fieldfare: Fieldfare) -> None:
    refusal = b'{"title": "No", "refused": [{"index": 0, "detail": "bad", "pointer": "/data"}]}'
    service.fail_next("events", Fault("status", 400, body=refusal))
    result = fieldfare("publish", input=event(1))
    assert (result.exit_code, result.stderr) == (1, "error: line 1: bad (at /data)\n")
    assert result.stdout.startswith("published 0 events in ") and result.stdout.endswith(", 1 failed\n")


def test_many_bad_lines_do_not_fill_the_screen(fieldfare: Fieldfare) -> None:
    result = fieldfare("publish", input="oops\n" * 50)
    assert len(result.stderr.splitlines()) == 21
    assert result.stderr.splitlines()[-1] == "error: and 30 more"


def test_the_result_can_be_had_as_json(fieldfare: Fieldfare) -> None:
    result = fieldfare("publish", "--json", input=event(1))
    value = json.loads(result.stdout)
    assert (value["published"], value["failed"]) == (1, 0)
    assert set(value) == {"published", "failed", "seconds", "events_per_s"}


def test_an_unknown_space_is_an_error(fieldfare: Fieldfare) -> None:
    result = fieldfare("publish", "--space", "nowhere", input=event(1))
    assert result.exit_code == 1
    assert result.stderr == "error: Unknown space: there is no space ['nowhere']\n"


def test_a_file_that_is_not_there_is_an_error(fieldfare: Fieldfare) -> None:
    result = fieldfare("publish", "/nowhere/events.jsonl")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: cannot read /nowhere/events.jsonl: No such file or directory\n",
    )


def test_an_empty_input_publishes_nothing(fieldfare: Fieldfare) -> None:
    result = fieldfare("publish", input="")
    assert result.exit_code == 0
    assert result.stdout.startswith("published 0 events in ")


def test_waiting_for_a_busy_service_is_told_once(
    service: FaultyService, fieldfare: Fieldfare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`publish` waited through 429 without a word."""
    monkeypatch.setattr(publishing, "TROUBLE_LOOK_S", 0.02)
    busy = b'{"title": "Overloaded", "detail": "The disk is almost full."}'
    service.faults["events"].extend(Fault("status", 429, {"retry-after": "1"}, busy) for _ in range(2))
    result = fieldfare("publish", "--retry-for", "60", input=event(1))
    assert result.exit_code == 0
    assert result.stderr.count("waiting for the service, for up to 60 s (--retry-for): ") == 1
    assert "The disk is almost full." in result.stderr
    assert "waiting" not in fieldfare("publish", input=event(2)).stderr
