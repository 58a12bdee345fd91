"""The demo in a small dose: the whole service, from publishing over HTTP to the verdict."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fieldfare.cli.demo.alerts import Alert
from fieldfare.cli.demo.encrypted import search_service_files
from fieldfare.storage.folder import DataFolder

FIELDFARE = (sys.executable, "-c", "from fieldfare.cli import main; main()")
SMALL = ("--events", "5000", "--alerts", "2000", "--subscribers", "10")


@pytest.mark.spark
def test_the_demo_matches_flights_and_finds_everything_equal(tmp_path: Path) -> None:
    """What `./run demo` does, with fewer flights and alerts."""
    demo = subprocess.run(
        (*FIELDFARE, "demo", *SMALL, "--data", str(tmp_path / "data")),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert demo.stderr == ""
    assert (
        "EQUAL: what was delivered to 10 subscribers and what the match log holds for 70 filters"
        in demo.stdout
    )
    assert _figure(demo.stdout, "events") == 5000
    assert _figure(demo.stdout, "matches") == 2539
    assert _figure(demo.stdout, "delivered live") == 345
    assert (DataFolder(tmp_path / "data").log_path).is_file()


@pytest.mark.spark
def test_the_encrypted_demo_finds_everything_equal_and_nothing_plain(tmp_path: Path) -> None:
    """What `./run demo --encrypted` does: the same flights, through a service that cannot read them."""
    demo = subprocess.run(
        (*FIELDFARE, "demo", "--encrypted", *SMALL, "--data", str(tmp_path / "data")),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert demo.stderr == ""
    assert "The service sees the order of numbers" in " ".join(demo.stdout.split())
    assert "247 more alerts are left out" in demo.stdout
    assert "events, which it read in plain." in demo.stdout
    assert _figure(demo.stdout, "alerts") == 1753
    assert _figure(demo.stdout, "matches") == 2190
    assert _figure(demo.stdout, "delivered live") == 345
    assert re.search(r"the event in the log +{\"e\": 1, \"v\": ", demo.stdout)
    assert "weather: in none of them" in demo.stdout
    # Where a word stands in a file, the search finds it.
    (tmp_path / "data" / "logs" / "more.log").write_text("data.tailnum = 'N14228'")
    seen = search_service_files(DataFolder.at(tmp_path / "data"), Alert("follower-000001", "", ""))
    assert seen.plain == [f"{tmp_path / 'data' / 'logs' / 'more.log'}: tailnum"]


@pytest.mark.spark
def test_ctrl_c_stops_the_demo_and_its_service(tmp_path: Path) -> None:
    """Somebody has seen enough while the service still starts; nothing of it may stay behind."""
    with subprocess.Popen(
        (*FIELDFARE, "demo", *SMALL, "--data", str(tmp_path / "data")),
        stdout=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith("wait for the service"):
                break
        service = _children(demo.pid)
        demo.send_signal(signal.SIGINT)
        rest = demo.stdout.read()
        assert demo.wait(timeout=180) == 130
    assert rest.splitlines()[-1] == "stopped"
    assert service and not any(map(_is_alive, service))


def test_the_demo_does_not_touch_a_directory_with_something_in_it(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    demo = subprocess.run(
        (*FIELDFARE, "demo", "--data", str(tmp_path)), capture_output=True, text=True, timeout=180
    )
    assert demo.returncode == 2
    assert "the demo needs a new one" in " ".join(re.sub(r"[│╭╮╰╯─]", " ", demo.stderr).split())


def _figure(output: str, name: str) -> int:
    found = re.search(rf"^  {name} +([\d,]+)$", output, re.MULTILINE)
    assert found is not None, output
    return int(found[1].replace(",", ""))


def _children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
