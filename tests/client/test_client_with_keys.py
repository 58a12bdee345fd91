"""The client and the command line with a service that asks for keys."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_support import SOON
from real_gateway import RealGateway, running_gateway
from typer.testing import CliRunner

from fieldfare import ApiError, AsyncClient, Client
from fieldfare.cli.app import app

pytestmark = pytest.mark.long

ADMIN = "an-admin-key-of-forty-characters-0123456789"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGateway]:
    folder = tmp_path_factory.mktemp("locked")
    (folder / "admin.key").write_text(ADMIN)
    with running_gateway(folder / "data", admin_key_file=str(folder / "admin.key")) as running:
        yield running


@pytest.fixture(autouse=True)
def no_key_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIELDFARE_API_KEY", "FIELDFARE_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)


def quote(price: float) -> dict[str, object]:
    return {"source": "/quotes", "type": "quote", "data": {"price": price}}


def test_keys_are_made_used_and_revoked(gateway: RealGateway) -> None:
    """A publisher's program gets a key for its space; it stops working when that is taken back."""
    with Client(gateway.url, key=ADMIN) as admin:
        admin.create_space("trading")
        made = admin.create_key(["publish"], space="trading", note="gate 17")
        reads = admin.create_key(["subscribe"], space="trading")
        assert made.info in admin.api_keys() and made.key not in repr(made)
        with (
            Client(gateway.url, "trading", key=reads.key) as reader,
            reader.subscribe("all", "TRUE") as messages,
        ):
            with Client(gateway.url, "trading", key=made.key, retry=SOON) as publisher:
                publisher.publish(quote(1)).result(60)
                assert next(messages).event["data"] == {"price": 1}
                with pytest.raises(ApiError, match="subscribe") as refused:
                    publisher.create_subscription("TRUE")
                assert refused.value.status == 403
                admin.revoke_key(made.info.id)
                with pytest.raises(ApiError) as gone:
                    publisher.publish(quote(2)).result(60)
                assert gone.value.status == 401 and made.key not in str(gone.value)
            admin.revoke_key(reads.info.id)
            with pytest.raises(ApiError) as ended:
                next(messages)
            assert ended.value.status == 401


def test_a_key_comes_from_the_program_the_environment_or_a_file(
    gateway: RealGateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def spaces() -> list[str]:
        async with AsyncClient(gateway.url) as client:
            return await client.spaces()

    with Client(gateway.url) as nobody, pytest.raises(ApiError, match="FIELDFARE_API_KEY"):
        nobody.spaces()
    (tmp_path / "a.key").write_text(ADMIN + "\n")
    monkeypatch.setenv("FIELDFARE_API_KEY_FILE", str(tmp_path / "a.key"))
    assert "default" in asyncio.run(spaces())
    monkeypatch.setenv("FIELDFARE_API_KEY", "wrong")
    with Client(gateway.url) as wrong, pytest.raises(ApiError, match="not valid"):
        wrong.spaces()
    with Client(gateway.url, key=ADMIN) as client:
        assert "default" in client.spaces()


def test_an_invalid_key_is_refused_without_being_shown(
    gateway: RealGateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A header must not be made of what stands in a file, whatever that is; nor an error."""
    broken = f"{ADMIN}\r\nx-evil: 1"
    with pytest.raises(ValueError, match="key holds no API key") as caught:
        Client(gateway.url, key=broken)
    assert ADMIN not in str(caught.value)
    monkeypatch.setenv("FIELDFARE_API_KEY_FILE", str(tmp_path / "missing"))
    with pytest.raises(ValueError, match="missing cannot be read: No such file"):
        Client(gateway.url)
    (tmp_path / "missing").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="it is not text"):
        Client(gateway.url)


def test_the_key_is_in_no_text_form_of_a_client(
    gateway: RealGateway, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(gateway.url, key=ADMIN) as client:
        shown = [repr(client), str(vars(client)), repr(client._connection.http.headers)]
        assert not any(ADMIN in text for text in shown)
        with pytest.raises(TypeError):
            pickle.dumps(client)
    Client("http://events.example.com", key=ADMIN).close()
    assert "unencrypted" in caplog.text and ADMIN not in caplog.text


def test_the_command_line_makes_lists_and_revokes_keys(gateway: RealGateway, tmp_path: Path) -> None:
    (tmp_path / "admin.key").write_text(ADMIN)
    runner = CliRunner(env={"FIELDFARE_URL": gateway.url, "FIELDFARE_API_KEY": "another"})
    as_admin = ["--key-file", str(tmp_path / "admin.key")]

    made = runner.invoke(app, [*as_admin, "keys", "create", "watch", "--note", "prometheus"])
    assert made.exit_code == 0 and "not shown again" in made.stderr
    key = made.stdout.strip()
    listed = runner.invoke(app, [*as_admin, "keys", "list"])
    assert key.split("_")[1] in listed.stdout and "prometheus" in listed.stdout and key not in listed.stdout
    (tmp_path / "watch.key").write_text(key)
    as_watcher = ["--key-file", str(tmp_path / "watch.key")]
    assert runner.invoke(app, [*as_watcher, "top", "--once"]).exit_code == 0
    assert runner.invoke(app, [*as_watcher, "keys", "list"]).exit_code == 1
    revoked = runner.invoke(app, [*as_admin, "keys", "revoke", key.split("_")[1]])
    assert revoked.exit_code == 0
    refused = runner.invoke(app, [*as_watcher, "top", "--once"])
    assert refused.exit_code == 1 and "hint:" in refused.stderr and key not in refused.stderr
