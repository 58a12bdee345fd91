"""Publishing over HTTP: every form, every refusal."""

from __future__ import annotations

import asyncio
import json
import random
import threading

import pytest
from gateway_support import (
    BATCH,
    DEADLINE_S,
    EVENTS,
    LINES,
    STRUCTURED,
    encode,
    event,
    run,
    running,
    until_async,
)

from fieldfare.gateway.maintenance import figures


def stored(gateway) -> list[list[dict]]:
    return [
        [json.loads(line) for line in record.payload.splitlines()]
        for record in gateway.log.read(gateway.log.start(), gateway.log.end())
    ]


def problem(answer, status: int) -> dict:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert {"type", "title", "status", "detail"} <= body.keys()
    assert body["status"] == status
    return body


def test_every_form_of_a_cloudevent_is_appended(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            first, second = event(1, {"x": 1}), event(2, {"x": 2})
            answer = await r.client.post(EVENTS, content=encode(first), headers=STRUCTURED)
            assert answer.json() == {"partition": 0, "offset": 0, "count": 1, "stamp": 0, "duplicate": False}
            charset = {"content-type": 'application/cloudevents-batch+json; charset="UTF-8"'}
            answer = await r.client.post(EVENTS, content=encode([first, second]), headers=charset)
            assert answer.json()["count"] == 2
            body = encode(first) + b"\n" + encode(second)
            assert (await r.client.post(EVENTS, content=body, headers=LINES)).json()["offset"] == 2
            headers = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/test", "ce-type": "t"}
            await r.client.post(EVENTS, json={"x": 1}, headers=headers)
            binary = first | {"datacontenttype": "application/json"}
            assert stored(r.gateway) == [[first], [first, second], [first, second], [binary]]

    run(work)


def test_a_repeat_of_a_producers_sequence_changes_nothing(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            headers = BATCH | {"fieldfare-producer": "p", "fieldfare-sequence": "7"}
            answers = [
                (await r.client.post(EVENTS, content=encode([event()]), headers=headers)).json()
                for _ in range(2)
            ]
            assert [each["duplicate"] for each in answers] == [False, True]
            assert answers[0]["offset"] == answers[1]["offset"] == 0
            assert r.gateway.log.end() == 1
            for wrong in (
                {"fieldfare-producer": "p"},
                {"fieldfare-producer": "p", "fieldfare-sequence": "-1"},
            ):
                problem(await r.client.post(EVENTS, content=b"[]", headers=BATCH | wrong), 400)

    run(work)


def test_a_sequence_that_was_used_for_something_else_is_refused_and_takes_no_neighbour_with_it(tmp_path):
    """A program lost its counter and began again at 1: its new events were answered, and thrown away."""

    async def work() -> None:
        async with running(tmp_path) as r:
            headers = BATCH | {"fieldfare-producer": "p", "fieldfare-sequence": "1"}

            async def post(x: int, space: str = "default"):
                body = encode([event(1, {"x": x})])
                return await r.client.post(f"/v1/spaces/{space}/events", content=body, headers=headers)

            assert (await post(1)).json()["duplicate"] is False
            answers = await asyncio.gather(post(2), r.publish(event(5)), post(1))
            told = problem(answers[0], 409)
            assert told["type"].endswith("sequence-used")
            assert "'p'" in told["detail"] and "number 1" in told["detail"]
            assert answers[2].json()["duplicate"] is True
            assert r.gateway.log.end() == 2
            await r.client.post("/v1/spaces", json={"name": "other"})
            assert (await post(2, "other")).json() == {
                "partition": 0, "offset": 2, "count": 1, "stamp": 0, "duplicate": False,
            }  # fmt: skip

    run(work)


def test_a_full_disk_is_said_so_and_all_goes_on_when_there_is_space_again(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            padding = "y" * 200_000
            await r.publish(event(0, {"x": 1, "padding": padding}))
            limit_pages(r.gateway.log._connections._open_writer(), 1)
            answers = [
                await r.client.post(EVENTS, content=encode([event(1, {"x": 1, "p": padding})]), headers=BATCH)
                for _ in range(3)
            ]
            for answer in answers:
                assert problem(answer, 503)["type"].endswith("disk-full")
                assert answer.headers["retry-after"] == "1"
            assert r.gateway.log.end() == 1
            r.pipeline.step()
            [held] = await r.pull("a")
            assert (await r.client.get("/readyz")).status_code == 503
            r.gateway.maintenance.round(1)
            await r.ack("a", held["position"])
            limit_pages(r.gateway.log._connections._open_writer(), 1 << 30)
            await r.publish(event(2, {"x": 1}))
            r.pipeline.step()
            assert [message["event"]["id"] for message in await r.pull("a")] == ["2"]

    run(work)


def limit_pages(connection, pages: int) -> None:
    """Limit a database file to a number of pages, or to its size: SQLite reports a full disk."""
    connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()


def test_the_good_events_of_a_batch_are_taken_and_each_bad_one_is_named(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            body = (
                b"["
                + encode(event(0))
                + b',{"id":oops},'
                + encode(event(""))
                + b","
                + encode(event(3))
                + b"]"
            )
            answer = await r.client.post(EVENTS, content=body, headers=BATCH)
            assert answer.status_code == 207
            told = answer.json()
            assert told["count"] == 2
            assert told["accepted"] == [
                {"index": 0, "position": "0-0-0"},
                {"index": 3, "position": "0-0-1"},
            ]
            assert [each["index"] for each in told["refused"]] == [1, 2]
            assert told["refused"][0]["line"] == 1 and "column" in told["refused"][0]
            assert told["refused"][1]["pointer"] == "/id"
            assert [each["id"] for each in stored(r.gateway)[0]] == ["0", "3"]

    run(work)


def test_what_cannot_be_taken_at_all_is_a_problem_and_appends_nothing(tmp_path):
    async def work() -> None:
        async with running(tmp_path, body_max_bytes=100_000, event_max_bytes=10_000) as r:
            post = r.client.post
            bad = problem(await post(EVENTS, content=b'{"id": "1"}', headers=STRUCTURED), 400)
            assert bad["pointer"] == "/specversion"
            broken = problem(await post(EVENTS, content=b'{"id": \n }', headers=STRUCTURED), 400)
            assert (broken["line"], broken["column"]) == (2, 2)
            several = problem(await post(EVENTS, content=b"[{},{}]", headers=BATCH), 400)
            assert [each["index"] for each in several["refused"]] == [0, 1]
            problem(await post(EVENTS, content=b"", headers=BATCH), 400)
            problem(await post(EVENTS, content=b"", headers=LINES), 400)
            problem(await post(EVENTS, content=b"{}", headers=BATCH), 400)
            large = encode(event(1, "x" * 20_000))
            problem(await post(EVENTS, content=large, headers=STRUCTURED), 413)
            problem(await post(EVENTS, content=b"[" + large + b"]", headers=BATCH), 413)
            problem(await post(EVENTS, content=b" " * 100_001, headers=BATCH), 413)
            endless = problem(await post(EVENTS, content=_chunks(30, 10_000), headers=BATCH), 413)
            assert endless["max_bytes"] == 100_000
            for content_type in ("application/json", "text/plain", "application/cloudevents+avro", ""):
                told = problem(await post(EVENTS, content=large, headers={"content-type": content_type}), 415)
                assert "application/cloudevents+json" in told["accepted"]
            problem(await post(EVENTS, content=large, headers=STRUCTURED | {"content-encoding": "br"}), 415)
            latin = {"content-type": "application/cloudevents+json; charset=latin-1"}
            problem(await post(EVENTS, content=large, headers=latin), 415)
            unknown = problem(await post("/v1/spaces/defualt/events", content=large, headers=STRUCTURED), 404)
            assert "default" in unknown["hint"]
            assert r.gateway.log.end() == 0

    run(work)


def test_an_empty_batch_is_a_batch(tmp_path):
    """CloudEvents allows it, and a publisher may have no events to send."""

    async def work() -> None:
        async with running(tmp_path) as r:
            for body in (b"[]", b" [ \n] "):
                answer = await r.client.post(EVENTS, content=body, headers=BATCH)
                assert answer.status_code == 200
                assert answer.json() == {
                    "partition": 0,
                    "offset": None,
                    "count": 0,
                    "stamp": None,
                    "duplicate": False,
                }
            assert r.gateway.log.end() == 0

    run(work)


async def _chunks(count: int, size_bytes: int):
    for _ in range(count):
        yield b" " * size_bytes


def test_ten_thousand_events_are_a_batch_and_one_more_is_too_long(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            one = encode(event())
            for count, status in ((10_000, 200), (10_001, 413)):
                body = b"[" + b",".join([one] * count) + b"]"
                assert (await r.client.post(EVENTS, content=body, headers=BATCH)).status_code == status
                answer = await r.client.post(EVENTS, content=(one + b"\n") * count, headers=LINES)
                assert answer.status_code == status
            assert r.gateway.log.end() == 2

    run(work)


def test_publishers_wait_when_the_pipeline_is_behind_the_disk_full_or_the_queue_long(tmp_path, monkeypatch):
    async def work() -> None:
        async with running(tmp_path, lag_max_events=2, stats_s=0.01, queue_max_bytes=1 << 20) as r:
            await r.publish(event(1), event(2), event(3))
            await r.gateway.figures.observe()
            answer = await r.client.post(EVENTS, content=encode([event()]), headers=BATCH)
            assert problem(answer, 429)["why"] == "lag"
            assert int(answer.headers["retry-after"]) >= 1
            r.pipeline.step()
            await r.gateway.figures.observe()
            await r.publish(event(4))
            body, goes_on, append = encode([event(1, "x" * 900_000)]), threading.Event(), r.gateway.log.append

            def hold(records):
                assert goes_on.wait(DEADLINE_S)
                return append(records)

            monkeypatch.setattr(r.gateway.log, "append", hold)
            posts = [
                asyncio.ensure_future(r.client.post(EVENTS, content=body, headers=BATCH)) for _ in range(3)
            ]
            await until_async(lambda: sum(post.done() for post in posts) == 2)
            refused = [post.result() for post in posts if post.done()]
            assert all(problem(each, 429)["why"] == "queue" for each in refused)
            goes_on.set()
            await asyncio.gather(*posts)
            r.pipeline.step()
            monkeypatch.setattr(figures, "disk_free_bytes", lambda path: 1000)
            await r.gateway.figures.observe()
            answer = await r.client.post(EVENTS, content=encode([event()]), headers=BATCH)
            assert problem(answer, 429)["why"] == "disk"

    run(work)


@pytest.mark.parametrize("headers", [BATCH, LINES, STRUCTURED], ids=["batch", "lines", "one"])
def test_random_bytes_never_make_the_gateway_fail(tmp_path, headers):
    async def work() -> None:
        seed = random.Random(f"fuzz {headers}")
        good = encode([event(1, {"a": ["x", 1.5]}), event(2, "ü", ext="y")])
        if headers is LINES:
            good = good[1:-1].replace(b"},{", b"}\n{")
        async with running(tmp_path) as r:
            for _ in range(300):
                body = bytearray(good if seed.random() < 0.7 else seed.randbytes(seed.randrange(80)))
                for _ in range(seed.randrange(6)):
                    at = seed.randrange(len(body) + 1)
                    body[at : at + seed.randrange(4)] = seed.choice(
                        [b"", seed.randbytes(2), b'"', b"[", b"}", b",", b"\\", b"\n", b"\xff", b"\\ud800"]
                    )
                end = r.gateway.log.end()
                answer = await r.client.post(EVENTS, content=bytes(body), headers=headers)
                assert answer.status_code in (200, 207, 400), (bytes(body), answer.text)
                assert r.gateway.log.end() - end == (answer.status_code != 400)
            for events in stored(r.gateway):
                assert all(each["specversion"] == "1.0" for each in events)

    run(work)
