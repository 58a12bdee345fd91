"""The client with the real gateway: what is promised holds over HTTP, also when the gateway is killed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from secrets import token_urlsafe
from typing import Any

import httpx
import pyarrow as pa
import pytest
from client_support import PATIENT, SOON
from faulty_service import wait_until
from real_gateway import RealGateway, running_gateway
from tests.doses import rounds
from typer.testing import CliRunner

from fieldfare import ApiError, AsyncClient, BatchSettings, Client, DeliverySettings, Position, PublishError
from fieldfare.cli.app import app
from fieldfare.client import SubscriptionDeleted, SubscriptionsRefused

pytestmark = pytest.mark.long


@pytest.fixture
def client(gateway: RealGateway) -> Iterator[Client]:
    with Client(gateway.url, retry=SOON) as connected:
        yield connected


def quotes(*prices: float) -> list[dict[str, object]]:
    return [{"source": "/quotes", "type": "quote", "data": {"price": price}} for price in prices]


def test_events_after_subscribing_are_delivered_and_durably_acked(client: Client) -> None:
    with client.subscribe("cheap", "data.price < 18.5") as messages:
        found = client.publish_many(quotes(17, 19, 18, 20))
        for price in (17, 18):
            message = next(messages)
            assert message.event["data"]["price"] == price
            message.ack()
    assert found == sorted(found)
    client.publish_many(quotes(16))
    with client.subscribe("cheap") as messages:
        assert next(messages).event["data"]["price"] == 16, "what was acked does not come again"


def test_a_gateway_that_reads_matches_and_tables_loads_no_pandas(
    gateway: RealGateway, client: Client
) -> None:
    """pyarrow imports pandas if it is installed: 45 MB without any use."""
    with client.subscribe("light", "data.price = 55", auto_ack=True) as messages:
        table = pa.table({"source": ["/q"], "type": ["q"], "data": [{"price": 55}]})
        client.publisher().publish_table(table)
        assert next(messages).event["data"]["price"] == 55
    assert "pyarrow" in gateway.loaded() and "pandas" not in gateway.loaded()


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_compressed_requests_arrive_unchanged(
    gateway: RealGateway, monkeypatch: pytest.MonkeyPatch, compression: Any
) -> None:
    """Over a slow line it takes a tenth of the bytes; what would not become smaller is sent as it is."""
    sent: list[tuple[str | None, int]] = []
    handle = httpx.HTTPTransport.handle_request

    def counted(self: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        sent.append((request.headers.get("content-encoding"), len(request.content)))
        return handle(self, request)

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", counted)
    one_by_one = BatchSettings(max_bytes=4 << 20, linger_ms=10_000)
    with Client(gateway.url, compression=compression, batch=one_by_one) as client:
        client.publish_many(quotes(*range(1000)))
        client.publish_many(quotes(1))
        noise = {"source": "/n", "type": "n", "data": token_urlsafe(3_000_000)}
        with pytest.raises(PublishError, match="dataref"):
            client.publish_many([noise])
        blank = {"source": "/n", "type": "n", "data": " " * 900_000}
        client.publish_many([blank])
    sizes = [(encoding, size) for encoding, size in sent if size]
    assert [encoding for encoding, _ in sizes] == [compression, None, compression, None]
    assert sizes[0][1] < 50_000


def test_an_unknown_compression_is_refused(gateway: RealGateway) -> None:
    with pytest.raises(ValueError, match="gzip, zstd"):
        Client(gateway.url, compression="br")  # type: ignore[arg-type]


async def _publish_packed(url: str) -> None:
    async with AsyncClient(url, compression="zstd") as client:
        assert len(await client.publish_many(quotes(*range(1000)))) == 1000


def test_an_asyncio_program_packs_beside_its_loop(gateway: RealGateway) -> None:
    asyncio.run(_publish_packed(gateway.url))


def test_a_partial_batch_is_accounted_for(client: Client) -> None:
    with pytest.raises(PublishError) as caught:
        client.publish_many([*quotes(1), b"{oops", b'{"specversion": "1.0"}', *quotes(2)])
    assert [index for index, _ in caught.value.accepted] == [0, 3]
    assert [refusal.index for refusal in caught.value.refused] == [1, 2]
    assert [at.index for _, at in caught.value.accepted] == [0, 1]
    with pytest.raises(PublishError, match="the service refused the event"):
        client.publish(b"[1]").result(60)
    with pytest.raises(PublishError, match=r"\d+ bytes"):
        client.publish({"source": "a", "type": "b", "data": "x" * (2 << 20)}).result(60)


def test_subscriptions_are_kept_as_they_were_given(client: Client) -> None:
    created = client.create_subscription("data.price > 1", "keep")
    assert created == client.get_subscription("keep")
    replaced = client.replace_subscription("keep", "data.price > 2")
    assert replaced.revision > created.revision
    assert client.create_subscriptions([(f"many-{n:02}", f"data.price = {n}") for n in range(30)]) == 30
    assert client.create_subscriptions([(f"many-{n:02}", f"data.price = {n}") for n in range(30)]) == 30
    ids = [info.id for info in client.subscriptions(page_size=7)]
    assert ids == sorted(ids) and sum(id.startswith("many-") for id in ids) == 30
    client.delete_subscription("keep")
    with pytest.raises(ApiError) as caught:
        client.get_subscription("keep")
    assert caught.value.status == 404


def test_a_subscription_may_begin_in_the_past(client: Client) -> None:
    (found,) = client.publish_many(quotes(41))
    made = client.create_subscription("data.price = 41", "began", start=found)
    assert made.start == (found,) and made.past is None
    described = client.get_subscription("began")
    assert described.start == made.start and described.past is not None
    assert described.past.kept_from == described.past.matched_to == (found,)
    assert not described.past.is_matched
    assert client.create_subscription("data.price = 41", "began", start="earliest") == made
    for start in ("2999-01-01T00:00:00Z", "tomorrow"):
        with pytest.raises(ApiError) as caught:
            client.create_subscription("data.price = 41", "ahead", start=start)
        assert caught.value.status == 400 and caught.value.place == "/start"
    with pytest.raises(ValueError, match="needs a filter"):
        client.subscribe("began", start="earliest")
    with client.subscribe("begins-too", "data.price = 42", start=found):
        assert client.get_subscription("begins-too").start == (found,)


def test_errors_of_the_service_name_the_place(client: Client) -> None:
    with pytest.raises(ApiError) as caught:
        client.create_subscription("data.price <> 'a' AND price <", "broken")
    assert caught.value.status == 400
    assert caught.value.place is not None and caught.value.place.startswith("line 1, column ")
    with pytest.raises(SubscriptionsRefused) as bulk:
        client.create_subscriptions([("good", "a = 1"), ("bad", "a = = 1")])
    assert bulk.value.stored == 1
    assert bulk.value.refused[0].id == "bad" and bulk.value.refused[0].place
    assert client.create_subscriptions([("good", "a = 2")]) == 1
    with pytest.raises(SubscriptionsRefused) as kept:
        client.create_subscriptions([("good", "a = 3"), ("good-too", "a = 3")], replace=False)
    assert kept.value.stored == 1 and "another filter" in str(kept.value.refused[0])
    assert client.get_subscription("good").filter == "a = 2"
    with Client(client.url, space="nowhere") as stranger:
        with pytest.raises(ApiError) as unknown:
            stranger.publish_many(quotes(1))
        assert unknown.value.status == 404


def test_pull_ack_and_nack(client: Client) -> None:
    client.create_subscription("data.price = 77", "pulled")
    found = client.publish_many(quotes(77, 77, 77))
    got = client.pull("pulled", max_messages=2, wait_s=10)
    while len(got) < 2:
        got += client.pull("pulled", max_messages=2 - len(got), wait_s=10)
    assert [message.position for message in got] == found[:2]
    client.ack("pulled", [found[0]])
    client.nack("pulled", [found[1]])
    again = client.pull("pulled", max_messages=10, wait_s=10)
    assert again[0].position == found[1]
    client.ack_up_to("pulled", found[2])
    assert client.pull("pulled", wait_s=0) == []


def test_failing_messages_become_dead_letters_and_are_redelivered(client: Client) -> None:
    settings = DeliverySettings(max_attempts=3, retry_delays_s=(0.0, 600.0))
    created = client.create_subscription("data.price = 88", "failing", delivery=settings)
    assert created.delivery == settings == client.get_subscription("failing").delivery
    first, second = client.publish_many(quotes(88, 88))
    with client.subscribe("failing") as messages:
        one, two = next(messages), next(messages)
        assert [one.position, two.position] == [first, second]
        one.nack()
        again = next(messages)
        assert (again.position, again.attempt) == (first, 2)
        again.extend(600)
        again.nack(0)
        last = next(messages)
        assert (last.position, last.attempt) == (first, 3)
        last.nack()
        two.terminate("no such price")
    dead = list(client.dead_letters("failing", page_size=1))
    assert [(each.position, each.attempts, each.reason) for each in dead] == [
        (first, 3, "nacked"),
        (second, 1, "no such price"),
    ]
    assert dead[0].event is not None and dead[0].event["data"]["price"] == 88
    assert client.retry_dead_letters("failing", [second]) == 1
    (found,) = client.pull("failing", wait_s=10)
    assert (found.position, found.attempt) == (second, 1)
    client.extend("failing", [second], 600)
    client.terminate("failing", [second], "still not")
    assert client.retry_dead_letters("failing") == 2
    client.ack("failing", [first, second])
    assert client.clear_dead_letters("failing") == 0
    configured = client.configure_subscription("failing", paused=True, max_attempts=None)
    assert configured.delivery == DeliverySettings(retry_delays_s=(0.0, 600.0), paused=True)
    with pytest.raises(ApiError, match="max_attempts must be"):
        client.configure_subscription("failing", max_attempts=0)


def test_after_a_seek_back_a_subscriber_gets_acked_messages_again(client: Client) -> None:
    client.create_subscription("data.price = 99", "sought")
    (found,) = client.publish_many(quotes(99))
    with client.subscribe("sought") as messages:
        next(messages).ack()
        messages.flush()
        assert client.seek("sought", found) == (found,)
        again = next(messages)
        assert (again.position, again.attempt) == (found, 1)
        again.ack()


def test_deleting_a_subscription_ends_its_stream(client: Client) -> None:
    with client.subscribe("short", "data.price = 5") as messages:
        client.publish_many(quotes(5))
        next(messages)
        client.delete_subscription("short")
        with pytest.raises((SubscriptionDeleted, ApiError)):
            next(messages)


def test_spaces_are_isolated(gateway: RealGateway, client: Client) -> None:
    client.create_space("other")
    assert {"default", "other"} <= set(client.spaces())
    with Client(gateway.url, space="other") as other, other.subscribe("all", "data.price > 0") as messages:
        client.publish_many(quotes(1))
        other.publish_many(quotes(2))
        assert next(messages).event["data"]["price"] == 2
    assert client.stats()["subscriptions"] >= 1


def test_the_async_client_follows_live(gateway: RealGateway) -> None:
    async def story() -> list[Position]:
        async with AsyncClient(gateway.url, retry=SOON) as client:
            got = []
            async with client.subscribe("live", "data.price >= 1000", auto_ack=True) as messages:
                found = await client.publish_many(quotes(*range(1000, 3000)))
                async for message in messages:
                    got.append(message.position)
                    if len(got) == 2000:
                        break
            assert got == found
            return got

    assert len(asyncio.run(asyncio.wait_for(story(), 120))) == 2000


def test_nothing_is_lost_or_doubled_while_the_gateway_is_killed(tmp_path: Path) -> None:
    """A gateway dies several times in the middle of everything; the program notices nothing but the delay."""
    total = 500 * rounds(3)
    with running_gateway(tmp_path / "data") as gateway, Client(gateway.url, retry=PATIENT) as client:
        got: list[Position] = []
        messages = client.subscribe("all", "data.price >= 0")

        def follow() -> None:
            for message in messages:
                got.append(message.position)
                message.ack()

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        publisher = client.publisher(BatchSettings(max_events=20, linger_ms=1), PATIENT)
        futures = []
        for n, quote in enumerate(quotes(*range(total))):
            futures.append(publisher.publish(quote))
            if n % 400 == 399:
                futures[n - 100].result(60)
                gateway.kill()
                gateway.start()
        publisher.close()
        positions = [future.result(60) for future in futures]
        assert len(set(positions)) == total and positions == sorted(positions)
        wait_until(lambda: len(got) >= total, timeout_s=120)
        messages.flush(60)
        messages.close()
        follower.join(60)
        assert got == positions
        with client.subscribe("all") as rest:
            last = client.publish(quotes(1)[0]).result(60)
            assert next(rest).position == last, "every ack is durable"


def test_filter_warnings_are_in_the_result_or_the_log(
    gateway: RealGateway, caplog: pytest.LogCaptureFixture
) -> None:
    """A forgotten `data.` was stored without a word and never matched."""
    with Client(gateway.url) as admin:
        admin.create_space("warned")
    with Client(gateway.url, "warned", retry=SOON) as client:
        client.publish({"source": "/s", "type": "t", "data": {"temperature": 31}}).result(60)
        made = client.create_subscription("temperature > 30", "a")
        assert [warning.hint for warning in made.warnings] == ["did you mean data.temperature?"]
        assert client.get_subscription("a").warnings == ()
        assert client.create_subscription("data.temperature > 30", "b").warnings == ()
        assert not caplog.records
        assert client.create_subscriptions([("c", "temperature > 20")]) == 1
        with client.subscribe("d", "temperature > 10"):
            pass
        logged = [record.getMessage() for record in caplog.records]
        assert len(logged) == 2 and all("did you mean data.temperature?" in text for text in logged)
        assert logged[0].startswith("subscription c: ") and logged[1].startswith("subscription d: ")

    runner = CliRunner(env={"FIELDFARE_URL": gateway.url, "FIELDFARE_SPACE": "warned"})
    shown = runner.invoke(app, ["subscriptions", "create", "e", "temperature > 5"])
    assert shown.exit_code == 0 and shown.stdout.startswith("created e")
    assert "warning: no event of the sample has temperature" in shown.stderr
    assert "hint: did you mean data.temperature?" in shown.stderr
