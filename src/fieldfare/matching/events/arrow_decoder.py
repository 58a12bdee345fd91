"""Conversion of Arrow batches to columns, without copying where Arrow allows it.

How filters see an Arrow value:

=====================================  ===========================================================
null                                   null; values below a null struct, list or map are missing
boolean, string (all layouts)          unchanged; dictionary and run-end encodings are transparent
integers of every width                unchanged
float64, float32, float16              the shortest decimal that reads back as the same float: a
                                       float32 that prints as 0.1 equals 0.1. NaN is `other`.
decimals                               unchanged
dates, times, timestamps               their ISO 8601 text, as in JSON: ``2013-01-01``,
                                       ``05:15:00``, ``2013-01-01T05:15:00``; with a time zone in UTC:
                                       ``2013-01-01T05:15:00+00:00``. Fractions have no trailing zeros,
                                       whatever the unit. Texts are therefore equal, and ordered, as the
                                       instants are; with a final ``Z``, ``00.5Z`` would be less than ``00Z``.
                                       Outside the years -32767 to 32767: null.
struct, list, map                      `other`; paths name their parts: a struct's field and a
                                       map's value by a string, a list's element by an integer
binary, duration, interval, union      `other`
extension                              as its storage type
=====================================  ===========================================================
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fieldfare.matching.events.arrow_numpy import array_of, numbers_of, truths_of
from fieldfare.matching.events.arrow_paths import Cells, is_time, null_mask, numbers_in, resolve
from fieldfare.matching.events.arrow_times import time_texts
from fieldfare.matching.events.arrow_values import ArrowOthers
from fieldfare.matching.events.columns import (
    KIND_EXACT,
    KIND_FALSE,
    KIND_FLOAT,
    KIND_INT,
    KIND_MISSING,
    KIND_NULL,
    KIND_OTHER,
    KIND_STRING,
    TEXT_BYTES_MAX,
    Column,
    ColumnBatch,
)
from fieldfare.model import Path

_EXACT_DIGITS = 15
"""Maximum digits for which two different decimals never have equal nearest float64."""

_Read = tuple[NDArray[np.uint8], NDArray[np.int64]]
"""Kinds and words of an array; those of null slots are replaced afterwards."""


def columns_from_arrow(batch: pa.RecordBatch, paths: Sequence[Path]) -> ColumnBatch:
    """Convert the attributes named by ``paths`` to columns; see the module's table.

    Parameters
    ----------
    batch : pyarrow.RecordBatch
        One row per event; may be a slice. A single string column is used in place; several are copied to one
        text.
    paths : sequence of Path

    Returns
    -------
    ColumnBatch
        Without columns for paths that the batch's schema does not have.

    Raises
    ------
    ValueError
        The strings take 2 GiB or more.
    """
    shared = _Shared()
    columns = {}
    resolved: dict[Path, Cells | None] = {}
    for path in dict.fromkeys(paths):
        cells = resolve(batch, path, resolved)
        if cells is not None:
            columns[path] = _column(cells, shared)
    others = ArrowOthers(resolved, _scalars, columns_from_arrow)
    return ColumnBatch(batch.num_rows, columns, shared.text(), tuple(shared.exact), others, frozenset(paths))


def _scalars(values: pa.Array) -> list[Any]:
    """Return the Python values of an array without lists, structs and maps."""
    shared = _Shared()
    column = _column(Cells(values, None), shared)
    return ColumnBatch(len(values), {(): column}, shared.text(), tuple(shared.exact)).values(())


class _Shared:
    """Data shared by all columns of a batch: pieces of text, and exact numbers."""

    def __init__(self) -> None:
        self.exact: list[int | Decimal] = []
        self._pieces: list[NDArray[np.uint8]] = []
        self._size = 0

    def add_text(self, piece: NDArray[np.uint8]) -> int:
        """Append bytes to the text; return their start."""
        start = self._size
        self._size += piece.size
        if self._size > TEXT_BYTES_MAX:
            raise ValueError(f"the strings of a batch are too large: at most {TEXT_BYTES_MAX} bytes")
        if piece.size:
            self._pieces.append(piece)
        return start

    def add_exact(self, numbers: Sequence[int | Decimal]) -> NDArray[np.int64]:
        """Append exact numbers; return their indices."""
        start = len(self.exact)
        self.exact.extend(numbers)
        return np.arange(start, len(self.exact))

    def text(self) -> NDArray[np.uint8]:
        pieces = self._pieces
        text = pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros(0, np.uint8), *pieces])
        text.flags.writeable = False
        return text


def _column(cells: Cells, shared: _Shared) -> Column:
    size = len(cells.values)
    if size == 0:
        kinds, words = _constant(size, KIND_OTHER)
    else:
        kinds, words = _read(cells.values, shared)
        for mask, kind in (null_mask(cells.values), KIND_NULL), (cells.missing, KIND_MISSING):
            if mask is not None:
                kinds = np.where(mask, np.uint8(kind), kinds)
                words = np.where(mask, 0, words)
    kinds.flags.writeable = words.flags.writeable = False
    return Column(kinds, words)


def _read(values: pa.Array, shared: _Shared) -> _Read:
    kind = values.type
    for belongs, reader in _READERS:
        if belongs(kind):
            return reader(values, shared)
    return _constant(len(values), KIND_OTHER)


def _constant(size: int, kind: int) -> _Read:
    return np.full(size, kind, np.uint8), np.zeros(size, np.int64)


def _numbers(values: pa.Array) -> NDArray[Any]:
    """Return the values as a numpy array, with 0 for null."""
    nulls = null_mask(values)
    numbers = numbers_of(values)
    return numbers if nulls is None else np.where(nulls, numbers.dtype.type(0), numbers)


def _read_extension(values: pa.Array, shared: _Shared) -> _Read:
    return _read(values.storage, shared)


def _read_run_ends(values: pa.Array, shared: _Shared) -> _Read:
    column = _column(Cells(pc.run_end_decode(values), None), shared)  # nulls are inside the encoding
    return column.kinds, column.words


def _read_dictionary(values: pa.Array, shared: _Shared) -> _Read:
    """Read the dictionary once, then look up the values."""
    dictionary = values.dictionary
    if not len(dictionary):
        return _constant(len(values), KIND_NULL)
    column = _column(Cells(dictionary, None), shared)
    indices = _numbers(values.indices)
    return column.kinds[indices], column.words[indices]


def _read_null(values: pa.Array, _shared: _Shared) -> _Read:
    return _constant(len(values), KIND_NULL)


def _read_boolean(values: pa.Array, _shared: _Shared) -> _Read:
    return truths_of(values).astype(np.uint8) + np.uint8(KIND_FALSE), np.zeros(len(values), np.int64)


def _read_integer(values: pa.Array, shared: _Shared) -> _Read:
    numbers = _numbers(values)
    kinds = np.full(len(values), KIND_INT, np.uint8)
    if numbers.dtype != np.uint64 or not len(numbers) or numbers.max() < 1 << 63:
        return kinds, numbers.astype(np.int64, copy=False)
    large = numbers >= np.uint64(1 << 63)
    words = numbers.astype(np.int64)
    kinds[large] = KIND_EXACT
    words[large] = shared.add_exact(numbers[large].tolist())
    return kinds, words


def _read_float(values: pa.Array, _shared: _Shared) -> _Read:
    if values.type == pa.float32():
        values = pc.cast(pc.cast(values, pa.string()), pa.float64())
    numbers = _numbers(values)
    if numbers.dtype == np.float16:
        distinct, places = np.unique(numbers, return_inverse=True)
        numbers = np.array([float(str(number)) for number in distinct])[places]
        numbers = np.copysign(numbers, _numbers(values))  # for `unique`, -0.0 equals 0.0
    nans = np.isnan(numbers)
    kinds, words = np.full(len(values), KIND_FLOAT, np.uint8), numbers.view(np.int64)
    if nans.any():
        kinds[nans] = KIND_OTHER
        words = np.where(nans, 0, words)
    return kinds, words


def _read_string(values: pa.Array, shared: _Shared) -> _Read:
    if pa.types.is_string_view(values.type):
        values = pc.cast(values, pa.large_string())
    _, offset_bytes, characters = values.buffers()
    kinds = np.full(len(values), KIND_STRING, np.uint8)
    if characters is None:
        return kinds, np.zeros(len(values), np.int64)
    width = np.int64 if pa.types.is_large_string(values.type) else np.int32
    offsets = numbers_in(offset_bytes, values.offset, len(values) + 1, width)
    offsets = offsets.astype(np.int64, copy=False)
    text = np.frombuffer(characters, np.uint8)[offsets[0] : offsets[-1]]
    starts = offsets[:-1] + (shared.add_text(text) - offsets[0])
    return kinds, starts << 32 | np.diff(offsets)


def _read_decimal(values: pa.Array, shared: _Shared) -> _Read:
    """Read integers as int64, and decimals of few digits as the float64 that prints as them, where
    possible."""
    kinds, words = _constant(len(values), KIND_EXACT)
    scale = values.type.scale
    if not pa.types.is_decimal256(values.type) and 0 <= scale <= 18:
        values = pc.cast(values, pa.decimal128(38, scale))
        halves = numbers_in(values.buffers()[1], 2 * values.offset, 2 * len(values))
        low, high = halves.reshape(-1, 2).T
        nulls = null_mask(values)
        if nulls is not None:
            low, high = np.where(nulls, 0, low), np.where(nulls, 0, high)
        fits = high == low >> 63
        whole, part = np.divmod(low, 10**scale)
        integral = fits & (part == 0)
        kinds[integral], words[integral] = KIND_INT, whole[integral]
        few = fits & ~integral & (np.abs(low) < 10**_EXACT_DIGITS) & (low != np.iinfo(np.int64).min)
        kinds[few], words[few] = KIND_FLOAT, (low[few] / 10.0**scale).view(np.int64)
    rest = np.flatnonzero(kinds == KIND_EXACT)
    if len(rest):
        numbers = [_shortest(number) for number in values.take(array_of(rest)).to_pylist()]
        kinds[rest] = [kind for kind, _ in numbers]
        exact = kinds[rest] == KIND_EXACT
        words[rest[~exact]] = [int(number) for kind, number in numbers if kind == KIND_INT]
        words[rest[exact]] = shared.add_exact([number for kind, number in numbers if kind == KIND_EXACT])
    return kinds, words


def _shortest(number: Decimal | None) -> tuple[int, int | Decimal]:
    if number is None:
        return KIND_INT, 0
    if number != number.to_integral_value():
        return KIND_EXACT, number
    whole = int(number)
    return (KIND_INT if -(1 << 63) <= whole < 1 << 63 else KIND_EXACT), whole


def _read_time(values: pa.Array, shared: _Shared) -> _Read:
    return _read_string(time_texts(values), shared)


def _is_text(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.string_view())


_READERS: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, _Shared], _Read]]] = [
    (_is_text, _read_string),
    (pa.types.is_integer, _read_integer),
    (pa.types.is_floating, _read_float),
    (pa.types.is_boolean, _read_boolean),
    (pa.types.is_dictionary, _read_dictionary),
    (is_time, _read_time),
    (pa.types.is_decimal, _read_decimal),
    (pa.types.is_null, _read_null),
    (pa.types.is_run_end_encoded, _read_run_ends),
    (lambda kind: isinstance(kind, pa.BaseExtensionType), _read_extension),
]
