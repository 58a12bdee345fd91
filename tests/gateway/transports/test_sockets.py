"""WebSockets from a real server: CloudEvents both ways."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from gateway_support import EVENTS, STRUCTURED, SUBSCRIPTIONS, NaivePipeline, encode, event, served, until
from loop_watch import watched
from test_streams import publish, subscribe
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

SPOKEN = "cloudevents.json"
DEADLINE_S = 90.0


@contextmanager
def opened(client: httpx.Client, id: str, query: str = "", **options: Any) -> Iterator[ClientConnection]:
    """An open socket of a subscription."""
    base = str(client.base_url).replace("http", "ws", 1).rstrip("/")
    options = {"subprotocols": [SPOKEN], "close_timeout": 2, **options}
    with connect(f"{base}{SUBSCRIPTIONS}/{id}/websocket{query}", **options) as found:
        yield found


def heard(found: ClientConnection) -> dict[str, Any]:
    text = found.recv(timeout=DEADLINE_S)
    assert isinstance(text, str)  # CloudEvents' JSON goes in text frames
    return json.loads(text)


def said(verb: str, data: Any, id: str = "1") -> str:
    return encode(
        {"specversion": "1.0", "id": id, "source": "/reader", "type": f"fieldfare.{verb}", "data": data}
    ).decode()


def refusal(client: httpx.Client, path: str, **options: Any) -> tuple[int, dict[str, Any]]:
    base = str(client.base_url).replace("http", "ws", 1).rstrip("/")
    with pytest.raises(InvalidStatus) as refused, connect(base + path, **options):
        pass
    response = refused.value.response
    return response.status_code, json.loads(response.body)


def test_a_socket_sends_events_as_they_were_published_with_their_place(tmp_path):
    with served(tmp_path) as (gateway, client):
        pipeline = NaivePipeline(gateway)
        subscribe(client, "a", "data.x > 0")
        publish(client, event(1, {"x": 1}), event(2, {"x": 0}), event(3, {"x": 3}, subject="s"))
        pipeline.step()
        with opened(client, "a") as found:
            assert found.subprotocol == SPOKEN
            placed = [
                {**event(1, {"x": 1}), "fieldfareposition": "0-0-0", "fieldfareattempt": 1},
                {**event(3, {"x": 3}, subject="s"), "fieldfareposition": "0-0-2", "fieldfareattempt": 1},
            ]
            assert [heard(found), heard(found)] == placed
            publish(client, event(4, {"x": 4}))
            pipeline.step()
            assert heard(found)["fieldfareposition"] == "0-1-0"


def test_acks_on_a_socket_are_durable_when_they_are_answered(tmp_path):
    with served(tmp_path) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        publish(client, *(event(i, {"x": 1}) for i in range(3)))
        NaivePipeline(gateway).step()
        with opened(client, "a") as found:
            places = [heard(found)["fieldfareposition"] for _ in range(3)]
            found.send(said("ack", {"positions": places[:2]}, "first"))
            answer = heard(found)
            assert answer["type"] == "fieldfare.done"
            assert answer["data"] == {"said": "first", "cursor": "0-0-2"}
            assert answer["source"] == f"{SUBSCRIPTIONS}/a/websocket"
            cursor = gateway.registry.load_cursors([1]).get(1)
            assert [str(place) for place in cursor.positions] == ["0-0-2"]
        until(lambda: gateway.deliveries.connected == 0)
        with opened(client, "a") as found:
            again = heard(found)
            assert (again["fieldfareposition"], again["fieldfareattempt"]) == ("0-0-2", 2)
            found.send(said("ack", {"up_to": "0-0-2"}))
            assert heard(found)["type"] == "fieldfare.done"


def test_every_verb_is_taken_on_a_socket(tmp_path):
    with served(tmp_path) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        publish(client, *(event(i, {"x": 1}) for i in range(2)))
        NaivePipeline(gateway).step()
        with opened(client, "a", "?ack_deadline_s=600") as found:
            first, second = (heard(found)["fieldfareposition"] for _ in range(2))
            found.send(said("extend", {"positions": [first, second]}))
            assert heard(found)["data"] == {"said": "1", "extended": 2}
            found.send(said("nack", {"positions": [first], "delay_s": 0}))
            both = sorted((heard(found), heard(found)), key=lambda each: each["type"])
            assert both[0]["data"] == {"said": "1", "returned": 1}
            assert (both[1]["fieldfareposition"], both[1]["fieldfareattempt"]) == (first, 2)
            found.send(said("terminate", {"positions": [second], "reason": "too old"}))
            assert heard(found)["data"] == {"said": "1", "terminated": 1}
        letters = client.get(f"{SUBSCRIPTIONS}/a/dead-letters").json()["dead_letters"]
        assert [(each["position"], each["reason"]) for each in letters] == [(second, "too old")]


@pytest.mark.parametrize(
    ("text", "name", "pointer"),
    [
        ("{", "bad-json", None),
        ("[]", "bad-request", None),
        (said("fly", {}), "bad-request", "/type"),
        (said("ack", {"positions": ["nowhere"]}), "bad-position", "/data/positions/0"),
        (said("ack", {}), "bad-request", None),
        (said("nack", {"positions": [], "delay_s": -1}), "bad-request", "/data/delay_s"),
        (said("ack", {"position": []}), "bad-request", "/data"),
        (said("ack", {"up_to": "0-0-99999999999999999999999999"}), "bad-position", "/data/up_to"),
    ],
)
def test_what_is_not_understood_is_answered_with_its_place_and_the_socket_goes_on(
    tmp_path, text, name, pointer
):
    with served(tmp_path) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        with opened(client, "a") as found:
            found.send(text)
            answer = heard(found)
            assert answer["type"] == "fieldfare.problem"
            assert answer["data"]["type"] == f"urn:fieldfare:problem:{name}"
            assert answer["data"].get("pointer") == pointer
            publish(client, event(1, {"x": 1}))
            NaivePipeline(gateway).step()
            assert heard(found)["fieldfareposition"] == "0-0-0"


def test_a_publisher_cannot_say_where_its_event_stands(tmp_path):
    """An ack of the position that it names would settle another's."""
    with served(tmp_path) as (gateway, client):
        subscribe(client, "a", "type = 't'")
        plain = event(1, {"n": 1}, fieldfareposition="0-7-7", fieldfareattempt=9)
        hidden = encode(event(2)).replace(b'"type"', b'"fieldf\\u0061reposition":"0-8-8","type"')
        for body in (encode(plain), hidden):
            client.post(EVENTS, content=body, headers=STRUCTURED).raise_for_status()
        NaivePipeline(gateway).step()
        with opened(client, "a") as found:
            for place in ("0-0-0", "0-1-0"):
                text = found.recv(timeout=DEADLINE_S)
                members = json.loads(text, object_pairs_hook=list)
                assert [value for name, value in members if name == "fieldfareposition"] == [place]
                assert [value for name, value in members if name == "fieldfareattempt"] == [1]


