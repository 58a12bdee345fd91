"""The service's own routes, its description, and its process."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from itertools import combinations

import httpx
import pytest
from gateway_support import BATCH, EVENTS, SUBSCRIPTIONS, encode, event, run, running, until
from starlette.routing import Route

from fieldfare.gateway.openapi.document import api_document
from fieldfare.gateway.peers import BATCH_MAX_BYTES
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.quarantine import Quarantine, QuarantinedRecord

DOCUMENT = api_document()

pytestmark = pytest.mark.long


@pytest.mark.parametrize("who", ["pipeline", "indexer"])
def test_ready_needs_processes_that_have_just_given_a_sign_of_life(tmp_path, who):
    async def work() -> None:
        async with running(tmp_path, pipeline_stale_s=5) as r:
            folder, checks = r.gateway.settings.folder, {"pipeline": "ready", "indexer": "ready"}
            heartbeat, other = folder.heartbeat_of(who), folder.heartbeat_of(*(checks.keys() - {who}))

            async def ready() -> tuple[int, str]:
                answer = await r.client.get("/readyz")
                found = answer.json()["checks"]
                assert {**found, who: "ready"} == {**found, **checks}, "the other one is ready"
                return answer.status_code, found[who]

            now_ms = time.time_ns() // 1_000_000
            other.write_text(json.dumps({"pid": 2, "state": "running", "time_ms": now_ms}))
            assert await ready() == (503, f"the {who} has not started yet")
            for state in ("ready", "running"):
                heartbeat.write_text(json.dumps({"pid": 1, "state": state, "time_ms": now_ms, "offset": 3}))
                assert await ready() == (200, "ready")
            heartbeat.write_text(json.dumps({"pid": 1, "state": "starting", "time_ms": now_ms}))
            assert await ready() == (503, f"the {who} is starting")
            beat = {"pid": 1, "state": "recovering", "time_ms": now_ms, "error": "the disk is full"}
            heartbeat.write_text(json.dumps(beat))
            assert await ready() == (503, f"the {who} is recovering: the disk is full")
            heartbeat.write_text("{")
            assert (await ready())[0] == 503
            assert (await r.client.get("/healthz")).status_code == 200

    run(work)


def test_the_registry_forgets_what_the_pipeline_has_passed(tmp_path):
    """A filter that was replaced matters until all events from before have been matched."""

    async def work() -> None:
        async with running(tmp_path) as r:
            heartbeat = r.gateway.settings.folder.heartbeat
            indexers = r.gateway.settings.folder.heartbeat_of("indexer")
            for x in range(3):
                await r.subscribe("a", f"data.x = {x}")
                await r.publish(event(x, {"x": x}))

            def kept(offset: int | None, snapshot_revision: int | None) -> list[str]:
                beat = {"pid": 1, "state": "running", "time_ms": 1}
                heartbeat.write_text(json.dumps(beat | {"offset": offset}))
                indexers.write_text(json.dumps(beat | {"snapshot_revision": snapshot_revision}))
                r.gateway.maintenance.round(0)
                return [version.filter for version in r.gateway.registry.versions(3, -1)]

            everything = ["data.x = 0", "data.x = 1", "data.x = 2"]
            assert kept(None, None) == kept(1, 0) == kept(0, 3) == everything
            assert kept(1, 2) == everything[1:]
            assert kept(3, 2) == everything[1:]
            assert kept(3, 3) == everything[2:]
            heartbeat.unlink()
            r.gateway.maintenance.round(0)
            indexers.unlink()
            r.gateway.maintenance.round(0)
            assert (await r.client.get(f"{SUBSCRIPTIONS}/a")).json()["filter"] == "data.x = 2"

    run(work)


def test_what_an_append_under_way_will_meet_is_not_forgotten(tmp_path, monkeypatch):
    """The disk is slow with an append; meanwhile its filter is replaced, and all existing events are
    matched."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            entered, go_on, append = threading.Event(), threading.Event(), r.gateway.log.append

            def slow(records):
                entered.set()
                go_on.wait(60)
                return append(records)

            monkeypatch.setattr(r.gateway.log, "append", slow)
            publishing = asyncio.ensure_future(r.publish(event(1, {"x": 1})))
            assert await asyncio.to_thread(entered.wait, 20)
            await r.subscribe("a", "data.x = 2")
            beat = {"pid": 1, "state": "running", "time_ms": 1, "offset": 0}
            indexers = r.gateway.settings.folder.heartbeat_of("indexer")
            indexers.write_text(json.dumps(beat | {"snapshot_revision": 2}))
            r.gateway.settings.folder.heartbeat.write_text(json.dumps(beat))
            await asyncio.to_thread(r.gateway.maintenance.round, 0)
            go_on.set()
            assert (await publishing)["stamp"] == 1
            await asyncio.to_thread(r.gateway.maintenance.round, 0)
            r.pipeline.step()
            assert [message["position"] for message in await r.pull("a")] == ["0-0-0"]
            r.gateway.settings.folder.heartbeat.write_text(json.dumps(beat | {"offset": 1}))
            await asyncio.to_thread(r.gateway.maintenance.round, 0)
            assert [version.filter for version in r.gateway.registry.versions(2, 0)] == ["data.x = 2"]

    run(work)


