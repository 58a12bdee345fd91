"""An encrypted space accepts data encrypted with its key, reports its kind, and stores nothing else."""

from __future__ import annotations

import json
from typing import Any

from gateway_support import event, run, running
from test_publish_http import problem

from fieldfare.client.encryption import SpaceKey
from fieldfare.client.records import NewSubscription
from fieldfare.storage.registry import SpaceEncryption

LINES = {"content-type": "application/x-ndjson"}
EVENTS, SUBSCRIPTIONS = "/v1/spaces/secret/events", "/v1/spaces/secret/subscriptions"


def encrypt(key: SpaceKey, *data: dict[str, Any]) -> bytes:
    return b"\n".join(key.seal_lines([json.dumps(event(data=each)).encode() for each in data])) + b"\n"


def test_an_encrypted_space_says_what_it_is_also_after_a_restart(tmp_path):
    key = SpaceKey.generate({"data.x": (0, 9, 1)})

    async def make() -> None:
        async with running(tmp_path) as r:
            body = {"name": "secret", "encryption": key.declaration()}
            made = await r.client.post("/v1/spaces", json=body)
            assert made.status_code == 201
            assert made.json()["encryption"] | {"protection": ""} == key.declaration() | {"protection": ""}
            protection = made.json()["encryption"]["protection"]
            assert (
                protection.startswith("Obfuscation") and "values within a few per cent or less" in protection
            )
            for bad in ({"library": "plain", "dimensions": 6}, {"library": "aspe", "dimensions": 0}, {}, 3):
                problem(await r.client.post("/v1/spaces", json={"name": "b", "encryption": bad}), 400)

    async def look() -> None:
        async with running(tmp_path) as r:
            spaces = (await r.client.get("/v1/spaces")).json()["spaces"]
            assert [each.get("encryption", {}).get("library") for each in spaces] == [None, "aspe"]
            assert r.gateway.registry.stored_spaces()[1].encryption == SpaceEncryption("aspe", 6)
            problem(await r.client.put(f"{SUBSCRIPTIONS}/a", json={"filter": "data.x = 1"}), 400)

    run(make)
    run(look)


def test_nothing_plain_gets_in(tmp_path):
    key, other = (
        SpaceKey.generate({"data.x": (0, 9, 1)}),
        SpaceKey.generate({"data.x": (0, 9, 1), "data.y": (0, 9, 1)}),
    )

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.client.post("/v1/spaces", json={"name": "secret", "encryption": key.declaration()})
            plain = json.dumps(event(data={"x": "PLANTED"})).encode() + b"\n"
            answer = problem(await r.client.post(EVENTS, content=plain, headers=LINES), 400)
            assert "encrypted with its key" in answer["detail"] and "PLANTED" not in json.dumps(answer)
            with_more = json.loads(encrypt(key, {"x": 1})) | {"subject": "PLANTED"}
            body = (
                json.dumps(with_more).encode()
                + b"\n"
                + plain
                + encrypt(key, {"x": 1})
                + encrypt(other, {"x": 1})
            )
            mixed = (await r.client.post(EVENTS, content=body, headers=LINES)).json()
            assert [each["index"] for each in mixed["accepted"]] == [2]
            assert [each["index"] for each in mixed["refused"]] == [0, 1, 3]
            table = await r.client.post(
                EVENTS, content=b"x", headers={"content-type": "application/vnd.apache.arrow.stream"}
            )
            assert table.status_code == 400
            assert b"PLANTED" not in b"".join(
                path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()
            )

    run(work)


def test_filters_have_to_be_encrypted_too_and_with_this_key(tmp_path):
    key, other = (
        SpaceKey.generate({"data.x": (0, 9, 1)}),
        SpaceKey.generate({"data.x": (0, 9, 1), "data.y": (0, 9, 1)}),
    )

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.client.post("/v1/spaces", json={"name": "secret", "encryption": key.declaration()})

            async def put(space: str, id: str, filter: Any, dialect: str) -> Any:
                path = f"/v1/spaces/{space}/subscriptions/{id}"
                return await r.client.put(path, json={"filter": filter, "dialect": dialect})

            text = key.seal_filter(NewSubscription("data.x < 3")).filter
            assert (await put("secret", "a", text, "aspe")).status_code == 201
            assert (await put("secret", "b", json.loads(text), "aspe")).status_code == 201
            assert "is not" in problem(await put("default", "a", text, "aspe"), 400)["detail"]
            assert "is not" in problem(await put("secret", "c", "data.x = 1", "sql"), 400)["detail"]
            foreign = other.seal_filter(NewSubscription("data.x < 3")).filter
            assert "numbers" in problem(await put("secret", "c", foreign, "aspe"), 400)["detail"]
            row, one = json.loads(text)["any"][0]["r"][0], {"e": 1, "r": [], "t": []}
            nan = "AAAAAAAA+H8="
            for any_of in (
                *([one | {"e": 0}], [one | {"r": ["?"]}], [one | {"r": [nan]}], [one | {"r": [row] * 200}]),
                *([one | {"t": [["a' OR 1 = 1", False, []]]}], [one | {"t": [["0" * 12, False, ["'"]]]}]),
                *([one] * 600, [{}], 3, [one | {"x": 1}], [one | {"r": [row, row[: len(row) // 2]]}]),
            ):
                problem(await put("secret", "c", {"any": any_of, "c": ""}, "aspe"), 400)
            for filter in ("", "{", "null", '"x"', {}, [], {"any": []}):
                problem(await put("secret", "c", filter, "aspe"), 400)
            for plain in ({"data.PLANTED": 1}, {"any": [one | {"PLANTED": 1}], "c": ""}, "data.PLANTED < 3"):
                answer = problem(await put("secret", "c", plain, "aspe"), 400)
                assert "PLANTED" not in json.dumps(answer)
            long = {"any": [one], "c": "x" * (512 << 10)}
            for filter in (
                long,
                json.dumps(long),
                json.dumps(long | {"c": "é" * (300 << 10)}, ensure_ascii=False),
            ):
                assert (
                    "an encrypted filter is 524288"
                    in problem(await put("secret", "c", filter, "aspe"), 400)["detail"]
                )
            assert (await r.client.get(SUBSCRIPTIONS)).json()["subscriptions"][0]["dialect"] == "aspe"

    run(work)


def test_a_filter_of_as_many_alternatives_as_there_may_be_survives_a_rotation(tmp_path):
    """Four numbers, 64 alternatives, two epochs: more bytes than a plain filter may have."""
    key = SpaceKey.generate({f"data.a{n}": (0, 999, 1) for n in range(4)})
    some = ", ".join(str(10 * n) for n in range(32))
    asked = (
        f"data.a0 IN ({some}) AND data.a1 > 3 AND data.a2 < 9 AND (data.a3 < 5 OR data.a3 BETWEEN 8 AND 9)"
    )

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.client.post("/v1/spaces", json={"name": "secret", "encryption": key.declaration()})
            text = key.rotated().seal_filter(NewSubscription(asked)).filter
            assert len(text) > 65536 and len(json.loads(text)["any"]) == 128
            body = {"filter": text, "dialect": "aspe"}
            answer = await r.client.put("/v1/spaces/secret/subscriptions/a", json=body)
            assert answer.status_code == 201

    run(work)
