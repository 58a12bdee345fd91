"""Webhooks: the requests that are sent, the meaning of answers, and the messages that these settle."""

from __future__ import annotations

import asyncio
import base64
import json
import threading

import pytest
from gateway_support import SUBSCRIPTIONS, event, run, running, until_async
from receiver_support import (
    LOOPBACK,
    SECRETS,
    change,
    described,
    is_broken,
    pushed,
    receiving,
    settled,
    some,
    verify,
)

from fieldfare.delivery.breaker import FAILURES_MAX

QUICK = {"retry_delays_s": [0.01]}


def test_an_event_is_sent_as_it_was_published_and_settled_by_the_answer(tmp_path):
    async def work() -> None:
        with receiving() as receiver:
            async with running(tmp_path, **LOOPBACK) as r:
                await pushed(r, receiver.url)
                (place,) = await some(r, 1)
                await until_async(lambda: receiver.got)
                await settled(r)
                (got,) = receiver.got
                sent = event(0, {"x": 1}) | {"fieldfareposition": place, "fieldfareattempt": 1}
                assert got.events == [sent] and got.path == "/hook"
                assert got.headers["host"] == f"127.0.0.1:{receiver.port}"
                assert got.headers["content-type"].startswith("application/cloudevents+json")
                assert got.headers["webhook-id"] == f"ff-1-{place}"
                assert got.headers["fieldfare-subscription"] == "a"
                assert got.headers["webhook-request-origin"] == "fieldfare"
                assert "webhook-signature" not in got.headers and "authorization" not in got.headers
                assert await r.pull("a") == []
                assert (await described(r))["push"]["state"] == "working"
            async with running(tmp_path, **LOOPBACK) as r:
                await some(r, 1, first=1)
                await until_async(lambda: len(receiver.got) == 2)
                assert receiver.ids == ["0", "1"], "what was answered does not come again after a restart"

    run(work)


@pytest.mark.parametrize("status", [200, 201, 202, 204])
def test_every_2xx_is_an_ack(tmp_path, status):
    async def work() -> None:
        with receiving() as receiver:
            async with running(tmp_path, **LOOPBACK) as r:
                receiver.answer(status, headers={"content-type": "application/json"}, body=b'{"ok":true}')
                await pushed(r, receiver.url)
                await some(r, 1)
                await until_async(lambda: receiver.got)
                await settled(r)
                assert receiver.ids == ["0"]

    run(work)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 415, 422, 500, 502, 504, 302, 307, 0])
def test_any_other_answer_is_an_attempt_that_failed(tmp_path, status):
    """After the maximum number of attempts the message is a dead letter, and later ones are delivered."""

    async def work() -> None:
        with receiving() as receiver:
            async with running(tmp_path, **LOOPBACK) as r:
                elsewhere = {"location": f"http://127.0.0.1:{receiver.port}/elsewhere"}
                receiver.answer(status, status, headers=elsewhere)
                await pushed(r, receiver.url, max_attempts=2, **QUICK)
                await some(r, 1)
                await until_async(lambda: len(receiver.got) == 2)
                await some(r, 1, first=1)
                await until_async(lambda: "1" in receiver.ids)
                await settled(r)
                letters = (await r.client.get(f"{SUBSCRIPTIONS}/a/dead-letters")).json()["dead_letters"]
                assert [(each["event"]["id"], each["attempts"]) for each in letters] == [("0", 2)]
                assert receiver.ids == ["0", "0", "1"]
                assert [got.events[0]["fieldfareattempt"] for got in receiver.got] == [1, 2, 1]
                first, second, _ = receiver.got
                assert first.headers["webhook-id"] == second.headers["webhook-id"]
                assert {got.path for got in receiver.got} == {"/hook"}, "no redirect is followed"

    run(work)


def test_without_delays_of_its_own_a_message_waits_longer_each_time(tmp_path):
    async def work() -> None:
        async with running(tmp_path, **LOOPBACK) as r:
            with receiving() as receiver:
                receiver.answer(500, 500)
                await pushed(r, receiver.url)
                r.gateway.pushes._means.rng.uniform = lambda low, high: high / 50
                await some(r, 1)
                await until_async(lambda: len(receiver.got) == 3)
                first, second, third = (got.at_s for got in receiver.got)
                assert second - first >= 0.019 and third - second >= 0.039

    run(work)


