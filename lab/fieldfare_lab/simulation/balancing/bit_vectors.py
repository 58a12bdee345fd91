"""PRESS's bit vectors while they are sampled: a row of bits per sample.

10,000 subscriptions with 100 samples are 1 Mb.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class BitVectors:
    """Bit vectors of subscriptions, filled while publications arrive.

    Parameters
    ----------
    count
        Number of subscriptions.
    samples
        N, the length of a vector. `record` takes no more.
    """

    def __init__(self, count: int, samples: int) -> None:
        self.count = count
        self.samples = samples
        self.taken = 0
        self._rows = np.zeros((samples, (count + 7) // 8), dtype=np.uint8)

    @property
    def nbytes(self) -> int:
        """Bytes that the vectors take."""
        return self._rows.nbytes

    @property
    def is_full(self) -> bool:
        """Whether all samples were taken."""
        return self.taken == self.samples

    def record(self, matched: Any) -> None:
        """Add a publication: for each subscription whether it matched."""
        if self.is_full:
            raise ValueError(f"All {self.samples} samples were taken")
        bits = np.asarray(matched, dtype=bool)
        if bits.shape != (self.count,):
            raise ValueError(f"A sample has {bits.size} values; there are {self.count} subscriptions")
        self._rows[self.taken] = np.packbits(bits)
        self.taken += 1

    def bits(self) -> Any:
        """Return the vectors as a Boolean array: subscriptions x samples taken, the first sample first."""
        rows = np.unpackbits(self._rows[: self.taken], axis=1, count=self.count)
        return np.ascontiguousarray(rows.T.astype(bool))

    def text(self, number: int) -> str:
        """Return a vector as in Table 1: the first sample on the right."""
        return "".join("1" if bit else "0" for bit in self.bits()[number, ::-1])
