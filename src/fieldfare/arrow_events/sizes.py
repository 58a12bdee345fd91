"""Estimation of the JSON size of each row of a table, without writing it.

Numbers count as their type's longest text, and strings as if nothing had to be escaped. A row whose estimate
is within a limit is within it, except for escapes; any other row must be measured exactly.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fieldfare.arrow_events.canonical import is_binary

Sizes = NDArray[np.int64]

_WORD = 4
"""The size of a null, or of the brackets of a nested value."""
_LONGEST = 40
"""Maximum size of a moment's text with nine digits of a second, in quotes."""


def json_sizes(events: pa.RecordBatch) -> Sizes:
    """Return the estimated bytes of each row's JSON: int64[rows]."""
    sizes = np.full(events.num_rows, 2, np.int64)
    for name, values in zip(events.schema.names, events.columns, strict=True):
        sizes += _sizes(values) + (len(name.encode()) + 4)
    return sizes


def _sizes(values: pa.Array) -> Sizes:
    kind = values.type
    if pa.types.is_struct(kind):
        sizes = np.full(len(values), _WORD, np.int64)
        for number in range(kind.num_fields):
            sizes += _sizes(values.field(number)) + (len(kind.field(number).name.encode()) + 4)
        return sizes
    if pa.types.is_map(kind):
        offsets = values.offsets.to_numpy()
        first, size = int(offsets[0]), int(offsets[-1] - offsets[0])
        items = _sizes(values.keys.slice(first, size)) + _sizes(values.items.slice(first, size)) + 2
        return _within(items, np.diff(offsets))
    if pa.types.is_list(kind):
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        return _within(_sizes(values.flatten()) + 1, lengths)
    if kind == pa.string() or is_binary(kind):
        lengths = pc.fill_null(pc.binary_length(values), _WORD)
        text: Sizes = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
        return text + 2
    return np.full(len(values), _longest(kind), np.int64)


def _within(items: Sizes, lengths: Sizes) -> Sizes:
    """Return the sums of the items of each list."""
    ends = np.cumsum(lengths)
    total = np.zeros(len(items) + 1, np.int64)
    np.cumsum(items, out=total[1:])
    sizes: Sizes = total[ends] - total[ends - lengths] + _WORD
    return sizes


def _longest(kind: pa.DataType) -> int:
    if pa.types.is_null(kind):
        return _WORD
    if pa.types.is_boolean(kind):
        return 5
    if pa.types.is_integer(kind):
        return max(_WORD, int(kind.bit_width * 0.31) + 2)
    if pa.types.is_floating(kind):
        return 25
    if pa.types.is_decimal(kind):
        return int(kind.precision) + 12
    return _LONGEST
