"""Spaces and subscriptions over HTTP."""

from __future__ import annotations

import asyncio
import json
import time

from gateway_support import EVENTS, SUBSCRIPTIONS, event, run, running
from test_publish_http import problem

from fieldfare.filters import decode_normal_form


def test_a_subscription_is_created_read_replaced_listed_and_deleted(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            path = f"{SUBSCRIPTIONS}/a"
            created = await r.client.put(path, json={"filter": "data.x > 5", "dialect": "sql"})
            assert created.status_code == 201
            assert created.json() == {
                "id": "a",
                "space": "default",
                "filter": "data.x > 5",
                "dialect": "sql",
                "revision": 1,
                "valid_from": "0-0-0",
            }
            await r.publish(event())
            same = await r.client.put(path, json={"filter": "data.x > 5"})
            assert (same.status_code, same.json()["revision"]) == (200, 1), "nothing changed, no revision"
            replaced = (await r.client.put(path, json={"filter": "data.x > 6"})).json()
            assert (replaced["revision"], replaced["valid_from"]) == (2, "0-1-0")
            assert (await r.client.get(path)).json() == replaced
            assert (await r.client.get(SUBSCRIPTIONS)).json() == {"subscriptions": [replaced], "next": None}
            assert (await r.client.delete(path)).status_code == 204
            problem(await r.client.get(path), 404)
            problem(await r.client.delete(path), 404)
            assert (await r.client.get("/v1/stats")).json()["subscriptions"] == 0

    run(work)


def test_what_is_compiled_is_what_the_index_reads(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            (version,) = r.gateway.registry.versions(r.gateway.registry.revision(), 0)
            assert decode_normal_form(version.compiled).conjunctions

    run(work)


def test_every_dialect_is_taken_and_a_json_filter_as_text_or_as_json(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            pattern = {"data": {"x": [{"numeric": [">", 5]}]}}
            for id, body in (
                ("text", {"filter": "type LIKE 'com.%'", "dialect": "cesql"}),
                ("json", {"filter": pattern, "dialect": "eventbridge"}),
                ("json-text", {"filter": json.dumps(pattern), "dialect": "eventbridge"}),
            ):
                created = await r.client.put(f"{SUBSCRIPTIONS}/{id}", json=body)
                assert created.status_code == 201, created.text
                assert isinstance(created.json()["filter"], str)
            again = await r.client.put(
                f"{SUBSCRIPTIONS}/json", json={"filter": pattern, "dialect": "eventbridge"}
            )
            assert again.status_code == 200 and again.json()["revision"] == 2, "nothing changed"
            wrong = await r.client.put(f"{SUBSCRIPTIONS}/a", json={"filter": pattern})
            assert problem(wrong, 400)["detail"] == "the filter must be a non-empty string"
            wrong = await r.client.put(
                f"{SUBSCRIPTIONS}/a", json={"filter": {"a": 1}, "dialect": "eventbridge"}
            )
            assert problem(wrong, 400)["pointer"] == "/filter"

    run(work)


def test_a_post_makes_an_id_or_keeps_to_the_one_given(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            made = await r.client.post(SUBSCRIPTIONS, json={"filter": "data.x = 1"})
            assert made.status_code == 201 and made.json()["id"].startswith("sub-")
            assert (await r.client.get(made.headers["location"])).json() == made.json()
            body = {"id": "a", "filter": "data.x = 1"}
            assert (await r.client.post(SUBSCRIPTIONS, json=body)).status_code == 201
            assert (await r.client.post(SUBSCRIPTIONS, json=body)).status_code == 200, "a retry is harmless"
            other = problem(await r.client.post(SUBSCRIPTIONS, json=body | {"filter": "data.x = 2"}), 409)
            assert "--replace" in other["hint"], "what a user of the command line can do"

    run(work)


def test_bad_filters_are_refused_with_their_place(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            bad = problem(
                await r.client.put(f"{SUBSCRIPTIONS}/a", json={"filter": "data.x = 1 AND\n = 5"}), 400
            )
            assert (bad["line"], bad["column"]) == (2, 2)
            assert "^" in bad["display"]
            large = problem(
                await r.client.put(
                    f"{SUBSCRIPTIONS}/a", json={"filter": "data.x = '" + "y" * (1 << 20) + "'"}
                ),
                400,
            )
            assert "65536" in large["detail"] and "hint" in large
            for body, pointer in [
                ({}, None),
                ({"filter": 5}, "/filter"),
                ({"filter": " "}, "/filter"),
                ({"filter": "data.x = 1", "dialect": "regex"}, "/dialect"),
                ({"filter": "data.x = 1", "id": "b"}, "/id"),
                ({"filter": "data.x = 1", "filtr": 1}, None),
                ([], None),
            ]:
                assert (
                    problem(await r.client.put(f"{SUBSCRIPTIONS}/a", json=body), 400).get("pointer")
                    == pointer
                )
            broken = await r.client.put(
                f"{SUBSCRIPTIONS}/a",
                content=b'{"filter":\n"x" 1}',
                headers={"content-type": "application/json"},
            )
            assert problem(broken, 400)["line"] == 2
            problem(
                await r.client.put(f"{SUBSCRIPTIONS}/a", content=b"{}", headers={"content-type": "a/b"}), 415
            )
            problem(await r.client.put(f"{SUBSCRIPTIONS}/bad%20id", json={"filter": "data.x = 1"}), 400)
            nested = "(" * 20_000 + "data.x = 1" + ")" * 20_000
            problem(await r.client.put(f"{SUBSCRIPTIONS}/a", json={"filter": nested}), 400)
            assert r.gateway.registry.count() == 0

    run(work)


def test_many_are_put_at_once_and_the_bad_ones_named(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("old", "data.x = 1")
            await r.subscribe("kept", "data.x = 1")
            answer = await r.client.post(
                SUBSCRIPTIONS,
                json={
                    "subscriptions": [
                        {"id": "new", "filter": "data.x = 3"},
                        {"id": "bad", "filter": "data.x ="},
                        {"id": "old", "filter": "data.x = 2"},
                        {"id": "kept", "filter": "data.x = 1"},
                        {"filter": "data.x = 4"},
                        {"id": "new", "filter": "data.x = 5"},
                        7,
                    ]
                },
            )
            told = answer.json()
            assert (told["created"], told["replaced"], told["unchanged"]) == (2, 1, 1)
            assert [(each["index"], each["id"]) for each in told["refused"]] == [
                (1, "bad"),
                (5, "new"),
                (6, None),
            ]
            assert told["refused"][0]["column"] == 9
            filters = {each.id: each.filter for each in r.gateway.registry.list("default")}
            assert (filters["new"], filters["old"]) == ("data.x = 3", "data.x = 2")
            assert len(filters) == 4
            for both in (
                {"filter": "data.x = 1", "subscriptions": []},
                {"filter": "a = 1", "replace": False},
            ):
                problem(await r.client.post(SUBSCRIPTIONS, json=both), 400)
            too_many = {"subscriptions": [{}] * 10_001}
            problem(await r.client.post(SUBSCRIPTIONS, json=too_many), 413)

    run(work)


def test_many_are_put_at_once_and_none_is_replaced(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            before = await r.subscribe("old", "data.x = 1")
            await r.subscribe("kept", "data.x = 1")
            items = [
                {"id": "old", "filter": "data.x = 2"},
                {"id": "kept", "filter": "data.x = 1"},
                {"id": "new", "filter": "data.x = 3"},
                {"id": "kept ", "filter": "data.x = 1"},
            ]
            body = {"subscriptions": items, "replace": False}
            told = (await r.client.post(SUBSCRIPTIONS, json=body)).json()
            assert (told["created"], told["replaced"], told["unchanged"]) == (1, 0, 1)
            assert [(each["index"], each["id"]) for each in told["refused"]] == [(0, "old"), (3, "kept ")]
            assert "'old' with another filter" in told["refused"][0]["detail"]
            filters = {each.id: each.filter for each in r.gateway.registry.list("default")}
            assert filters == {"old": "data.x = 1", "kept": "data.x = 1", "new": "data.x = 3"}
            assert (await r.client.get(f"{SUBSCRIPTIONS}/old")).json() == before
            # Sent again, as after an answer that was lost.
            told = (await r.client.post(SUBSCRIPTIONS, json=body)).json()
            assert (told["created"], told["unchanged"], len(told["refused"])) == (0, 2, 2)
            every = {"subscriptions": items[:1], "replace": False}
            told = (await r.client.post(SUBSCRIPTIONS, json=every)).json()
            assert (told["created"], told["unchanged"], len(told["refused"])) == (0, 0, 1)
            problem(await r.client.post(SUBSCRIPTIONS, json={**every, "replace": 1}), 400)

    run(work)


def test_while_many_filters_are_compiled_other_requests_are_served(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            many = [{"id": f"s{i}", "filter": f"data.x > {i} AND data.y IN (1, {i})"} for i in range(2000)]
            begun_s = time.perf_counter()
            bulk = asyncio.ensure_future(r.client.post(SUBSCRIPTIONS, json={"subscriptions": many}))
            served = 0
            longest_s = 0.0
            while not bulk.done():
                start_s = time.perf_counter()
                # A request without a network never gives way by itself, and a loop that never waits starves
                # threads: it takes the interpreter's lock again before they wake up.
                await asyncio.sleep(0.0005)
                assert (await r.client.get("/healthz")).status_code == 200
                longest_s = max(longest_s, time.perf_counter() - start_s)
                served += 1
            assert (await bulk).json()["created"] == 2000
            assert served >= 10
            # However slow the machine: compiled in one step, they would take nearly all of the time at once.
            assert longest_s < (time.perf_counter() - begun_s) * 2 / 3

    run(work)


def test_listing_goes_page_by_page(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            many = [{"id": f"s{i:03}", "filter": "data.x = 1"} for i in range(25)]
            await r.client.post(SUBSCRIPTIONS, json={"subscriptions": many})
            found: list[str] = []
            after: str | None = None
            while True:
                params = {"limit": 10} | ({"after": after} if after else {})
                page = (await r.client.get(SUBSCRIPTIONS, params=params)).json()
                found += [each["id"] for each in page["subscriptions"]]
                after = page["next"]
                if after is None:
                    break
            assert found == [each["id"] for each in many]
            problem(await r.client.get(SUBSCRIPTIONS, params={"limit": "many"}), 400)

    run(work)


def test_a_name_that_is_nearly_right_is_suggested(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("delayed-flights", "data.x = 1")
            told = problem(await r.client.get(f"{SUBSCRIPTIONS}/delayed-fligths"), 404)
            assert "delayed-flights" in told["hint"]
            assert "hint" not in problem(await r.client.get(f"{SUBSCRIPTIONS}/zzz"), 404)

    run(work)


def test_spaces_are_apart(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            assert (await r.client.post("/v1/spaces", json={"name": "other"})).status_code == 201
            problem(await r.client.post("/v1/spaces", json={"name": "other"}), 409)
            problem(await r.client.post("/v1/spaces", json={"name": "no/slash"}), 400)
            assert (await r.client.get("/v1/spaces")).json() == {
                "spaces": [{"name": "default"}, {"name": "other"}]
            }
            await r.subscribe("a", "data.x = 1")
            other = await r.client.put("/v1/spaces/other/subscriptions/a", json={"filter": "data.x = 1"})
            assert other.status_code == 201
            await r.publish(event(1, {"x": 1}), space="other")
            r.pipeline.step()
            assert await r.pull("a") == []
            answer = await r.client.post("/v1/spaces/other/subscriptions/a/pull", json={})
            assert len(answer.json()["messages"]) == 1
            for path in ("subscriptions", "subscriptions/a"):
                problem(await r.client.get(f"/v1/spaces/nowhere/{path}"), 404)
            problem(
                await r.client.put("/v1/spaces/nowhere/subscriptions/a", json={"filter": "data.x=1"}), 404
            )

    run(work)


def test_spaces_and_subscriptions_outlive_the_gateway(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.client.post("/v1/spaces", json={"name": "other"})
            before = await r.subscribe("a", "data.x = 1")
        async with running(tmp_path) as r:
            assert (await r.client.get(f"{SUBSCRIPTIONS}/a")).json() == before
            assert len((await r.client.get("/v1/spaces")).json()["spaces"]) == 2
            assert (await r.client.get("/v1/stats")).json()["subscriptions"] == 1
            assert (await r.client.post(EVENTS.replace("default", "other"))).status_code == 415

    run(work)


def test_a_large_answer_keeps_its_headers(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            body = {"id": "long", "filter": "data.x = '" + "\x01" * 60_000 + "'"}
            answer = await r.client.post(SUBSCRIPTIONS, json=body)
            assert answer.status_code == 201
            assert answer.headers["location"] == f"{SUBSCRIPTIONS}/long"
            assert answer.json()["filter"] == body["filter"]

    run(work)
