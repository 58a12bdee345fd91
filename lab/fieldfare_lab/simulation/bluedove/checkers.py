"""Invariants of every run, checked from its trace alone, in code that the simulation does not use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from fieldfare_lab.simulation.bluedove.model import Trace

Box = Sequence[tuple[int, int]]
"""A subscription: (lowest, highest) value of each attribute."""


def lost_without_reason(trace: Trace) -> list[int]:
    """Return the messages that were not delivered although no matcher that held them crashed.

    For a run that continued until no message was in flight.
    """
    found = []
    for message, delivered_s in enumerate(trace.delivered_s.tolist()):
        holder = int(trace.matcher[message])
        has_died = trace.crashed_s.get(holder, math.inf) < math.inf
        if math.isnan(delivered_s) and not has_died:
            found.append(message)
    return found


def matched_wrongly(trace: Trace, boxes: Sequence[Box]) -> list[int]:
    """Return the messages that were not delivered exactly once to each subscription that contains them."""
    found = []
    attributes = list(zip(*boxes, strict=True))
    for message, delivered in trace.matches.items():
        wanted = list(range(len(boxes)))
        for value, ranges in zip(trace.values[message].tolist(), attributes, strict=True):
            wanted = [number for number in wanted if ranges[number][0] <= value <= ranges[number][1]]
        if delivered != wanted:
            found.append(message)
    return found


def out_of_order(trace: Trace) -> list[tuple[int, int]]:
    """Return pairs of messages from one dispatcher to one queue in which the later one was served first.

    Also pairs within one queue, whatever their dispatchers.
    """
    found = []
    queues: dict[tuple[int, int], list[int]] = {}
    links: dict[tuple[int, int, int], list[int]] = {}
    for message, delivered_s in enumerate(trace.delivered_s.tolist()):
        if not math.isnan(delivered_s):
            matcher, key = int(trace.matcher[message]), int(trace.key[message])
            queues.setdefault((matcher, key), []).append(message)
            links.setdefault((int(trace.dispatcher[message]), matcher, key), []).append(message)
    in_queue, on_link = (trace.queued_s, trace.started_s), (trace.sent_s, trace.arrived_s)
    for (moment_s, tie_s), groups in ((in_queue, queues.values()), (on_link, links.values())):
        for group in groups:
            ordered = sorted(group, key=lambda message: (moment_s[message], tie_s[message]))
            found += [
                (first, second)
                for first, second in pairwise(ordered)
                if trace.delivered_s[first] > trace.started_s[second]
            ]
    return found


def moments_out_of_order(trace: Trace) -> list[int]:
    """Return the delivered messages whose steps have times in the wrong order."""
    found = []
    for message, delivered_s in enumerate(trace.delivered_s.tolist()):
        if not math.isnan(delivered_s):
            moments = (
                trace.arrived_s[message],
                trace.sent_s[message],
                trace.queued_s[message],
                trace.started_s[message],
                delivered_s,
            )
            if any(a > b for a, b in pairwise(moments)):
                found.append(message)
    return found
