"""Which tests share a worker where several run at once.

Two services at once on two cores would wait for each other, and so would two Spark sessions; and what a
module prepares once is prepared once in each worker.
(`pytest.mark.xdist_group` is without effect: what pytest-xdist 3.8 notes down, pytest 9.2 does not read.)
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

TOGETHER = {
    "service": (
        *(f"tests/faults/test_{name}.py" for name in ("clock", "everything_at_once", "full_disk", "hung")),
        *(f"tests/faults/test_{name}.py" for name in ("poison", "power_failure", "restored")),
        *(f"tests/scenarios/test_{name}.py" for name in ("demo_small", "private_service")),
        *(f"tests/scenarios/test_{name}.py" for name in ("upgrade", "validity", "three_sites")),
        *(f"tests/faults/test_{name}.py" for name in ("sites", "backup_under_kills", "balancing_services")),
    ),
    "session": (
        "tests/runtimes/test_match_loop.py",
        *(
            f"tests/runtimes/test_spark_{name}.py"
            for name in ("batch", "files", "match", "odd_tables", "past", "distributed")
        ),
    ),
    "flights": ("tests/cli/demo/",),
    "figures": ("tests/papers/bluedove/test_section_4_simulation.py",),
}
"""The tests that go to one worker; all others are handed out one by one."""
for named in itertools.chain(*TOGETHER.values()):
    assert (Path(__file__).parents[1] / named).exists(), f"{named} has another name now"


class Chains(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        if "kafka" in nodeid.lower():
            return "kafka"  # One broker is enough.
        for name, paths in TOGETHER.items():
            if nodeid.startswith(paths):
                return name
        return nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Chains:
    return Chains(config, log)
