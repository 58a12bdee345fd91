"""`fieldfare keys space` on a real gateway: a rotation that is killed between any two steps."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_support import Fieldfare
from real_gateway import running_gateway

from fieldfare import Client
from fieldfare.client.encryption import SpaceKey, read_key

pytestmark = pytest.mark.long

FILTERS = {"a": "data.x < 5", "b": "data.x BETWEEN 2 AND 3 AND data.s = 'A'", "c": "TRUE"}


class Killed(BaseException):
    """What no code catches."""


class Steps:
    """Counts what changes something outside the program, and kills it before or after one of these."""

    def __init__(self) -> None:
        self.left = -1

    def counted(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            self._count()
            found = step(*arguments, **named)
            self._count()
            return found

        return run

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    counting = Steps()
    monkeypatch.setattr(os, "replace", counting.counted(os.replace))
    monkeypatch.setattr(Client, "replace_subscription", counting.counted(Client.replace_subscription))
    return counting


def epochs_of(url: str) -> dict[str, set[int]]:
    """Of each filter, as the service has it, the epochs that it is encrypted for."""
    with Client(url, "secret") as plain:
        return {
            each.id: {one["e"] for one in json.loads(each.filter)["any"]} for each in plain.subscriptions()
        }


def read_filters(url: str, key: SpaceKey) -> dict[str, str]:
    with Client(url, "secret", encryption=key) as client:
        return {each.id: each.filter for each in client.subscriptions()}


@pytest.mark.parametrize("command", ["rotate", "drop"])
def test_a_rotation_that_is_killed_anywhere_leaves_no_gap_and_is_taken_up_again(
    fieldfare: Fieldfare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: Steps, command: str
) -> None:
    """At each step the file's newest epoch, which publishers have, is in every filter; none is unreadable."""
    monkeypatch.setenv("FIELDFARE_SPACE_PASSPHRASE", "horse")
    file = tmp_path / "k"
    following = tmp_path / "k.next"
    with running_gateway(tmp_path / "data") as gateway:
        where = ("--url", gateway.url, "--space", "secret")
        made = fieldfare("keys", "space", "create", str(file), "--number", "data.x=0:9:1", "--text", "data.s")
        assert made.exit_code == 0
        with Client(gateway.url) as admin:
            admin.create_space("secret", encrypted=read_key(file))
        with Client(gateway.url, "secret", encryption=read_key(file)) as client:
            client.create_subscriptions((id, text) for id, text in FILTERS.items())
        if command == "drop":
            assert fieldfare("keys", "space", "rotate", str(file), *where).exit_code == 0
        kills = 0
        for step in range(1, 100):
            steps.left = step
            try:
                done = fieldfare("keys", "space", command, str(file), *where)
            except Killed:
                kills += 1
            else:
                assert done.exit_code == 0, done.stderr
                break
            finally:
                steps.left = -1
            key, newest = read_key(file), read_key(following) if following.exists() else read_key(file)
            assert all(key.epoch.number in epochs for epochs in epochs_of(gateway.url).values()), step
            assert read_filters(gateway.url, newest) == FILTERS, step
        assert kills >= 8 and not following.exists()
        # Killed after its last step, a rotation is done, and the next is another one.
        wanted = {1, 2, 3} if command == "rotate" else {2}
        assert {each.number for each in read_key(file).epochs} == wanted
        assert all(epochs == wanted for epochs in epochs_of(gateway.url).values())
        assert read_filters(gateway.url, read_key(file)) == FILTERS


def test_what_is_deleted_while_filters_are_encrypted_anew_stays_deleted(
    fieldfare: Fieldfare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIELDFARE_SPACE_PASSPHRASE", "horse")
    file = tmp_path / "k"
    with running_gateway(tmp_path / "data") as gateway:
        assert fieldfare("keys", "space", "create", str(file), "--number", "data.x=0:9:1").exit_code == 0
        with Client(gateway.url) as admin:
            admin.create_space("secret", encrypted=read_key(file))
        with Client(gateway.url, "secret", encryption=read_key(file)) as client:
            client.create_subscriptions([("a", "data.x < 5"), ("b", "data.x < 6")])
            replace = Client.replace_subscription

            def meanwhile(self: Client, id: str, *given: Any) -> Any:
                if id == "a":
                    client.delete_subscription("b")
                return replace(self, id, *given)

            monkeypatch.setattr(Client, "replace_subscription", meanwhile)
            done = fieldfare("keys", "space", "renew", str(file), "--url", gateway.url, "--space", "secret")
            assert done.exit_code == 0, done.stderr
            assert [each.id for each in client.subscriptions()] == ["a"]
