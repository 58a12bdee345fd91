"""Settings from the environment: errors are reported before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from fieldfare.cli.app import app
from fieldfare.cli.variables import known_variables
from fieldfare.gateway.setting_values import unknown_settings
from fieldfare.gateway.settings import GatewaySettings, wrong_setting
from fieldfare.units import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("10GB", 10**10), ("64 MiB", 64 << 20), ("1.5GiB", 3 << 29), ("2kB", 2000), ("7", 7), ("1tb", 10**12)],
)
def test_a_size_may_have_a_unit(text: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_size(text) == size
    monkeypatch.setenv("FIELDFARE_DELAYED_MAX_BYTES", text)
    assert GatewaySettings().delayed_max_bytes == size


@pytest.mark.parametrize("text", ["10XB", "GB", "-5MB", "1 000", "", "10G", "0x10"])
def test_a_size_with_an_unknown_unit_is_refused_with_those_that_there_are(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIELDFARE_RETENTION_BYTES", text)
    with pytest.raises(ValidationError) as refused:
        GatewaySettings()
    assert "GiB" in wrong_setting(refused.value)


def test_every_size_and_time_may_have_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes accepted units and times did not; a new setting must follow the rule."""
    from fieldfare.gateway.setting_values import amount_of

    names = [name for name in GatewaySettings.model_fields if name.endswith(("_s", "_ms", "_bytes"))]
    times = [name for name in names if not name.endswith(("_bytes", "_per_s"))]
    assert len(times) > 15
    for name in times:
        assert amount_of(name, "2 min") == (120_000 if name.endswith("_ms") else 120), name
    for name in names:
        if name.endswith("_bytes"):
            assert amount_of(name, "3MiB") == 3 << 20, name
    for name, text, value in [
        ("RETENTION_S", "7d", 7 * 86_400),
        ("POLL_MS", "250us", None),
        ("POLL_MS", "5", 5),
        ("POLL_MS", "0.05s", 50),
        ("RETRY_AFTER_S", "1min", 60),
        ("QUOTA_BYTES_PER_S", "1MB", 10**6),
        ("QUOTA_BYTES_PER_S", "0.5", 0.5),
        ("QUOTA_MATCHING_MS_PER_S", "2.5", 2.5),
    ]:
        monkeypatch.setenv(f"FIELDFARE_{name}", text)
        if value is None:
            with pytest.raises(
                ValidationError, match=r"'250us' is not a time; .* milliseconds.* ms, s, min, h, d"
            ):
                GatewaySettings()
        else:
            assert getattr(GatewaySettings(), name.lower()) == value
        monkeypatch.delenv(f"FIELDFARE_{name}")


def test_an_error_shows_the_value_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """1KB was reported as 1000."""
    monkeypatch.setenv("FIELDFARE_RETENTION_BYTES", "1KB")
    with pytest.raises(ValidationError) as refused:
        GatewaySettings()
    assert wrong_setting(refused.value).startswith("FIELDFARE_RETENTION_BYTES=1KB: Input should be greater")


@pytest.mark.parametrize("name", ["FIELDFARE_WINDOW_MAX", "FIELDFARE_WINDOW_DEFAULT"])
def test_a_window_has_a_maximum(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, str(10**18))
    with pytest.raises(ValidationError) as refused:
        GatewaySettings()
    assert wrong_setting(refused.value) == f"{name}={10**18}: Input should be less than or equal to 1000000"
    monkeypatch.setenv(name, "1000000")
    GatewaySettings()


def test_every_wrong_setting_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FIELDFARE_RETENTION_S", "soon")
    monkeypatch.setenv("FIELDFARE_ACK_DEADLINE_S", "-1")
    monkeypatch.setenv("FIELDFARE_RETENTON_BYTES", "10GB")
    shown = CliRunner().invoke(app, ["serve", "--data", str(tmp_path / "data")])
    assert shown.exit_code == 1 and not (tmp_path / "data").exists()
    assert "FIELDFARE_RETENTION_S=soon: " in shown.stderr and "FIELDFARE_ACK_DEADLINE_S=-1: " in shown.stderr
    assert "FIELDFARE_RETENTON_BYTES is not a setting" in shown.stderr
    assert "did you mean FIELDFARE_RETENTION_BYTES?" in shown.stderr


def test_every_variable_that_the_package_reads_is_known() -> None:
    """A variable of the command line or of another process is no misspelt setting."""
    import re

    import fieldfare

    names: set[str] = set()
    for path in Path(fieldfare.__file__).parent.rglob("*.py"):
        names |= set(re.findall(r"FIELDFARE_[A-Z][A-Z_]*[A-Z]", path.read_text()))
    assert unknown_settings(names, known_variables()) == []
    assert unknown_settings(["FIELDFARE_MATCHER"], known_variables()) != []
