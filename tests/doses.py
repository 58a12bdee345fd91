"""How many examples tests draw: few in the inner loop, some in ``make test``, all in ``make test-all``.

``DOSE`` in the environment is the share; the Makefile sets it. The first examples are the same in each.
"""

from __future__ import annotations

import os

SHARE = float(os.environ.get("DOSE", "1"))
EXAMPLES_MIN = 4


def drawn(examples: int) -> int:
    """How many of so many examples are drawn in this run."""
    return min(examples, max(EXAMPLES_MIN, round(examples * SHARE)))


def rounds(times: int) -> int:
    """How many times something that takes long is repeated in this run: at least twice."""
    return min(times, max(2, round(times * SHARE)))
