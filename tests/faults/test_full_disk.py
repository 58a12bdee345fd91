"""A disk that is full for a while: clear answers, nothing lost, nobody given up, and it goes on by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from accidents import MIB, fill, kill, readiness, small_disk, victims_of
from scene import BUSY, CALM_LOAD, Scene, scene
from service_support import until

from fieldfare_lab.kafka_broker import KafkaBroker, why_no_broker

pytestmark = [pytest.mark.service, pytest.mark.timeout(1200)]

DISK_BYTES = 192 * MIB


def fill_and_free(played: Scene, *, full_s: float, leave_bytes: int = 0, killed: str | None = None) -> None:
    """Fill the disk, watch for a while, and free it again; a process may be killed while it is full."""
    known = sum(played.load.ledger.refusals.values())
    ballast = fill(played.data, leave_bytes=leave_bytes)
    try:
        until(
            lambda: readiness(played.service) or played.load.check() < 0,
            180,
            "(it says that it is not ready)",
        )
        until(lambda: sum(played.load.ledger.refusals.values()) > known, 180, "(publishers are told)")
        if killed is not None:
            kill(victims_of(played.service, killed))
        played.linger(full_s)
        assert played.service.process.poll() is None, "the service gave up"
    finally:
        ballast.unlink()
    until(lambda: readiness(played.service) == {}, 300, "(ready again)")
    played.load.flow(100)


def test_a_full_disk_stops_nobody_for_good(tmp_path: Path) -> None:
    """Not a byte is left, for the log, the matches, the heartbeat and the logs; then somebody tidies up."""
    options = {**BUSY, "disk_free_min_bytes": 0, "console": tmp_path / "console.txt"}
    with (
        small_disk(tmp_path / "disk", DISK_BYTES) as disk,
        scene(disk / "data", 91, CALM_LOAD, **options) as played,
    ):
        played.load.flow(100)
        fill_and_free(played, full_s=6)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_disk_that_is_full_again_and_again_stops_nobody_for_good(tmp_path: Path) -> None:
    """Also for longer than any patience with deaths, with processes killed, and the console on it."""
    options = {**BUSY, "disk_free_min_bytes": 0}
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk, scene(disk / "data", 92, **options) as played:
        for full_s, killed in ((30, None), (10, "gateway"), (30, "driver"), (60, None)):
            played.load.flow(played.random.randrange(1, 500))
            fill_and_free(played, full_s=full_s, killed=killed)


@pytest.mark.slow
def test_publishers_are_held_back_before_the_disk_is_full(tmp_path: Path) -> None:
    """Below the reserve they get 429, subscribers go on, and nothing fails."""
    options = {**BUSY, "disk_free_min_bytes": 64 * MIB, "console": tmp_path / "console.txt"}
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk, scene(disk / "data", 93, **options) as played:
        played.load.flow(100)
        fill_and_free(played, full_s=5, leave_bytes=32 * MIB)
        assert set(played.load.ledger.refusals) == {(429, "overloaded")}


@pytest.mark.slow
def test_a_full_disk_of_the_brokers_stops_nobody_for_good(tmp_path: Path) -> None:
    """A broker whose only disk is full ends by itself. Publishers hear that nothing is appended; once there
    is room, somebody starts the broker."""
    if (reason := why_no_broker()) is not None:
        pytest.skip(reason)
    with (
        small_disk(tmp_path / "disk", 2 * DISK_BYTES) as disk,
        KafkaBroker(within=disk) as broker,
        scene(
            tmp_path / "data", 94, CALM_LOAD, **BUSY, log=f"kafka://{broker.address}/events?partitions=1"
        ) as played,
    ):
        played.load.flow(100)
        refusals = played.load.ledger.refusals
        for full_s in (1, 20):
            known = sum(refusals.values())
            ballast = fill(disk)
            until(lambda: not broker.is_running, 180, "(the broker ends)")
            until(lambda n=known: sum(refusals.values()) > n, 180, "(publishers are told)")
            until(lambda: readiness(played.service) or played.load.check() < 0, 180, "(it is not ready)")
            played.linger(full_s)
            assert played.service.process.poll() is None, "the service gave up"
            ballast.unlink()
            broker.start_again()
            until(lambda: readiness(played.service) == {}, 300, "(ready again)")
            played.load.flow(100, 120)
        assert (503, "storage") in refusals, refusals