def test_binary_mode_sends_data_as_body_and_attributes_as_headers(tmp_path):
    async def work() -> None:
        with receiving() as receiver:
            async with running(tmp_path, **LOOPBACK) as r:
                await pushed(r, receiver.url, push={"mode": "binary"})
                one = event('é %"', {"x": 1, "ü": "ß"}, subject="a b", flag=True, count=7, nothing=None)
                text = event("2", "häßlich", datacontenttype="text/plain", x=1)
                raw = event(
                    "3", datacontenttype="image/png", data_base64=base64.b64encode(b"\x00\xff").decode()
                )
                for each in (text, raw, event("4", x=1) | {"data": None}):
                    each.pop("data", None) if each["id"] != "2" else None
                await r.client.put(f"{SUBSCRIPTIONS}/a", json={"filter": "data.x = 1 OR x = 1 OR id = '3'"})
                long = event("5", {"x": 1}, long="l" * 5000)
                odd = event("6", {"x": 1}, datacontenttype="text/plain")
                await r.publish(one, text, raw, event("4", x="1") | {"data": {"x": 1}}, long, odd)
                r.pipeline.step()
                await until_async(lambda: len(receiver.got) >= 5)
                await settled(r)
                by_id = {got.events[0]["id"]: got for got in receiver.got}
                first = by_id["%C3%A9%20%25%22"]
                assert json.loads(first.body) == {"x": 1, "ü": "ß"}
                assert first.headers["content-type"] == "application/json"
                assert first.headers["ce-subject"] == "a%20b" and first.headers["ce-specversion"] == "1.0"
                assert (first.headers["ce-flag"], first.headers["ce-count"]) == ("true", "7")
                assert "ce-nothing" not in first.headers and "ce-data" not in first.headers
                assert first.headers["ce-fieldfareattempt"] == "1" and "ce-fieldfareposition" in first.headers
                assert (by_id["3"].body, by_id["3"].headers["content-type"]) == (b"\x00\xff", "image/png")
                for id in ("5", "6"):
                    kind = by_id[id].headers["content-type"]
                    assert kind.startswith("application/cloudevents+json"), "what headers cannot say"

    run(work)


def test_a_batch_carries_many_and_what_failed_in_it_comes_alone(tmp_path):
    """One event that a receiver cannot process does not make the others dead letters."""

    async def work() -> None:
        with receiving() as receiver:
            async with running(tmp_path, **LOOPBACK) as r:
                receiver.always = lambda got: (500 if "3" in got.ids else 200, {}, b"")
                await pushed(r, receiver.url, push={"mode": "batch", "batch_max": 8}, max_attempts=3, **QUICK)
                places = await some(r, 20)
                await settled(r)
                await until_async(lambda: r.gateway.metrics.given_up_messages._value.get() == 1)
                sizes = [len(got.ids) for got in receiver.got]
                assert sizes[0] == 8 and sorted(set(receiver.ids)) == sorted(map(str, range(20)))
                assert all(len(got.ids) == 1 for got in receiver.got if got.events[0]["fieldfareattempt"] > 1)
                letters = (await r.client.get(f"{SUBSCRIPTIONS}/a/dead-letters")).json()["dead_letters"]
                assert [each["position"] for each in letters] == [places[3]]
                assert len({got.headers["webhook-id"] for got in receiver.got}) == len(receiver.got) - 1

    run(work)


def test_an_answer_to_a_batch_may_name_those_that_are_wanted_again(tmp_path):
    async def work() -> None:
        with receiving() as receiver:
            async with running(tmp_path, **LOOPBACK) as r:
                await pushed(r, receiver.url, push={"mode": "batch"}, paused=True, **QUICK)
                places = await some(r, 4)
                told = json.dumps({"failed_positions": [places[1], places[3]]}).encode()
                receiver.answer(200, headers={"content-type": "application/json"}, body=told)
                await change(r, paused=False)
                await settled(r)
                assert receiver.ids == ["0", "1", "2", "3", "1", "3"]
                assert [len(got.ids) for got in receiver.got] == [4, 1, 1]

    run(work)


