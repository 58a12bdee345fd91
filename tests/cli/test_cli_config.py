"""``fieldfare config`` and ``serve --config``: settings in a TOML file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fieldfare.cli.app import app
from fieldfare.cli.configuration import (
    CONFIG_VARIABLE,
    Configuration,
    ConfigurationError,
    Known,
    effective,
    read_configuration,
)
from fieldfare.cli.variables import known_variables
from fieldfare.gateway.settings import GatewaySettings


def written(folder: Path, text: str) -> Path:
    path = folder / "fieldfare.toml"
    path.write_text(text)
    return path


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("FIELDFARE_")}
    command = [sys.executable, "-m", "fieldfare", *arguments]
    return subprocess.run(
        command, cwd=folder, env=plain | environment, capture_output=True, text=True, timeout=180
    )


def test_all_mistakes_of_a_file_are_reported_at_once_with_their_lines(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """# settings
prot = 7
port = 99999
retention_bytes = "10 parsecs"
matchers = "many"
slices = "default=hash:4"
jwt_leeway_s = true
[tls]
cert = "x"
""",
    )
    with pytest.raises(ConfigurationError) as raised:
        read_configuration(path)
    lines = [line.removeprefix(f"{path}:") for line in str(raised.value).split("\n")]
    assert [line.split(":")[:2] for line in lines] == [
        ["2", " prot"],
        ["3", " port"],
        ["4", " retention_bytes"],
        ["5", " matchers"],
        ["6", " slices"],
        ["7", " jwt_leeway_s"],
        ["8", " tls"],
    ]
    assert lines[0].endswith("there is no such setting; did you mean port?")
    assert '"10 parsecs" is not valid' in lines[2]


@pytest.mark.parametrize(
    "text",
    [
        *("port = ", "port = 1\nport = 2", "\x00", "port = 1e400"),
        f"port = {'9' * 5000}",
        f"port = {'[' * 5000}{']' * 5000}",
        'host = "a\\u0000b"',
        'allowed_hosts = ["a", "b\\u0000"]',
        "retention_s = inf",
    ],
    ids=lambda text: text[:20],
)
def test_a_file_that_is_not_valid_names_the_file(text: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigurationError, match=r"fieldfare\.toml"):
        read_configuration(path)


@pytest.mark.parametrize("name", ["FIELDFARE_PORT", "Port"])
def test_a_variable_s_name_is_corrected_to_that_of_the_setting(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="did you mean port"):
        read_configuration(written(tmp_path, f"{name} = 7737\n"))


def test_a_wrong_variable_is_no_mistake_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a KeyError, with a traceback."""
    path = written(tmp_path, 'host = "localhost"\n')
    monkeypatch.setenv("FIELDFARE_PORT", "abc")
    assert read_configuration(path).values == {"FIELDFARE_HOST": "localhost"}
    found = CliRunner().invoke(app, ["config", "check", str(path)])
    assert found.exit_code == 1
    assert found.stderr.startswith("error: FIELDFARE_PORT=abc: Input should be a valid integer")


def test_check_knows_the_rules_between_settings(tmp_path: Path) -> None:
    written(tmp_path, 'broker = "oslo"\npeers = ["rome"]\n')
    found = run(tmp_path, "config", "check")
    assert found.returncode == 1 and "'rome' is not a neighbour: write NAME=URL, such as" in found.stderr


def test_reasons_are_said_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"is not valid: 'xml' is not one of"):
        read_configuration(written(tmp_path, 'log_format = "xml"\n'))
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match=r"binary.toml: it is not UTF-8$"):
        read_configuration(path)


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    path = tmp_path / "fieldfare.toml"
    path.write_bytes(b"\xef\xbb\xbfport = 7\n")
    assert read_configuration(path).values == {"FIELDFARE_PORT": "7"}


def test_a_file_sets_what_the_environment_does_not(tmp_path: Path) -> None:
    file = read_configuration(
        written(tmp_path, 'port = 1\nhost = "localhost"\nwebhook_allow = ["10.0.0.0/8", "fd00::/8"]\n')
    )
    environment = {"FIELDFARE_PORT": "2"}
    file.apply(environment)
    assert environment == {
        "FIELDFARE_PORT": "2",
        "FIELDFARE_HOST": "localhost",
        "FIELDFARE_WEBHOOK_ALLOW": "10.0.0.0/8,fd00::/8",
    }
    known = Known()
    assert effective("port", known, file, {"FIELDFARE_PORT": "2"}) == ("2", "environment")
    assert effective("host", known, file, {}) == ('"localhost"', "file")
    assert effective("matchers", known, file, {}) == ("1", "default")
    assert effective("tls_cert", known, file, {}) == (None, "default")


