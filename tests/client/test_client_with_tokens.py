"""The client and the command line with tokens that expire: who gives a fresh one goes on."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_support import SOON
from real_gateway import RealGateway, running_gateway
from typer.testing import CliRunner

from fieldfare import ApiError, AsyncClient, Client, ConnectionFailed, FieldfareError
from fieldfare.cli.app import app

sys.path.append(str(Path(__file__).parent.parent / "gateway"))

from token_support import sign, token_settings

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGateway]:
    folder = tmp_path_factory.mktemp("tokens")
    with running_gateway(folder / "data", jwt_leeway_s="0", **token_settings(folder)) as running:
        yield running


@pytest.fixture(autouse=True)
def no_key_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIELDFARE_API_KEY", "FIELDFARE_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)


EVENT = {"source": "/quotes", "type": "quote", "data": {"price": 17}}


def lasting(seconds: float, scope: str = "publish:default subscribe:default") -> str:
    return sign(scope, exp=int(time.time()) + seconds)


def test_a_subscriber_outlives_its_tokens(gateway: RealGateway) -> None:
    """The service ends a stream when its token expires; the subscriber comes back with the next one."""
    given: list[str] = []

    def give() -> str:
        given.append(lasting(2))
        return given[-1]

    with (
        Client(gateway.url, key=lasting(600)) as publisher,
        Client(gateway.url, key=give) as client,
        client.subscribe("outlives", "data.price = 17") as messages,
    ):
        publisher.publish(EVENT).result(60)
        next(messages).ack()
        messages.flush()
        opened = len(given)
        publisher.publish_many([EVENT] * 2)
        next(messages).ack()
        next(messages).ack()
        until_s = time.monotonic() + 180
        while len(given) < opened + 4 and time.monotonic() < until_s:  # over two tokens' ends
            publisher.publish(EVENT).result(60)
            next(messages).ack()
        assert time.monotonic() < until_s


def test_an_expired_token_is_a_final_error_without_a_callable(gateway: RealGateway) -> None:
    with Client(gateway.url, key=lasting(-5), retry=SOON) as client:
        with pytest.raises(ApiError, match="has expired") as refused:
            client.publish(EVENT).result(60)
        assert refused.value.status == 401


def test_an_asyncio_program_awaits_its_tokens(gateway: RealGateway) -> None:
    asked = 0

    async def give() -> str:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0)
        return lasting(60)

    async def work() -> None:
        async with AsyncClient(gateway.url, key=give) as client:
            await client.publish(EVENT)
            async with client.subscribe("awaits", "TRUE") as messages:
                await client.publish(EVENT)
                async for message in messages:
                    message.ack()
                    break
        async with AsyncClient(gateway.url, key=lambda: lasting(60)) as client:
            await client.publish(EVENT)

    asyncio.run(work())
    assert asked >= 4


def test_a_failing_token_callable_is_retried(gateway: RealGateway) -> None:
    away = 3

    def give() -> str:
        nonlocal away
        away -= 1
        if away >= 0:
            raise OSError("secret words of the issuer")
        return lasting(60)

    with Client(gateway.url, key=give, retry=SOON) as client:
        assert client.publish(EVENT).result(60)
        away = 1
        with pytest.raises(ConnectionFailed, match=r"API key of .* raised OSError") as caught:
            client.get_subscription("any")
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("given", [None, 17, "", "two\nlines", b"bytes"])
def test_an_invalid_token_is_not_sent(gateway: RealGateway, given: object) -> None:
    with (
        Client(gateway.url, key=lambda: given) as client,  # type: ignore[arg-type, return-value]
        pytest.raises(FieldfareError, match="holds no API key"),
    ):
        client.get_subscription("any")


def test_a_token_in_a_file_is_read_again_when_it_was_renewed(
    gateway: RealGateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An orchestrator renews it under a program that runs for months."""
    path = tmp_path / "token"
    path.write_text(lasting(-60))
    monkeypatch.setenv("FIELDFARE_API_KEY_FILE", str(path))
    with Client(gateway.url) as client:
        with pytest.raises(ApiError, match="has expired"):
            client.get_subscription("any")
        path.write_text(lasting(60) + "\n")
        client.publish(EVENT).result(60)
        for unreadable in (path.unlink, lambda: path.write_text("a b")):
            unreadable()
            client.publish(EVENT).result(60)
    path.write_text(lasting(60))
    listed = CliRunner().invoke(
        app, ["--key-file", str(path), "spaces", "list", "--url", gateway.url], env={}
    )
    assert listed.exit_code == 0 and listed.stdout == "default\n", listed.stderr
