"""The command line as a process: Ctrl-C, closed pipes, live input, and nothing but words on stderr."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from faulty_service import FaultyService

from fieldfare import Client
from fieldfare.cli.follow import TEMPORARY_UNUSED_S

pytestmark = pytest.mark.long

COMMAND = [sys.executable, "-c", "from fieldfare.cli import main; main()"]


def start(service: FaultyService, *arguments: str, alone: bool = False) -> subprocess.Popen[str]:
    environment = {**os.environ, "FIELDFARE_URL": service.url, "COLUMNS": "120", "TERM": "dumb"}
    environment.pop("FIELDFARE_SPACE", None)
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=alone,
    )


def appears(path: Path) -> None:
    """Wait until a command has written a file."""
    until_s = time.monotonic() + 180
    while not path.exists():
        assert time.monotonic() < until_s, f"{path} was not written"
        time.sleep(0.01)


def publish(service: FaultyService, count: int) -> None:
    with Client(service.url) as client:
        client.publish_many({"source": "/a", "type": "t", "data": n} for n in range(count))


def test_ctrl_c_ends_subscribe_cleanly(service: FaultyService) -> None:
    publish(service, 2)
    process = start(service, "subscribe", "--filter", "data >= 0")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=180)
    assert [line.split("  ")[0] for line in lines] == ["0-0-0", "0-0-1"] and rest == ""
    assert errors.splitlines()[1:] == ["2 events received"]
    assert process.returncode == 130
    assert not service.subscriptions, "the temporary subscription is gone"


@pytest.mark.parametrize("signals", [("SIGTERM",), ("SIGHUP",), ("SIGHUP", "SIGTERM", "SIGHUP")])
def test_a_temporary_subscription_goes_with_the_program_that_made_it(
    service: FaultyService, signals: tuple[str, ...]
) -> None:
    """A service manager that stops `fieldfare subscribe --filter`, or a terminal that is closed: the
    subscription stood for ever, and every event was matched against it."""
    publish(service, 2)
    process = start(service, "subscribe", "--filter", "data >= 0")
    assert process.stdout is not None
    assert process.stdout.readline() and process.stdout.readline()
    for name in signals:
        process.send_signal(getattr(signal, name))
    _, errors = process.communicate(timeout=180)
    assert "Traceback" not in errors
    assert process.returncode - 128 in {getattr(signal, name) for name in signals}
    assert not service.subscriptions, "the temporary subscription is gone"


def test_a_temporary_subscription_expires_when_its_program_was_killed(service: FaultyService) -> None:
    """SIGKILL leaves no program to delete it: it stood for ever, and every event was matched against it."""
    publish(service, 1)
    process = start(service, "subscribe", "--filter", "data >= 0")
    assert process.stdout is not None and process.stdout.readline()
    process.kill()
    process.communicate(timeout=180)
    (left,) = service.subscriptions
    assert service.settings[left] == {"expires_unused_s": TEMPORARY_UNUSED_S}


def test_no_message_about_a_temporary_subscription_that_was_not_created() -> None:
    """Where no service listens it was said that the subscription could not be deleted."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # it does not listen, and no other program can take its port
        result = subprocess.run(
            [
                *COMMAND,
                "subscribe",
                "--url",
                f"http://127.0.0.1:{closed.getsockname()[1]}",
                "--filter",
                "data > 0",
            ],
            capture_output=True,
            text=True,
            timeout=180,
        )
    assert result.returncode != 0 and result.stderr
    assert "temporary" not in result.stderr and "deleted" not in result.stderr


def test_an_ignored_signal_stays_ignored(service: FaultyService) -> None:
    """nohup fieldfare subscribe ... goes on when the terminal is closed."""
    publish(service, 1)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = start(service, "subscribe", "--filter", "data >= 0", "--limit", "2")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert process.stdout is not None and process.stdout.readline()
    process.send_signal(signal.SIGHUP)
    publish(service, 1)
    process.communicate(timeout=180)
    assert process.returncode == 0 and not service.subscriptions


def test_ctrl_c_ends_top_cleanly(service: FaultyService) -> None:
    process = start(service, "top", "--every", "0.1")
    service.wait_for_requests("/v1/stats", 3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=180)
    assert (process.returncode, errors) == (130, "")


def test_ctrl_c_ends_publish_with_what_is_durable(service: FaultyService) -> None:
    process = start(service, "publish", "--type", "t", "--json")
    assert process.stdin is not None
    process.stdin.write("1\n2\n")
    process.stdin.flush()
    service.wait_for(lambda: sum(map(len, service.records)) == 2)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=180)
    assert (process.returncode, errors) == (130, "")
    assert json.loads(out)["published"] == 2


def test_lines_are_published_as_they_come(service: FaultyService) -> None:
    """Lines from `tail -f` are published without waiting for a full batch."""
    process = start(service, "publish", "--type", "t")
    assert process.stdin is not None
    for count in (1, 2, 3):
        process.stdin.write(f"{count}\n")
        process.stdin.flush()
        service.wait_for(lambda count=count: sum(map(len, service.records)) == count)
    out, _ = process.communicate(timeout=180)
    assert process.returncode == 0 and out.startswith("published 3 events in ")