def test_requests_are_signed_with_every_secret_and_secrets_are_shown_to_nobody(tmp_path):
    """Rotation: the new secret is added, receivers learn it, the old one is removed; nothing is refused."""

    async def work() -> None:
        with receiving() as receiver:
            async with running(tmp_path, **LOOPBACK) as r:
                told = await pushed(
                    r, receiver.url, push={"secrets": [SECRETS[0]], "authorization": "Bearer b"}
                )
                assert told["delivery"]["push"]["signed"] == 1 and told["delivery"]["push"]["authorized"]
                await some(r, 1)
                await until_async(lambda: len(receiver.got) == 1)
                await change(r, push={"secrets": [SECRETS[1], SECRETS[0]]})
                await some(r, 1, first=1)
                await until_async(lambda: len(receiver.got) == 2)
                await change(r, push={"secrets": [SECRETS[1]]})
                await some(r, 1, first=2)
                await until_async(lambda: len(receiver.got) == 3)
                one, both, other = receiver.got
                verify(one, SECRETS[0])
                for secret in SECRETS:
                    verify(both, secret)
                verify(other, SECRETS[1])
                with pytest.raises(AssertionError):
                    verify(other, SECRETS[0])
                assert {got.headers["authorization"] for got in receiver.got} == {"Bearer b"}
                listed = (await r.client.get(SUBSCRIPTIONS)).text + json.dumps(await described(r))
                held = repr(await r.gateway.subscriptions.get("default", "a"))
                for secret in (*SECRETS, "Bearer b"):
                    assert secret not in listed + held

    run(work)


def test_secrets_stay_with_their_address_where_nothing_is_said_of_them(tmp_path):
    async def work() -> None:
        async with running(tmp_path, **LOOPBACK) as r:
            url, other = "http://127.0.0.1:9/a", "http://127.0.0.1:9/b"
            await pushed(r, url, push={"secrets": [SECRETS[0]]}, paused=True)
            assert (await pushed(r, url, paused=True))["delivery"]["push"]["signed"] == 1
            refused = await r.client.patch(f"{SUBSCRIPTIONS}/a", json={"delivery": {"push": {"url": other}}})
            assert refused.status_code == 400 and refused.json()["pointer"] == "/delivery/push/secrets"
            changed = await change(r, push={"url": other, "secrets": [SECRETS[1]]})
            assert changed["delivery"]["push"] | {"url": other, "signed": 1} == changed["delivery"]["push"]
            assert (await change(r, push={"secrets": None}))["delivery"]["push"]["signed"] == 0
            assert "push" not in (await change(r, push=None))["delivery"]

    run(work)


def test_410_pauses_the_subscription_and_says_why(tmp_path):
    async def work() -> None:
        with receiving() as receiver:
            async with running(tmp_path, **LOOPBACK) as r:
                receiver.answer(410)
                await pushed(r, receiver.url)
                await some(r, 2)
                await until_async(lambda: not r.gateway.pushes._pushes)
                told = await described(r)
                assert told["delivery"]["paused"] is True and "410" in told["paused_because"]
                assert told["push"] == {"state": "paused"}
            async with running(tmp_path, **LOOPBACK) as r:
                assert "410" in (await described(r))["paused_because"], "after a restart too"
                assert receiver.ids == ["0"]
                told = await change(r, paused=False)
                assert "paused_because" not in told
                await settled(r)
                assert receiver.ids == ["0", "0", "1"], "nothing was lost"
                assert receiver.got[1].events[0]["fieldfareattempt"] <= 2

    run(work)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_receiver_is_left_alone_and_it_is_no_attempt(tmp_path, status):
    async def work() -> None:
        with receiving() as receiver:
            async with running(tmp_path, **LOOPBACK) as r:
                receiver.answer(status, status, headers={"Retry-After": "1"})
                await pushed(r, receiver.url, max_attempts=1)
                await some(r, 2)
                await until_async(lambda: receiver.got)
                await until_async(lambda: is_broken(r))
                told = (await described(r))["push"]
                assert told["state"] == "broken" and str(status) in told["last"] and told["next_try_s"] <= 1
                await settled(r)
                assert receiver.ids == ["0", "0", "0", "1"]
                times = [got.at_s for got in receiver.got]
                assert times[1] - times[0] >= 0.99 and times[2] - times[1] >= 0.99
                assert [got.events[0]["fieldfareattempt"] for got in receiver.got] == [1, 1, 1, 1]
                letters = (await r.client.get(f"{SUBSCRIPTIONS}/a/dead-letters")).json()
                assert letters["total"] == 0

    run(work)


def test_a_receiver_that_is_down_uses_up_no_attempts_and_gets_all_when_it_is_back(tmp_path):
    async def work() -> None:
        with receiving() as receiver:
            port, url = receiver.port, receiver.url
        async with running(tmp_path, **LOOPBACK) as r:
            await pushed(r, url, max_attempts=1)
            await some(r, 3)
            await until_async(lambda: is_broken(r))
            told = (await described(r))["push"]
            assert told["last"] == "no connection could be made" and str(port) not in told["last"]
            assert (await r.client.get(f"{SUBSCRIPTIONS}/a/dead-letters")).json()["total"] == 0
            with receiving() as other:
                await change(r, push={"url": other.url})
                await settled(r)
                assert other.ids == ["0", "1", "2"]

    run(work)


