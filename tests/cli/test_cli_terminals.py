"""The command line in any terminal: other encodings, pipes, full disks; and what it imports for that."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from cli_support import Fieldfare
from faulty_service import FaultyService
from typer.testing import CliRunner

from fieldfare import Client, __version__
from fieldfare.cli.app import COMMANDS, app, load_command

pytestmark = pytest.mark.long

COMMAND = [sys.executable, "-c", "from fieldfare.cli import main; main()"]
ENCODINGS = [
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"PYTHONIOENCODING": "latin-1"},
    *(
        pytest.param(environment, marks=pytest.mark.slow)
        for environment in ({"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "utf-8"})
    ),
]
ODD = "Zoë ☃ \u202e𝄞"


def run(*arguments: str, environment: dict[str, str], **more: Any) -> subprocess.CompletedProcess[bytes]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "PYTHONIO"))}
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, env={**clean, **environment}, timeout=180, **more
    )


@pytest.mark.parametrize("environment", ENCODINGS, ids=lambda found: "-".join(found.values()))
def test_no_terminal_s_encoding_makes_a_traceback(
    service: FaultyService, environment: dict[str, str], tmp_path: Path
) -> None:
    """A cron job runs with LC_ALL=C, an old terminal with Latin-1; a subscriber is called Zoë."""
    events = tmp_path / "events.jsonl"
    events.write_text(json.dumps({"name": ODD}) + "\n")
    with Client(service.url) as client:
        client.create_subscription(f"data.name = '{ODD}'", id="odd")
    text = f"data.name = '{ODD}' AND data.\"{ODD}\" => 5"
    environment = {**environment, "FIELDFARE_URL": service.url}
    for arguments, code in [
        (("--help",), 0),
        (("filter", "check", text), 1),
        (("filter", "check", "--json", text), 1),
        (("filter", "explain", f"data.name = '{ODD}'"), 0),
        (("filter", "test", f"data.name = '{ODD}'", "--events", str(events), "--data", "--tree"), 0),
        (("filter", "convert", "--dialect", "cesql", f"type = '{ODD}'"), 0),
        (("subscriptions", "list"), 0),
        (("subscriptions", "list", "--json"), 0),
        (("subscriptions", "get", "odd"), 0),
        (("subscriptions", "get", ODD), 1),
        (("top", "--once"), 0),
    ]:
        found = run(*arguments, environment=environment)
        assert b"Traceback" not in found.stderr, found.stderr.decode(errors="replace")
        assert found.returncode == code, (arguments, found.stdout, found.stderr)
        if "--json" in arguments:
            assert "Zoë ☃" in json.dumps(json.loads(found.stdout), ensure_ascii=False)


def test_bytes_that_are_no_text_are_an_error_in_words() -> None:
    """A filter pasted from a Latin-1 file reaches the program as bytes that are no UTF-8."""
    found = subprocess.run([*COMMAND, "filter", "check", b"a = '\xff'"], capture_output=True, timeout=180)
    assert found.returncode == 1 and b"Traceback" not in found.stderr
    assert b"half of a character" in found.stdout
    environment = {**os.environ, "FIELDFARE_URL": "http://127.0.0.1:9"}
    for arguments in (["subscriptions", "get", b"\xff"], ["spaces", "advertise", "default", b"a = '\xff'"]):
        found = subprocess.run([*COMMAND, *arguments], capture_output=True, timeout=180, env=environment)
        assert (found.returncode, found.stderr) == (1, b"error: an argument is not valid UTF-8\n")


def test_a_list_that_is_piped_has_a_line_for_each_subscription(
    service: FaultyService, fieldfare: Fieldfare
) -> None:
    """`subscriptions list | grep late` cut filters into pieces of eighty columns."""
    long = " OR ".join(f"data.origin = 'airport {i}'" for i in range(20))
    with Client(service.url) as client:
        client.create_subscription(long, id="long")
        client.create_subscription("a = 1\n  AND b = 'x\ty'", id="broken")
    lines = fieldfare("subscriptions", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["id", "broken", "long"]
    assert lines[2].endswith(long) and lines[1].endswith(r"a = 1\n  AND b = 'x\ty'")


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["subscriptions", "list"], ["subscriptions", "list", "--json"], ["filter", "-h"]],
)
def test_a_closed_pipe_is_not_an_error(service: FaultyService, arguments: list[str]) -> None:
    """`| head -1` closes the pipe: the command prints no error and exits with 0."""
    with Client(service.url) as client:
        for number in range(3):
            client.create_subscription("TRUE OR " * 1000 + "TRUE", id=f"s{number}")
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, "FIELDFARE_URL": service.url},
    )
    os.close(writing)
    assert process.communicate(timeout=180)[1] == b""
    assert process.returncode == 0


def test_an_output_that_cannot_be_written_is_an_error_in_words() -> None:
    """The disk that the list is written to is full; or there is no standard output at all."""
    with open("/dev/full", "wb") as full:
        found = subprocess.run([*COMMAND, "--version"], stdout=full, stderr=subprocess.PIPE, timeout=180)
    assert found.returncode == 1
    assert found.stderr.count(b"\n") in (1, 2) and b"No space left" in found.stderr
    closed = " ".join(["exec", sys.executable, "-c", "'from fieldfare.cli import main; main()'", "-h", ">&-"])
    found = subprocess.run(["sh", "-c", closed], stderr=subprocess.PIPE, timeout=180)
    assert (found.returncode, found.stderr) == (0, b"")


def test_no_service_is_one_line_and_a_hint() -> None:
    """The most common mistake of all: `fieldfare serve` was forgotten."""
    url = {"FIELDFARE_URL": "http://127.0.0.1:9"}
    for arguments in (["top", "--once"], ["subscriptions", "list"], ["spaces", "list"]):
        found = run(*arguments, environment=url)
        assert found.returncode == 1 and found.stdout == b""
        assert found.stderr.startswith(b"error: ") and found.stderr.count(b"\n") <= 2, found.stderr


def test_ctrl_c_while_it_starts_is_not_a_traceback() -> None:
    """Ctrl-C right after the start, while Python is still importing."""
    program = "import sys; print('started', flush=True); from fieldfare.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "filter", "check", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"started\n"
    deadline_s = time.monotonic() + 180
    while (
        "fieldfare" not in Path(f"/proc/{process.pid}/cmdline").read_text() and time.monotonic() < deadline_s
    ):
        pass
    mapped = Path(f"/proc/{process.pid}/maps")
    while "msgspec" not in mapped.read_text() and time.monotonic() < deadline_s:
        pass  # the command is imported, or is being
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 130 and b"Traceback" not in errors, errors


@pytest.mark.parametrize("arguments", [["--version"], ["version"]])
def test_the_version_is_printed(fieldfare: Fieldfare, arguments: list[str]) -> None:
    """The first question of every report of a fault."""
    result = fieldfare(*arguments)
    first, second = result.stdout.splitlines()
    assert (result.exit_code, first) == (0, f"fieldfare {__version__}")
    assert re.fullmatch(r"Python [\d.]+, pyspark \S+, pyarrow \S+, numpy \S+, numba \S+", second)


@pytest.mark.parametrize("arguments", [[], ["filter"], ["filter", "check"], ["subscribe"], ["subscriptions"]])
def test_h_is_help_everywhere(fieldfare: Fieldfare, arguments: list[str]) -> None:
    """Half of the world types -h."""
    short, long = fieldfare(*arguments, "-h"), fieldfare(*arguments, "--help")
    assert short.exit_code == 0 and "Usage: " in short.stdout
    assert short.stdout == long.stdout


def test_help_imports_neither_client_nor_filters() -> None:
    """`fieldfare --help` took 0.6 s of processor time, most of it for modules that it has no use for."""
    program = (
        "import sys; sys.argv = ['fieldfare', '--help']\nfrom fieldfare.cli import main\n"
        "try: main()\nfinally: print(*sys.modules, file=sys.stderr)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=180, text=True)
    imported = found.stderr.split()
    heavy = {"httpx", "asyncio", "msgspec", "numpy", "pyarrow", "pyspark", "numba", "sqlalchemy"}
    assert heavy.isdisjoint(imported)
    own = sorted(name for name in imported if name.startswith("fieldfare"))
    assert own == [
        "fieldfare",
        "fieldfare.cli",
        "fieldfare.cli.app",
        "fieldfare.cli.output",
        "fieldfare.cli.streams",
        "fieldfare.runtimes",
        "fieldfare.runtimes.files",
        "fieldfare.runtimes.files.kinds",
    ]
    assert len(imported) < 450


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_command_says_of_itself(name: str) -> None:
    """The list is written down apart, so that nothing is imported for it; it must not grow apart."""
    place, said = COMMANDS[name]
    module, attribute = place.split(":")
    command = getattr(importlib.import_module(f"fieldfare.cli.{module}"), attribute)
    own = command.info.help if isinstance(command, typer.Typer) else command.__doc__
    assert own.split("\n\n")[0].replace("\n", " ") == said


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield name, command
    for each, below in getattr(command, "commands", {}).items():
        yield from _commands(below, f"{name} {each}")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_describes_each_command_argument_and_option(name: str) -> None:
    for path, command in _commands(load_command(name), name):
        assert command.help, path
        assert [each.name for each in command.params if not getattr(each, "help", None)] == [], path


@pytest.mark.parametrize(
    "command",
    ["serve", "publish", "subscribe", "match", "top", "subscriptions", "subscriptions create", "filter"],
)
def test_help_has_an_example(fieldfare: Fieldfare, command: str) -> None:
    result = fieldfare(*command.split(), "--help")
    assert result.exit_code == 0
    assert "Example" in result.stdout


def commands_of(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield a command and the commands in it, each with its path."""
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands_of(each, (*path, name))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_in_80_columns_has_whole_names(name: str) -> None:
    """Names of options and variables, and URLs, were cut to `--push-authorizati…`."""
    for path, command in commands_of(load_command(name), (name,)):
        shown = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": None}).invoke(app, [*path, "--help"]).stdout
        assert "…" not in shown, path
        words = set(re.split(r"[\s,]+", shown))
        names = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
        assert {name for name in names if name.startswith("-")} <= words, path
