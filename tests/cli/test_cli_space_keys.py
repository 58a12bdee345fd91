"""`fieldfare keys space` on a real gateway: a rotation that is killed between any two steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_support import Fieldfare
from real_gateway import running_gateway

from fieldfare import Client
from fieldfare.client.encryption import SpaceKey, key_file, read_key

pytestmark = pytest.mark.long

FILTERS = {"a": "data.x < 5", "b": "data.x BETWEEN 2 AND 3 AND data.s = 'A'", "c": "TRUE"}


@pytest.fixture(autouse=True)
def cheap_passphrases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of key files are opened here; what a guess costs is tested with the files themselves."""
    monkeypatch.setattr(key_file, "SCRYPT_N", 1 << 8)


class Killed(BaseException):
    """An exception that no code catches."""


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


def test_a_typed_passphrase_is_asked_for_once_and_goes_to_no_child_process(
    fieldfare: Fieldfare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ``--exec`` commands and their children inherit the environment: it must not have the passphrase."""
    monkeypatch.delenv("FIELDFARE_SPACE_PASSPHRASE", raising=False)
    file = tmp_path / "k"
    typed = "horse of chance 7341\n"
    with running_gateway(tmp_path / "data") as gateway:
        where = ("--url", gateway.url, "--space", "secret")
        create = ("keys", "space", "create", str(file), "--number", "data.x=0:9:1")
        assert fieldfare(*create, input=typed * 2).exit_code == 0
        with Client(gateway.url) as admin:
            admin.create_space("secret", encrypted=read_key(file, typed.strip()))
        monkeypatch.setenv("FIELDFARE_SPACE_KEY", str(file))
        commands = [("keys", "space", "rotate", str(file), *where)]  # reads two files, and writes one
        commands += [("keys", "space", "show", str(file)), ("subscriptions", "list", *where)]
        for command in commands:
            done = fieldfare(*command, input=typed)
            assert done.exit_code == 0, done.stderr
            assert done.stderr.count("Passphrase") == 1
            child = subprocess.run(
                [sys.executable, "-c", "import os; print(os.environ)"], capture_output=True
            )
            assert b"FIELDFARE_SPACE_KEY" in child.stdout and b"horse" not in child.stdout
        asked_again = fieldfare("keys", "space", "show", str(file), input="wrong\n")
        assert asked_again.exit_code == 1 and "does not open" in asked_again.stderr


def test_a_missing_key_file_is_reported_before_the_passphrase_is_asked_for(
    fieldfare: Fieldfare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FIELDFARE_SPACE_PASSPHRASE", raising=False)
    path = tmp_path / "none.key"
    for command in (("--space-key", str(path), "spaces", "list"), ("keys", "space", "show", str(path))):
        found = fieldfare(*command, input="secret\n")
        assert (found.exit_code, found.stderr) == (1, f"error: {path}: No such file or directory\n")


@pytest.mark.parametrize("command", ["rotate", "drop"])
def test_a_rotation_killed_at_any_step_leaves_no_gap_and_can_be_resumed(
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


def test_commands_say_first_what_a_key_does_not_protect(
    fieldfare: Fieldfare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key of scheme 1 shows values, and its owner may not know that there is another scheme."""
    old, new = tmp_path / "old", tmp_path / "new"
    first = json.loads((Path(__file__).parent.parent / "client" / "space_key_1.json").read_text())
    old.write_text(json.dumps(first["key_file"]))
    monkeypatch.setenv("FIELDFARE_SPACE_PASSPHRASE", first["passphrase"])
    made = fieldfare("keys", "space", "create", str(new), "--number", "data.x=0:9:1")
    for file, scheme, done in ((new, 2, made), (new, 2, None), (old, 1, None)):
        shown = done or fieldfare("keys", "space", "show", str(file))
        assert shown.exit_code == 0, shown.stderr
        words = " ".join(shown.stderr.split())
        assert "obfuscation. The service sees the order of numbers" in words
        assert ("show the values of numbers to the service" in words) == (scheme == 1)
        assert done or f"scheme  {scheme}\n" in shown.stdout


def test_a_subscription_deleted_during_renew_stays_deleted(
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
