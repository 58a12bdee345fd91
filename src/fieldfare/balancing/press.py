"""PRESS, the Padres Real-time Event-to-Subscription Spectrum (section 4.1): which subscriptions match alike.

    sample     6 5 4 3 2 1       a bit vector is filled from the right
    STOCK      1 1 0 1 1 1       publication rate: i_r · (bits set) / (samples taken)      equation 2
    CSS        1 1 0 0 0 1       adds to the input of a broker with this covering set:
    ANDNOT     0 0 0 1 1 0       i_r · 2 / 6                                               equation 3

`BitVectors` keeps one row of bits per sample, so that 10,000 subscriptions with 100 samples are 1 Mb.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Profile:
    """The result of PRESS at the offloading broker.

    Parameters
    ----------
    keys
        The unique subscriptions, in the order of the rows.
    bits
        Boolean array, unique subscriptions x samples.
    accepted
        Boolean array, samples: the aggregated (OR) vector of the load-accepting broker's CSS.
    input_per_s
        i_r: the rate of incoming publications while sampling.
    message_bytes
        Mean size of a publication.
    sizes
        Array, samples: the size of each publication; None if only their mean is known.
    rates_per_s
        Array, unique subscriptions: their publication rates; None if only the samples tell them.
    """

    keys: tuple[Any, ...]
    bits: Any
    accepted: Any
    input_per_s: float
    message_bytes: float
    sizes: Any = None
    rates_per_s: Any = None

    def __post_init__(self) -> None:
        if self.bits.shape != (len(self.keys), len(self.accepted)):
            raise ValueError(
                f"{len(self.keys)} subscriptions with {len(self.accepted)} samples do not fit bits of shape"
                f" {self.bits.shape}"
            )

    @property
    def matched_per_s(self) -> Any:
        """The publication rate of each unique subscription (equation 2)."""
        if self.rates_per_s is not None:
            return self.rates_per_s
        return rate(self.input_per_s, self.bits.sum(axis=1), len(self.accepted))

    @property
    def bytes_per_s(self) -> Any:
        """The output bandwidth of a subscriber of each unique subscription."""
        if self.sizes is None:
            return self.matched_per_s * self.message_bytes
        return rate(self.input_per_s, self.bits @ self.sizes, len(self.accepted))


def rate(input_per_s: float, bits_set: Any, samples: int) -> Any:
    """Return the publication rate s_PR (equation 2); 0 if no sample was taken."""
    return input_per_s * bits_set / samples if samples else 0.0 * np.asarray(bits_set)


def and_not(bits: Any, aggregated: Any) -> Any:
    """Return the samples that a subscription adds to a covering set (equation 3)."""
    return bits & ~aggregated


def aggregate(vectors: Sequence[Any] | Any, samples: int) -> Any:
    """Return the OR of vectors."""
    found = np.zeros(samples, dtype=bool)
    for vector in vectors:
        found |= vector
    return found


def exclusive(bits: Any, matched_by: Any) -> Any:
    """Return the samples that only these subscriptions match: each ANDNOT the OR of all others.

    Parameters
    ----------
    bits
        Boolean array, subscriptions x samples; each of them is at the broker.
    matched_by
        By sample, the number of the broker's unique subscriptions that match it.
    """
    return bits & (matched_by == 1)
