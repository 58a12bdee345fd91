"""Backups while processes are killed: each holds all events from before it, and can be restored."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from accidents import kill, victims_of
from service_support import running_service, until

from fieldfare import Client
from fieldfare.storage.backup import check_backup, make_backup, restore_backup
from fieldfare.storage.doctor import examine
from fieldfare.storage.folder import DataFolder
from fieldfare.testing import LocalService

pytestmark = [pytest.mark.service, pytest.mark.timeout(1200)]

ALL = ("gateway", "driver", "indexer", "task")


@pytest.mark.parametrize(
    "victims", [("gateway",), pytest.param(ALL, marks=pytest.mark.slow)], ids=["gateway", "all"]
)
def test_a_backup_during_kills_holds_all_events_from_before_it(
    tmp_path: Path, victims: tuple[str, ...]
) -> None:
    data, stop, published = DataFolder(tmp_path / "data"), threading.Event(), [0]

    def publish(url: str) -> None:
        with Client(url) as client:
            while not stop.wait(0.005):
                first = published[0]
                client.publish_many(
                    [{"source": "/s", "type": "t", "data": {"n": n}} for n in range(first, first + 10)]
                )
                published[0] += 10

    with running_service(tmp_path / "data", maintenance_s=0.3) as service:
        with Client(service.url) as client:
            client.create_subscription("data.n % 2 = 0", "even")
        publisher = threading.Thread(target=publish, args=(service.url,))
        publisher.start()
        known = []
        try:
            for turn, victim in enumerate(victims):
                until(lambda: published[0] >= 300 * (len(known) + 1))
                known.append(published[0])
                kill(victims_of(service, victim))
                make_backup(data, tmp_path / f"backup-{turn}")
                service.wait_ready()
        finally:
            stop.set()
            publisher.join()
    for turn, before in enumerate(known):
        check(tmp_path / f"backup-{turn}", tmp_path / f"restored-{turn}", before)


def check(backup: Path, to: Path, before: int) -> None:
    assert list(check_backup(backup)) == []
    restore_backup(backup, to)
    assert list(examine(DataFolder(to), is_running=False)) == []
    with LocalService(to) as service, service.client() as client:
        service.wait_until_matched(60)
        even: list[int] = []
        while messages := client.pull("even", max_messages=10_000, wait_s=1):
            even += [message.event["data"]["n"] for message in messages]
    assert even == list(range(0, even[-1] + 1, 2)) and even[-1] >= before - 2
