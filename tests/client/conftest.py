"""A service that fails on command, and a client of it, for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from client_support import SOON
from faulty_service import FaultyService
from real_gateway import RealGateway, running_gateway

from fieldfare import Client


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIELDFARE_URL", "FIELDFARE_SPACE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def service() -> Iterator[FaultyService]:
    with FaultyService() as running:
        yield running


@pytest.fixture
def client(service: FaultyService) -> Iterator[Client]:
    with Client(service.url, timeout_s=5.0, retry=SOON) as connected:
        yield connected


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGateway]:
    with running_gateway(tmp_path_factory.mktemp("data")) as running:
        yield running
