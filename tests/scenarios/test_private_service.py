"""A whole service as its machine's other users see it: no file to read, no port to reach, no key to find."""

from __future__ import annotations

import stat
from pathlib import Path

import httpx
import pytest
from service_support import command_line, descendants, running_service, until

pytestmark = [pytest.mark.service, pytest.mark.spark, pytest.mark.timeout(1200)]

ADMIN = "an-admin-key-of-forty-characters-0123456789"
LISTENS = "0A"
LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")


def listening(pids: list[int]) -> list[tuple[str, str]]:
    """Where processes listen: the address as the kernel writes it, and who does."""
    owners = {}
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                target = str(link.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                owners[target[8:-1]] = pid
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == LISTENS and rest[5] in owners:
                found.append((local.split(":")[0], command_line(owners[rest[5]])[:60]))
    return found


def test_other_users_of_the_machine_read_and_reach_nothing(tmp_path: Path) -> None:
    """With events matched, delivered, compacted and snapshotted, in a directory that was open to all."""
    (tmp_path / "admin.key").write_text(ADMIN)
    data = tmp_path / "data"
    (data / "logs").mkdir(parents=True)
    (data / "logs").chmod(0o777)
    console, headers = tmp_path / "console.txt", {"authorization": f"Bearer {ADMIN}"}
    settings = {"admin_key_file": tmp_path / "admin.key", "maintenance_s": 0.2}
    with (
        running_service(data, console=console, **settings) as service,
        httpx.Client(base_url=f"{service.url}/v1/spaces/default", headers=headers, timeout=180) as client,
    ):
        assert client.put("subscriptions/a", json={"filter": "data.x = 1"}).status_code == 201
        event = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "data": {"x": 1}}
        for _ in range(3):
            assert client.post("events", json=event, headers={"content-type": "application/cloudevents+json"})
            pulled = client.post("subscriptions/a/pull", json={"wait_s": 60}).json()["messages"]
            assert client.post("subscriptions/a/ack", json={"positions": [pulled[0]["position"]]}).is_success
        until(lambda: list(data.glob("index/*")))
        pids = [service.process.pid, *descendants(service.process.pid)]
        open_to_all = [address for address in listening(pids) if address[0] not in LOOPBACK]
        assert not open_to_all and len(listening(pids)) >= 2
        for path in (data, *data.rglob("*")):
            if (
                not path.is_symlink()
                and path.exists()
                and not str(path).startswith(str(data / "run/spark/home"))
            ):
                assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
        assert not any(ADMIN in command_line(pid) for pid in pids)
    for path in (console, *data.rglob("*.log")):
        assert ADMIN not in path.read_text()
