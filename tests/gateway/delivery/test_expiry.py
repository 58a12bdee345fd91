"""Events that have expired when they would be delivered are not delivered by any transport, and delay no
other."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from gateway_support import (
    ARROW,
    BATCH,
    EVENTS,
    LINES,
    STRUCTURED,
    SUBSCRIPTIONS,
    Running,
    encode,
    event,
    run,
    running,
    until_async,
)
from receiver_support import LOOPBACK, receiving

from fieldfare.gateway.delivery import records
from fieldfare.gateway.delivery.expiry import expiry_s, is_over
from fieldfare.storage.event_log import NewRecord

NOW_S = 1_700_000_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time of day for deliveries, which a test sets by hand."""
    clock = SimpleNamespace(now_s=NOW_S)
    clock.time = lambda: clock.now_s
    monkeypatch.setattr(records, "time", clock)
    return clock


def until_s(seconds: float) -> str:
    """A timestamp a number of seconds from now."""
    return datetime.fromtimestamp(NOW_S + seconds, UTC).isoformat().replace("+00:00", "Z")


async def subscribe(r: Running, id: str, **delivery: Any) -> None:
    made = {"filter": "EXISTS data", "delivery": delivery}
    assert (await r.client.put(f"{SUBSCRIPTIONS}/{id}", json=made)).status_code == 201


async def append(r: Running, event: dict[str, Any], at_s: float) -> None:
    """Append an event as if it had been published at a given time."""
    payload = encode(event) + b"\n"
    await r.gateway.writer.append(NewRecord("default", payload, 1, appended_ms=int(1000 * at_s)))


async def pulled(r: Running, id: str) -> list[str]:
    return [each["event"]["id"] for each in await r.pull(id)]


async def figure(r: Running) -> float:
    text = (await r.client.get("/metrics")).text
    return float(text.partition("\nfieldfare_expired_messages_total ")[2].partition("\n")[0])


@pytest.mark.parametrize(
    ("text", "moment_s"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t01:00:00.25+01:00", 0.25),
        ("1970-01-01 00:00:59.123456789z", 59.123456),
        ("1972-06-30T23:59:60Z", 78796800),
        ("0001-01-01T00:00:00+23:59", -62135683140),
        ("9999-12-31T23:59:59-23:59", 253402387139),
    ],
)
def test_every_timestamp_that_publishing_takes_is_a_moment(text: str, moment_s: float) -> None:
    assert expiry_s(text) == pytest.approx(moment_s, abs=1e-6)
    line = encode(event(1, expirytime=text))
    assert is_over(line, moment_s) and not is_over(line, moment_s - 0.001)


def test_what_only_looks_like_the_attribute_is_none() -> None:
    for line in (
        encode(event(1, {"expirytime": "1970-01-01T00:00:00Z"})),
        encode(event(1, expirytime=None)),
        encode(event(1, expirytime=5)),
        encode(event(1, expirytime="soon")),
    ):
        assert not is_over(line, 1e12)


@pytest.mark.parametrize(
    "value",
    [
        *("", "soon", "2030-01-01", "2030-01-01T00:00:00", "2030-02-30T00:00:00Z", "0000-01-01T00:00:00Z"),
        *("10000000-01-01T00:00:00Z", "NaN", "P1D", 5, -1, True, [], {}, "2030-01-01T00:00:00+99:00"),
        "٢٠٣٠-01-01T00:00:00Z",
    ],
)
def test_a_bad_time_is_refused_by_its_name(tmp_path: Path, value: Any) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            bad = encode(event(1, {}, expirytime=value))
            answer = await r.client.post(EVENTS, content=bad, headers=STRUCTURED)
            assert (answer.status_code, answer.json()["pointer"]) == (400, "/expirytime"), answer.text
            assert "expirytime must be an RFC 3339 timestamp" in answer.json()["detail"]

    run(work)


def test_what_is_over_is_settled_and_counted_and_the_rest_is_given(tmp_path: Path, clock: Any) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await subscribe(r, "a")
            await r.publish(
                event("over", {}, expirytime=until_s(-1)),
                event("lasts", {}, expirytime=until_s(60)),
                event("always", {}),
            )
            await r.publish(event("same moment", {}, expirytime=until_s(0)))
            r.pipeline.step()
            assert await pulled(r, "a") == ["lasts", "always"]
            assert await figure(r) == 2
            assert await r.ack("a", "0-0-1", "0-0-2") == "0-2-0", "what was over counts as settled"

    run(work)


