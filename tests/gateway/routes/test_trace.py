"""Traces: the steps of sampled records from the request to the delivery."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_support import BATCH, encode, event, matching, served, until

from fieldfare.cli.trace import STEPS as cli_steps
from fieldfare.cli.trace import render, summarize
from fieldfare.gateway import tracing
from fieldfare.gateway.context import Gateway
from fieldfare.gateway.tracing import STEPS, TRACES_MAX, Tracer
from fieldfare.storage.event_log import Appended, NewRecord

pytestmark = pytest.mark.long


def begin(threads: ThreadPoolExecutor, gateway: Gateway, client: httpx.Client, query: str) -> Any:
    """A trace that is under way."""
    before = len(gateway.tracer._traces)
    answer = threads.submit(client.get, f"/v1/trace?{query}")
    until(lambda: len(gateway.tracer._traces) > before)
    return answer


def test_the_steps_of_a_record_come_in_their_order(tmp_path: Path) -> None:
    with served(tmp_path) as (gateway, client), ThreadPoolExecutor() as threads, matching(gateway):
        for space in ("a", "b"):
            client.post("/v1/spaces", json={"name": space})
            client.put(f"/v1/spaces/{space}/subscriptions/all", json={"filter": "EXISTS id"})
        client.put("/v1/spaces/a/subscriptions/none", json={"filter": "data.x = 'nothing'"})

        def read() -> int:
            with client.stream("GET", "/v1/spaces/a/subscriptions/all/stream") as stream:
                lines = (line for line in stream.iter_lines() if line.startswith("id:"))
                return sum(1 for _ in zip(range(3), lines, strict=False))

        reading = threads.submit(read)
        until(lambda: gateway.deliveries.connected)
        both, one = (begin(threads, gateway, client, query) for query in ("seconds=60", "seconds=60&space=b"))
        for at in range(3):
            for space in ("a", "b"):
                events = encode([event(f"{space}{at}", at)])
                client.post(f"/v1/spaces/{space}/events", content=events, headers=BATCH)
                time.sleep(1.5 / tracing.RECORDS_PER_S_MAX)
        assert reading.result(30) == 3
        marks = gateway.tracer._marks
        until(lambda: sum("noticed" in each for each in marks.values()) == 6)
        until(lambda: sum("sent" in each for each in marks.values()) == 3)
        gateway.tracer._stopping.set()  # what a gateway does that stops
        found = both.result(30).json()
        assert found["seconds"] == 60
        assert [each["space"] for each in found["records"]] == ["a", "b"] * 3
        assert [each["events"] for each in found["records"]] == [1] * 6
        for each in found["records"]:
            expected = [step for step in STEPS if step != "seen" and (each["space"] == "a" or step != "sent")]
            expected = [step for step in expected if each["space"] == "a" or step != "fetched"]
            assert list(each["steps"]) == expected
            # A record can be matched before the publisher's request goes on.
            for steps in (("received", "decoded", "appended"), ("matched", "noticed", "fetched", "sent")):
                times = [each["steps"][step] for step in steps if step in each["steps"]]
                assert times == sorted(times)
            assert abs(each["received_ms"] / 1000 - time.time()) < 60
        assert [each["space"] for each in one.result(30).json()["records"]] == ["b"] * 3
        assert gateway.tracer._marks == {}


def test_what_is_wrong_with_a_request_for_a_trace_is_said(tmp_path: Path) -> None:
    with served(tmp_path) as (gateway, client), ThreadPoolExecutor() as threads:
        for query in ("seconds=0", "seconds=61", "seconds=nan", "seconds=-1", "seconds=1e3"):
            answer = client.get(f"/v1/trace?{query}")
            assert (answer.status_code, answer.json()["parameter"]) == (400, "seconds")
        assert client.get("/v1/trace?space=nowhere").status_code == 404
        traces = [begin(threads, gateway, client, "seconds=60") for _ in range(TRACES_MAX)]
        refused = client.get("/v1/trace")
        assert refused.status_code == 429
        assert "4 traces are under way" in refused.json()["detail"]
        gateway.tracer._stopping.set()
        assert [trace.result(30).json()["records"] for trace in traces] == [[]] * TRACES_MAX


def test_a_client_that_leaves_ends_its_trace(tmp_path: Path) -> None:
    with served(tmp_path) as (gateway, client):
        with pytest.raises(httpx.ReadTimeout):
            client.get("/v1/trace?seconds=60", timeout=0.5)
        until(lambda: not gateway.tracer._traces)


def test_the_command_knows_all_steps() -> None:
    assert ["received", *cli_steps] == list(STEPS)


def test_nothing_is_recorded_without_a_trace() -> None:
    tracer = Tracer()
    assert tracer.received() is None
    tracer.appended({"received": 0.0}, NewRecord("default", b"{}", 1), Appended(7, 1, 0, duplicate=False))
    tracer.fetched([7 << 14], 1, "all")
    assert tracer.ack_begins() is None
    assert (tracer._marks, tracer._unmatched) == ({}, set())


def record(**steps: float) -> dict[str, Any]:
    return {"steps": {"received": 0.0, **steps}}


def test_a_summary_has_the_quantiles_of_each_step_and_of_the_whole() -> None:
    records = [
        record(decoded=1.0, appended=3.0, matched=4.0, sent=10.0),
        record(decoded=2.0, appended=3.0, matched=9.0, sent=20.0),
        record(decoded=9.0, appended=9.5),
    ]
    found = {step["step"]: step for step in summarize(records)}
    assert [found[name]["records"] for name in ("decoded", "matched", "seen", "total")] == [3, 2, 0, 2]
    assert (found["decoded"]["p50_ms"], found["decoded"]["p99_ms"]) == (2.0, 9.0)
    assert (found["matched"]["p50_ms"], found["matched"]["p90_ms"]) == (1.0, 6.0)
    assert (found["total"]["p50_ms"], found["total"]["since_request_p50_ms"]) == (10.0, 10.0)
    assert found["seen"]["p50_ms"] is None


@pytest.mark.parametrize("records", [[], [record()], [record(decoded=0.0)], [record(sent=1.0)]])
def test_any_records_can_be_shown(records: list[dict[str, Any]]) -> None:
    assert render(1.0, records, summarize(records)).renderables
