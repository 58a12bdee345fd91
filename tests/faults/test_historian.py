"""Who reads the past says so when some of it is lost, also where all are to rest meanwhile."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import readers
from ledger import Fault, Ledger
from readers import REPLAY_BYTES, Historian


@pytest.mark.parametrize("end", ["pause", "stop"])
def test_a_past_that_was_begun_is_looked_at_to_its_end(monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    """After each burst of kills all rested, and what was lost of a past that was being read went unseen."""
    monkeypatch.setattr(readers, "REPLAY_S", 0.05)
    ledger = Ledger()
    ledger.acknowledge(
        "a", 3, 0, [{"data": {"n": 1, "bulk": 0}}, {"data": {"n": 2, "bulk": 5}}], REPLAY_BYTES
    )
    load: Any = SimpleNamespace(ledger=ledger, url="http://127.0.0.1:9", in_peace_s=float("inf"))
    historian = Historian(load, "a", "seed")
    has_asked = threading.Event()

    def call(method: str, path: str, **arguments: Any) -> tuple[httpx.Response, int]:
        if path.endswith("/pull"):
            has_asked.set()
        return httpx.Response(201 if method == "PUT" else 200, json={"messages": []}), 1

    monkeypatch.setattr(historian, "call", call)
    historian.start()
    assert has_asked.wait(60)
    load.in_peace_s = 0.0  # the burst is over
    with pytest.raises(Fault, match="lacks 1 of 1") as found:
        getattr(historian, end)()
    assert found.value.kind == "lost"
    historian.stopping.set()