@pytest.mark.parametrize(("settings", "query"), [({}, "?window=2"), ({"window_max": 2}, "")])
def test_a_socket_holds_its_window_and_gives_back_what_it_held(tmp_path, settings, query):
    """A default window above the maximum of the service counts as the maximum."""
    with served(tmp_path, **settings) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        publish(client, *(event(i, {"x": 1}) for i in range(5)))
        NaivePipeline(gateway).step()
        with opened(client, "a", query) as found:
            places = [heard(found)["fieldfareposition"] for _ in range(2)]
            with pytest.raises(TimeoutError):
                found.recv(timeout=0.2)
            found.send(said("ack", {"positions": places}))
            assert {heard(found)["type"] for _ in range(3)} == {"fieldfare.done", "t"}
        until(lambda: gateway.deliveries.connected == 0)
        pulled = client.post(f"{SUBSCRIPTIONS}/a/pull", json={"max": 10}).json()["messages"]
        left = ["0-0-2", "0-0-3", "0-0-4"][: settings.get("window_max")]
        assert [each["position"] for each in pulled] == left


def test_a_deleted_subscription_says_so_on_its_sockets_and_closes_them(tmp_path):
    with served(tmp_path) as (_, client):
        subscribe(client, "a", "data.x = 1")
        with opened(client, "a") as found:
            client.delete(f"{SUBSCRIPTIONS}/a").raise_for_status()
            assert heard(found)["type"] == "fieldfare.deleted"
            with pytest.raises(ConnectionClosed) as closed:
                found.recv(timeout=DEADLINE_S)
            assert closed.value.rcvd.code == 1000
        assert refusal(client, f"{SUBSCRIPTIONS}/a/websocket")[0] == 404


