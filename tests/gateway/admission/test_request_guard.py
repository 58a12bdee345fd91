"""The request guard: hostile web pages, foreign host names, ambiguous request heads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gateway_support import BATCH, EVENTS, SUBSCRIPTIONS, encode, event, run, running, served
from pydantic import ValidationError
from test_connections import ask

from fieldfare.gateway.settings import GatewaySettings

EVIL = "http://evil.example"
JSON = {"content-type": "application/json"}


def problem(answer, status: int, kind: str) -> dict:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["type"].endswith(f":{kind}")
    return answer.json()


PAGES = {
    "a page": {"origin": EVIL, "sec-fetch-site": "cross-site"},
    "an old browser's page": {"origin": EVIL},
    "a page on another port": {"origin": "http://localhost:3000", "sec-fetch-site": "same-site"},
    "a sandboxed page": {"origin": "null"},
    "a picture": {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    "a picture on another port": {"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"},
    "a name like ours": {"origin": "http://localhost.evil.example"},
    "no origin at all": {"origin": ""},
}


@pytest.mark.parametrize("headers", PAGES.values(), ids=PAGES.keys())
def test_no_web_page_may_use_a_service_that_was_not_told_of_it(tmp_path, headers):
    """A user reads a hostile page, which acks, replaces and pulls at the local service."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            await r.publish(event(1, {"x": 1}))
            r.pipeline.step()
            for method, path, body in [
                ("POST", f"{SUBSCRIPTIONS}/a/pull", {}),
                ("POST", f"{SUBSCRIPTIONS}/a/ack", {"up_to": "0-0-0"}),
                ("PUT", f"{SUBSCRIPTIONS}/a", {"filter": "data.x = 2"}),
                ("DELETE", f"{SUBSCRIPTIONS}/a", None),
                ("GET", f"{SUBSCRIPTIONS}/a/stream", None),
                ("GET", "/v1/stats", None),
                ("POST", EVENTS, [event(2)]),
            ]:
                content = b"" if body is None else encode(body)
                answer = await r.client.request(method, path, content=content, headers=headers | JSON)
                assert "FIELDFARE_CORS_ORIGINS" in problem(answer, 403, "cross-origin")["hint"]
                assert "access-control-allow-origin" not in answer.headers
            preflight = {**headers, "access-control-request-method": "PUT"}
            problem(await r.client.options(f"{SUBSCRIPTIONS}/a", headers=preflight), 403, "cross-origin")
            assert (await r.client.get(f"{SUBSCRIPTIONS}/a")).json()["filter"] == "data.x = 1"
            assert r.gateway.log.end() == 1
            assert [each["position"] for each in await r.pull("a")] == ["0-0-0"]

    run(work)


@pytest.mark.parametrize("content_type", [None, "", "text/plain;charset=UTF-8"])
def test_a_body_is_json_only_when_it_says_so(tmp_path, content_type):
    """Requests that a page may send without preflight have no JSON content type, but were accepted as
    acks."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            headers = {} if content_type is None else {"content-type": content_type}
            for path in (f"{SUBSCRIPTIONS}/a/pull", f"{SUBSCRIPTIONS}/a/ack", "/v1/filters:check"):
                answer = await r.client.post(path, content=b'{"max": 1}', headers=headers)
                problem(answer, 415, "content-type")
            assert (await r.client.post(f"{SUBSCRIPTIONS}/a/pull")).status_code == 200

    run(work)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:7737",
        "localhost.",
        "fieldfare.localhost",
        "127.0.0.1:7737",
        "127.8.8.8",
        "[::1]:7737",
        "[::1]",
        "10.1.2.3:80",
        "gateway.internal:8080",
    ],
)
def test_the_services_own_names_and_every_address_are_answered_to(tmp_path, host):
    async def work() -> None:
        async with running(tmp_path, allowed_hosts="other, gateway.internal") as r:
            assert (await r.client.get("/healthz", headers={"host": host})).status_code == 200

    run(work)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7737", "127.0.0.1.evil.example", "localhost.evil"]
)
def test_requests_with_a_rebound_host_name_are_rejected(tmp_path, host):
    """DNS rebinding: a page's own name comes to mean 127.0.0.1, and the browser lets the page read all."""

    async def work() -> None:
        async with running(tmp_path) as r:
            for headers in ({}, {"sec-fetch-site": "same-origin"}, {"origin": f"http://{host}"}):
                answer = await r.client.get("/v1/stats", headers=headers | {"host": host})
                assert "FIELDFARE_ALLOWED_HOSTS" in problem(answer, 421, "unknown-host")["hint"]

    run(work)


@pytest.mark.parametrize(
    "host", ["", "a b", "local/host", "localhost:x", "user@localhost", "localhost:80:80", "[::1"]
)
def test_a_host_that_names_none_is_refused(tmp_path, host):
    async def work() -> None:
        async with running(tmp_path) as r:
            problem(await r.client.get("/healthz", headers={"host": host}), 400, "bad-header")

    run(work)


