"""When events are forwarded to other brokers: as soon as their matches are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from federation_support import sites
from gateway_support import DEADLINE_S, until

from fieldfare.gateway.federation import service


def test_events_are_forwarded_once_their_matches_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sites(tmp_path, "ab", "ab") as (a, b):
        revision = b.subscribe("mine", "data.n >= 0")
        until(lambda: b.counts(revision, "a"))
        monkeypatch.setattr(service, "POLL_S", 10 * DEADLINE_S)
        for number in range(3):  # A look that was under way may forward the first one.
            a.publish(number)
            assert b.take("mine", 1) == [number]
        appends, tail = a.gateway.writer._appends, a.gateway.tail
        move_ends = appends._move_ends

        def move_late(places: Any) -> None:
            until(lambda: tail.tips[0] > places[-1].offset)
            move_ends(places)

        monkeypatch.setattr(appends, "_move_ends", move_late)
        a.publish(3)  # The block is found before the writer has noted that the log has grown.
        assert b.take("mine", 1) == [3]
