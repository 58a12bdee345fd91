"""The end of a replay: a subscription that starts in the past has a match log of its own for older records.

    its own log  ▒▒▒▒▒▒▒▒▒▒│ not matched yet
                           ^ read for this delivery alone
    match log    ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│
                                    ^ the boundary: from here on, read together with all other deliveries

The *boundary* is the first record that was matched against the subscription on arrival. Before it, the match
log holds no match of the subscription; from it on, the subscription's own log holds none. Until such a record
is known, every record belongs to the replay.
"""

from __future__ import annotations

from fieldfare.delivery.keys import OFFSET_MASK, PARTITION_SHIFT, offset_of


class ReplayBoundary:
    """The boundary of a replay in each partition, as far as known.

    Attributes
    ----------
    known
        The offsets, by partition; the reader of the replay adds them.
    """

    __slots__ = ("known",)

    def __init__(self) -> None:
        self.known: dict[int, int] = {}

    def holds(self, key: int) -> bool:
        """Return whether matches from a key on are read from the delivery's own log."""
        return offset_of(key) < self.known.get(key >> PARTITION_SHIFT, OFFSET_MASK)
