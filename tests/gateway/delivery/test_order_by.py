"""Order by key over HTTP: for any readers of a subscription, events of one key come one by one."""

from __future__ import annotations

import pytest
from gateway_support import Running, event, run, running
from test_delivery_settings import FILTER, A, change, positions
from test_publish_http import problem

from fieldfare.gateway.delivery.names import name_of


async def made(r: Running, order_by: str = "data.vehicle") -> None:
    answer = await r.client.put(A, json=FILTER | {"delivery": {"order_by": order_by}})
    assert answer.status_code == 201, answer.text


async def trips(r: Running, *vehicles: object) -> list[str]:
    """Publish an event of each of these vehicles; return their positions."""
    events = [
        event(n, {"x": 1} | ({} if each is None else {"vehicle": each})) for n, each in enumerate(vehicles)
    ]
    offset = (await r.publish(*events))["offset"]
    r.pipeline.step()
    return [f"0-{offset}-{n}" for n in range(len(vehicles))]


def test_a_failed_message_holds_only_those_of_its_key(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await made(r)
            at = await trips(r, "a", "b", "a", None, "b", None, "a")
            assert positions(await r.pull("a", max=100)) == [at[0], at[1], at[3], at[5]]
            await r.client.post(f"{A}/nack", json={"positions": [at[0]], "delay_s": 3600})
            await r.ack("a", at[1])
            assert positions(await r.pull("a", max=100)) == [at[4]]
            await r.ack("a", at[0])
            (again,) = await r.pull("a", max=100)
            assert (again["position"], again["attempt"]) == (at[2], 1)

    run(work)


def test_after_a_restart_nothing_of_a_key_has_come_before_what_is_older(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await made(r)
            at = await trips(r, 1, 1.0, "1", 1)
            assert positions(await r.pull("a", max=100)) == [at[0], at[2]], "text is no number"
            await r.ack("a", at[2])
        async with running(tmp_path) as r:
            found = await r.pull("a", max=100)
            assert [(each["position"], each["attempt"]) for each in found] == [(at[0], 2)]
            await r.ack("a", at[0])
            found = await r.pull("a", max=100)
            assert [(each["position"], each["attempt"]) for each in found] == [(at[1], 1)]

    run(work)


def test_it_can_be_changed_while_messages_are_out(tmp_path):
    async def work() -> None:
        async with running(tmp_path) as r:
            await made(r)
            at = await trips(r, "a", "a", "b")
            assert positions(await r.pull("a", max=100)) == [at[0], at[2]]
            await change(r, order_by=None)
            assert positions(await r.pull("a", max=100)) == [at[1]]
            assert (await change(r, order_by='"data"."vehicle"'))["delivery"] == {"order_by": "data.vehicle"}
            await r.client.post(f"{A}/nack", json={"positions": at})
            assert positions(await r.pull("a", max=100)) == [at[0], at[2]]

    run(work)


@pytest.mark.parametrize("bad", ["", "data.", "data.x = 1", 7, "a" * 1_001, ["data"]])
def test_what_is_no_attribute_is_refused(tmp_path, bad):
    async def work() -> None:
        async with running(tmp_path) as r:
            answer = await r.client.put(A, json=FILTER | {"delivery": {"order_by": bad}})
            assert "attribute" in problem(answer, 400)["detail"]
            assert answer.json()["pointer"] == "/delivery/order_by"

    run(work)


def test_names_are_of_values_as_filters_compare_them():
    name = name_of("data.v")

    def of(text: str) -> int | None:
        return name(b'{"data":{"v":%s}}' % text.encode())

    assert of("1") == of("1.0") == of("1e0") != of('"1"')
    assert of('{"a":1,"b":2}') == of('{"b":2,"a":1}')
    assert of("null") is None and name(b'{"data":7}') is None
    assert len({of(str(n)) for n in range(1_000)}) == 1_000
    assert all(found is not None and found >= 0 for found in (of(str(n)) for n in range(1_000)))
