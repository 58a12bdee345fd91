"""Conversion between Arrow and numpy arrays, over shared memory.

pyarrow's own conversions import pandas if it is installed: 45 MB in every Python worker of a Spark job, where
it is not used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_WIDTHS = {
    pa.from_numpy_dtype(dtype): dtype
    for dtype in (
        *(np.int8, np.int16, np.int32, np.int64),
        *(np.uint8, np.uint16, np.uint32, np.uint64),
        *(np.float16, np.float32, np.float64),
    )
}


def numbers_of(values: pa.Array) -> NDArray[Any]:
    """Return the values of an array of numbers; arbitrary ones for null."""
    dtype = np.dtype(_WIDTHS[values.type])
    buffer = values.buffers()[1]
    if buffer is None or not len(values):
        return np.zeros(len(values), dtype)
    return np.frombuffer(buffer, dtype, len(values), values.offset * dtype.itemsize)


def truths_of(values: pa.Array) -> NDArray[np.bool_]:
    """Return the values of an array of booleans; arbitrary ones for null."""
    buffer, start = values.buffers()[1], values.offset
    if buffer is None or not len(values):
        return np.zeros(len(values), np.bool_)
    first, last = start >> 3, (start + len(values) + 7) >> 3
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8)[first:last], bitorder="little")
    return bits[start & 7 : (start & 7) + len(values)].view(np.bool_)


def array_of(numbers: NDArray[Any], missing: NDArray[np.bool_] | None = None) -> pa.Array:
    """Return an Arrow array of numbers, with null where `missing` is true."""
    validity = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    held = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [validity, held])