@pytest.mark.parametrize("is_read_anew", [False, True])
def test_what_is_older_than_a_subscription_wants_is_settled_for_it_and_given_to_others(
    tmp_path: Path, clock: Any, is_read_anew: bool
) -> None:
    """A dashboard that was closed for a day begins with new events, while an audit gets yesterday's, too."""

    async def work() -> None:
        clock.now_s = time.time()
        async with running(tmp_path) as r:
            await subscribe(r, "fresh", max_age_s=60)
            await subscribe(r, "all")
            await r.publish(event(1, {}), event(2, {}))
            r.pipeline.step()
            assert await pulled(r, "fresh") == ["1", "2"]
            nack = {"positions": ["0-0-0", "0-0-1"]}
            assert (await r.client.post(f"{SUBSCRIPTIONS}/fresh/nack", json=nack)).status_code == 200
        async with running(tmp_path) as r:
            clock.now_s += 59
            if is_read_anew:
                assert await pulled(r, "fresh") == ["1", "2"]
                assert (await r.client.post(f"{SUBSCRIPTIONS}/fresh/nack", json=nack)).status_code == 200
            clock.now_s += 2
            await append(r, event(3, {}), clock.now_s)
            r.pipeline.step()
            assert await pulled(r, "fresh") == ["3"] and await figure(r) == 2
            assert await r.ack("fresh", "0-1-0") == "0-2-0", "what was too old counts as settled"
            assert await pulled(r, "all") == ["1", "2", "3"]
            patch = {"delivery": {"max_age_s": None}}
            assert (await r.client.patch(f"{SUBSCRIPTIONS}/fresh", json=patch)).status_code == 200
            await r.client.post(f"{SUBSCRIPTIONS}/fresh/seek", json={"to": "earliest"})
            assert await pulled(r, "fresh") == ["1", "2", "3"]

    run(work)


def test_a_receiver_and_tables_know_the_age_too(tmp_path: Path, clock: Any) -> None:
    async def work() -> None:
        clock.now_s = time.time()
        with receiving() as receiver:
            async with running(tmp_path, **LOOPBACK) as r:
                made = {"filter": "EXISTS data", "delivery": {"max_age_s": 60, "paused": True}}
                made["delivery"]["push"] = {"url": receiver.url}
                assert (await r.client.put(f"{SUBSCRIPTIONS}/a", json=made)).status_code == 201
                await r.publish(event("old", {}))
                table = pa.table({name: [text] for name, text in event("row").items() if name != "data"})
                table = table.append_column("data", pa.array([{"x": 1}]))
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, table.schema) as writer:
                    writer.write_table(table)
                body = sink.getvalue().to_pybytes()
                assert (await r.client.post(EVENTS, content=body, headers=ARROW)).status_code == 200
                clock.now_s += 120
                await append(r, event("new", {}), clock.now_s)
                r.pipeline.step()
                patch = {"delivery": {"paused": False}}
                assert (await r.client.patch(f"{SUBSCRIPTIONS}/a", json=patch)).status_code == 200
                await until_async(lambda: bool(receiver.ids))
                assert receiver.ids == ["new"] and await figure(r) == 2

    run(work)


@pytest.mark.parametrize("value", [0, -1, "60", True, 315_360_001, float("inf")])
def test_an_age_that_is_none_is_refused(tmp_path: Path, value: Any) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            body = f'{{"filter": "EXISTS data", "delivery": {{"max_age_s": {json.dumps(value)}}}}}'
            headers = {"content-type": "application/json"}
            answer = await r.client.put(f"{SUBSCRIPTIONS}/a", content=body, headers=headers)
            assert answer.status_code == 400, answer.text
            if value != float("inf"):
                assert answer.json()["pointer"] == "/delivery/max_age_s"

    run(work)


