"""Queues of brokers, compiled: each broker has one server, and takes messages as they arrive."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any

import numpy as np

from fieldfare.matching.compiled import compiled


@compiled
def queue_delays(started_s: Any, first_step: Any, steps: Any, busy_s: Any, settings: Any) -> Any:
    """Return the delays of the steps that deliver, and how many deliveries each is; add to `busy_s`.

    Parameters
    ----------
    started_s, first_step
        When each event is published, in order, and its first step.
    steps
        Of each step broker, time, deliveries, start of its children; and the children.
    settings
        The events whose delays are left out, from the first one on; and a message's time on a link.
    """
    broker, takes_s, delivered, child_start, children = steps
    warming, delay_s = settings
    waiting = [(started_s[event], event, event, first_step[event]) for event in range(len(started_s))]
    order = len(waiting)
    free_s = np.zeros(len(busy_s))
    found_s, counts = [0.0], [0]
    while len(waiting):
        now, _, event, step = heappop(waiting)
        at = broker[step]
        done_s = max(now, free_s[at]) + takes_s[step]
        free_s[at] = done_s
        busy_s[at] += takes_s[step]
        if delivered[step] and event >= warming:
            found_s.append(done_s - started_s[event])
            counts.append(delivered[step])
        for place in range(child_start[step], child_start[step + 1]):
            heappush(waiting, (done_s + delay_s, order, event, children[place]))
            order += 1
    return np.array(found_s[1:]), np.array(counts[1:])
