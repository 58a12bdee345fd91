"""`fieldfare serve`: what it is told of slices."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fieldfare.cli.app import app
from fieldfare.cli.service import check_settings, slice_arguments
from fieldfare.planning.cuts import CutRequest, CutSettings
from fieldfare.runtimes.indexer.__main__ import parse as parse_indexer
from fieldfare.runtimes.spark.driver import parse as parse_driver


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--partitioning", "mash"], "'mash' is not a partitioning; partitionings are auto, attribute_space"),
        (["--slices", "market"], "'market' is not SPACE=PARTITIONING:MATCHERS"),
        (["--slices", "market=hash:many"], "'market=hash:many': 'many' is not a number of matchers"),
        (["--forwarding", "rnd"], "'rnd' is not a forwarding policy; policies are adaptive"),
        (["--matchers", "0"], "--matchers"),
        (
            ["--matcher-memory", "10XB"],
            "'10XB' is not a size; a size is a number of bytes, or a number with a",
        ),
        (["--matcher-memory", "0.1"], "'0.1' is less than a byte; "),
        (["--matcher-memory", "0"], "'0' is out of range: at least 1 bytes"),
        (
            ["--elastic-calm", "soon"],
            "'soon' is not a time; a time is a number of seconds, or a number with a",
        ),
        (["--elastic-calm", "nan"], "'nan' is not a time; "),
        (["--broker", "a", "--matchers", "2"], "a broker matches with one matcher"),
        (["--peer", "b=http://b:1"], "--peer needs --broker"),
        (["--broker", "a", "--peer", "b"], "'b' is not a neighbour: write NAME=URL, such as berlin=https://"),
        (["--data", ""], "it is empty: name a directory"),
        (["--broker", "a", "--peer-key-file", "none"], "the key for neighbours cannot be read"),
    ],
)
def test_invalid_options_are_reported_before_anything_starts(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    result = CliRunner().invoke(app, ["serve", "--data", str(tmp_path / "data"), *arguments])
    assert result.exit_code in (1, 2)
    assert said in " ".join(result.stderr.replace("│", "").split())
    assert not (tmp_path / "data").exists()


def test_a_disk_with_too_little_room_is_named_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The console says ready then, and yet all publishers are refused."""
    check_settings({"data": tmp_path / "not" / "yet", "disk_free_min_bytes": 0})
    assert capsys.readouterr().err == ""
    check_settings({"data": tmp_path / "not" / "yet", "disk_free_min_bytes": 1 << 60})
    assert "publishers will get 429" in " ".join(capsys.readouterr().err.split())


def test_sizes_and_times_of_the_command_line_may_have_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--matcher-memory took bytes only, beside settings that take 10GB."""
    commands: list[dict[str, tuple[str, ...]]] = []
    monkeypatch.setattr(
        "fieldfare.runtimes.service.serve.serve", lambda *_, **named: commands.append(named["commands"]) or 0
    )
    monkeypatch.setenv("FIELDFARE_ELASTIC_CALM", "10 min")
    given = ("--elastic", "1..2", "--master", "spark://127.0.0.1:7077", "--matchers", "4")
    more = ("--data", str(tmp_path / "data"), "--matcher-memory", "1.5GiB")
    result = CliRunner().invoke(app, ["serve", *more, *given])
    assert result.exit_code == 0, result.stderr
    (found,) = commands
    assert found["indexer"][-2:] == ("--matcher-memory", str(3 << 29))
    assert "--elastic-calm=600.0" in found["pipeline"]


def test_the_service_does_not_inherit_the_secrets_of_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell that starts a service may have exported the passphrase of a space that it must not read."""
    monkeypatch.setenv("FIELDFARE_SPACE_PASSPHRASE", "correct horse")
    monkeypatch.setenv("FIELDFARE_API_KEY", "ff_correct_horse")
    inherited: list[dict[str, str]] = []

    def run(*_arguments: Any, **_named: Any) -> int:
        inherited.append(dict(os.environ))
        return 0

    monkeypatch.setattr("fieldfare.runtimes.service.serve.serve", run)
    result = CliRunner().invoke(app, ["serve", "--data", str(tmp_path / "data")])
    assert result.exit_code == 0, result.stderr
    assert len(inherited) == 1 and not any("horse" in value for value in inherited[0].values())