def test_pages_of_the_services_own_and_of_named_origins_may_use_it(tmp_path):
    async def work() -> None:
        origin = "https://app.example.com"
        async with running(tmp_path, cors_origins=origin + ",http://localhost:3000") as r:
            own = {"origin": "http://localhost", "sec-fetch-site": "same-origin"}
            assert (await r.client.get("/v1/stats", headers=own)).status_code == 200
            assert (
                await r.client.get("/v1/stats", headers={"origin": "http://localhost"})
            ).status_code == 200
            assert (await r.client.get("/v1/stats", headers={"sec-fetch-site": "none"})).status_code == 200
            asked = "content-type,ce-id,fieldfare-producer"
            preflight = {
                "origin": origin,
                "access-control-request-method": "PUT",
                "access-control-request-headers": asked,
                "access-control-request-private-network": "true",
            }
            answer = await r.client.options(f"{SUBSCRIPTIONS}/a", headers=preflight)
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == origin
            assert answer.headers["access-control-allow-headers"] == asked
            assert "PUT" in answer.headers["access-control-allow-methods"]
            body = encode({"filter": "x ="})
            told = await r.client.put(f"{SUBSCRIPTIONS}/a", content=body, headers=JSON | {"origin": origin})
            assert told.status_code == 400 and told.headers["access-control-allow-origin"] == origin
            assert "location" in told.headers["access-control-expose-headers"].lower()
            problem(await r.client.get("/v1/stats", headers={"origin": EVIL}), 403, "cross-origin")

    run(work)


def test_a_page_of_another_origin_hears_that_the_service_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without these headers its browser says that the network failed, and its user does not look at a log."""

    async def work() -> None:
        origin = "https://app.example.com"
        async with running(tmp_path, cors_origins=origin) as r:

            async def fail() -> None:
                raise ZeroDivisionError

            monkeypatch.setattr(r.gateway.figures, "stats", fail)
            answer = await r.client.get(
                "/v1/stats", headers={"origin": origin, "sec-fetch-site": "cross-site"}
            )
            assert answer.status_code == 500 and answer.json()["type"] == "urn:fieldfare:problem:internal"
            assert answer.headers["access-control-allow-origin"] == origin

    run(work)


def test_an_event_source_of_a_named_origin_reads_a_stream(tmp_path):
    with served(tmp_path, cors_origins="http://localhost:3000") as (_, client):
        client.put(f"{SUBSCRIPTIONS}/a", json={"filter": "data.x = 1"}).raise_for_status()
        headers = {
            "accept": "text/event-stream",
            "cache-control": "no-cache",
            "origin": "http://localhost:3000",
            "sec-fetch-site": "same-site",
            "sec-fetch-mode": "cors",
        }
        with client.stream("GET", f"{SUBSCRIPTIONS}/a/stream", headers=headers) as answer:
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == "http://localhost:3000"
            assert answer.headers["content-type"].startswith("text/event-stream")


def test_all_origins_and_names_may_be_allowed(tmp_path):
    async def work() -> None:
        async with running(tmp_path, cors_origins="*", allowed_hosts="*") as r:
            answer = await r.client.get("/v1/stats", headers={"host": "evil.example", "origin": EVIL})
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == "*"

    run(work)


def test_settings_with_lists_are_read_from_the_environment_and_checked(monkeypatch):
    monkeypatch.setenv("FIELDFARE_CORS_ORIGINS", "https://A.example, http://b:80")
    assert GatewaySettings().cors_origins == ("https://a.example", "http://b:80")
    for wrong in ("example.com", "https://a.example/", "https://*.example.com", "null"):
        monkeypatch.setenv("FIELDFARE_CORS_ORIGINS", wrong)
        with pytest.raises(ValidationError, match="is no origin"):
            GatewaySettings()


def test_asking_for_a_streams_head_takes_no_messages(tmp_path):
    """A link checker's HEAD opened a session, and what it was given came again 30 seconds later."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            await r.publish(event(1, {"x": 1}))
            r.pipeline.step()
            answer = await r.client.head(f"{SUBSCRIPTIONS}/a/stream")
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert r.gateway.deliveries.connected == 0
            assert [each["position"] for each in await r.pull("a")] == ["0-0-0"]

    run(work)


def test_allow_names_every_method_that_a_path_takes(tmp_path):
    """A client that asks what it may do was told that subscriptions can only be read."""

    async def work() -> None:
        async with running(tmp_path) as r:
            methods: dict[str, set[str]] = {}
            for route in r.routes:
                methods.setdefault(route.path, set()).update(route.methods)
            for path, taken in methods.items():
                url = path.format(space="default", id="a", position="0-0-0", key="a", delayed="1", broker="b")
                for method in {"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"} - taken:
                    answer = await r.client.request(method, url)
                    told = problem(answer, 405, "wrong-method")
                    assert set(answer.headers["allow"].split(", ")) == taken
                    assert answer.headers["allow"] in told["detail"]

    run(work)