def test_a_slow_receiver_is_not_waited_for_and_its_message_comes_again(tmp_path):
    async def work() -> None:
        hanging = threading.Event()
        try:
            with receiving() as receiver:

                def hang(got):
                    hanging.wait(30)
                    return 200, {}, b""

                receiver.answers.put(hang)
                async with running(tmp_path, **LOOPBACK) as r:
                    await pushed(r, receiver.url, ack_deadline_s=1.0, **QUICK)
                    await some(r, 1)
                    await until_async(lambda: len(receiver.got) == 2)
                    await settled(r)
                    assert [got.events[0]["fieldfareattempt"] for got in receiver.got] == [1, 2]
                hanging.set()
        finally:
            hanging.set()

    run(work)


def test_an_address_that_did_not_allow_it_gets_nothing(tmp_path):
    async def work() -> None:
        with receiving() as receiver:
            receiver.handshake = lambda got: (200, {"Allow": "POST"}, b"")
            async with running(tmp_path, **LOOPBACK) as r:
                await pushed(r, receiver.url, max_attempts=1)
                await some(r, 1)
                await until_async(lambda: receiver.asked)
                await until_async(lambda: is_broken(r))
                told = (await described(r))["push"]
                assert "WebHook-Allowed-Origin" in told["last"] and told["state"] == "broken"
                assert receiver.got == []
                assert receiver.asked[0].headers["webhook-request-origin"] == "fieldfare"
                receiver.handshake = lambda got: (200, {"WebHook-Allowed-Origin": "fieldfare"}, b"")
                await until_async(lambda: receiver.got)
                assert receiver.got[0].events[0]["fieldfareattempt"] == 1
            async with running(tmp_path / "other", webhook_handshake=False, **LOOPBACK) as r:
                receiver.asked.clear()
                await pushed(r, receiver.url)
                await some(r, 1)
                await until_async(lambda: len(receiver.got) == 2)
                assert receiver.asked == []

    run(work)


