"""No step on the event loop whose length depends on client data takes over 5 ms, even for hostile
requests."""

from __future__ import annotations

import pyarrow as pa
import pytest
from gateway_support import ARROW, BATCH, EVENTS, LINES, STRUCTURED, SUBSCRIPTIONS, encode, event
from loop_watch import watched

pytestmark = pytest.mark.long

JSON = {"content-type": "application/json"}
BINARY = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/t", "ce-type": "t"}
MIB = 1 << 20


def values(size: int) -> bytes:
    """JSON of a size that takes as many objects in memory as can be."""
    return b"[" + b"[]," * ((size - 4) // 3) + b"[]]"


def large_event(size: int) -> bytes:
    return encode(event())[:-1].replace(b'"data":null', b'"data":' + values(size)) + b"}"


def columns(rows: int) -> bytes:
    """A small stream of many rows: a dictionary of one text, named again and again."""
    attributes = {"specversion": "1.0", "id": "1", "source": "/t", "type": "t", "subject": "s" * 500}
    same = pa.array([0] * rows, pa.int8())
    table = pa.table(
        {name: pa.DictionaryArray.from_arrays(same, pa.array([value])) for name, value in attributes.items()}
    )
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def subscriptions(one: dict[str, str]) -> bytes:
    return b'{"subscriptions": [' + b",".join([encode(one)] * 10_000) + b"]}"


good = encode(event())
REQUESTS = {
    "broken lines": (EVENTS, LINES, b"{\n" * 9_000, 400),
    "broken elements": (EVENTS, BATCH, b"[" + b"{x}," * 9_000 + b"{}]", 400),
    "numbers for events": (EVENTS, BATCH, b"[" + b"1," * (4 * MIB) + b"1]", 413),
    "line feeds": (EVENTS, LINES, b"\n" * (8 * MIB), 400),
    "blank lines": (EVENTS, LINES, b" \n" * MIB + good, 200),
    "good and bad lines": (EVENTS, LINES, (good + b"\n{\n") * 4_900, 207),
    "many usual events": (
        EVENTS,
        BATCH,
        b"[" + b",".join([encode(event(1, "x" * 700))] * 10_000) + b"]",
        200,
    ),
    "dense events": (EVENTS, BATCH, b"[" + b",".join([large_event(MIB // 8)] * 6) + b"]", 200),
    "a dense event": (EVENTS, STRUCTURED, large_event(MIB // 2), 200),
    "a dense event of a kind": (EVENTS, LINES, large_event(MIB // 4), 200),
    "dense data": (EVENTS, BINARY | JSON, values(MIB // 2), 200),
    "too much dense data": (EVENTS, BINARY | JSON, values(8 * MIB - 1000), 413),
    "an odd character set": (
        EVENTS,
        BINARY | {"content-type": "text/x; charset=punycode"},
        b"a" * 100_000,
        200,
    ),
    "a small stream of many rows": (EVENTS, ARROW, columns(10_000), 200),
    "a large filter": (f"{SUBSCRIPTIONS}", JSON, b'{"filter": ' + values(8 * MIB - 1000) + b"}", 413),
    "events to test with": ("/v1/filters:test", JSON, b'{"events": ' + values(MIB) + b"}", 413),
    "a filter of many parts": (SUBSCRIPTIONS, JSON, b'{"filter": ' + values(MIB // 2) + b"}", 400),
    "many subscriptions": (SUBSCRIPTIONS, JSON, subscriptions({"filter": f"data.x = '{'y' * 750}'"}), 200),
    "many subscriptions of no kind": (SUBSCRIPTIONS, JSON, subscriptions({"filter": "?" * 200}), 200),
    "a few broken lines": (EVENTS, LINES, b"{\n" * 900, 400),
    "as many usual events as are decoded at once": (
        EVENTS,
        BATCH,
        b"[" + b",".join([encode(event(1, {"x": 1, "y": "z"}))] * 2_800) + b"]",
        200,
    ),
    "a little dense data": (EVENTS, BINARY | JSON, values(64 << 10), 200),
    "one long string": ("/v1/filters:check", JSON, b'{"filter": "' + b"x" * (8 * MIB - 1000) + b'"}', 400),
}


@pytest.mark.parametrize(("path", "headers", "body", "status"), REQUESTS.values(), ids=REQUESTS.keys())
def test_no_request_holds_the_others_up(tmp_path, monkeypatch, path, headers, body, status):
    """20 kB of broken lines stopped every stream for half a second, a dense 8 MB for several."""
    with watched(monkeypatch, tmp_path) as (_, client, watch):
        answer = client.post(path, content=body, headers=headers)
        assert answer.status_code == status, answer.text[:500]
        watch.check()
