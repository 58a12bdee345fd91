"""The async client keeps the sync one's promises: both drive the same machines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from client_support import SOON
from faulty_service import Fault, FaultyService

from fieldfare import ApiError, AsyncClient, BatchSettings, Position, PublishError
from fieldfare.client import ClientClosed, FlushTimeout, SubscriptionDeleted


def run(
    service: FaultyService, story: Callable[[AsyncClient], Awaitable[None]], timeout_s: float = 60
) -> None:
    async def play() -> None:
        async with asyncio.timeout(timeout_s), AsyncClient(service.url, retry=SOON) as client:
            await story(client)

    asyncio.run(play())


def event(number: int) -> dict[str, object]:
    return {"source": "/test", "type": "count", "data": {"n": number}}


def numbers(service: FaultyService) -> list[int]:
    return [each["data"]["n"] for each in service.events()]


def test_publishing_keeps_order_and_doubles_nothing(service: FaultyService) -> None:
    service.fail_next("events", *[Fault("drop_after"), Fault("status", 500), Fault("drop_before")] * 3)

    async def story(client: AsyncClient) -> None:
        futures = [client.publish(event(n)) for n in range(1500)]
        found = await asyncio.gather(*futures)
        assert found == sorted(found)
        assert len(await client.publish_many(event(n) for n in range(1500, 3000))) == 1500
        assert await client.publish_many([]) == []

    run(service, story)
    assert numbers(service) == list(range(3000))
    assert service.duplicates >= 3


def test_a_partial_batch_accounts_for_every_event(service: FaultyService) -> None:
    async def story(client: AsyncClient) -> None:
        good, bad = client.publish(event(1)), client.publish(b"{oops")
        assert isinstance(await good, Position)
        with pytest.raises(PublishError, match="refused the event: not JSON"):
            await bad
        with pytest.raises(PublishError) as caught:
            await client.publish_many([b"[]", event(2)])
        assert [index for index, _ in caught.value.accepted] == [1]

    run(service, story)


def test_several_requests_in_flight_lose_and_double_nothing(service: FaultyService) -> None:
    service.fail_next("events", *[Fault("drop_after"), Fault("status", 429)] * 5)

    async def story(client: AsyncClient) -> None:
        settings = BatchSettings(max_events=5, linger_ms=0, max_in_flight=4)
        async with client.publisher(settings, SOON) as publisher:
            for n in range(300):
                publisher.publish(event(n))
                await publisher.drain()
        assert publisher.stats().acknowledged_events == 300

    run(service, story)
    assert sorted(numbers(service)) == list(range(300))


def test_closing_sends_what_is_queued(service: FaultyService) -> None:
    async def story(client: AsyncClient) -> None:
        publisher = client.publisher(BatchSettings(linger_ms=60_000))
        future = publisher.publish(event(1))
        await publisher.close()
        assert future.done()
        with pytest.raises(ClientClosed):
            publisher.publish(event(2))

    run(service, story)
    assert numbers(service) == [1]


def test_close_with_a_bound_fails_what_could_not_be_sent(service: FaultyService) -> None:
    service.fail_next("events", *[Fault("status", 500)] * 1000)

    async def story(client: AsyncClient) -> None:
        publisher = client.publisher(BatchSettings(max_events=1, linger_ms=0), SOON)
        futures = [publisher.publish(event(n)) for n in range(3)]
        with pytest.raises(FlushTimeout):
            await publisher.flush(0.05)
        await publisher.close(0.05)
        found = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(error) for error in found] == [ClientClosed] * 3

    run(service, story)


def test_a_cancelled_publisher_call_does_not_disturb_the_others(service: FaultyService) -> None:
    async def story(client: AsyncClient) -> None:
        first, second = client.publish(event(1)), client.publish(event(2))
        first.cancel()
        assert await second == Position(0, 0, 1)

    run(service, story)


def test_a_subscriber_resumes_at_its_cursor(service: FaultyService) -> None:
    async def story(client: AsyncClient) -> None:
        found = await client.publish_many(event(n) for n in range(2000))
        got: list[Position] = []
        async with client.subscribe("mine", "data.n >= 0", window=500) as messages:
            async for message in messages:
                got.append(message.position)
                message.ack()
                if len(got) in (100, 700):
                    service.fail_next("ack", Fault("status", 503))
                    service.cut_all_streams()
                if len(got) == 2000:
                    break
            await messages.flush()
            assert len(service.acked["mine"]) == 2000
        assert got == found

    run(service, story)


def test_a_loop_in_another_task_ends_when_its_subscriber_is_closed(service: FaultyService) -> None:
    async def story(client: AsyncClient) -> None:
        messages = client.subscribe("mine", "data.n >= 0", auto_ack=True)

        async def follow() -> int:
            return len([message async for message in messages])

        await client.publish_many([event(1), event(2)])
        task = asyncio.create_task(follow())
        while len(service.acked.get("mine", ())) < 1:
            await asyncio.sleep(0.005)
        await messages.close()
        assert await task == 2

    run(service, story)


def test_a_deleted_subscription_ends_its_subscribers(service: FaultyService) -> None:
    async def story(client: AsyncClient) -> None:
        await client.publish(event(1))
        async with client.subscribe("mine", "data.n >= 0") as messages:
            (await anext(messages)).nack()
            await anext(messages)
            await client.delete_subscription("mine")
            with pytest.raises(SubscriptionDeleted):
                await anext(messages)

    run(service, story)


def test_the_verbs_of_the_sync_client_are_there(service: FaultyService) -> None:
    async def story(client: AsyncClient) -> None:
        assert (await client.create_subscription("a = 1", "b")).id == "b"
        assert await client.create_subscriptions([("a", "x = 1")]) == 1
        assert (await client.replace_subscription("b", "a = 2")).filter == "a = 2"
        assert [info.id async for info in client.subscriptions(page_size=1)] == ["a", "b"]
        at = await client.publish(event(1))
        assert [message.position for message in await client.pull("b")] == [at]
        await client.ack("b", [at])
        assert service.acked["b"] == {str(at)}
        await client.delete_subscription("a")
        with pytest.raises(ApiError, match="there is no subscription a"):
            await client.get_subscription("a")
        assert await client.spaces() == ["default"]
        assert await client.stats() == {"subscriptions": 1}

    run(service, story)


def test_both_clients_have_the_same_verbs() -> None:
    from fieldfare import Client

    names = [{name for name in dir(kind) if not name.startswith("_")} for kind in (Client, AsyncClient)]
    assert names[0] == names[1]