def test_what_failed_or_was_given_up_is_not_given_again_when_its_time_is_over(
    tmp_path: Path, clock: Any
) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await subscribe(r, "a", max_attempts=2)
            await r.publish(event(1, {}, expirytime=until_s(60)), event(2, {}, expirytime=until_s(60)))
            r.pipeline.step()
            assert await pulled(r, "a") == ["1", "2"]
            nack, terminate = f"{SUBSCRIPTIONS}/a/nack", f"{SUBSCRIPTIONS}/a/terminate"
            assert (await r.client.post(nack, json={"positions": ["0-0-0"]})).status_code == 200
            assert (await r.client.post(terminate, json={"positions": ["0-0-1"]})).status_code == 200
            clock.now_s += 61
            assert await pulled(r, "a") == []
            letters = f"{SUBSCRIPTIONS}/a/dead-letters"
            assert (await r.client.get(letters)).json()["dead_letters"][0]["event"]["id"] == "2"
            assert (await r.client.post(f"{letters}/retry", json={})).json()["retried"] == 1
            assert await pulled(r, "a") == [] and await figure(r) == 2
            assert (await r.client.get(letters)).json()["total"] == 0
            await r.client.post(f"{SUBSCRIPTIONS}/a/seek", json={"to": "earliest"})
            assert await pulled(r, "a") == [] and await figure(r) == 4

    run(work)


def test_the_next_of_a_key_does_not_wait_for_one_that_is_over(tmp_path: Path, clock: Any) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await subscribe(r, "a", order_by="subject", max_in_flight_bytes=1_000)
            over = {"subject": "k", "expirytime": until_s(-1)}
            await r.publish(event(1, {}, **over), event(2, {}, **over), event(3, {}, subject="k"))
            r.pipeline.step()
            assert await pulled(r, "a") == ["3"]

    run(work)


def test_a_receiver_is_sent_nothing_that_is_over(tmp_path: Path, clock: Any) -> None:
    async def work() -> None:
        with receiving() as receiver:
            async with running(tmp_path, **LOOPBACK) as r:
                await subscribe(r, "a", push={"url": receiver.url, "mode": "batch"})
                lines = [event(n, {}, expirytime=until_s(-1 if n % 3 else 60)) for n in range(30)]
                await r.client.post(EVENTS, content=b"\n".join(map(encode, lines)), headers=LINES)
                r.pipeline.step()
                await until_async(lambda: len(receiver.ids) == 10)
                assert receiver.ids == [str(n) for n in range(0, 30, 3)]

    run(work)


def test_arrow_tables_have_such_a_column_too(tmp_path: Path, clock: Any) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await subscribe(r, "a")

            async def send(kind: pa.DataType, values: list[Any]) -> Any:
                count = len(values)
                rows = {name: [text] * count for name, text in event(1).items() if name != "data"}
                rows |= {"id": [f"{n}" for n in range(count)], "data": [{"x": 1}] * count}
                table = pa.table({**rows, "expirytime": pa.array(values, kind)})
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, table.schema) as writer:
                    writer.write_table(table)
                return await r.client.post(EVENTS, content=sink.getvalue().to_pybytes(), headers=ARROW)

            moments = [int(NOW_S) - 1, int(NOW_S) + 60, None]
            assert (await send(pa.timestamp("s", "UTC"), moments)).status_code == 200
            told = (await send(pa.string(), [until_s(-1), "soon", None])).json()
            assert [each["pointer"] for each in told["refused"]] == ["/expirytime"]
            bad = (await send(pa.int32(), [1, 2, 3])).json()
            assert "he column expirytime must be one of timestamps" in bad["detail"]
            r.pipeline.step()
            assert await pulled(r, "a") == ["1", "2", "2"]

    run(work)


def test_its_name_may_be_written_with_escapes_and_what_was_never_checked_is_given(
    tmp_path: Path, clock: Any
) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await subscribe(r, "a")
            escaped = encode([event(1, {}, expirytime=until_s(-1))]).replace(b'"expiryt', b'"expiry\\u0074')
            assert (await r.client.post(EVENTS, content=escaped, headers=BATCH)).status_code == 200
            stored = b"".join(encode(event(n, {}, expirytime=bad)) + b"\n" for n, bad in ((2, 5), (3, "x")))
            await r.gateway.writer.append(NewRecord("default", stored, 2))
            r.pipeline.step()
            assert await pulled(r, "a") == ["2", "3"]

    run(work)
