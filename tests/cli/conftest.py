"""A service that fails on command, and the command line run against it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from cli_support import Fieldfare
from typer.testing import CliRunner, Result

sys.path.insert(0, str(Path(__file__).parent.parent / "client"))

from faulty_service import FaultyService

from fieldfare.cli.app import app
from fieldfare.cli.space_keys import ask_passphrase


@pytest.fixture
def service() -> Iterator[FaultyService]:
    with FaultyService() as running:
        yield running


@pytest.fixture
def fieldfare(service: FaultyService, monkeypatch: pytest.MonkeyPatch) -> Fieldfare:
    """Runs a command against the service; its result has stdout, stderr and exit_code."""
    monkeypatch.setenv("FIELDFARE_URL", service.url)
    monkeypatch.delenv("FIELDFARE_SPACE", raising=False)
    monkeypatch.setenv("COLUMNS", "120")

    def run(*arguments: str, input: str | bytes | None = None) -> Result:
        ask_passphrase.cache_clear()  # a process runs one command, and sets variables for itself
        with patch.dict(os.environ):
            result = CliRunner().invoke(app, list(arguments), input=input)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run