def test_indexer_and_pipeline_are_told_how_spaces_are_held() -> None:
    told = slice_arguments("attribute_space", 4, ["market=hash:2", "audit=replicated"], 1 << 30, "balanced")
    options = parse_indexer(["--data", "d", *told["indexer"]])
    cuts = CutSettings.parsed(options.partitioning, options.matchers, options.slices, options.matcher_memory)
    spaces = {"market": CutRequest("hash", 2), "audit": CutRequest("replicated", 4)}
    assert cuts == CutSettings(CutRequest("attribute_space", 4), spaces, 1 << 30)
    assert parse_driver(["--data", "d", *told["pipeline"]]).forwarding == "balanced"


def test_a_line_without_a_reader_is_an_error_of_the_console_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rich ended the program with it, and the service with that."""
    said: list[Callable[[str], None]] = []

    def run_service(*_: object, say: Callable[[str], None], **__: object) -> int:
        said.append(say)
        return 0

    monkeypatch.setattr("fieldfare.runtimes.service.serve.serve", run_service)
    assert CliRunner().invoke(app, ["serve", "--data", str(tmp_path / "data")]).exit_code == 0
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", buffering=1) as console:
        monkeypatch.setattr(sys, "stderr", console)
        with pytest.raises(BrokenPipeError):
            said[0]("ready")
        monkeypatch.undo()
        with contextlib.suppress(BrokenPipeError):
            console.close()


def test_without_java_the_service_does_not_start_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gateway and indexer ran, and the pipeline was started again and again."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    result = CliRunner().invoke(app, ["serve", "--data", str(tmp_path / "data")])
    assert result.exit_code == 1
    assert f"Spark needs Java, and in JAVA_HOME={tmp_path / 'jdk'} there is no bin/java" in result.stderr
    assert not (tmp_path / "data").exists()


def test_a_limit_of_open_files_that_is_too_low_for_java_is_named(tmp_path: Path) -> None:
    """Java ended again and again before it could say why, and nothing was ever matched."""
    command = [sys.executable, "-m", "fieldfare", "serve", "--data", str(tmp_path / "data")]
    limited = ["sh", "-c", 'ulimit -n 256; exec "$@"', "sh", *command]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=180)
    assert done.returncode == 1
    assert "A process may open at most 256 files here, and Spark needs 512" in done.stderr
    assert not (tmp_path / "data").exists()


JAVA = """#!/bin/sh
: >"$0.asked"
while ! test -e "$0.answer"; do sleep 0.05; done
echo 'openjdk version "17.0.1"' >&2
"""


@contextlib.contextmanager
def starting(tmp_path: Path, *before: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Start a service that waits for its Java's answer, as it may wait for the repair of a file."""
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(JAVA)
    java.chmod(0o755)
    command = [sys.executable, "-m", "fieldfare", "serve", "--data", str(tmp_path / "data"), "--port", "0"]
    process = subprocess.Popen(
        [*before, *command],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "JAVA_HOME": str(java.parents[1])},
        start_new_session=True,
    )
    try:
        until_s = time.monotonic() + 180
        while not java.with_name("java.asked").exists():
            assert process.poll() is None and time.monotonic() < until_s
            time.sleep(0.02)
        yield process, java.with_name("java.answer")
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_start_that_is_stopped_ends_as_a_service_that_is_stopped(
    tmp_path: Path, number: signal.Signals
) -> None:
    """It was killed by the signal: exit code 143 or 130, and a supervisor of services counts a failure."""
    with starting(tmp_path) as (process, _):
        process.send_signal(number)
        assert process.communicate(timeout=180)[1] == "fieldfare: stopped\n"
        assert process.returncode == 0


def test_sighup_during_a_start_does_not_end_it(tmp_path: Path) -> None:
    """A renewed certificate or a rotated log just after a restart left no service running."""
    with starting(tmp_path) as (process, answer):
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGHUP)
        answer.touch()
        assert process.stderr is not None
        assert process.stderr.readline().startswith("fieldfare: starting on ")
        process.terminate()
        process.communicate(timeout=180)
        assert process.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root, and unshare")
def test_the_first_process_of_a_container_can_be_stopped_during_its_start(tmp_path: Path) -> None:
    """The system drops SIGTERM for such a process if it has no handler: it ran on until it was killed."""
    container = ("unshare", "--pid", "--fork", "--kill-child", "--")
    with starting(tmp_path, *container) as (process, _):
        first = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        os.kill(int(first), signal.SIGTERM)
        assert process.wait(60) == 0
