"""Owner and labels of subscriptions through the clients and the command line, against a real gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fieldfare import ApiError, Client
from fieldfare.cli.app import app
from fieldfare.client import NewSubscription, SubscriptionsRefused
from fieldfare.testing import LocalService


@pytest.fixture
def service() -> Iterator[LocalService]:
    with LocalService() as service:
        yield service


@pytest.fixture
def client(service: LocalService) -> Iterator[Client]:
    with service.client() as client:
        yield client


def test_the_client_creates_changes_and_finds_subscriptions_by_owner_and_label(client: Client) -> None:
    made = client.create_subscription("a = 1", "x", owner="ann", labels={"team": "pay", "env": "prod"})
    assert (made.owner, made.labels) == ("ann", {"env": "prod", "team": "pay"})
    kept = client.replace_subscription("x", "a = 2")
    assert (kept.owner, kept.labels) == (made.owner, made.labels)
    changed = client.configure_subscription("x", labels={"env": "test", "team": None}, max_attempts=3)
    assert (changed.labels, changed.delivery.max_attempts) == ({"env": "test"}, 3)
    assert changed.revision == kept.revision
    assert client.configure_subscription("x", owner=None).owner is None
    assert client.configure_subscription("x", owner="bob").delivery.max_attempts == 3
    client.create_subscription("a = 3", "y", owner="bob", labels={"env": "prod"})
    client.create_subscription("a = 4", "z")

    def ids(**asked: object) -> list[str]:
        return [each.id for each in client.subscriptions(1, **asked)]  # type: ignore[arg-type]

    assert ids() == ["x", "y", "z"]
    assert ids(owner="bob") == ids(labels={"env": None}) == ids(search="env=") == ["x", "y"]
    assert ids(owner="bob", labels={"env": "prod"}) == ["y"]
    assert ids(owner="bob", sort="backlog") == ["x", "y"]
    with pytest.raises(ApiError, match="/labels/a b") as refused:
        client.create_subscription("a = 1", "q", labels={"a b": "c"})
    assert refused.value.status == 400


def test_many_are_created_with_owner_and_labels(client: Client) -> None:
    items = [
        NewSubscription("a = 1", "x", owner="ann", labels={"env": "prod"}),
        {"id": "y", "filter": "a = 1", "owner": "bob", "labels": {"env": "test"}},
        {"id": "z", "filter": "a = 1", "labels": {"env": "\n"}},
    ]
    with pytest.raises(SubscriptionsRefused, match="/labels/env"):
        client.create_subscriptions(items)
    assert {each.id: (each.owner, dict(each.labels)) for each in client.subscriptions()} == {
        "x": ("ann", {"env": "prod"}),
        "y": ("bob", {"env": "test"}),
    }


def test_the_asynchronous_client_does_the_same(service: LocalService) -> None:
    async def work() -> None:
        async with service.async_client() as client:
            await client.create_subscription("a = 1", "x", owner="ann", labels={"env": "prod"})
            await client.configure_subscription("x", labels={"tier": "1"})
            (found,) = [each async for each in client.subscriptions(owner="ann", labels={"tier": "1"})]
            assert found.labels == {"env": "prod", "tier": "1"}

    asyncio.run(work())


def test_the_command_line(service: LocalService, tmp_path: Path) -> None:
    runner = CliRunner(env={"FIELDFARE_URL": service.url, "COLUMNS": "200"})

    def run(*arguments: str, status: int = 0) -> str:
        result = runner.invoke(app, ["subscriptions", *arguments])
        assert result.exit_code == status, result.output
        return result.output

    run("create", "x", "a = 1", "--owner", "ann", "--label", "team=pay", "--label", "env=prod")
    run("create", "y", "a = 1")
    shown = run("get", "x")
    assert "owner       ann\n" in shown and "labels      env=prod, team=pay\n" in shown
    run("set", "x", "--label", "env=test", "--remove-label", "team", "--max-attempts", "3")
    found = json.loads(run("list", "--owner", "ann", "--label", "env", "--json"))
    assert (found["labels"], found["delivery"]) == ({"env": "test"}, {"max_attempts": 3})
    table = [line.split() for line in run("list").splitlines()]
    assert table == [
        ["id", "valid", "from", "dialect", "owner", "labels", "filter"],
        ["x", "0-0-0", "sql", "ann", "env=test", "a", "=", "1"],
        ["y", "0-0-0", "sql", "a", "=", "1"],
    ]
    assert run("list", "--label", "env=prod") == "no subscriptions\n"
    assert run("list", "--search", "ENV=T", "--sort", "id").splitlines()[1].startswith("x ")
    assert '"owner"' not in run("set", "x", "--owner", "none", "--json")
    assert "a label is KEY=VALUE, not 'env'" in run("set", "x", "--label", "env", status=2)
    assert "given twice" in run("create", "z", "a = 1", "--label", "a=1", "--label", "a=2", status=2)
    lines, table_file = tmp_path / "many.jsonl", tmp_path / "many.csv"
    lines.write_text('{"id": "j", "filter": "a = 1", "owner": "eve", "labels": {"env": "prod"}}\n')
    table_file.write_text('id,filter,owner,labels\nc,a = 1,eve,"{""env"": ""prod""}"\n')
    for file in (lines, table_file):
        run("create", "--file", str(file))
    listed = run("list", "--owner", "eve", "--label", "env=prod").splitlines()
    assert [line.split()[0] for line in listed] == ["id", "c", "j"]
    lines.write_text('{"id": "k", "filter": "a = 1", "labels": ["env"]}\n')
    assert "the labels must be an object" in run("create", "--file", str(lines), status=1)
