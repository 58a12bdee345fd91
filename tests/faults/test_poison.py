"""One record that cannot be matched: the others go on, all of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from accidents import HOOKS, readiness
from scene import BUSY, scene
from service_support import Api, cloud_event, until

from fieldfare.model import Position

pytestmark = [pytest.mark.service, pytest.mark.xdist_group("service")]

SOUR = "a record that cannot be matched"


def suffer(tmp_path: Path, seed: int, how: str, *, cured: bool) -> None:
    """Publish records that no task survives among others; the service must go on without them."""
    poison = tmp_path / "poison.txt"
    poison.write_text(f"{SOUR}\n{how}" if how else SOUR)
    environment = {"FAULT_POISON": str(poison), "PYTHONPATH": str(HOOKS)}
    with scene(tmp_path / "data", seed, environment=environment, **BUSY) as played:
        played.load.flow(100)
        api = Api(played.service.url)
        events = [cloud_event("sour", {"n": -1, "words": SOUR})]
        played.load.ledger.sending("default", events)
        offset = api.publish("default", events)
        # More than is in flight at that moment: all this was published after it, and is matched.
        played.load.flow(300)
        until(lambda: readiness(played.service) == {}, 60, "(ready although one record was given up)")
        assert played.service.process.poll() is None
        logs = [path for path in (played.data / "logs").glob("*.log") if path.stat().st_size]
        said = "".join(path.read_text(errors="replace") for path in logs)
        assert str(offset) in said or str(Position(0, offset, 0)) in said, "the record is named nowhere"
        if cured:
            poison.unlink()
            played.strike("driver")
            played.load.flow(100)


def test_a_record_that_makes_matching_raise_holds_nobody_up(tmp_path: Path) -> None:
    """A bug for one odd event: the pipeline dies of it, is started again, and dies of it again."""
    suffer(tmp_path, 131, "", cured=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", ["", "kill"])
def test_a_record_that_no_task_survives_holds_nobody_up(tmp_path: Path, how: str) -> None:
    """Also one that ends its process (a fault in a library); and after the bug is mended."""
    suffer(tmp_path, 132, how, cured=True)


def test_the_hook_is_no_part_of_the_product() -> None:
    assert not any("FAULT_" in name for name in os.environ)