def test_unknown_routes_and_wrong_methods_are_problems(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            for method, path, status in [
                ("GET", "/", 404),
                ("GET", "/v1/space", 404),
                ("GET", "/healthz/", 404),
                ("DELETE", "/healthz", 405),
                ("GET", EVENTS, 405),
            ]:
                answer = await r.client.request(method, path)
                assert answer.status_code == status
                assert answer.headers["content-type"] == "application/problem+json"
                assert ("allow" in answer.headers) == (status == 405)

    run(work)


def test_a_fault_of_the_gateway_is_told_without_its_insides(tmp_path, monkeypatch, caplog):
    async def work() -> None:
        async with running(tmp_path) as r:

            def fail() -> None:
                raise RuntimeError("secret inside")

            monkeypatch.setattr(r.gateway.figures, "stats", fail)
            answer = await r.client.get("/v1/stats")
            assert answer.status_code == 500
            assert answer.headers["content-type"] == "application/problem+json"
            assert "secret" not in answer.text
            assert "secret inside" in caplog.text

    run(work)


@pytest.mark.parametrize(("number", "name"), [(errno.EMFILE, "storage"), (errno.ENOSPC, "disk-full")])
def test_what_the_machine_refuses_is_told_as_something_that_passes(tmp_path, monkeypatch, number, name):
    """A pull while the gateway could open no more files was answered 500."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            await r.publish(event(1, {"x": 1}))
            r.pipeline.step()

            def refuse(*_: object) -> None:
                raise OSError(number, os.strerror(number), "matches/0000")

            with monkeypatch.context() as patched:
                patched.setattr(r.gateway.match_log, "block_at", refuse)
                answer = await r.client.post(f"{SUBSCRIPTIONS}/a/pull", json={})
                assert answer.status_code == 503, answer.text
                assert answer.json()["type"] == f"urn:fieldfare:problem:{name}"
                assert "retry-after" in answer.headers
                assert "matches/0000" not in answer.text
            pulled = await r.client.post(f"{SUBSCRIPTIONS}/a/pull", json={})
            assert len(pulled.json()["messages"]) == 1

    run(work)


def test_every_route_is_described_and_nothing_else(tmp_path):
    described = {
        (method.upper(), path)
        for path, item in DOCUMENT["paths"].items()
        for method in item
        if method != "parameters"
    }
    routed: set[tuple[str, str]] = set()

    async def work() -> None:
        async with running(tmp_path) as r:
            for route in r.routes:
                methods = route.methods if isinstance(route, Route) else {"GET"}
                routed.update((method, route.path) for method in methods - {"HEAD"})

    run(work)
    assert described == routed
    for path, item in DOCUMENT["paths"].items():
        named = {each["name"] for each in item.get("parameters", []) if each["in"] == "path"}
        assert named == set(re.findall(r"{(\w+)}", path))


def referred(schema: dict) -> dict:
    return DOCUMENT["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]


def test_no_large_schema_stands_twice_in_the_description():
    """Two schemas with equal properties would be two types in a generated client."""
    groups: dict[str, list[str]] = {}
    for name, schema in DOCUMENT["components"]["schemas"].items():
        for property, described in schema.get("properties", {}).items():
            groups.setdefault(f"{property}: {described}", []).append(name)
    shared: dict[tuple[str, ...], int] = {}
    for names in groups.values():
        for pair in combinations(names, 2):
            shared[pair] = shared.get(pair, 0) + 1
    assert {pair: count for pair, count in shared.items() if count > 6} == {}


def fits(value: object, schema: dict | bool) -> bool:
    """Whether a value fits a schema, as far as the description uses JSON Schema."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        return fits(value, referred(schema))
    if "allOf" in schema:
        more = {"additionalProperties": schema.get("unevaluatedProperties", True)}
        properties = dict(schema.get("properties", {}))
        for each in map(referred, schema["allOf"]):
            assert each.keys() <= {"type", "properties", "required", "description"} and not each["required"]
            properties |= each["properties"]
        return fits(value, {"type": "object", "properties": properties, **more})
    if "oneOf" in schema:
        return sum(fits(value, each) for each in schema["oneOf"]) == 1
    kinds = {
        "object": dict, "array": list, "string": str, "integer": int, "number": (int, float),
        "boolean": bool, "null": type(None),
    }  # fmt: skip
    allowed = schema.get("type", list(kinds))
    allowed = [allowed] if isinstance(allowed, str) else allowed
    if not any(isinstance(value, kinds[kind]) for kind in allowed):
        return False
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        more = schema.get("additionalProperties", {})
        return set(schema.get("required", ())) <= value.keys() and all(
            fits(each, properties.get(name, more)) for name, each in value.items()
        )
    if isinstance(value, list):
        return all(fits(each, schema.get("items", {})) for each in value)
    if isinstance(value, str):
        return bool(re.search(schema.get("pattern", ""), value)) and value in schema.get("enum", [value])
    return True


def test_the_examples_fit_their_schemas():
    examples = 0

    def look(node: object) -> None:
        nonlocal examples
        if isinstance(node, dict):
            if "example" in node:
                examples += 1
                assert fits(node["example"], node["schema"]), node["example"]
            for each in node.values():
                look(each)
        elif isinstance(node, list):
            for each in node:
                look(each)

    look(DOCUMENT["paths"])
    assert examples > 15


def test_the_gateway_answers_as_it_is_described(tmp_path):
    """Every request example is sent, in an order that makes sense; each answer fits its description."""

    async def work() -> None:
        admin = tmp_path / "admin.key"
        admin.write_text("k" * 40)
        async with running(tmp_path / "data", admin_key_file=admin, broker="oslo") as r:
            r.client.headers["authorization"] = "Bearer " + "k" * 40
            key = (await r.client.post("/v1/keys", json={"rights": ["watch"]})).json()["id"]
            await r.publish(event(type="trade"))  # as advertised
            wait = {"content-type": "application/cloudevents+json", "fieldfare-deliver-after": "900"}
            kept = await r.client.post(EVENTS, content=encode(event()), headers=wait)
            described = DOCUMENT["paths"]["/v1/spaces/{space}/events"]["post"]["responses"]["202"]
            assert kept.status_code == 202
            assert fits(kept.json(), described["content"]["application/json"]["schema"])
            waits = kept.json()["id"]
            Quarantine(DataFolder(tmp_path / "data").quarantine).add(
                QuarantinedRecord(0, "default", 1, "odd", 1)
            )
            order = sorted(
                ((method, path) for path, item in DOCUMENT["paths"].items() for method in item),
                key=lambda each: (
                    *(each[0] == "delete", each[1].endswith(("pull", "ack")), each[0] != "put"),
                    -len(each[1]) if each[0] == "delete" else 0,
                ),
            )
            for method, path in order:
                if method == "parameters" or path.endswith(("/stream", "/websocket")):
                    continue
                operation = DOCUMENT["paths"][path][method]
                space = "market" if path == "/v1/spaces/{space}" else "default"
                url = path.format(
                    space=space, id="cheap-yahoo", position="0-0-0", key=key, delayed=waits, broker="b"
                )
                contents = operation.get("requestBody", {}).get("content", {"": {}})
                for media, content in contents.items():
                    if media and "example" not in content:
                        continue
                    body = encode(content["example"]) if media else None
                    headers = {"content-type": media} if media else {}
                    answer = await r.client.request(method, url, content=body, headers=headers)
                    described = operation["responses"][str(answer.status_code)]
                    # It is not ready, and there is no other broker.
                    alone = ("/readyz", "/v1/brokers/{broker}", "/v1/balance")
                    is_refused = path in alone or path.endswith("/move")
                    assert answer.status_code < 300 or is_refused, (path, answer.text)
                    for kind, form in described.get("content", {}).items():
                        assert answer.headers["content-type"].startswith(kind)
                        if kind == "application/json":
                            assert fits(answer.json(), form["schema"]), (path, answer.text)
                r.pipeline.step()

    run(work)


def test_what_is_refused_is_described_as_refused(tmp_path):
    """A generated client sent members that nothing knows, and met statuses that nothing told it of."""

    async def work() -> None:
        admin = tmp_path / "admin.key"
        admin.write_text("k" * 40)
        async with running(
            tmp_path / "data", body_max_bytes=BATCH_MAX_BYTES, admin_key_file=admin, broker="oslo"
        ) as r:
            r.client.headers["authorization"] = "Bearer " + "k" * 40
            await r.subscribe("cheap-yahoo", "data.x = 1")
            bodies = 0
            for path, item in DOCUMENT["paths"].items():
                for method, operation in item.items():
                    form = operation.get("requestBody", {}) if method != "parameters" else {}
                    if "application/json" not in form.get("content", {}):
                        continue
                    bodies += 1
                    content = form["content"]["application/json"]
                    url = path.format(space="default", id="cheap-yahoo")
                    unknown = content["example"] | {"unknown": 1}
                    assert not fits(unknown, content["schema"])
                    for body, kind, status in [
                        (encode(unknown), "application/json", 400),
                        (encode(content["example"]), "text/plain", 415),
                        (b" " * (BATCH_MAX_BYTES + 1), "application/json", 413),
                    ]:
                        headers = {"content-type": kind}
                        answer = await r.client.request(method, url, content=body, headers=headers)
                        assert answer.status_code == status, answer.text
                        described = operation["responses"][str(status)]["content"]["application/problem+json"]
                        assert fits(answer.json(), described["schema"])
            assert bodies >= 10

    run(work)


def test_creating_the_same_subscription_again_is_described(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            operation = DOCUMENT["paths"]["/v1/spaces/{space}/subscriptions"]["post"]
            for status in (201, 200):
                answer = await r.client.post(SUBSCRIPTIONS, json={"id": "a", "filter": "x = 1"})
                assert answer.status_code == status
                schema = operation["responses"][str(status)]["content"]["application/json"]["schema"]
                assert fits(answer.json(), schema)

    run(work)


def test_every_setting_says_what_it_does_and_is_read_from_the_environment(monkeypatch):
    for name, field in GatewaySettings.model_fields.items():
        assert field.description, name
    monkeypatch.setenv("FIELDFARE_ACK_DEADLINE_S", "7.5")
    assert GatewaySettings().ack_deadline_s == 7.5


class Process:
    """A gateway in a process of its own."""

    def __init__(self, data, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fieldfare.gateway", "--data", str(data), "--port", "0", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        line = self.process.stdout.readline()
        assert "ready on" in line, self.process.stderr.read()
        self.client = httpx.Client(base_url=re.search(r"http://[\d.:]+", line)[0], timeout=180)

    def stop(self, number: int) -> int:
        self.client.close()
        self.process.send_signal(number)
        code = self.process.wait(180)
        self.process.stdout.close()
        self.process.stderr.close()
        return code


def test_what_was_acknowledged_survives_a_kill_and_a_stop_is_clean(tmp_path):
    first = Process(tmp_path)
    first.client.put(f"{SUBSCRIPTIONS}/a", json={"filter": "data.x = 1"}).raise_for_status()
    headers = BATCH | {"fieldfare-producer": "p", "fieldfare-sequence": "1"}
    sent = first.client.post(EVENTS, content=encode([event(1, {"x": 1})]), headers=headers).json()
    acked = first.client.post(f"{SUBSCRIPTIONS}/a/ack", json={"positions": ["0-0-0"]}).json()
    assert first.stop(signal.SIGKILL) == -signal.SIGKILL
    second = Process(tmp_path)
    again = second.client.post(EVENTS, content=encode([event(1, {"x": 1})]), headers=headers).json()
    assert again == sent | {"duplicate": True}
    assert second.client.get(f"{SUBSCRIPTIONS}/a").json()["filter"] == "data.x = 1"
    assert second.client.post(f"{SUBSCRIPTIONS}/a/ack", json={"positions": []}).json() == acked
    assert second.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize(("what", "code"), [("port", 3), ("log", 4), ("directory", 4)])
def test_a_gateway_that_cannot_start_says_why_in_one_line(tmp_path, what, code):
    arguments = [sys.executable, "-m", "fieldfare.gateway", "--data", str(tmp_path)]
    holder = None
    if what == "directory":
        holder = Process(tmp_path)
        arguments += ["--port", "0"]
    elif what == "port":
        holder = Process(tmp_path / "other")
        arguments += ["--port", str(holder.client.base_url.port)]
    else:
        DataFolder(tmp_path).log_path.write_bytes(b"this is no database, and was never one" * 100)
        arguments += ["--port", "0"]
    ended = subprocess.run(
        arguments,
        capture_output=True,
        text=True,
        timeout=180,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "FIELDFARE_PREDECESSOR_WAIT_S": "0.1",
        },
    )
    if holder is not None:
        holder.stop(signal.SIGTERM)
    assert ended.returncode == code
    assert ended.stderr.startswith("fieldfare gateway: ")
    assert "Traceback" not in ended.stderr
    until(lambda: ended.stdout == "")
