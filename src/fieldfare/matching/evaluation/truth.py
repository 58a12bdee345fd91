"""Truth values as bytes, ordered so that AND is the lesser of two, OR the greater, and NOT ``TRUE - x``."""

from __future__ import annotations

FALSE = 0
UNKNOWN = 1
TRUE = 2
ASK = 3
"""Not a truth value: a kernel could not tell, and the filter itself is asked about this row."""

CODES = {False: FALSE, None: UNKNOWN, True: TRUE}
"""What the evaluator of ``fieldfare.filters`` calls them."""
