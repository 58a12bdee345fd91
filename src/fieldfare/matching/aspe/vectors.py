"""The encrypted vectors of a batch of events, decoded from their columns into one array."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.encrypted import EPOCH_PATH, LENGTHS, VECTOR_PATH
from fieldfare.matching.aspe.kernels import read_base64
from fieldfare.matching.events.columns import KIND_INT, KIND_STRING, ColumnBatch

_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_SEXTETS = np.full(256, 255, np.uint8)
_SEXTETS[np.frombuffer(_ALPHABET, np.uint8)] = np.arange(64)


class EventVectors(NamedTuple):
    """The vectors of n events."""

    epochs: NDArray[np.int64]
    """[n]: the epoch of each event's key; 0 for an event without a vector of these dimensions."""
    numbers: NDArray[np.float64]
    """[n, D], each of length 1."""


def vectors_of(columns: ColumnBatch, dimensions: int) -> EventVectors:
    """Return the vectors of a batch of events; cached in the batch."""
    key = ("aspe", dimensions)
    found: EventVectors | None = columns.kept.get(key)
    if found is None:
        found = columns.kept[key] = _read(columns, dimensions)
    return found


def _read(columns: ColumnBatch, dimensions: int) -> EventVectors:
    numbers = np.zeros((columns.size, dimensions))
    vector, epoch = columns.columns.get(VECTOR_PATH), columns.columns.get(EPOCH_PATH)
    if vector is None or epoch is None or not dimensions:
        return EventVectors(np.zeros(columns.size, np.int64), numbers)
    good = (vector.kinds == KIND_STRING) & (epoch.kinds == KIND_INT)
    read_base64(good, vector.words, columns.text, _SEXTETS, numbers.view(np.uint8))
    with np.errstate(all="ignore"):
        lengths = np.sqrt(np.einsum("nd,nd->n", numbers, numbers))
        good &= (lengths >= LENGTHS[0]) & (lengths <= LENGTHS[1])  # false for NaN, too
        numbers /= np.where(good, lengths, 1.0)[:, None]
    numbers[~good] = 0.0
    return EventVectors(np.where(good, epoch.words, 0), numbers)
