"""The pages are tried on the real gateway, with the naive pipeline behind it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "client"))


@pytest.fixture
def gateway_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from real_gateway import running_gateway

    for name in [name for name in os.environ if name.startswith("FIELDFARE_")]:
        monkeypatch.delenv(name)
    with running_gateway(tmp_path / "data") as gateway:
        yield gateway.url


@pytest.fixture(scope="module")
def shared_gateway_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway for tests that use spaces of their own."""
    from real_gateway import running_gateway

    with running_gateway(tmp_path_factory.mktemp("data")) as gateway:
        yield gateway.url