def test_a_sought_delivery_says_so_on_its_sockets(tmp_path):
    with served(tmp_path) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        publish(client, event(1, {"x": 1}))
        NaivePipeline(gateway).step()
        with opened(client, "a") as found:
            assert heard(found)["fieldfareposition"] == "0-0-0"
            client.post(f"{SUBSCRIPTIONS}/a/seek", json={"to": "earliest"}).raise_for_status()
            assert heard(found)["type"] == "fieldfare.sought"
            assert heard(found)["fieldfareposition"] == "0-0-0"


def test_sockets_end_when_the_gateway_stops(tmp_path):
    ended = threading.Event()
    codes = []

    def read(found: ClientConnection) -> None:
        try:
            found.recv()
        except ConnectionClosed as closed:
            codes.append(closed.rcvd.code)
        ended.set()

    with served(tmp_path) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        with opened(client, "a") as found:
            reader = threading.Thread(target=read, args=(found,))
            reader.start()
            until(lambda: gateway.deliveries.connected == 1)
            gateway.deliveries.end_sessions()
            assert ended.wait(DEADLINE_S)
            reader.join()
    assert codes == [1001]


def test_refused_sockets_get_the_reason(tmp_path):
    with served(tmp_path) as (_, client):
        subscribe(client, "a", "data.x = 1")
        path = f"{SUBSCRIPTIONS}/a/websocket"
        status, problem = refusal(client, f"{SUBSCRIPTIONS}/nobody/websocket")
        assert (status, problem["type"]) == (404, "urn:fieldfare:problem:unknown-subscription")
        status, problem = refusal(client, path, subprotocols=["cloudevents.proto"])
        assert (status, problem["type"]) == (400, "urn:fieldfare:problem:subprotocol")
        status, problem = refusal(client, f"{path}?window=0")
        assert (status, problem["parameter"]) == (400, "window")
        # A page of another site may open a WebSocket without being asked first: its Origin tells.
        status, problem = refusal(client, path, origin="https://elsewhere.example")
        assert (status, problem["type"]) == (403, "urn:fieldfare:problem:cross-origin")
        with opened(client, "a", subprotocols=None) as found:
            assert found.subprotocol is None


def test_a_frame_that_is_too_large_closes_only_its_socket(tmp_path):
    with served(tmp_path) as (_, client):
        subscribe(client, "a", "data.x = 1")
        with opened(client, "a") as other, opened(client, "a") as found:
            with pytest.raises(ConnectionClosed) as closed:
                found.send("x" * ((1 << 20) + 1))
                found.recv(timeout=DEADLINE_S)
            assert closed.value.rcvd.code == 1009
            other.send(said("ack", {"up_to": "0-0-0"}))
            assert heard(other)["type"].startswith("fieldfare.")


def test_elsewhere_an_offer_of_a_socket_is_ignored(tmp_path):
    with served(tmp_path) as (_, client):
        port = client.base_url.port
        offer = (
            b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        )
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as raw:
            raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n" + offer + b"\r\n")
            assert raw.recv(100).startswith(b"HTTP/1.1 200 ")
        for head in (b"GET /x/websocket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n",):
            with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as raw:
                raw.sendall(head + b"Upgrade: websocket\r\n\r\n")  # no key, no version
                assert raw.recv(100).startswith(b"HTTP/1.1 4")
        assert client.get("/healthz").status_code == 200


