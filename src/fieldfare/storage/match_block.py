"""A block of the match log: which subscriptions matched each event of a range of records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

MAX_BLOCK_EVENTS = 65_536


@dataclass(frozen=True, slots=True)
class NewMatchBlock:
    """The matches of the records with ``start <= offset < end``, to be written.

    Parameters
    ----------
    start, end
        The range of records.
    counts
        int32[end - start]: the number of events of each record; 65,536 together at most.
    indptr, subscriptions
        The matches by event (CSR): event e, counted over all records of the block, matched
        ``subscriptions[indptr[e]:indptr[e + 1]]``, int64[events + 1] and uint32[m], no number twice.
    extra
        Figures about the making of the block (times, durations); kept until the block is compacted.
    """

    start: int
    end: int
    counts: NDArray[np.int32]
    indptr: NDArray[np.int64]
    subscriptions: NDArray[np.uint32]
    extra: Mapping[str, int | float] = field(default_factory=dict)
