"""Tracing: when sampled records pass each step from their request to their delivery.

::

    received ─▶ decoded ─▶ appended ─▶ seen ─▶ matched ─▶ noticed ─▶ fetched ─▶ sent
    └────────── gateway ──────────┘    └─ pipeline ──┘    └──────── gateway ──────┘

Nothing is recorded, and hardly any time spent, unless a trace is under way. The pipeline's times come with
the blocks of the match log. All times are of this machine's wall clock: a trace is wrong if that is set.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from fieldfare.delivery.keys import INDEX_BITS, place_of, position_of
from fieldfare.gateway.delivery.match_log_follower import ReadResult
from fieldfare.model import space_name
from fieldfare.storage.event_log import Appended

STEPS = {
    "received": "The request has come.",
    "decoded": "It was read, and its events checked.",
    "appended": "The events are durable in the event log.",
    "seen": "A matching task has seen them.",
    "matched": "Their matches were found.",
    "noticed": "The gateway has read the matches.",
    "fetched": "The first subscriber's message was composed.",
    "sent": "It was handed to the connection, or accepted by the push address.",
}
"""The steps in order; see docs/metrics.md."""

RECORDS_PER_S_MAX = 200.0
"""Maximum records traced per second; of more, the first after each interval."""
TRACES_MAX = 4
"""Maximum traces at a time; further requests are refused."""
DELIVERY_WAIT_S = 1.0
"""Seconds for which a trace waits at its end for the deliveries of its last records."""
BLOCKS_KEPT = 64
"""Blocks remembered for records whose request has not been answered when their matches are read."""

Marks = dict[str, float]
"""The times of a record's steps, in milliseconds since 1970."""


class TooManyTraces(Exception):
    """`TRACES_MAX` traces are under way."""


@dataclass(slots=True)
class _Trace:
    space: str | None
    records: dict[int, tuple[str, int, Marks]] = field(default_factory=dict)
    """Space, number of events and marks of each record, by place."""


class Tracer:
    """Records the steps of sampled records while at least one trace is under way; for the event loop."""

    def __init__(self) -> None:
        self._traces: list[_Trace] = []
        self._next_ms = 0.0
        self._marks: dict[int, Marks] = {}
        self._unmatched: set[int] = set()
        self._blocks: deque[tuple[int, int, Marks]] = deque(maxlen=BLOCKS_KEPT)
        """The range of places of the last blocks, and their marks."""
        self._stopping: asyncio.Event | None = None

    def stop(self) -> None:
        """End the traces under way: the gateway stops."""
        if self._stopping is not None:
            self._stopping.set()

    async def trace(self, seconds: float, space: str | None) -> list[dict[str, Any]]:
        """Trace records that are published in the next seconds; return their documents, oldest first.

        Parameters
        ----------
        seconds
            Duration. The result comes `DELIVERY_WAIT_S` later if there are records.
        space
            The key of a space, to trace only its records.

        Raises
        ------
        TooManyTraces
        """
        if len(self._traces) >= TRACES_MAX:
            raise TooManyTraces
        if self._stopping is None:
            self._stopping = asyncio.Event()
        trace = _Trace(space)
        self._traces.append(trace)
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((stopped,), timeout=seconds)
            records = dict(trace.records)
            if records and not self._stopping.is_set():
                await asyncio.wait((stopped,), timeout=DELIVERY_WAIT_S)
            return [_document(place, *record) for place, record in sorted(records.items())]
        finally:
            stopped.cancel()
            self._traces.remove(trace)
            if not self._traces:
                self._marks.clear()
                self._unmatched.clear()
                self._blocks.clear()

    def received(self) -> Marks | None:
        """Return the marks of a record whose request begins now; None if it is not traced."""
        if not self._traces:
            return None
        now_ms = time.time_ns() / 1e6
        if 0 <= self._next_ms - now_ms <= 1000 / RECORDS_PER_S_MAX:
            return None
        self._next_ms = now_ms + 1000 / RECORDS_PER_S_MAX
        return {"received": now_ms}

    def decoded(self, marks: Marks) -> None:
        """Record that a request's events have been read and checked."""
        marks["decoded"] = time.time_ns() / 1e6

    def appended(self, marks: Marks, space: str, appended: Appended) -> None:
        """Record that a record is durable, and trace it from now on."""
        marks["appended"] = time.time_ns() / 1e6
        place = place_of(appended.partition, appended.offset)
        for trace in self._traces:
            if trace.space in (None, space):
                trace.records[place] = space, appended.count, marks
                self._marks[place] = marks
                self._unmatched.add(place)
        for first, end, of_block in self._blocks:
            if first <= place < end and place in self._unmatched:
                self._matched(place, of_block)

    def noticed(self, found: ReadResult) -> None:
        """Record that a block of the match log was read."""
        if not self._traces or found.block is None:
            return
        block = found.block
        marks = {"noticed": found.read_ms}
        for step in ("seen", "matched"):
            if (figure := block.extra.get(f"{step}_ms")) is not None:
                marks[step] = float(figure)
        first, end = (place_of(found.partition, offset) for offset in (block.start, block.end))
        self._blocks.append((first, end, marks))
        for place in [place for place in self._unmatched if first <= place < end]:
            self._matched(place, marks)

    def _matched(self, place: int, marks: Marks) -> None:
        self._unmatched.discard(place)
        self._marks[place].update(marks)

    def fetched(self, keys: Iterable[int]) -> None:
        """Record that messages were composed for a subscriber."""
        self._mark("fetched", keys)

    def sent(self, keys: Iterable[int]) -> None:
        """Record that messages were handed to a subscriber's connection, or accepted by its address."""
        self._mark("sent", keys)

    def _mark(self, step: str, keys: Iterable[int]) -> None:
        """Record a step of the records of some keys, unless it was recorded for an earlier subscriber."""
        if self._marks:
            now_ms = time.time_ns() / 1e6
            for place, _ in groupby(keys, lambda key: key >> INDEX_BITS):
                if (marks := self._marks.get(place)) is not None:
                    marks.setdefault(step, now_ms)


def _document(place: int, space: str, events: int, marks: Marks) -> dict[str, Any]:
    began_ms = marks["received"]
    steps = {step: round(marks[step] - began_ms, 3) for step in STEPS if step in marks}
    return {
        "position": str(position_of(place << INDEX_BITS)),
        "space": space_name(space),
        "events": events,
        "received_ms": round(began_ms, 3),
        "steps": steps,
    }
