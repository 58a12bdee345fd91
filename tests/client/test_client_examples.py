"""The examples run as they stand, against the real gateway."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from real_gateway import RealGateway, running_gateway

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_subscribe_example_receives_from_the_publish_example(tmp_path: Path) -> None:
    with running_gateway(tmp_path / "data") as gateway:
        environment = {**os.environ, "FIELDFARE_URL": gateway.url}
        environment.pop("FIELDFARE_SPACE", None)
        subscriber = subprocess.Popen(
            [sys.executable, EXAMPLES / "subscribe.py", "20"],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert subscriber.stdout is not None
        assert subscriber.stdout.readline() == "following data.symbol = 'YHOO' AND data.price < 18.5\n"
        published = subprocess.run(
            [sys.executable, EXAMPLES / "publish.py"],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            check=True,
            timeout=180,
        ).stdout.splitlines()
        received, _ = subscriber.communicate(timeout=180)
    assert published[0].startswith("the first is durable at 0-0-0, the last at 0-")
    assert published[1] == "900 more are durable"
    lines = received.splitlines()
    assert len(lines) == 20 and subscriber.returncode == 0
    assert all("'symbol': 'YHOO'" in line and line.startswith("0-") for line in lines)


def test_a_publisher_can_be_watched_while_it_adapts(tmp_path: Path) -> None:
    with running_gateway(tmp_path / "data") as gateway:
        environment = {**os.environ, "FIELDFARE_URL": gateway.url, "TERM": "dumb"}
        environment.pop("FIELDFARE_SPACE", None)
        shown = subprocess.run(
            [sys.executable, EXAMPLES / "adapting_publisher.py", "3"],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            check=True,
            timeout=120,
        ).stdout
    last = shown.splitlines()[-1]
    events, requests = int(last.split()[0]), int(last.split()[-2])
    assert " 0 failed, " in last
    assert events > 1000 and requests < events / 2, "events must travel together"


def test_readings_wait_on_disk_while_the_service_is_away(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    gateway = RealGateway(tmp_path / "data")
    gateway.start()
    gateway.stop()  # Its address is known now, and no process listens there.

    def run(patience_s: float) -> list[str]:
        program = f"import outbox; outbox.PATIENCE_S = {patience_s}; outbox.main()"
        environment = {**os.environ, "FIELDFARE_URL": gateway.url, "PYTHONPATH": os.pathsep.join(sys.path)}
        environment.pop("FIELDFARE_SPACE", None)
        return subprocess.run(
            [sys.executable, "-c", program, tmp_path / "outbox", "50"],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=EXAMPLES,
            check=True,
            timeout=180,
        ).stdout.splitlines()

    first = run(0.1)
    assert first[0] == "0 events are left from earlier runs"
    assert first[1].startswith("not all events are sent: ")
    assert first[2] == f"0 events sent, 50 wait in {tmp_path / 'outbox'}"
    gateway.start()
    try:
        second = run(30.0)
    finally:
        gateway.stop()
    assert second == [
        "50 events are left from earlier runs",
        f"100 events sent, 0 wait in {tmp_path / 'outbox'}",
    ]
