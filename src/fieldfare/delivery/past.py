"""The time before a subscription was created, where it asked for it: its matches have a log of their own.

    its own log  ▒▒▒▒▒▒▒▒▒▒│ not matched yet
                           ^ read for this delivery alone
    match log    ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒│
                                    ^ the seam: from here on it is read with all others

The *seam* is the first record that met the subscription as it came: before it the match log holds nothing of
it, and from it on its own log does not. While no such record is known, everything is past.
"""

from __future__ import annotations

from fieldfare.delivery.keys import OFFSET_MASK, PARTITION_SHIFT, offset_of


class Seams:
    """Where the seam of each partition is, as far as that is known.

    Attributes
    ----------
    known
        The offsets, by partition; whoever reads adds them.
    """

    __slots__ = ("known",)

    def __init__(self) -> None:
        self.known: dict[int, int] = {}

    def holds(self, key: int) -> bool:
        """Whether matches from a key on are to be read from the delivery's own log."""
        return offset_of(key) < self.known.get(key >> PARTITION_SHIFT, OFFSET_MASK)