def test_many_acks_at_once_are_all_answered(tmp_path):
    count = 300
    with served(tmp_path) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        publish(client, *(event(i, {"x": 1}) for i in range(count)))
        NaivePipeline(gateway).step()
        with opened(client, "a") as found:
            places = [heard(found)["fieldfareposition"] for _ in range(count)]
            for at, place in enumerate(places):
                found.send(said("ack", {"positions": [place]}, str(at + 1)))
            answers = [heard(found) for _ in range(count)]
            assert sorted(int(each["data"]["said"]) for each in answers) == list(range(1, count + 1))
            assert max(int(each["data"]["cursor"].split("-")[1]) for each in answers) == 1


def test_a_socket_needs_a_key_and_ends_with_it(tmp_path):
    admin = tmp_path / "admin.key"
    admin.write_text("k" * 40)
    with served(tmp_path / "data", admin_key_file=admin) as (_, client):
        client.headers["authorization"] = "Bearer " + "k" * 40
        subscribe(client, "a", "data.x = 1")
        path = f"{SUBSCRIPTIONS}/a/websocket"
        assert refusal(client, path)[0] == 401
        made = {
            right: client.post("/v1/keys", json={"space": "default", "rights": [right]}).json()
            for right in ("publish", "subscribe")
        }
        keys = {right: {"Authorization": f"Bearer {each['key']}"} for right, each in made.items()}
        assert refusal(client, path, additional_headers=keys["publish"])[0] == 403
        wrong = {"Authorization": "Bearer " + "x" * 40}
        assert refusal(client, path, additional_headers=wrong)[0] == 401
        client.post("/v1/spaces", json={"name": "other"}).raise_for_status()
        foreign = client.post("/v1/keys", json={"space": "other", "rights": ["subscribe"]}).json()["key"]
        theirs = {"Authorization": f"Bearer {foreign}"}
        unknown = refusal(client, path, additional_headers=theirs)
        assert unknown[0] == 404
        assert unknown[1]["type"] == "urn:fieldfare:problem:unknown-space"
        with opened(client, "a", additional_headers=keys["subscribe"]) as found:
            client.delete(f"/v1/keys/{made['subscribe']['id']}").raise_for_status()
            with pytest.raises(ConnectionClosed) as closed:
                found.recv(timeout=DEADLINE_S)
            assert closed.value.rcvd.code == 1008


def test_a_busy_socket_never_holds_the_event_loop_for_long(tmp_path, monkeypatch):
    count = 3_000
    with watched(monkeypatch, tmp_path) as (gateway, client, watch):
        subscribe(client, "a", "data.x = 1")
        publish(client, *(event(i, {"x": 1}) for i in range(count)))
        NaivePipeline(gateway).step()
        with opened(client, "a", f"?window={count}") as found:
            places = [heard(found)["fieldfareposition"] for _ in range(count)]
            for start in range(0, count, 100):
                found.send(said("ack", {"positions": places[start : start + 100]}))
            found.send(said("ack", {"positions": places * 3}))
            answers = [heard(found) for _ in range(count // 100 + 1)]
            assert {each["type"] for each in answers} == {"fieldfare.done"}
        watch.check()


def test_a_client_that_does_not_read_holds_no_more_than_a_buffer_and_is_cut_off(tmp_path):
    with served(tmp_path, send_timeout_s=0.5, heartbeat_s=0.2) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        for start in range(8):
            publish(client, *(event(f"{start}-{i}", {"x": 1, "text": "x" * 90_000}) for i in range(10)))
        NaivePipeline(gateway).step()
        head = (
            f"GET {SUBSCRIPTIONS}/a/websocket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
            "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", client.base_url.port))
        raw.sendall(head.encode())
        until(lambda: gateway.metrics.delivered_total > 0)
        until(lambda: gateway.deliveries.connected == 0)
        assert gateway.metrics.delivered_total < 80
        raw.close()
