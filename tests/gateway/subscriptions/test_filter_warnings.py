"""Warnings when a filter is stored: names that no event of the space has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gateway_support import SUBSCRIPTIONS, event, run, running

from fieldfare.filters.help.sampling import Sample
from fieldfare.gateway import filter_warnings
from fieldfare.gateway.filter_warnings import WARNED_BULK_MAX, WARNED_MAX_CHARACTERS, FilterWarnings

DATA = {"temperature": 31, "deviceId": "a", "sensor": {"battery": 5}, "store": "paris"}


def told(answer: Any) -> str:
    return json.dumps(answer.json().get("warnings", []))


@pytest.mark.parametrize(
    ("dialect", "filter", "hint"),
    [
        ("sql", "temperature > 30", "did you mean data.temperature?"),
        ("sql", "data.temprature > 30", "did you mean data.temperature?"),
        ("sql", "data.device_id = 'a'", "did you mean data.deviceId?"),
        ("sql", "data.battery < 9", "did you mean data.sensor.battery?"),
        ("sql", "battery < 9", "did you mean data.sensor.battery?"),
        ("sql", "Temperature > 30", "did you mean data.temperature?"),
        ("sql", "JMSType = 'quote'", "did you mean type?"),
        ("sql", "JMSPriority > 4", "did you mean data.JMSPriority?"),
        ("sql", "detail.temperature > 30", "did you mean data.temperature?"),
        ("sql", "humidity > 30", "to read a field of an event's data, write data.humidity"),
        ("sql", "data.temperature = 9.8066499999999994", "write 9.80665"),
        ("sql", "type = 'a' AND type = 'b'", "did you mean OR?"),
        ("cesql", "temperature > 30", "did you mean data.temperature?"),
        ("eventbridge", {"store": ["paris"]}, "did you mean data.store?"),
        ("eventbridge", {"detail": {"stroe": ["paris"]}}, "did you mean data.store?"),
        ("subscriptions", [{"exact": {"store": "paris"}}], "did you mean data.store?"),
    ],
)
def test_a_name_that_no_event_has_is_warned_of_in_each_dialect(
    tmp_path: Any, dialect: str, filter: Any, hint: str
) -> None:
    """`temperature > 30` was stored without a word, and never matched."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.publish(event(data=DATA))
            body = {"filter": filter, "dialect": dialect}
            put = await r.client.put(f"{SUBSCRIPTIONS}/a", json=body)
            assert put.status_code == 201 and hint in told(put), told(put)
            posted = await r.client.post(SUBSCRIPTIONS, json={"id": "b", **body})
            assert posted.status_code == 201 and hint in told(posted)
            many = await r.client.post(SUBSCRIPTIONS, json={"subscriptions": [{"id": "c", **body}]})
            assert many.json()["created"] == 1 and hint in told(many) and '"id": "c"' in told(many)
            assert "warnings" not in (await r.client.get(f"{SUBSCRIPTIONS}/a")).json()

    run(work)


@pytest.mark.parametrize(
    "filter",
    [
        "data.temperature > 30",
        "TRUE",
        "subject = 'x' OR time > '2026'",
        "data.notyet = 1",
        "data.sensor.battery IS NOT NULL",
        "dataschema = 'x'",
    ],
)
def test_a_filter_that_may_well_match_is_not_warned_of(tmp_path: Any, filter: str) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.publish(event(data=DATA))
            assert (
                "warnings" not in (await r.client.put(f"{SUBSCRIPTIONS}/a", json={"filter": filter})).json()
            )

    run(work)