def test_every_setting_that_serve_has_may_stand_in_a_file(tmp_path: Path) -> None:
    known = Known()
    assert set(GatewaySettings.model_fields) <= set(known.names)
    assert len(known.names) == len(set(known.names))
    assert {f"FIELDFARE_{name.upper()}" for name in known.names} <= known_variables()
    shown = [(name, effective(name, known, Configuration(), {})[0]) for name in known.names]
    text = "\n".join(f"{name} = {value}" for name, value in shown if value is not None)
    assert len(read_configuration(written(tmp_path, text)).values) == text.count("\n") + 1


@pytest.mark.long
def test_what_config_show_prints_is_a_file_with_the_same_settings(tmp_path: Path) -> None:
    written(tmp_path, 'data = "a \\"b\\" \\\\ c"\nslices = ["default=hash:4", "other=hash:2"]\nport = 7799\n')
    shown = run(tmp_path, "config", "show", "--origin", FIELDFARE_PORT="7800")
    assert shown.returncode == 0, shown.stderr
    assert "port = 7800  # environment\n" in shown.stdout
    assert 'host = "127.0.0.1"  # default\n' in shown.stdout
    assert 'slices = ["default=hash:4", "other=hash:2"]  # file\n' in shown.stdout
    again = tmp_path / "again.toml"
    again.write_text(shown.stdout)
    assert read_configuration(again).values["FIELDFARE_DATA"] == 'a "b" \\ c'
    checked = run(tmp_path, "config", "check", "--config", "again.toml")
    assert (checked.returncode, checked.stderr) == (0, "")


def test_a_file_is_named_as_an_argument_or_an_option(tmp_path: Path) -> None:
    written(tmp_path, "port = 1\n").rename(tmp_path / "a.toml")
    written(tmp_path, "port = 2\n").rename(tmp_path / "b.toml")
    for arguments in (["check", "b.toml"], ["check", "--config", "b.toml"]):
        found = CliRunner().invoke(app, ["config", *map(in_folder(tmp_path), arguments)])
        assert (found.exit_code, found.stdout) == (0, f"{tmp_path}/b.toml: 1 setting, all valid\n")
    named = str(tmp_path / "b.toml")
    found = CliRunner(env={CONFIG_VARIABLE: str(tmp_path / "a.toml")}).invoke(app, ["config", "show", named])
    assert "port = 2\n" in found.stdout
    twice = ["config", "show", named, "--config", str(tmp_path / "a.toml")]
    found = CliRunner().invoke(app, twice)
    assert (found.exit_code, found.stdout) == (2, "") and "name the file once" in found.stderr


def in_folder(folder: Path) -> Callable[[str], str]:
    """Return a function that puts names of files into a folder."""
    return lambda argument: str(folder / argument) if argument.endswith(".toml") else argument


@pytest.mark.parametrize("command", ["show", "check"])
def test_variables_that_are_no_settings_are_warned_of(command: str, tmp_path: Path) -> None:
    """`serve` warns the same way: see tests/gateway/routes/test_settings.py."""
    path = written(tmp_path, "port = 1\n")
    runner = CliRunner(env={"FIELDFARE_PROT": "1", "FIELDFARE_URL": "http://127.0.0.1:7"})
    found = runner.invoke(app, ["config", command, str(path)])
    said = " ".join(found.stderr.split())
    assert found.exit_code == 0 and "PROT" not in found.stdout
    assert said == ("warning: FIELDFARE_PROT is not a setting, and is ignored: did you mean FIELDFARE_PORT?")


def test_show_warns_of_variables_whose_values_are_not_valid(tmp_path: Path) -> None:
    values = {"FIELDFARE_PORT": "abc", "FIELDFARE_SLICES": "a=hash:2 b=hash:2", "FIELDFARE_RETENTION_S": "7d"}
    found = CliRunner(env=values).invoke(app, ["config", "show", str(written(tmp_path, ""))])
    assert found.exit_code == 0 and 'port = "abc"\n' in found.stdout
    (line,) = found.stderr.splitlines()
    assert line.startswith("warning: FIELDFARE_PORT=abc is not valid: Input should be a valid integer")


@pytest.mark.long
def test_serve_reports_a_wrong_file_and_starts_nothing(tmp_path: Path) -> None:
    written(tmp_path, "prot = 7\n")
    served = run(tmp_path, "serve", "--data", "data")
    assert served.returncode == 1
    assert served.stderr == "error: fieldfare.toml:1: prot: there is no such setting; did you mean port?\n"
    assert not (tmp_path / "data").exists()


@pytest.mark.long
def test_an_option_of_serve_takes_precedence_over_the_file(tmp_path: Path) -> None:
    """The file's port is used unless an option names another: seen by which port cannot be listened on."""
    written(tmp_path, 'host = "192.0.2.1"\nport = 7\n')
    refused = run(tmp_path, "serve", "--insecure")
    assert refused.returncode == 1
    assert "192.0.2.1" in refused.stderr and "port 7 " in refused.stderr.replace(":7", " port 7 ")
    refused = run(tmp_path, "serve", "--insecure", "--port", "9")
    assert ":9" in refused.stderr or "port 9" in refused.stderr
