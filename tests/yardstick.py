"""How slow this machine is now: limits on processor time hold on a quiet one, and are stretched by it.

What is quadratic, or holds an event loop up, is tens of times too slow; a machine of today is not.
"""

from __future__ import annotations

import json
import statistics
import time

PIECE_S = 0.00065
"""What `_piece` takes on the quiet core that the limits were found on."""
PIECES = 31


def slowness() -> float:
    """How many times as long as there a piece of work takes here and now; at least 1."""
    took_s = []
    for _ in range(PIECES):
        start_s = time.thread_time()
        _piece()
        took_s.append(time.thread_time() - start_s)
    return max(1.0, statistics.median(took_s) / PIECE_S)


def _piece() -> int:
    text = json.dumps([{"id": str(n), "values": [n, n / 3, None, True]} for n in range(200)])
    found = {}
    for each in json.loads(text):
        found[each["id"]] = [value for value in each["values"] if value is not None]
    return len(found)
