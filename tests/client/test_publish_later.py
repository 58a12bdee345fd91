"""Publishing for later with the real gateway, and a gateway that is killed meanwhile."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_hex

import pytest
from client_support import SOON
from faulty_service import wait_until
from real_gateway import NaivePipeline, RealGateway

from fieldfare import ApiError, AsyncClient, Client, PublishError

pytestmark = pytest.mark.long


def reminders(*numbers: int) -> list[dict[str, object]]:
    return [{"source": "/cart", "type": "reminder", "data": {"n": number}} for number in numbers]


@pytest.fixture
def space(gateway: RealGateway) -> str:
    """A space where nothing waits."""
    name = f"later-{token_hex(8)}"
    with Client(gateway.url, retry=SOON) as client:
        client.create_space(name)
    return name


def test_delayed_events_are_listed_delivered_and_cancelled(gateway: RealGateway, space: str) -> None:
    with (
        Client(gateway.url, space, retry=SOON) as client,
        client.subscribe("all", "EXISTS data.n") as messages,
    ):
        begun = datetime.now(UTC)
        hour = client.publish_later(reminders(1, 2), 3_600)
        day = client.publish_later(reminders(3), begun + timedelta(days=1))
        minute = client.publish_later(reminders(4), timedelta(minutes=1))
        assert timedelta(minutes=59) < hour.due - begun < timedelta(minutes=70) and hour.count == 2
        assert abs(day.due - begun - timedelta(days=1)) < timedelta(seconds=1)
        assert list(client.delayed()) == list(client.delayed(page_size=1)) == [minute, hour, day]
        client.cancel_delayed(hour.id)
        with pytest.raises(ApiError, match="There are no delayed events"):
            client.cancel_delayed(hour.id)
        client.publish_later(reminders(5), 0.01)
        assert next(messages).event["data"] == {"n": 5}
        assert list(client.delayed()) == [minute, day]


def test_invalid_keys_have_clear_errors(gateway: RealGateway) -> None:
    with Client(gateway.url, retry=SOON) as client:
        for when in (-1, float("nan"), float("inf"), timedelta(seconds=-1), datetime(2030, 1, 1)):
            with pytest.raises(ValueError, match=r"0 or more seconds|time zone"):
                client.publish_later(reminders(1), when)
        with pytest.raises(ValueError, match="1 to 10,000 events"):
            client.publish_later([], 1)
        with pytest.raises(ApiError, match="longer than 2592000 s"):
            client.publish_later(reminders(1), timedelta(days=31))
        bad = [b'{"specversion":"1.0","id":"1","source":"/s","type":"t","expirytime":"soon"}']
        with pytest.raises(PublishError, match="expirytime must be"):
            client.publish_later(bad, 60)
        kept = client.publish_later([*reminders(1), *bad], 60)
        assert (kept.count, [each.index for each in kept.refused]) == (1, [1])


def test_the_client_for_asyncio_has_the_same(gateway: RealGateway, space: str) -> None:
    async def work() -> None:
        async with AsyncClient(gateway.url, space, retry=SOON) as client:
            kept = await client.publish_later(reminders(1), 60)
            assert [each async for each in client.delayed()] == [kept]
            await client.cancel_delayed(kept.id)

    asyncio.run(work())


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_again_and_again_each_comes_once(tmp_path: Path, seed: int) -> None:
    """kill -9 while some are being kept, some are due, and some are handed over."""
    rng = random.Random(seed)
    gateway = RealGateway(tmp_path)
    gateway.start()
    with Client(gateway.url, retry=SOON) as client, NaivePipeline(tmp_path):
        client.create_subscription("EXISTS data.n", "all")
        sent = 0
        for _ in range(5):
            for _ in range(20):
                client.publish_later(reminders(sent, sent + 1), rng.uniform(0, 0.3))
                sent += 2
            gateway.kill()
            gateway.start()
        wait_until(lambda: not list(client.delayed()))
        found: list[int] = []
        while len(found) < sent:
            messages = client.pull("all", max_messages=1_000, wait_s=5)
            assert messages, (seed, sorted(set(range(sent)) - set(found)))
            found += [each.event["data"]["n"] for each in messages]
            client.ack("all", [each.position for each in messages])
        assert sorted(found) == list(range(sent)), seed
        assert client.pull("all", wait_s=0) == []
    gateway.stop()
    assert "Traceback" not in (tmp_path / "gateway.log").read_text()
