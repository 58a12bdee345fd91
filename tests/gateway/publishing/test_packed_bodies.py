"""``Content-Encoding``: compressed bodies are accepted like uncompressed ones, with the same limits."""

from __future__ import annotations

from random import Random

import pytest
from gateway_support import (
    ARROW,
    BATCH,
    EVENTS,
    LINES,
    STRUCTURED,
    SUBSCRIPTIONS,
    encode,
    event,
    run,
    running,
    until_async,
)
from loop_watch import watched
from test_arrow_http import stream, table
from test_publish_http import problem

from fieldfare.encodings import ENCODINGS, pack

MIB = 1 << 20

BLANKS = bytes(byte if byte == 0x0A else b" \r"[byte & 1] for byte in range(256))


def packed(body: bytes, encoding: str, headers: dict[str, str]) -> dict[str, object]:
    return {"content": pack(body, encoding), "headers": headers | {"content-encoding": encoding}}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_events_are_taken_packed_in_all_their_forms(tmp_path, encoding):
    async def work() -> None:
        async with running(tmp_path) as r:
            post = r.client.post
            one = encode(event(1, {"x": [1, 2]}))
            binary = {"ce-specversion": "1.0", "ce-id": "b", "ce-source": "/t", "ce-type": "t"}
            json = {"content-type": "application/json"}
            for body, headers, count in (
                (one, STRUCTURED, 1),
                (b"[" + b",".join([one] * 500) + b"]", BATCH, 500),
                (b"\n".join([one] * 5_000), LINES, 5_000),
                (b'{"x": 1}', binary | json, 1),
                (stream(table(3)), ARROW, 3),
            ):
                answer = await post(EVENTS, **packed(body, encoding, headers))
                assert answer.status_code == 200, answer.text
                assert answer.json()["count"] == count
            (first,) = r.gateway.log.read(0, 1)
            assert bytes(first.payload) == one + b"\n"
            filter = encode({"filter": "data.x > 1"})
            assert (await r.client.put(f"{SUBSCRIPTIONS}/s", **packed(filter, encoding, json))).is_success
            assert r.gateway.bodies.held_bytes == 0

    run(work)


def test_a_repeat_is_known_however_it_is_packed(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            numbered = STRUCTURED | {"fieldfare-producer": "p", "fieldfare-sequence": "1"}
            body = encode(event(1, "x" * 100))
            first = await r.client.post(EVENTS, content=body, headers=numbered)
            assert not first.json()["duplicate"]
            for encoding in ENCODINGS:
                assert (await r.client.post(EVENTS, **packed(body, encoding, numbered))).json()["duplicate"]

    run(work)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_is_not_packed_so_or_unpacks_to_too_much_is_a_problem(tmp_path, encoding):
    async def work() -> None:
        async with running(tmp_path, body_max_bytes=100_000, event_max_bytes=10_000) as r:
            post = r.client.post
            said = STRUCTURED | {"content-encoding": encoding}
            good = pack(encode(event(1)), encoding)
            for broken in (b"", b"{}", good[:-1], good + b"x", good[:-3] + b"abc" + good[-1:]):
                told = problem(await post(EVENTS, content=broken, headers=said), 400)
                assert told["type"].endswith("bad-encoding") or encoding == "zstd"
            for size in (100_001, 50 * MIB):
                bomb = packed(b" " * size, encoding, BATCH)
                told = problem(await post(EVENTS, **bomb), 413)
                assert told["max_bytes"] == 100_000 and "dataref" in told["hint"]
            assert (await post(EVENTS, content=good, headers=said)).is_success
            assert r.gateway.log.end() == 1
            assert r.gateway.bodies.held_bytes == 0

    run(work)


def test_other_encodings_are_refused_by_the_names_of_those_that_are_taken(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            for encoding in ("br", "deflate", "gzip, gzip", "compress", ""):
                headers = STRUCTURED | {"content-encoding": encoding}
                answer = await r.client.post(EVENTS, content=b"{}", headers=headers)
                problem(answer, 415)
                assert answer.headers["accept-encoding"] == "gzip, zstd"
            for encoding in ("identity", "GZIP"):
                body = encode(event(1)) if encoding == "identity" else pack(encode(event(1)), "gzip")
                headers = STRUCTURED | {"content-encoding": encoding}
                assert (await r.client.post(EVENTS, content=body, headers=headers)).is_success

    run(work)


def test_what_comes_out_of_bodies_needs_room_too(tmp_path):
    """Many small requests that decompress to much are asked to retry later, and no memory is kept."""

    async def work() -> None:
        async with running(tmp_path) as r:
            r.gateway.bodies._room.take("default", 255 * MIB)
            body = packed(b" " * MIB, "gzip", BATCH)
            answer = await r.client.post(EVENTS, **body)
            assert problem(answer, 429)["why"] == "bodies"
            await until_async(lambda: r.gateway.bodies.held_bytes == 255 * MIB)

    run(work)


def test_each_event_that_is_too_large_is_named_with_the_way_out(tmp_path):
    """The others of the batch are taken, and CloudEvents' claim check is named."""

    async def work() -> None:
        async with running(tmp_path) as r:
            large = event("large", "x" * MIB)
            batch = encode([event(0), large, event(2), large])
            answer = await r.client.post(EVENTS, content=batch, headers=BATCH)
            assert answer.status_code == 207
            refused = answer.json()["refused"]
            assert [each["index"] for each in refused] == [1, 3]
            assert all("dataref" in each["hint"] and str(MIB) in each["detail"] for each in refused)
            alone = problem(await r.client.post(EVENTS, content=encode(large), headers=STRUCTURED), 413)
            assert "dataref" in alone["hint"]
            rows = await r.client.post(EVENTS, content=stream(table(2, data=["y", "x" * MIB])), headers=ARROW)
            assert [each["index"] for each in rows.json()["refused"]] == [1]
            assert "dataref" in rows.json()["refused"][0]["hint"]
            reference = event("r", dataref="https://store.example.com/large")
            assert (await r.publish(reference))["count"] == 1

    run(work)


@pytest.mark.long
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("size_bytes", [MIB - 100, 8 * MIB - 100])
def test_decompression_does_not_delay_others(tmp_path, monkeypatch, encoding, size_bytes):
    """Lines of blanks, at random: else it is the ratio that refuses them."""
    body = Random(size_bytes).randbytes(size_bytes // 18).hex("\n").encode().translate(BLANKS) * 6
    with watched(monkeypatch, tmp_path) as (_, client, watch):
        answer = client.post(EVENTS, **packed(body, encoding, LINES))
        assert answer.status_code == 400, answer.text[:300]
        watch.check()
