"""Streams as a browser's EventSource reads them: no acks, and Last-Event-ID when it connects again."""

from __future__ import annotations

import httpx
import pytest
from gateway_support import SUBSCRIPTIONS, NaivePipeline, event, served, until
from test_streams import Stream, publish, subscribe


def open_stream(client: httpx.Client, last_event_id: str = "", **params: str | int) -> httpx.Response:
    headers = {"last-event-id": last_event_id} if last_event_id else {}
    url = f"{SUBSCRIPTIONS}/a/stream"
    request = client.build_request("GET", url, params={"ack": "auto", **params}, headers=headers)
    return client.send(request, stream=True)


def positions(stream: Stream, count: int) -> list[str]:
    return [position for position, _ in stream.messages(count)]


def pulled(client: httpx.Client, count: int = 100) -> list[str]:
    answer = client.post(f"{SUBSCRIPTIONS}/a/pull", json={"max": count})
    return [each["position"] for each in answer.json()["messages"]]


def test_an_event_source_that_connects_again_goes_on_behind_what_it_got(tmp_path):
    """A page whose connection broke got everything from the beginning again, or waited for acks for ever."""
    with served(tmp_path) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        publish(client, *(event(i, {"x": 1}) for i in range(6)))
        NaivePipeline(gateway).step()
        first = open_stream(client)
        assert positions(Stream(first), 6) == [f"0-0-{i}" for i in range(6)]
        # The client got four of them before its network went; the service has noticed nothing yet.
        second = open_stream(client, "0-0-3")
        assert positions(Stream(second), 2) == ["0-0-4", "0-0-5"]
        second.close()
        first.close()
        until(lambda: gateway.deliveries.connected == 0)
        assert pulled(client) == ["0-0-4", "0-0-5"], "unconfirmed messages come again"


def test_the_stream_that_another_replaced_ends_and_settles_nothing_any_more(tmp_path):
    with served(tmp_path) as (gateway, client):
        pipeline = NaivePipeline(gateway)
        subscribe(client, "a", "data.x = 1")
        first = open_stream(client, window=1)
        old = Stream(first)
        publish(client, event(1, {"x": 1}))
        pipeline.step()
        assert positions(old, 1) == ["0-0-0"]
        second = open_stream(client, window=1)
        new = Stream(second)
        assert old.rest() == []
        assert positions(new, 1) == ["0-0-0"]
        first.close()
        publish(client, event(2, {"x": 1}))
        pipeline.step()
        assert positions(new, 1) == ["0-1-0"]
        second.close()


def test_an_automatic_stream_goes_on_without_acks_and_keeps_a_window_of_messages(tmp_path):
    """Far more messages than the window holds, none acknowledged; and no message comes twice meanwhile."""
    with served(tmp_path, ack_deadline_s=0.05) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        publish(client, *(event(i, {"x": 1}) for i in range(1000)))
        NaivePipeline(gateway).step()
        response = open_stream(client, window=10)
        assert positions(Stream(response), 1000) == [f"0-0-{i}" for i in range(1000)]
        response.close()
        until(lambda: gateway.deliveries.connected == 0)
        assert pulled(client) == [f"0-0-{i}" for i in range(990, 1000)]
        text = client.get("/metrics").text
        assert "fieldfare_acks_total 990.0" in text


def test_a_page_that_remembers_where_it_was_may_say_so_in_the_address(tmp_path):
    """EventSource cannot set headers: a reloaded page can pass its position only in the address."""
    with served(tmp_path) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        publish(client, *(event(i, {"x": 1}) for i in range(4)))
        pipeline = NaivePipeline(gateway)
        pipeline.step()
        params = {"ack": "auto", "last_event_id": "0-0-2"}
        request = client.build_request("GET", f"{SUBSCRIPTIONS}/a/stream", params=params)
        response = client.send(request, stream=True)
        assert positions(Stream(response), 1) == ["0-0-3"]
        response.close()
        # When the connection breaks the browser repeats the address, and its header is newer.
        request.headers["last-event-id"] = "0-0-3"
        publish(client, event(5, {"x": 1}))
        pipeline.step()
        response = client.send(request, stream=True)
        assert positions(Stream(response), 1) == ["0-1-0"]
        response.close()


def test_with_explicit_acks_the_header_changes_nothing(tmp_path):
    with served(tmp_path) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        publish(client, *(event(i, {"x": 1}) for i in range(2)))
        NaivePipeline(gateway).step()
        response = open_stream(client, "0-0-0", ack="explicit")
        assert positions(Stream(response), 2) == ["0-0-0", "0-0-1"]
        response.close()


@pytest.mark.parametrize("text", ["nonsense", "0-0-70000", "0-0-" + "9" * 30, "0-7-0"])
def test_a_last_event_id_that_is_no_position_here_is_refused_by_name(tmp_path, text):
    with served(tmp_path) as (gateway, client):
        subscribe(client, "a", "data.x = 1")
        publish(client, event(1, {"x": 1}))
        NaivePipeline(gateway).step()
        response = open_stream(client, text)
        response.read()
        assert response.status_code == 400 and response.json()["header"] == "Last-Event-ID"
        response = client.get(f"{SUBSCRIPTIONS}/a/stream", params={"ack": "auto", "last_event_id": text})
        assert response.status_code == 400 and response.json()["parameter"] == "last_event_id"
        assert pulled(client) == ["0-0-0"]


def test_an_automatic_stream_takes_no_deadline(tmp_path):
    with served(tmp_path) as (_, client):
        subscribe(client, "a", "data.x = 1")
        params = {"ack": "auto", "ack_deadline_s": 3}
        answer = client.get(f"{SUBSCRIPTIONS}/a/stream", params=params)
        assert answer.status_code == 400 and answer.json()["parameter"] == "ack_deadline_s"
