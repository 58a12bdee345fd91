"""Webhooks of a real gateway process: with kills, with TLS, and with a receiver that hangs."""

from __future__ import annotations

import shutil
import ssl
import sys
import threading
from pathlib import Path

import httpx
import pytest
from gateway_support import EVENTS, LINES, SUBSCRIPTIONS, encode, event, run, running, until, until_async
from receiver_support import LOOPBACK, described, pushed, receiving, settled, some
from test_tls import Authority
from tests.doses import rounds

sys.path.insert(0, str(Path(__file__).parents[2] / "client"))

from real_gateway import NaivePipeline, RealGateway

pytestmark = pytest.mark.long

KILLS, EVENTS_EACH = rounds(4), 40


def test_killed_again_and_again_it_loses_nothing_and_repeats_only_what_was_under_way(tmp_path: Path) -> None:
    """Messages answered some time before a kill are not sent again; unanswered ones are."""
    with receiving() as receiver:
        gateway = RealGateway(tmp_path, webhook_allow="127.0.0.1")
        gateway.start()
        client = httpx.Client(base_url=gateway.url, timeout=60)
        push = {"url": receiver.url, "mode": "batch", "batch_max": 3, "requests_max": 2}
        made = {"filter": "data.x = 1", "delivery": {"push": push}}
        client.put(f"{SUBSCRIPTIONS}/a", json=made).raise_for_status()
        with NaivePipeline(tmp_path) as pipeline:
            for round in range(KILLS):
                first = round * EVENTS_EACH
                lines = b"\n".join(encode(event(first + i, {"x": 1})) for i in range(EVENTS_EACH))
                before = pipeline.end()
                client.post(EVENTS, content=lines, headers=LINES).raise_for_status()
                until(lambda first=first: str(first + EVENTS_EACH // 2) in receiver.ids)
                until(lambda before=before: pipeline.settled(1) >= before)
                gateway.kill()
                gateway.start()
            # All may have come before the last kill; what was not saved by then comes again.
            until(lambda: pipeline.settled(1) >= pipeline.end())
            everything = set(map(str, range(KILLS * EVENTS_EACH)))
            until(lambda: set(receiver.ids) == everything)
            until(lambda: client.get(f"{SUBSCRIPTIONS}/a").json()["push"]["requests"] == 0)
            before = len(receiver.got)
            gateway.stop()
            gateway.start()
            client.post(EVENTS, content=encode(event("last", {"x": 1})), headers=LINES).raise_for_status()
            until(lambda: "last" in receiver.ids)
            assert [got.ids for got in receiver.got[before:]] == [["last"]], "what was settled stays so"
            # At a kill no more than what came since the one before it: all else is saved by then.
            assert len(receiver.ids) - len(everything) - 1 <= KILLS * EVENTS_EACH
        gateway.stop()
        log = (tmp_path / "gateway.log").read_text()
        assert "Traceback" not in log


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_a_receivers_certificate_is_checked_against_its_name(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca")
    authority.sign("server")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")

    async def work() -> None:
        with receiving(tls) as receiver:
            async with running(
                tmp_path / "good", webhook_ca_file=tmp_path / "ca.pem", webhook_requests_max=1, **LOOPBACK
            ) as r:
                await pushed(r, receiver.url)
                named = receiver.url.replace("127.0.0.1", "localhost")
                await pushed(r, named, "b")
                await some(r, 1)
                await until_async(lambda: len(receiver.got) == 2)
                await settled(r)
                assert {got.headers["host"] for got in receiver.got} == {
                    f"127.0.0.1:{receiver.port}",
                    f"localhost:{receiver.port}",
                }

                async def resolve(host: str, port: int) -> list[str]:
                    return ["127.0.0.1"]

                for pool in r.gateway.pushes._means.sender._pools.values():
                    pool._network_backend._resolve = resolve
                await pushed(r, f"https://other.example.com:{receiver.port}/", "c")
                await some(r, 1)
                await until_async(lambda: len(receiver.got) == 4)
                server = r.gateway.pushes._servers["default", "https", f"other.example.com:{receiver.port}"]
                await until_async(lambda: server.last)
                assert "certificate" in (await described(r, "c"))["push"]["last"]
            async with running(tmp_path / "bad", **LOOPBACK) as r:
                await pushed(r, receiver.url)
                await some(r, 1)
                await until_async(lambda: next(iter(r.gateway.pushes._servers.values())).last)
                assert "certificate" in (await described(r))["push"]["last"]
                assert len(receiver.got) == 4

    run(work)


def test_a_space_whose_receivers_hang_leaves_room_for_the_others(tmp_path: Path) -> None:
    async def work() -> None:
        hanging, answered = threading.Event(), []

        def hang(got):
            answered.append(got)
            if len(answered) > 1:  # not the first: a host gets one request at a time until one succeeds
                hanging.wait(50)
            return 200, {}, b""

        with receiving() as slow, receiving() as quick:
            slow.always = hang
            try:
                async with running(tmp_path, webhook_requests_max=8, webhook_timeout_s=40, **LOOPBACK) as r:
                    await r.client.post("/v1/spaces", json={"name": "other"})
                    for i in range(6):
                        await pushed(r, f"{slow.url}/{i}", f"s{i}")
                    settings = {"filter": "data.x = 2", "delivery": {"push": {"url": quick.url}}}
                    answer = await r.client.put("/v1/spaces/other/subscriptions/q", json=settings)
                    assert answer.status_code == 201
                    await some(r, 5)
                    await until_async(lambda: len(slow.got) == 3)
                    await r.publish(event("q", {"x": 2}), space="other")
                    r.pipeline.step()
                    await until_async(lambda: quick.ids == ["q"])
                    assert len(slow.got) == 3, "one that was answered, and a quarter of eight"
                    hanging.set()
            finally:
                hanging.set()

    run(work)


def test_what_a_receiver_sends_back_is_not_read_beyond_a_bound(tmp_path: Path) -> None:
    """The connection of a receiver that answers without end is closed after a moment: only the status is
    used."""

    async def work() -> None:
        with receiving() as receiver:
            async with running(tmp_path, **LOOPBACK) as r:
                receiver.answer(200, headers={"content-type": "text/html"}, body=b"x" * (64 << 20))
                await pushed(r, receiver.url)
                await some(r, 2)
                await until_async(lambda: len(receiver.got) == 2)
                await settled(r)
                assert receiver.ids == ["0", "1"]

    run(work)
