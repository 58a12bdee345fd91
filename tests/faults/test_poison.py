"""One record that cannot be matched: the others go on, all of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from accidents import HOOKS, readiness
from scene import BUSY, Scene, logs_in, scene
from service_support import Api, cloud_event, until

pytestmark = pytest.mark.service

KEPT = {**BUSY, "retention_bytes": 32 << 30}
"""Only age could remove anything, after the week that is the default."""
AWAY = ("default", "pulled")
SOUR = "a record that cannot be matched"


def hooks(tmp_path: Path) -> tuple[dict[str, str], Path, Path]:
    """The environment of a service with a poisonous text and a clock that can be set, and their files."""
    poison, clock = tmp_path / "poison.txt", tmp_path / "clock.txt"
    clock.write_text("0")
    return {"FAULT_POISON": str(poison), "FAULT_CLOCK": str(clock), "PYTHONPATH": str(HOOKS)}, poison, clock


def publish_sour(played: Scene) -> int:
    """Publish one record that cannot be matched; its offset."""
    events = [cloud_event("sour", {"n": -1, "words": SOUR})]
    played.load.ledger.sending("default", events)
    return Api(played.service.url).publish("default", events)


def check_that_it_was_given_up(played: Scene, offset: int) -> None:
    """The service says which record it is, and is ready without it.

    What flows until then may lie before it: a pipeline that is held up has much to catch up with.
    """

    def is_named() -> bool:
        assert played.load.check() >= 0
        logs = played.service.folder.logs.glob("*.log")
        return any(
            re.search(rf"record {offset} .* is set aside", log.read_text(errors="replace")) for log in logs
        )

    until(is_named, 400, f"(record {offset} is named)", every_s=0.5)
    until(lambda: readiness(played.service) == {}, 300, "(ready although one record was given up)")
    assert played.service.process.poll() is None


@pytest.mark.slow
def test_a_record_that_makes_matching_raise_and_a_clock_that_jumps_hold_nobody_up(tmp_path: Path) -> None:
    """A bug for one odd event: the pipeline dies of it, is started again, and dies of it again.

    Meanwhile the clock jumps by more than a week, which is how long events are kept, and back; a subscriber
    that was away gets all the same what it is owed.
    """
    environment, poison, clock = hooks(tmp_path)
    poison.write_text(SOUR)
    with scene(tmp_path / "data", 131, environment=environment, **KEPT) as played:
        played.load.flow(50)
        played.load.readers[AWAY].pause()
        offset = publish_sour(played)
        clock.write_text(str(8 * 86_400))
        played.load.flow(200, 240)
        check_that_it_was_given_up(played, offset)
        clock.write_text("0")
        played.load.flow(50)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("how", "matchers", "keeper"),
    [
        *(("raise", 1, "sqlite"), ("kill", 1, "sqlite"), ("raise", 2, "sqlite"), ("kill", 2, "sqlite")),
        *(("raise", 1, "kafka"), ("kill", 2, "kafka")),
    ],
)
def test_a_record_that_no_task_survives_holds_nobody_up(
    tmp_path: Path, how: str, matchers: int, keeper: str
) -> None:
    """Also one that ends its process (a fault in a library), where it is read or at a matcher that it was
    sent to; and after the bug is mended."""
    environment, poison, _ = hooks(tmp_path)
    poison.write_text(f"{SOUR}\n{how}")
    held = {"partitioning": "hash", "matchers": matchers}
    with logs_in(keeper) as logs:
        check_that_it_holds_nobody_up(tmp_path / "data", environment, poison, held | logs)


def check_that_it_holds_nobody_up(
    data: Path, environment: dict[str, str], poison: Path, held: dict[str, object]
) -> None:
    with scene(data, 132, environment=environment, **BUSY, **held) as played:
        for _ in range(2):
            played.load.flow(played.random.randrange(50, 200))
            offset = publish_sour(played)
            played.load.flow(300, 240)
            check_that_it_was_given_up(played, offset)
        poison.unlink()
        played.strike("driver")
        played.load.flow(100)