def test_a_closed_pipe_is_not_an_error(service: FaultyService) -> None:
    publish(service, 500)
    process = start(service, "subscribe", "mine", "--filter", "data >= 0")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    publish(service, 500)
    assert process.wait(180) == 0
    assert process.stderr.read() == "following mine; Ctrl-C ends\n"
    process.stderr.close()
    assert process.stdin is not None
    process.stdin.close()


@pytest.mark.parametrize(
    ("command", "extra", "hidden"),
    [("serve", "server", "uvicorn"), ("match", "spark", "pyspark")],
)
def test_a_command_whose_packages_are_missing_names_the_extra(
    tmp_path: Path, command: str, extra: str, hidden: str
) -> None:
    program = (
        "import importlib.util as u, sys\n"
        "real = u.find_spec\n"
        f"u.find_spec = lambda name, *rest: None if name == {hidden!r} else real(name, *rest)\n"
        "from fieldfare.cli import main; main()\n"
    )
    file = tmp_path / "x.jsonl"
    file.write_text("{}")
    arguments = {"serve": ["--data", str(tmp_path)], "match": [str(file), "--subscriptions", str(file)]}
    result = subprocess.run(
        [sys.executable, "-c", program, command, *arguments[command]],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == (
        f"error: `fieldfare {command}` needs packages that are not installed: {hidden}\n"
        f"hint: pip install 'fieldfare[{extra}]'\n"
    )


def test_a_port_in_use_and_a_directory_in_use_are_errors_in_words(
    service: FaultyService, tmp_path: Path
) -> None:
    port = service.url.rsplit(":", 1)[1]
    process = start(service, "serve", "--data", str(tmp_path), "--port", port)
    out, errors = process.communicate(timeout=180)
    assert (process.returncode, out) == (1, "")
    assert errors == (
        f"fieldfare: cannot listen on 127.0.0.1:{port}: Address already in use; "
        "name another port with --port\n"
    )


def test_a_command_runs_for_each_event_and_its_status_settles_it(
    service: FaultyService, tmp_path: Path
) -> None:
    publish(service, 3)
    said = tmp_path / "said.txt"
    command = f'echo "$FIELDFARE_POSITION $(cat)" >>{said}; test "$FIELDFARE_POSITION" != 0-0-1'
    process = start(service, "subscribe", "mine", "--filter", "data >= 0", "--exec", command)
    service.wait_for(lambda: len(service.acked.get("mine", ())) == 2)
    process.send_signal(signal.SIGTERM)
    rest, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    assert rest == ""
    assert "0-0-1, attempt 1: the command exited with 1" in errors
    assert errors.splitlines()[-1].startswith("2 done, ")
    lines = said.read_text().splitlines()
    assert [line.split(" ")[0] for line in lines[:3]] == ["0-0-0", "0-0-1", "0-0-2"]
    assert all('"data":' in line for line in lines)


def test_ctrl_c_lets_the_commands_that_run_come_to_their_end(service: FaultyService, tmp_path: Path) -> None:
    """A terminal sends it to all of its processes: the commands died of it, and their messages came again."""
    publish(service, 1)
    said, go_on = tmp_path / "said.txt", tmp_path / "go-on"
    command = f"echo begun >>{said}; until test -e {go_on}; do sleep 0.05; done; echo done >>{said}"
    process = start(service, "subscribe", "mine", "--filter", "data >= 0", "--exec", command, alone=True)
    appears(said)
    os.killpg(process.pid, signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    go_on.touch()
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    assert said.read_text() == "begun\ndone\n"
    assert errors.splitlines()[-1] == "1 done, 0 failed"
    assert len(service.acked["mine"]) == 1


def test_a_second_ctrl_c_ends_the_commands_too(service: FaultyService, tmp_path: Path) -> None:
    publish(service, 1)
    said = tmp_path / "said.txt"
    command = f"echo begun >>{said}; sleep 600"
    process = start(service, "subscribe", "mine", "--filter", "data >= 0", "--exec", command, alone=True)
    appears(said)
    os.killpg(process.pid, signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors
    assert errors.splitlines()[-1] == "0 done, 1 failed"


def test_commands_go_on_when_nohup_had_the_signal_ignored(service: FaultyService, tmp_path: Path) -> None:
    publish(service, 1)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        process = start(service, "subscribe", "mine", "--filter", "data >= 0", "--exec", "true")
    finally:
        signal.signal(signal.SIGHUP, before)
    service.wait_for(lambda: len(service.acked.get("mine", ())) == 1)
    process.send_signal(signal.SIGHUP)
    publish(service, 1)
    service.wait_for(lambda: len(service.acked.get("mine", ())) == 2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=180)
    assert process.returncode == 0


def test_a_command_goes_with_a_standing_subscription_only(service: FaultyService) -> None:
    for more in (
        ("--filter", "data >= 0"),
        ("mine", "--json"),
        ("mine", "--limit", "2"),
        ("mine", "--no-ack"),
    ):
        process = start(service, "subscribe", *more, "--exec", "true")
        _, errors = process.communicate(timeout=180)
        assert process.returncode == 2
        assert "--exec needs an ID" in errors
