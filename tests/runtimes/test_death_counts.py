"""The supervisor counts the deaths of its children, and a restart of the service keeps the counts."""

from __future__ import annotations

import os
import signal

import pytest
from restart_support import PROGRAMS, READS_PROGRAMS, install, restarted, state
from stand_ins import service, until

pytestmark = pytest.mark.long


def test_deaths_are_counted_and_replacements_are_not(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    install(data, **PROGRAMS)
    with service(data, serve=READS_PROGRAMS) as running:
        running.ready()
        assert state(running)["deaths"] == {"gateway": 0, "indexer": 0, "pipeline": 0}
        for times, name in ((1, "pipeline"), (2, "pipeline"), (1, "gateway")):
            before = running.pids(name)
            os.kill(before[-1], signal.SIGKILL)
            until(lambda times=times, name=name: state(running)["deaths"][name] == times)
            until(lambda before=before, name=name: len(running.pids(name)) > len(before))
        assert restarted(running) is None
        assert state(running)["deaths"] == {"gateway": 1, "indexer": 0, "pipeline": 2}
        os.kill(running.pids("indexer")[-1], signal.SIGKILL)
        until(lambda: state(running)["deaths"] == {"gateway": 1, "indexer": 1, "pipeline": 2})
        assert state(running)["state"] == "running"
