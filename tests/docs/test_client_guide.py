"""docs/client.md is true: its examples run, its defaults are the code's."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_documentation import DEFAULT_URL, ENVIRONMENT, ROOT, blocks

from fieldfare import AutoBatching, BatchSettings, OutboxSettings, QueueSettings, RetrySettings
from fieldfare.client.retry import FAULTY_REQUEST_STATUSES
from fieldfare.publishing.requests import RequestKnobs

pytestmark = pytest.mark.long

GUIDE = (ROOT / "docs" / "client.md").read_text()


def test_the_examples_run(gateway_url: str, tmp_path: Path) -> None:
    examples = [text for language, text in blocks("docs/client.md") if language == "python"]
    assert len(examples) == 7
    run = [sys.executable, "-c", "\n".join(examples).replace(DEFAULT_URL, gateway_url)]
    environment = ENVIRONMENT | {"FIELDFARE_URL": gateway_url}
    result = subprocess.run(run, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=180)
    assert result.returncode == 0, result.stderr
    orders = "".join(f"order {number}\n" for number in range(8))
    assert result.stdout == "0-0-0\n2 no such thermometer {'celsius': 35}\n" + orders
    assert (tmp_path / "readings.outbox").exists()


def test_every_knob_is_listed_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", GUIDE.split("## Knobs")[1], re.MULTILINE))
    fields = {field.name: field.default for field in dataclasses.fields(RequestKnobs)}
    assert list(rows) == list(fields)
    for name, default in fields.items():
        shown = rows[name].removesuffix(" s").replace(",", "")
        assert (shown == "none") if default is None else (float(shown) == default), name


@pytest.mark.parametrize("settings", [BatchSettings, RetrySettings, OutboxSettings, QueueSettings])
def test_settings_are_shown_with_their_defaults(settings: type) -> None:
    shown = re.search(rf"`(?:outbox=)?({settings.__name__}\([^`]*\))`", GUIDE)
    assert shown is not None
    names = {settings.__name__: settings, "path": "outbox"}
    assert eval(shown[1], names) == (settings("outbox") if settings is OutboxSettings else settings())


def test_what_is_final_and_what_waits_is_as_in_the_code() -> None:
    listed = ", ".join(map(str, sorted(FAULTY_REQUEST_STATUSES)))
    assert listed in " ".join(GUIDE.split())
    assert f"{QueueSettings().max_bytes >> 20} MiB" in GUIDE
    assert set(inspect.signature(AutoBatching).parameters) == {"latency_bound_ms", "max_in_flight", "knobs"}
