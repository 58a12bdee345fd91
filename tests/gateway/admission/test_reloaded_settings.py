"""When a changed file of a setting counts: the gateway does what the settings page says."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from gateway_support import run, running, until_async
from test_tls import Authority, pytestmark  # noqa: F401
from token_support import token_settings

from fieldfare.cli.configuration import Known
from fieldfare.runtimes.process.reexec import Inheritance
from fieldfare.runtimes.service.serve import CannotStart, _check_start
from fieldfare.storage.addresses import AddressError, settle
from fieldfare.storage.folder import DataFolder

sys.path.append(str(Path(__file__).parents[3] / "tools"))

from settings_page import FIXED, RELOADED, WATCHED

OPENED: set[str] = set()
"""The paths that this process has opened since a test emptied it."""
IS_NOTED = Event()
"""Set while a test wants to know; a hook stays for the process's life."""


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and IS_NOTED.is_set() and isinstance(arguments[0], str | os.PathLike):
        OPENED.add(os.fspath(arguments[0]))  # type: ignore[arg-type]


@pytest.fixture
def files(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """A file for each setting that names one."""
    sys.addaudithook(_note)
    IS_NOTED.set()
    authority = Authority(tmp_path, "ca")
    certificate = authority.sign("server")
    key = tmp_path / "admin.key"
    key.write_text("k" * 40 + "\n")
    (tmp_path / "peer.key").write_text("p" * 40 + "\n")
    (tmp_path / "filters").write_text("b data.x = 1\n")
    for name in ("webhook-ca.pem", "peer-ca.pem"):
        (tmp_path / name).write_bytes(authority.path.read_bytes())
    yield {
        "admin_key_file": key,
        "tls_cert": certificate,
        "tls_key": certificate.with_suffix(".key"),
        "tls_client_ca": authority.path,
        "jwt_jwks": Path(token_settings(tmp_path)["jwt_jwks"]),
        "peer_key_file": tmp_path / "peer.key",
        "peer_ca_file": tmp_path / "peer-ca.pem",
        "peer_filter_file": tmp_path / "filters",
        "webhook_ca_file": tmp_path / "webhook-ca.pem",
    }
    IS_NOTED.clear()


def test_the_files_that_are_read_again_are_those_of_the_settings_page(
    files: dict[str, Path], tmp_path: Path
) -> None:
    assert set(files) == {
        name for name, field in Known().fields.items() if "Path" in str(field.annotation) and name != "data"
    } | {"jwt_jwks"}

    def opened() -> set[str]:
        return {name for name, path in files.items() if str(path) in OPENED}

    def touch() -> None:
        for number, path in enumerate(files.values()):
            os.utime(path, (1_700_000_000 + number + len(OPENED),) * 2)
        OPENED.clear()

    async def work() -> None:
        settings = token_settings(tmp_path) | files | {"jwt_jwks": str(files["jwt_jwks"])}
        settings |= {"broker": "a", "peers": "b=https://127.0.0.1:9"}
        async with running(tmp_path / "data", **settings) as r:
            touch()
            r.gateway.reload()
            assert opened() - {"jwt_jwks"} == set(RELOADED)
            touch()
            await until_async(lambda: opened() >= set(WATCHED))
            assert opened() == set(WATCHED)

    run(work)


def test_a_directory_keeps_the_settings_that_the_page_says(tmp_path: Path) -> None:
    assert FIXED == ("data", "log")
    folder = settle(tmp_path / "one", None)
    folder.root.mkdir(exist_ok=True)
    folder.log_path.touch()
    inherited = Inheritance(str(folder.root), ("127.0.0.1", 0), -1, -1, ends_with_terminal=False)
    with pytest.raises(CannotStart, match="cannot be changed"):
        _check_start(DataFolder(tmp_path / "two"), ("127.0.0.1", 0), None, None, inherited)
    with pytest.raises(AddressError, match="log"):
        settle(folder.root, "kafka://127.0.0.1:9/events", None)
