"""Bad input, one row each: what a client sends, and what the gateway says about it.

Beside the answer, every row checks that nothing is half done: neither the log nor the registry has moved
further than the answer says. The routes' own tests look at each more closely.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

sys.path.append(str(Path(__file__).parent.parent / "gateway"))

from gateway_support import served

from fieldfare.gateway.context import Gateway

pytestmark = pytest.mark.long

EVENTS = "/v1/spaces/default/events"
SUBSCRIPTIONS = "/v1/spaces/default/subscriptions"
JSON = "application/json"
EVENT = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
LINES = "application/x-ndjson"
TABLE_STREAM = "application/vnd.apache.arrow.stream"

GOOD = b'{"specversion":"1.0","id":"1","source":"/s","type":"t"}'
BROKEN = b'{"specversion":"1.0","id":"2" "source":"/s","type":"t"}'
NO_TYPE = b'{"specversion":"1.0","id":"3","source":"/s"}'
NOT_UTF8 = b'{"specversion":"1.0","id":"4","source":"/s","type":"\xff"}'
LARGE = b'{"specversion":"1.0","id":"5","source":"/s","type":"t","data":"%s"}' % (b"x" * (10 << 20))
TOO_LARGE_FOR_ONE = b'{"specversion":"1.0","id":"6","source":"/s","type":"t","data":"%s"}' % (
    b"x" * (2 << 20)
)


@dataclass(frozen=True)
class Row:
    """One request and its answer; ``says`` are members of the answer, ``records`` what the log grows by."""

    name: str
    status: int
    says: dict[str, Any]
    path: str = EVENTS
    body: bytes = b""
    content_type: str | None = JSON
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    records: int = 0
    revisions: int = 0


def refused(index: int, detail: str, **place: Any) -> dict[str, Any]:
    return {"index": index, "detail": detail, **place}


def stream_of(columns: dict[str, list[Any]]) -> bytes:
    """A table as an Arrow stream."""
    table, sink = pa.table(columns), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


DELIMITER = "the event is not valid JSON: Expecting ',' delimiter"

TABLE = [
    Row(
        "broken JSON in one event of an array",
        207,
        {
            "detail": "2 events were accepted, 1 refused.",
            "count": 2,
            "accepted": [{"index": 0, "position": "0-1-0"}, {"index": 2, "position": "0-1-1"}],
            "refused": [refused(1, DELIMITER, byte=87, line=1, column=88)],
        },
        body=b"[" + b",".join((GOOD, BROKEN, GOOD)) + b"]",
        content_type=BATCH,
        records=1,
    ),
    Row(
        "broken JSON in one line of several",
        207,
        {
            "detail": "2 events were accepted, 1 refused.",
            "accepted": [{"index": 0, "position": "0-1-0"}, {"index": 2, "position": "0-1-1"}],
            "refused": [refused(1, DELIMITER, byte=86, line=2, column=31)],
        },
        body=b"\n".join((GOOD, BROKEN, GOOD)),
        content_type=LINES,
        records=1,
    ),
    Row(
        "a missing required attribute in one event of several",
        207,
        {"refused": [refused(1, "the required attribute type is missing", pointer="/type")]},
        body=b"\n".join((GOOD, NO_TYPE)),
        content_type=LINES,
        records=1,
    ),
    Row(
        "invalid UTF-8 in one event of several",
        207,
        {"refused": [refused(0, "the event is not valid UTF-8 here", byte=52, line=1, column=53)]},
        body=b"\n".join((NOT_UTF8, GOOD)),
        content_type=LINES,
        records=1,
    ),
    Row(
        "every event of a batch is bad",
        400,
        {
            "title": "No event was accepted",
            "detail": f"All 2 events were refused; the first because {DELIMITER}.",
            "refused": [
                refused(0, DELIMITER, byte=30, line=1, column=31),
                refused(1, "the required attribute type is missing", pointer="/type"),
            ],
        },
        body=b"\n".join((BROKEN, NO_TYPE)),
        content_type=LINES,
    ),
    Row(
        "a missing required attribute",
        400,
        {"index": 0, "detail": "the required attribute type is missing", "pointer": "/type"},
        body=NO_TYPE,
        content_type=EVENT,
    ),
    Row(
        "a table whose column has the wrong type",
        400,
        {"column": "type", "pointer": "/type"},
        body=stream_of({"id": ["1"], "source": ["/s"], "specversion": ["1.0"], "type": [7]}),
        content_type=TABLE_STREAM,
    ),
    Row(
        "a row of a table without a required attribute",
        207,
        {"count": 1, "accepted": [{"index": 0, "position": "0-1-0"}]},
        body=stream_of(
            {"id": ["1", "2"], "source": ["/s"] * 2, "specversion": ["1.0"] * 2, "type": ["t", None]}
        ),
        content_type=TABLE_STREAM,
        records=1,
    ),
    Row(
        "a wrong content type",
        415,
        {
            "detail": "The Content-Type text/plain is not supported for events.",
            "accepted": [EVENT, BATCH, LINES, TABLE_STREAM],
        },
        body=GOOD,
        content_type="text/plain",
    ),
    Row(
        "no content type",
        415,
        {"detail": "The Content-Type (none) is not supported for events."},
        body=GOOD,
        content_type=None,
    ),
    Row(
        "an empty body",
        400,
        {"detail": "The request contains no event."},
        content_type=LINES,
    ),
    Row(
        "an empty body where one event is due",
        400,
        {"detail": "there is no event here", "line": 1, "column": 1},
        content_type=EVENT,
    ),
    Row(
        "an event of 10 MB",
        413,
        {
            "detail": f"The body has at least {len(LARGE)} bytes; the maximum is 8388608 bytes: split the"
            " request.",
            "max_bytes": 8388608,
        },
        body=LARGE,
        content_type=EVENT,
    ),
    Row(
        "an event of 2 MB beside a good one",
        207,
        {
            "refused": [
                refused(
                    1,
                    f"the event has {len(TOO_LARGE_FOR_ONE)} bytes; one event may have 1048576",
                    hint="Store large data elsewhere, and publish an event that says where, with CloudEvents'"
                    " extension dataref.",
                )
            ]
        },
        body=b"\n".join((GOOD, TOO_LARGE_FOR_ONE)),
        content_type=LINES,
        records=1,
    ),
    Row(
        "an unknown space",
        404,
        {
            "detail": "There is no space 'nowhere'.",
            "hint": "`fieldfare spaces create NAME` creates one, and so does POST /v1/spaces.",
        },
        path="/v1/spaces/nowhere/events",
        body=GOOD,
        content_type=EVENT,
    ),
    Row(
        "a space with a slip of the pen",
        404,
        {"detail": "There is no space 'defualt'.", "hint": "Did you mean default?"},
        path="/v1/spaces/defualt/events",
        body=GOOD,
        content_type=EVENT,
    ),
    Row(
        "a sequence that is no number",
        400,
        {"detail": "Fieldfare-Sequence must be a whole number of at most 18 digits."},
        body=GOOD,
        content_type=EVENT,
        headers={"Fieldfare-Producer": "p", "Fieldfare-Sequence": "two"},
    ),
    Row(
        "a sequence without a producer",
        400,
        {"detail": "Send both Fieldfare-Producer and Fieldfare-Sequence, or neither."},
        body=GOOD,
        content_type=EVENT,
        headers={"Fieldfare-Sequence": "2"},
    ),
    Row(
        "what a request follows without a producer",
        400,
        {"detail": "Fieldfare-Follows needs Fieldfare-Producer and Fieldfare-Sequence."},
        body=GOOD,
        content_type=EVENT,
        headers={"Fieldfare-Follows": "2"},
    ),
    Row(
        "a request that follows itself",
        400,
        {"detail": "Fieldfare-Follows must be less than Fieldfare-Sequence."},
        body=GOOD,
        content_type=EVENT,
        headers={"Fieldfare-Producer": "p", "Fieldfare-Sequence": "2", "Fieldfare-Follows": "2"},
    ),
    Row(
        "a request that follows no number",
        400,
        {"detail": "Fieldfare-Follows must be a sequence number, or -1 for the first request."},
        body=GOOD,
        content_type=EVENT,
        headers={"Fieldfare-Producer": "p", "Fieldfare-Sequence": "2", "Fieldfare-Follows": "-2"},
    ),
    Row(
        "a request behind which another has come",
        409,
        {
            "newest": 1,
            "detail": "The producer 'first' has sent the sequence number 0 after 1 in the space 'default'."
            " Nothing was appended. Use a number above 1.",
        },
        body=GOOD,
        content_type=EVENT,
        headers={"Fieldfare-Producer": "first", "Fieldfare-Sequence": "0", "Fieldfare-Follows": "-1"},
    ),
    Row(
        "a request whose predecessor is not the newest",
        409,
        {
            "newest": 1,
            "detail": "Request 9 of the producer 'first' must follow request 0, but the newest one is 1 in"
            " the space 'default'. Nothing was appended. Send the missing requests first.",
        },
        body=GOOD,
        content_type=EVENT,
        headers={"Fieldfare-Producer": "first", "Fieldfare-Sequence": "9", "Fieldfare-Follows": "0"},
    ),
    Row(
        "a publish that was done before",
        200,
        {"offset": 0, "count": 1, "duplicate": True},
        body=GOOD,
        content_type=EVENT,
        headers={"Fieldfare-Producer": "first", "Fieldfare-Sequence": "1"},
    ),
    Row(
        "a filter of 1 MB",
        400,
        {
            "detail": "the filter has 1048576 bytes; the maximum is 65536",
            "pointer": "/filter",
            "hint": "Write many values of one attribute as one IN (...), or create several subscriptions.",
        },
        path=f"{SUBSCRIPTIONS}/large",
        method="PUT",
        body=json.dumps({"filter": "a = 1" + " " * ((1 << 20) - 5)}).encode(),
    ),
    Row(
        "a filter with an error",
        400,
        {"title": "The subscription was refused", "pointer": "/filter", "line": 2, "column": 5},
        path=f"{SUBSCRIPTIONS}/wrong",
        method="PUT",
        body=json.dumps({"filter": "data.price < 18.5\nAND AND data.symbol = 'YHOO'"}).encode(),
    ),
    Row(
        "a filter with an error among good ones",
        200,
        {"created": 1, "replaced": 0, "unchanged": 0},
        path=SUBSCRIPTIONS,
        body=json.dumps(
            {"subscriptions": [{"id": "a", "filter": "x ="}, {"id": "b", "filter": "x = 1"}]}
        ).encode(),
        revisions=1,
    ),
    Row(
        "a subscription without a filter",
        400,
        {"detail": "Object missing required field filter."},
        path=f"{SUBSCRIPTIONS}/empty",
        method="PUT",
        body=b"",
    ),
    Row(
        "a subscription in broken JSON",
        400,
        {"byte": 11, "line": 1, "column": 12},
        path=f"{SUBSCRIPTIONS}/broken",
        method="PUT",
        body=b'{"filter": x}',
    ),
    Row(
        "an unknown subscription",
        404,
        {
            "detail": "There is no subscription 'standin' in the space 'default'.",
            "hint": "Did you mean standing?",
        },
        path=f"{SUBSCRIPTIONS}/standin/pull",
        body=b"{}",
    ),
    Row(
        "a position that is none in an ack",
        400,
        {
            "detail": "a position is partition-offset-index, three whole numbers, not '0-x-0'.",
            "pointer": "/positions/1",
        },
        path=f"{SUBSCRIPTIONS}/standing/ack",
        body=b'{"positions": ["0-0-0", "0-x-0"]}',
    ),
    Row(
        "a position beyond the log in an ack",
        400,
        {"detail": "0-99-0 is past the log's end.", "pointer": "/up_to"},
        path=f"{SUBSCRIPTIONS}/standing/ack",
        body=b'{"up_to": "0-99-0"}',
    ),
    Row(
        "a wrong method",
        405,
        {"detail": f"{EVENTS} does not support GET: use POST."},
        method="GET",
    ),
    Row(
        "an unknown route",
        404,
        {"detail": "There is nothing at /v2/events; /openapi.json lists what is."},
        path="/v2/events",
    ),
]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[Gateway, httpx.Client]]:
    """A gateway with one event, published by a producer, and one subscription."""
    with served(tmp_path) as (gateway, client):
        headers = {"content-type": EVENT, "fieldfare-producer": "first", "fieldfare-sequence": "1"}
        client.post(EVENTS, content=GOOD, headers=headers).raise_for_status()
        client.put(f"{SUBSCRIPTIONS}/standing", json={"filter": "type = 't'"}).raise_for_status()
        yield gateway, client


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name.replace(" ", "-"))
def test_bad_input_is_named_and_nothing_is_half_done(row: Row, service: tuple[Gateway, httpx.Client]) -> None:
    gateway, client = service
    log_end, revision = gateway.log.end(), gateway.registry.revision()
    headers = {**row.headers, **({"content-type": row.content_type} if row.content_type else {})}
    answer = client.request(row.method, row.path, content=row.body, headers=headers)
    document = answer.json()
    assert answer.status_code == row.status, document
    if row.status >= 400:
        assert answer.headers["content-type"] == "application/problem+json"
        assert document["status"] == row.status
        assert document["type"].startswith("urn:fieldfare:problem:")
    assert {name: document.get(name) for name in row.says} == row.says
    assert gateway.log.end() == log_end + row.records
    assert gateway.registry.revision() == revision + row.revisions
    appended = [record.count for record in gateway.log.read(log_end, gateway.log.end())]
    assert sum(appended) == (len(document["accepted"]) if row.status == 207 else 0)
    standing = client.get(f"{SUBSCRIPTIONS}/standing").json()
    assert standing["filter"] == "type = 't'"
