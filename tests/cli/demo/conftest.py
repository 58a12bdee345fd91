from __future__ import annotations

import pyarrow as pa
import pytest

from fieldfare.cli.demo.flights import encode_departures, read_departures


@pytest.fixture(scope="session")
def departures() -> pa.Table:
    """The whole year; reading it takes a second or two, so all tests share it."""
    return read_departures()


@pytest.fixture(scope="session")
def events(departures: pa.Table) -> list[bytes]:
    return encode_departures(departures).to_pylist()
