"""Tracing: when sampled records pass each step from their request to their delivery.

::

    received ─▶ decoded ─▶ appended ─▶ seen ─▶ matched ─▶ noticed ─▶ fetched ─▶ sent
    └────────── gateway ──────────┘    └─ pipeline ──┘    └──────── gateway ──────┘

Nothing is recorded, and hardly any time spent, unless a trace is under way or spans are exported, which are
made of the same times. The pipeline's times come with the blocks of the match log. All times are of this
machine's wall clock: a trace is wrong if that is set.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from fieldfare.delivery.keys import INDEX_BITS, place_of, position_of
from fieldfare.gateway.delivery.match_log_follower import ReadResult
from fieldfare.model import space_name
from fieldfare.storage.event_log import Appended, NewRecord

if TYPE_CHECKING:
    from fieldfare.gateway.telemetry.spans import Spans


class StepsDocument(Struct, omit_defaults=True):
    """When a record passed each step, in milliseconds since its request came; see docs/metrics.md.

    Steps that it has not reached are missing. `fetched` and `sent` are of its first delivery.
    """

    received: Annotated[float, "The request has come."]
    decoded: Annotated[float, "It was read, and its events checked."]
    appended: Annotated[float, "The events are durable in the event log."]
    seen: Annotated[float | None, "A matching task has seen them."] = None
    matched: Annotated[float | None, "Their matches were found."] = None
    noticed: Annotated[float | None, "The gateway has read the matches."] = None
    fetched: Annotated[float | None, "The first subscriber's message was composed."] = None
    sent: Annotated[float | None, "It was handed to the connection, or accepted by the push address."] = None


class TracedDocument(Struct):
    """A traced record."""

    position: Annotated[str, "The position of the record's first event."]
    space: Annotated[str, "Its space."]
    events: Annotated[int, "Number of its events."]
    received_ms: Annotated[float, "When its request came, in milliseconds since 1970."]
    steps: Annotated[
        StepsDocument,
        "When it passed each step, in milliseconds since its request came; without the steps that it has"
        " not reached. `fetched` and `sent` are of its first delivery.",
    ]


STEPS = StepsDocument.__struct_fields__
"""The steps in order."""

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
    """Records the steps of sampled records; for the event loop.

    Parameters
    ----------
    spans
        Exports the spans of sampled events. None: records are traced while a trace is under way only.
    """

    def __init__(self, spans: Spans | None = None) -> None:
        self._spans = spans
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

    async def trace(self, seconds: float, space: str | None) -> list[TracedDocument]:
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
                for place in [place for place in self._marks if not self._has_spans(place)]:
                    self._forget(place)

    def received(self) -> Marks | None:
        """Return the marks of a record whose request begins now; None if it is not traced."""
        return {"received": time.time_ns() / 1e6} if self._is_on() else None

    def _is_on(self) -> bool:
        return bool(self._traces) or self._spans is not None

    def decoded(self, marks: Marks) -> None:
        """Record that a request's events have been read and checked."""
        marks["decoded"] = time.time_ns() / 1e6

    def appended(self, marks: Marks, record: NewRecord, appended: Appended) -> None:
        """Record that a record is durable, and trace it from now on if it is sampled."""
        marks["appended"] = now_ms = time.time_ns() / 1e6
        place = place_of(appended.partition, appended.offset)
        traces = self._sampling(marks, record.space, now_ms)
        for trace in traces:
            trace.records[place] = record.space, appended.count, marks
        has_spans = False
        if self._spans is not None:
            for old in self._spans.expire(now_ms):
                if not self._traces:
                    self._forget(old)
            has_spans = self._spans.appended(place, record, marks)
        if not traces and not has_spans:
            return
        self._marks[place] = marks
        self._unmatched.add(place)
        for first, end, of_block in self._blocks:
            if first <= place < end and place in self._unmatched:
                self._matched(place, of_block)

    def _sampling(self, marks: Marks, space: str, now_ms: float) -> list[_Trace]:
        """Return the traces under way that a record of a request belongs to."""
        traces = [trace for trace in self._traces if trace.space in (None, space) and "decoded" in marks]
        if not traces or 0 <= self._next_ms - now_ms <= 1000 / RECORDS_PER_S_MAX:
            return []
        self._next_ms = now_ms + 1000 / RECORDS_PER_S_MAX
        return traces

    def _has_spans(self, place: int) -> bool:
        return self._spans is not None and place in self._spans

    def _forget(self, place: int) -> None:
        self._marks.pop(place, None)
        self._unmatched.discard(place)

    def noticed(self, found: ReadResult) -> None:
        """Record that a block of the match log was read."""
        if found.block is None or not self._is_on():
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
        if self._spans is not None:
            self._spans.matched(place)

    def fetched(self, keys: Sequence[int], number: int, name: str) -> None:
        """Record that messages were composed for a subscription, by its number and name."""
        if self._marks:
            now_ms = self._mark("fetched", keys)
            if self._spans is not None:
                self._spans.fetched(keys, number, name, now_ms)

    def sent(self, keys: Sequence[int], number: int) -> None:
        """Record that messages were handed to a subscription's connection, or accepted by its address."""
        if self._marks:
            now_ms = self._mark("sent", keys)
            if self._spans is not None:
                self._spans.sent(keys, number, now_ms)

    def acked(self, keys: Sequence[int], number: int, began_ms: float | None) -> None:
        """Record that messages of a subscription were acknowledged, since `ack_begins` was called."""
        if self._spans is not None and began_ms is not None:
            self._spans.acked(keys, number, began_ms, time.time_ns() / 1e6)

    def acked_up_to(self, key: int, number: int, began_ms: float | None) -> None:
        """Record that all messages of a partition up to a key were acknowledged."""
        if self._spans is not None and began_ms is not None:
            self._spans.acked_up_to(key, number, began_ms, time.time_ns() / 1e6)

    def ack_begins(self) -> float | None:
        """Return the time of a request that acknowledges messages; None if no spans are exported."""
        return None if self._spans is None else time.time_ns() / 1e6

    def _mark(self, step: str, keys: Sequence[int]) -> float:
        """Record a step of the records of some keys, unless it was recorded for an earlier subscriber."""
        now_ms = time.time_ns() / 1e6
        for place, _ in groupby(keys, lambda key: key >> INDEX_BITS):
            if (marks := self._marks.get(place)) is not None:
                marks.setdefault(step, now_ms)
        return now_ms


def _document(place: int, space: str, events: int, marks: Marks) -> TracedDocument:
    began_ms = marks["received"]
    steps = {step: round(marks[step] - began_ms, 3) for step in STEPS if step in marks}
    return TracedDocument(
        position=str(position_of(place << INDEX_BITS)),
        space=space_name(space),
        events=events,
        received_ms=round(began_ms, 3),
        steps=StepsDocument(**steps),
    )