BINARY = [("ce-specversion", "1.0"), ("ce-id", "1"), ("ce-source", "/t"), ("ce-type", "t")]


@pytest.mark.parametrize(
    "header",
    [
        ("ce-id", "2"),
        ("CE-Type", "t"),
        ("content-type", "text/plain"),
        ("fieldfare-sequence", "8"),
        ("fieldfare-producer", "q"),
        ("host", "localhost"),
    ],
)
def test_a_header_that_comes_twice_with_two_meanings_is_refused(tmp_path, header):
    """A proxy adds a header that is there already: the last one silently won."""

    async def work() -> None:
        async with running(tmp_path) as r:
            headers = [
                *BINARY,
                ("fieldfare-producer", "p"),
                ("fieldfare-sequence", "7"),
                ("host", "localhost"),
            ]
            headers += [("content-type", "application/json")]
            answer = await r.client.post(EVENTS, content=b"{}", headers=[*headers, header])
            assert header[0].lower() in problem(answer, 400, "bad-header")["detail"]
            assert r.gateway.log.end() == 0
            both = [
                *headers,
                ("accept", "a/b"),
                ("accept", "*/*"),
                ("x-forwarded-for", "1"),
                ("x-forwarded-for", "2"),
            ]
            assert (await r.client.post(EVENTS, content=b"{}", headers=both)).status_code == 200

    run(work)


def test_a_path_that_a_proxy_would_read_differently_is_refused(tmp_path):
    """A proxy that lets a user POST to .../subscriptions/* must not let the same user pull by writing %2F."""
    with served(tmp_path) as (_, client):
        client.put(f"{SUBSCRIPTIONS}/a", json={"filter": "data.x = 1"}).raise_for_status()
        for path in (b"a%2Fpull", b"a%2fpull", b"a%00", b"a%", b"a%4", b"a%zz", b"%ff", b"%ed%a0%80"):
            head = b"POST " + SUBSCRIPTIONS.encode() + b"/" + path + b" HTTP/1.1\r\nHost: localhost\r\n"
            status, _, body = ask(client, head + b"Content-Length: 0\r\n\r\n")
            assert status == 400 and json.loads(body)["type"].endswith(":bad-path"), (path, body)
        assert client.get("/v1/spaces/default/subscriptions/%61").json()["id"] == "a"


def test_a_transfer_coding_that_is_not_undone_is_refused(tmp_path):
    """Bytes packed by gzip were stored as if they were the event's data."""
    with served(tmp_path) as (gateway, client):
        head = (
            b"POST "
            + EVENTS.encode()
            + b" HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, chunked\r\n"
        )
        head += b"".join(f"{name}: {value}\r\n".encode() for name, value in BINARY)
        status, headers, body = ask(client, head + b"\r\n3\r\nabc\r\n0\r\n\r\n")
        assert status == 501 and json.loads(body)["type"].endswith(":transfer-encoding")
        assert headers["connection"] == "close"
        assert gateway.log.end() == 0


def test_a_request_without_host_is_refused_unless_it_is_old(tmp_path):
    with served(tmp_path) as (_, client):
        status, headers, body = ask(client, b"GET /healthz HTTP/1.1\r\n\r\n")
        assert status == 400 and "Host" in json.loads(body)["detail"]
        assert headers["content-type"] == "application/problem+json"
        assert ask(client, b"GET /healthz HTTP/1.0\r\n\r\n")[0] == 200


@pytest.mark.parametrize(
    "value",
    ["", "0", "-1", "+5", "1_0", " 5", "5 ", "5.5.5", "9" * 30, "1e400", "nan", "inf", "٥", "0x10", "1&{}=2"],
)
def test_numbers_of_a_query_are_digits_within_their_bounds(tmp_path, value):
    """Python reads more texts as numbers than a client can mean: 1_0 was ten, and the last of two values
    won."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.subscribe("a", "data.x = 1")
            for path, name in [
                (SUBSCRIPTIONS, "limit"),
                (f"{SUBSCRIPTIONS}/a/stream", "window"),
                (f"{SUBSCRIPTIONS}/a/stream", "ack_deadline_s"),
            ]:
                answer = await r.client.get(f"{path}?{name}={value.format(name)}".replace("+", "%2B"))
                assert problem(answer, 400, "bad-parameter")["parameter"] == name

    run(work)


def test_publishing_is_not_hindered(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            answer = await r.client.post(EVENTS, content=encode([event()]), headers=BATCH)
            assert answer.status_code == 200

    run(work)