def test_no_more_requests_a_minute_than_an_address_allows(tmp_path):
    async def work() -> None:
        with receiving() as receiver:
            rate = {"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "100"}
            receiver.handshake = lambda got: (200, rate, b"")
            async with running(tmp_path, webhook_requests_per_min=3000, **LOOPBACK) as r:
                await pushed(r, receiver.url)
                await some(r, 4)
                await until_async(lambda: len(receiver.got) == 4)
                assert receiver.asked[0].headers["webhook-request-rate"] == "3000"
                times = [got.at_s for got in receiver.got]
                # The first was admitted before the rate was known. The receiver's threads may note one late.
                assert times[3] - times[1] >= 2 * 0.6 - 0.4

    run(work)


def test_as_many_requests_are_under_way_as_the_settings_allow(tmp_path):
    async def work() -> None:
        together = threading.Barrier(3)

        def meet(got):
            together.wait(30)
            return 200, {}, b""

        with receiving() as receiver:
            async with running(tmp_path, **LOOPBACK) as r:
                await pushed(r, receiver.url, push={"requests_max": 3}, paused=True)
                await some(r, 7)
                receiver.answer(200)
                for _ in range(6):
                    receiver.answers.put(meet)
                await change(r, paused=False)
                await settled(r)
                assert receiver.under_way_most == 3 and sorted(receiver.ids) == list("0123456")
                text = (await r.client.get("/metrics")).text
                assert 'fieldfare_push_requests_total{outcome="accepted"} 7.0' in text

    run(work)


def test_messages_wait_where_a_subscription_is_paused_and_go_on_after(tmp_path):
    async def work() -> None:
        with receiving() as receiver:
            async with running(tmp_path, **LOOPBACK) as r:
                await pushed(r, receiver.url, paused=True)
                await some(r, 2)
                assert (await described(r))["push"] == {"state": "paused"}
            async with running(tmp_path, **LOOPBACK) as r:
                assert r.gateway.pushes._pushes == {}
                await change(r, paused=False)
                await until_async(lambda: receiver.ids == ["0", "1"])
                await change(r, push=None)
                await some(r, 1, first=2)
                assert [each["event"]["id"] for each in await r.pull("a")] == ["2"], "it is fetched again"
                await change(r, push={"url": receiver.url})
                await r.client.delete(f"{SUBSCRIPTIONS}/a")
                assert r.gateway.pushes._pushes == {}
                await asyncio.sleep(0)
                assert not r.gateway.pushes._servers

    run(work)


def test_what_is_under_way_when_it_is_set_back_settles_nothing_of_what_comes_again(tmp_path):
    async def work() -> None:
        first_may_end = threading.Event()

        def hold(got):
            first_may_end.wait(30)
            return 200, {}, b""

        with receiving() as receiver:
            receiver.answers.put(hold)
            async with running(tmp_path, **LOOPBACK) as r:
                await pushed(r, receiver.url, push={"requests_max": 2})
                await some(r, 1)
                await until_async(lambda: receiver.got)
                answer = await r.client.post(f"{SUBSCRIPTIONS}/a/seek", json={"to": "earliest"})
                assert answer.status_code == 200, answer.text
                push = next(iter(r.gateway.pushes._pushes.values()))
                first_may_end.set()
                await until_async(lambda: len(receiver.got) == 2 and not push.under_way)
                await settled(r)
                assert receiver.ids == ["0", "0"]

    run(work)


def test_an_address_that_fails_again_and_again_is_left_alone(tmp_path):
    """Messages behind those that were tried wait, using up no attempts; one that is well lets all go on."""

    async def work() -> None:
        with receiving() as receiver:
            receiver.always = lambda got: (500, {}, b"")
            async with running(tmp_path, **LOOPBACK) as r:
                await pushed(r, receiver.url, max_attempts=100, retry_delays_s=[0.01])
                await some(r, 30)
                await until_async(lambda: len(receiver.got) >= FAILURES_MAX)
                await until_async(lambda: is_broken(r))
                told = (await described(r))["push"]
                assert told["state"] == "broken" and told["last"] == "it answered 500"
                assert len(receiver.got) < 20, "most were not even tried"
                await r.gateway.figures.observe()
                assert "fieldfare_broken_push_addresses 1.0" in (await r.client.get("/metrics")).text
                receiver.always = None
                await settled(r)
                assert set(receiver.ids) == set(map(str, range(30)))
                assert (await described(r))["push"]["state"] == "working"

    run(work)


def test_events_of_one_key_are_sent_one_after_the_other_and_a_failed_one_holds_only_its_key(tmp_path):
    async def work() -> None:
        with receiving() as receiver:
            async with running(tmp_path, **LOOPBACK) as r:
                push = {"requests_max": 4, "mode": "batch"}
                limits = {"order_by": "subject", "max_in_flight_bytes": 1 << 20, "retry_delays_s": [0.05]}
                await pushed(r, receiver.url, push=push, paused=True, **limits)
                await r.publish(*(event(i, {"x": 1}, subject="ab"[i % 2]) for i in range(8)))
                r.pipeline.step()
                receiver.always = lambda got: (200 if got.events[0]["fieldfareattempt"] > 1 else 500, {}, b"")
                await change(r, paused=False)
                await settled(r)
                for key in (0, 1):
                    mine = list(dict.fromkeys(id for id in receiver.ids if int(id) % 2 == key))
                    assert mine == sorted(mine)
                assert set(receiver.ids) == set("01234567")

    run(work)


def test_many_that_nothing_matches_are_opened_at_a_start_and_wait(tmp_path):
    async def work() -> None:
        async with running(tmp_path, **LOOPBACK) as r:
            many = [
                {
                    "id": f"s{i}",
                    "filter": f"data.n = {i}",
                    "delivery": {"push": {"url": "http://127.0.0.1:9/"}},
                }
                for i in range(1_500)
            ]
            told = (await r.client.post(SUBSCRIPTIONS, json={"subscriptions": many})).json()
            assert (told["created"], told["refused"]) == (1_500, [])
        with receiving() as receiver:
            async with running(tmp_path, **LOOPBACK) as r:
                await until_async(lambda: len(r.gateway.pushes._pushes) == 1_500)
                await until_async(lambda: len(r.gateway.deliveries._waiting) == 1_500)
                assert r.gateway.deliveries.connected == 0
                await change(r, "s7", push={"url": receiver.url})
                await r.publish(event(1, {"n": 7}), event(2, {"n": 9_999}))
                r.pipeline.step()
                await until_async(lambda: receiver.ids == ["1"])

    run(work)
