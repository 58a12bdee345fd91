"""Truth values as bytes, ordered so that AND is the minimum, OR the maximum, and NOT ``TRUE - x``."""

from __future__ import annotations

FALSE = 0
UNKNOWN = 1
TRUE = 2
ASK = 3
"""Not a truth value: the kernel cannot decide, and Python evaluates the filter for this row."""

CODES = {False: FALSE, None: UNKNOWN, True: TRUE}
"""Maps the truth values of the evaluator of ``fieldfare.filters``."""
