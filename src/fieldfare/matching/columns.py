"""A batch of events as columns: what the matching kernels read.

A column holds one attribute of every event of a batch, without loss and without Python objects::

    kinds  uint8[n]   what the value is (KIND_...)
    words  int64[n]   the value: an int64; the bits of a float64; `start << 32 | length` of a string's
                      UTF-8 bytes in the batch's `text`; an index into `exact`; else 0
    text   uint8[m]   shared by all string columns of the batch (m < 2**31)
    exact  tuple      numbers that neither an int64 nor a float64 holds: int or Decimal

The order of the kinds is the order of the regions in ``filters.values``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.values import ABSENT
from fieldfare.model import Path

KIND_MISSING = 0
KIND_NULL = 1
KIND_OTHER = 2
"""An array, an object, or a NaN: it has no order and equals nothing."""
KIND_FALSE = 3
KIND_TRUE = 4
KIND_INT = 5
KIND_FLOAT = 6
KIND_EXACT = 7
KIND_STRING = 8


@dataclass(frozen=True, slots=True)
class Column:
    """One attribute of n events: kinds uint8[n] and words int64[n]; see the module's text."""

    kinds: NDArray[np.uint8]
    words: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ColumnBatch:
    """n events as columns, for the attributes that some filter names; others are not there.

    A path that is not in ``columns`` is missing from every event of the batch.
    """

    size: int
    columns: Mapping[Path, Column]
    text: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    exact: tuple[int | Decimal, ...] = ()

    def value(self, path: Path, event: int) -> Any:
        """The Python value of one attribute of one event (``ABSENT`` if missing, NaN for `other`)."""
        column = self.columns.get(path)
        if column is None:
            return ABSENT
        kind, word = int(column.kinds[event]), int(column.words[event])
        if kind == KIND_INT:
            return word
        if kind == KIND_FLOAT:
            return float(column.words[event : event + 1].view(np.float64)[0])
        if kind == KIND_STRING:
            start, length = word >> 32, word & 0xFFFFFFFF
            return self.text[start : start + length].tobytes().decode()
        if kind == KIND_EXACT:
            return self.exact[word]
        return _ATOMS[kind]


_ATOMS = {
    KIND_MISSING: ABSENT,
    KIND_NULL: None,
    KIND_OTHER: float("nan"),
    KIND_FALSE: False,
    KIND_TRUE: True,
}
