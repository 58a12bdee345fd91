"""Following the match log's end: waiting readers learn about new matches soon."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gateway_support import run

from fieldfare.delivery.delivery import Delivery
from fieldfare.delivery.read_scheduler import ReadGroup
from fieldfare.gateway.delivery import match_log_follower
from fieldfare.gateway.delivery.match_log_follower import MatchLogFollower
from fieldfare.gateway.fair_limiter import FairExecutor
from fieldfare.storage import NewMatchBlock, bell, open_event_log
from fieldfare.storage.files.match_log import FileMatchLog


def test_an_append_between_two_glances_of_the_follower_is_not_overlooked(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """The follower had just found nothing new, and had not yet announced that it would sleep: one of a
    hundred messages came a second late."""
    monkeypatch.setattr(match_log_follower, "IDLE_LOOK_S", 600.0)
    monkeypatch.setattr(bell, "inotify_simple", None)

    async def work() -> None:
        log, matches = open_event_log(f"sqlite:///{tmp_path / 'log.db'}"), FileMatchLog(tmp_path / "matches")
        end = 0

        def log_ends() -> tuple[int]:
            nonlocal end
            before = end
            if before == 0:  # it is appended, and matched, at this very moment
                end = 1
                matches.write(
                    NewMatchBlock.by_event(
                        0, 1, np.ones(1, np.int32), np.array([0, 1], np.int64), np.array([7], np.uint32)
                    )
                )
                tail.stir()
            return (before,)

        readers = FairExecutor(2, 1, "test")
        tail = MatchLogFollower(
            matches, log, log_ends, (0,), readers, poll_s=0.001, on_broken=lambda error: None
        )
        group = ReadGroup(0, 0)
        group.join(7, Delivery(7, [0]))
        try:
            found = await asyncio.wait_for(tail.follow(group), 60)
            assert found is not None and found.end == 1
            assert [number for number, _ in found.keys] == [7]
        finally:
            tail.close()
            readers.close()
            log.close()

    run(work)


def test_a_block_written_between_two_looks_of_a_follower_that_hears_is_not_overlooked(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(match_log_follower, "IDLE_LOOK_S", 600.0)
    pytest.importorskip("inotify_simple")

    async def work() -> None:
        log, matches = open_event_log(f"sqlite:///{tmp_path / 'log.db'}"), FileMatchLog(tmp_path / "matches")
        readers = FairExecutor(2, 1, "test")
        tail = MatchLogFollower(
            matches, log, lambda: (0,), (0,), readers, poll_s=600.0, on_broken=lambda error: None
        )
        looks = 0
        real = tail._read_group

        def look(group: ReadGroup) -> Any:
            nonlocal looks
            looks += 1
            found = real(group)
            if looks == 1:  # by another process, as its own object of the log
                FileMatchLog(tmp_path / "matches").write(NewMatchBlock.gap(0, 1))
            return found

        monkeypatch.setattr(tail, "_read_group", look)
        try:
            found = await asyncio.wait_for(tail.follow(ReadGroup(0, 0)), 60)
            assert found is not None and found.end == 1
            assert looks == 2
        finally:
            tail.close()
            readers.close()
            log.close()

    run(work)
