"""PRESS, the Padres Real-time Event-to-Subscription Spectrum (section 4.1): which subscriptions match alike.

sample     6 5 4 3 2 1       a bit vector is filled from the right
STOCK      1 1 0 1 1 1       publication rate: i_r · (bits set) / (samples taken)      equation 2
CSS        1 1 0 0 0 1       adds to the input of a broker with this covering set:
ANDNOT     0 0 0 1 1 0       i_r · 2 / 6                                               equation 3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


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
