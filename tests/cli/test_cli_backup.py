"""`fieldfare backup`, `verify` and `restore`: what they print, and how they fail."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli_support import Fieldfare

from fieldfare.testing import LocalService

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("service") / "data"
    with LocalService(folder) as service, service.client() as client:
        client.create_subscription("data.n >= 0", "all")
        client.publish_many([{"source": "/s", "type": "t", "data": {"n": 1}}])
        service.wait_until_matched()
    return folder


def test_a_backup_is_made_checked_and_restored(data: Path, fieldfare: Fieldfare, tmp_path: Path) -> None:
    to, again = str(tmp_path / "backup"), str(tmp_path / "again")
    made = fieldfare("backup", to, "--data", str(data))
    assert made.exit_code == 0, made.stderr
    assert re.match(r"copied \d files, [\d,]+ bytes, in [\d.]+ s\nevents up to record 1 are in ", made.stdout)
    shared = fieldfare("backup", again, "--data", str(data), "--base", to, "--json")
    assert 0 < json.loads(shared.stdout)["shared_bytes"] < json.loads(shared.stdout)["size_bytes"]
    assert fieldfare("verify", to).stdout == "all files match their checksums\n"
    (tmp_path / "with a space").mkdir()
    restored = fieldfare("restore", to, "--data", str(tmp_path / "with a space" / "restored"))
    assert "start it: fieldfare serve --data '" in restored.stdout.replace("\n", " ")
    with LocalService(tmp_path / "with a space" / "restored") as service, service.client() as client:
        assert len(client.pull("all")) == 1


def test_mistakes_are_said_in_a_sentence(data: Path, fieldfare: Fieldfare, tmp_path: Path) -> None:
    to = str(tmp_path / "backup")
    assert fieldfare("backup", to, "--data", str(data)).exit_code == 0
    for words, said in (
        (("backup", to, "--data", str(data)), "exists already: name a new folder for the backup"),
        (("backup", f"{to}2", "--data", str(tmp_path / "none")), "there is no directory"),
        (
            ("backup", f"{to}2", "--data", str(data), "--base", str(data)),
            "is not a backup: it has no backup.json",
        ),
        (("restore", str(data), "--data", f"{to}3"), "is not a backup"),
        (("restore", to, "--data", str(data)), "is not empty: name a new data directory"),
        (("verify", str(data)), "is not a backup"),
    ):
        result = fieldfare(*words)
        assert (result.exit_code, said in result.stderr.replace("\n", " ")) == (1, True), result.stderr
    (tmp_path / "backup" / "registry.db").write_bytes(b"other")
    (tmp_path / "backup" / "log.db").unlink()
    missing = fieldfare("restore", to, "--data", f"{to}3").stderr.replace("\n", " ")
    assert "log.db: No such file or directory" in missing and "Errno" not in missing
    changed = fieldfare("verify", to)
    assert changed.exit_code == 1 and "registry.db has changed since the backup" in changed.stdout.replace(
        "\n", " "
    )
