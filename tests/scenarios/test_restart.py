"""``fieldfare restart`` of a whole service: changed settings are used, and no event is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from service_support import SERVE, Api, descendants, running_service

from fieldfare.client import Client

pytestmark = [pytest.mark.service, pytest.mark.spark, pytest.mark.timeout(1200)]


def restart(data: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SERVE, "restart", "--data", str(data)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )


def mapped(pid: int) -> str:
    """The files and memory that a process has mapped."""
    return Path(f"/proc/{pid}/maps").read_text()


def test_a_restart_applies_changed_settings_and_loses_no_event(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text("quota_subscriptions = 10\n")
    data, ends = tmp_path / "data", threading.Event()
    with running_service(data, environment={"FIELDFARE_CONFIG": str(settings)}) as service:
        Api(service.url).create("default", "all", "TRUE")
        published: list[str] = []

        def publish() -> None:
            with Client(service.url) as client:
                while not ends.wait(0.02):
                    id = str(len(published))
                    client.publish({"id": id, "source": "/restart", "type": "t"}).result()
                    published.append(id)

        publishing = threading.Thread(target=publish)
        publishing.start()
        try:
            settings.write_text("quota_subscriptions = -5\nprot = 1\n")
            refused = restart(data)
            settings.write_text("quota_subscriptions = 20\n")
            done = restart(data)
        finally:
            ends.set()
            publishing.join()
        assert (
            refused.returncode == 1
            and "-5 is not valid" in refused.stderr
            and "did you mean port?" in refused.stderr
        ), refused.stderr
        assert done.returncode == 0, done.stderr
        with Client(service.url) as client:
            assert client.quotas()["limits"]["subscriptions"] == 20
            received = []
            with client.subscribe("all", auto_ack=True) as messages:
                for message in messages:
                    received.append(message.event["id"])
                    if len(received) == len(published):
                        break
        assert received == published
        compilers = [pid for pid in descendants(service.process.pid) if "llvmlite" in mapped(pid)]
        assert compilers, "the tasks have it"
        assert service.gateway not in compilers, "it would take memory, and a pause at the first event"