def test_names_are_those_of_the_space(tmp_path: Any) -> None:
    """Names in another tenant's events are private: no warning quotes them."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.client.post("/v1/spaces", json={"name": "other"})
            await r.publish(event(data=DATA))
            path = "/v1/spaces/other/subscriptions/a"
            other = await r.client.put(path, json={"filter": "temperature > 30"})
            assert other.status_code == 201 and "warnings" not in other.json()
            impossible = await r.client.put(path, json={"filter": "Temperature > 30"})
            assert "did you mean data.Temperature?" in told(impossible), "no event can have this name"

    run(work)


def test_a_first_event_is_seen_though_the_space_had_none(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_warnings, "EMPTY_SAMPLE_FRESH_S", 0.0)

    async def work() -> None:
        async with running(tmp_path) as r:
            body = {"filter": "temperature > 30"}
            assert "warnings" not in (await r.client.put(f"{SUBSCRIPTIONS}/a", json=body)).json()
            await r.publish(event(data=DATA))
            assert "data.temperature" in told(await r.client.put(f"{SUBSCRIPTIONS}/a", json=body))

    run(work)


def test_only_so_much_is_looked_at(tmp_path: Any) -> None:
    async def work() -> None:
        async with running(tmp_path) as r:
            await r.publish(event(data=DATA))
            long = "temperature > 30" + " OR temperature > 30" * (WARNED_MAX_CHARACTERS // 20 + 1)
            assert "warnings" not in (await r.client.put(f"{SUBSCRIPTIONS}/a", json={"filter": long})).json()
            many = [{"id": f"m{n}", "filter": f"temperature > {n}"} for n in range(100)]
            answer = await r.client.post(SUBSCRIPTIONS, json={"subscriptions": many})
            assert answer.json()["created"] == 100
            assert len(answer.json()["warnings"]) == WARNED_BULK_MAX

    run(work)


def test_a_subscription_is_stored_though_its_warnings_cannot_be_found(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: FilterWarnings, space: str) -> Any:
        raise OSError("the disk is slow")

    monkeypatch.setattr(FilterWarnings, "_sample", fails)

    async def work() -> None:
        async with running(tmp_path) as r:
            stored = await r.client.put(f"{SUBSCRIPTIONS}/a", json={"filter": "temperature > 30"})
            assert stored.status_code == 201 and "warnings" not in stored.json()

    run(work)


def test_the_names_of_a_sample_are_collected_once(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each PUT went through all events of the sample again, which took longer than storing the filter."""
    collected = []

    class Counted(Sample):
        def names(self) -> Any:
            collected.append(self._names is None)
            return super().names()

    monkeypatch.setattr(filter_warnings, "Sample", Counted)

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.publish(event(data=DATA))
            for i in range(5):
                body = {"filter": f"data.temprature > {i}"}
                assert "temperature" in told(await r.client.put(f"{SUBSCRIPTIONS}/{i}", json=body))

    run(work)
    assert len(collected) > 5 and sum(collected) == 1


def test_a_filter_of_known_names_is_checked_without_a_thread(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hop to a thread and back cost each PUT more than the check itself."""

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.publish(event(data=DATA))
            first = await r.client.put(f"{SUBSCRIPTIONS}/a", json={"filter": "data.temprature > 30"})
            assert "temperature" in told(first)

            def fails(self: FilterWarnings, subscription: Any) -> Any:
                raise AssertionError("it went to a thread")

            monkeypatch.setattr(FilterWarnings, "of", fails)
            known = {"filter": "data.temperature > 30"}
            assert "warnings" not in (await r.client.put(f"{SUBSCRIPTIONS}/a", json=known)).json()
            never = {"filter": "data.temperature > 30 AND data.temperature < 20"}
            answer = await r.client.put(f"{SUBSCRIPTIONS}/a", json=never)
            assert "can never match" in answer.json()["warnings"][0]["detail"]

    run(work)


def test_names_that_a_sample_has_are_not_looked_for_in_its_events() -> None:
    class WriteWatch(Sample):
        def column(self, path: Any) -> Any:
            raise AssertionError(f"{path} was read")

    sample = WriteWatch([{"data": {"a": None, "b": {"c": 1}}}])
    assert sample.missing([("data", "a"), ("data", "b"), ("data", "b", "c")]) == []


def test_the_attributes_of_the_newest_events_are_listed_with_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_warnings, "EMPTY_SAMPLE_FRESH_S", 0.0)

    async def work() -> None:
        async with running(tmp_path) as r:
            await r.client.post("/v1/spaces", json={"name": "other"})
            await r.client.post(
                "/v1/spaces", json={"name": "closed", "encryption": {"library": "aspe", "dimensions": 8}}
            )
            for space in ("default", "other", "closed"):
                answer = await r.client.get(f"/v1/spaces/{space}/attributes")
                assert (answer.status_code, answer.json()) == (200, {"attributes": [], "events": 0})
            deep: Any = {"x": 1}
            for _ in range(40):
                deep = {"d": deep}
            data = {
                "price": 1.5,
                "a b": "x",
                '"<img src=x>': True,
                "at": "2026-01-02T03:04:05Z",
                "items": [1],
            }
            await r.publish(event(1, {**data, "mixed": 1, "deep": deep, "none": None}))
            await r.publish(event(2, {"price": 2, "mixed": "x"}))
            await r.publish(event(3, {"secret": 1}), space="other")
            answer = (await r.client.get("/v1/spaces/default/attributes")).json()
            found = {each["name"]: (each.get("type"), each["events"]) for each in answer["attributes"]}
            assert found["data.price"] == ("number", 2) and found["type"] == ("string", 2)
            assert found['data."a b"'] == ("string", 1) and found['data."""<img src=x>"'] == ("boolean", 1)
            assert found["data.items"] == ("array", 1) and found["data"] == ("object", 2)
            assert found["data.mixed"] == (None, 2) and found["data.none"] == (None, 1)
            assert "data.secret" not in found and "secret" not in json.dumps(answer)
            assert list(found) == sorted(found) and answer["events"] == 2
            assert max(map(len, found)) < 40, "names are at most eight levels deep"
            assert (await r.client.get("/v1/spaces/nowhere/attributes")).status_code == 404

    run(work)
