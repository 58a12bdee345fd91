"""A clock that jumps: nothing is removed before its time, and readiness does not lie."""

from __future__ import annotations

from pathlib import Path

import pytest
from accidents import HOOKS, frozen, readiness, victims_of
from scene import BUSY, logs_in, scene
from service_support import until

pytestmark = pytest.mark.service

WEEK_S = 7 * 86_400
KEPT = {**BUSY, "retention_bytes": 32 << 30}
"""Only age could remove anything, after the week that is the default."""
AWAY = ("default", "pulled")


def suffer(
    tmp_path: Path, seed: int, jumps_s: list[int], *, killed: bool = False, keeper: str = "sqlite"
) -> None:
    """Let the clock jump while a subscriber is away: it still gets everything that it is owed."""
    clock = tmp_path / "clock.txt"
    clock.write_text("0")
    environment = {"FAULT_CLOCK": str(clock), "PYTHONPATH": str(HOOKS)}
    with (
        logs_in(keeper) as logs,
        scene(tmp_path / "data", seed, environment=environment, **KEPT, **logs) as played,
    ):
        played.load.flow(50)
        played.load.readers[AWAY].pause()
        for jump_s in jumps_s:
            played.load.flow(100)
            clock.write_text(str(jump_s))
            played.linger(10 * KEPT["maintenance_s"])
            if killed:
                played.strike("gateway")
            until(lambda: readiness(played.service) == {}, 180, "(ready after the jump)")
        played.load.flow(50)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("keeper", ["sqlite", "kafka"])
def test_a_clock_that_jumps_by_a_week_and_back_removes_nothing(tmp_path: Path, keeper: str) -> None:
    """A dead battery, a wrong time server: for a while everything seems older than retention allows. A broker
    goes by its own clock, which stays as it is."""
    suffer(tmp_path, 141, [WEEK_S + 86_400, -WEEK_S, 0], keeper=keeper)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("killed", [False, True])
def test_a_clock_that_jumps_to_and_fro_removes_nothing(tmp_path: Path, killed: bool) -> None:
    """By years, and also while the gateway is started anew: it knows no older time then."""
    suffer(tmp_path, 142, [-WEEK_S, 2 * WEEK_S, 500 * WEEK_S, 0, -500 * WEEK_S, 0], killed=killed)


@pytest.mark.slow
def test_readiness_tells_of_a_hung_pipeline_also_after_the_clock_went_back(tmp_path: Path) -> None:
    """The last heartbeat is from the future then, and would look fresh for a week."""
    clock = tmp_path / "clock.txt"
    clock.write_text(str(WEEK_S))
    environment = {"FAULT_CLOCK": str(clock), "PYTHONPATH": str(HOOKS)}
    with scene(tmp_path / "data", 143, environment=environment, **KEPT) as played:
        played.load.flow(50)
        with frozen(victims_of(played.service, "driver")):
            clock.write_text("0")
            until(lambda: readiness(played.service), 180, "(not ready)")
        until(lambda: readiness(played.service) == {}, 300, "(ready again)")
        played.load.flow(50)
