"""Conversion of Arrow lists, structs and maps to Python lists and dicts, for filters that use them as one
value.

Their parts convert as their columns would: a float32 to its shortest decimal, a moment to its text. Values of
kind `other` without parts (bytes, durations) become NaN, because no filter can distinguish them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fieldfare.matching.events.arrow_numpy import array_of, numbers_of
from fieldfare.matching.events.arrow_paths import Cells, null_mask, plain, without_views
from fieldfare.matching.events.columns import UNKNOWN_BYTES, ColumnBatch, Flattened
from fieldfare.model import Path

Scalars = Callable[[pa.Array], list[Any]]
"""Converts an array without nested types to Python values."""
Columns = Callable[[pa.RecordBatch, Sequence[Path]], ColumnBatch]

_SCALAR_BYTES = 40.0
"""Upper bound of the text size of a scalar: a timestamp's text is not longer, and numbers count as 0."""

_SINGLE_MAX = 16
"""Maximum single reads of an attribute; after that all its values are read together, which is faster."""


class ArrowOthers:
    """Reads arrays and objects of a batch on demand.

    Parameters
    ----------
    resolved
        The cells of every path that may be read.
    scalars
        Converts arrays without nested types.
    columns
        Converts a batch to columns.
    """

    def __init__(self, resolved: Mapping[Path, Cells | None], scalars: Scalars, columns: Columns) -> None:
        self._resolved = resolved
        self._scalars = scalars
        self._columns = columns
        self._asked: dict[Path, int] = {}
        self._whole: dict[Path, list[Any]] = {}
        self._text_sizes: dict[Path, NDArray[np.float64]] = {}

    def __call__(self, path: Path, event: int) -> Any:
        whole = self._whole.get(path)
        if whole is None:
            cells = self._resolved[path]
            assert cells is not None
            asked = self._asked[path] = self._asked.get(path, 0) + 1
            if asked <= _SINGLE_MAX:
                return nested_values(cells.values.slice(event, 1), self._scalars)[0]
            whole = self._whole[path] = nested_values(cells.values, self._scalars)
        return whole[event]

    def are_arrays(self, path: Path, events: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether the attribute's type is a list type, for each event."""
        cells = self._resolved[path]
        assert cells is not None
        reader = _reader(plain(cells.values).type)
        return np.full(len(events), reader in (_lists, _list_views, _fixed_lists))

    def text_sizes(self, path: Path, events: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return `text_sizes` of the attribute's values; cached."""
        whole = self._text_sizes.get(path)
        if whole is None:
            cells = self._resolved[path]
            assert cells is not None
            whole = self._text_sizes[path] = text_sizes(cells.values)
        return whole[events]

    def elements(self, path: Path, events: NDArray[np.int64], inner: Sequence[Path]) -> Flattened | None:
        """Return the elements of lists, list by list, as columns."""
        cells = self._resolved[path]
        assert cells is not None
        lists = plain(cells.values)
        if _reader(lists.type) not in (_lists, _fixed_lists):
            return None
        lists = without_views(lists).take(array_of(events))
        paths = {each: ("element", *each) for each in inner}
        batch = pa.RecordBatch.from_arrays([lists.flatten()], names=["element"])
        counts = numbers_of(pc.list_value_length(lists)).astype(np.int64)
        return Flattened(counts, self._columns(batch, list(paths.values())), paths)


def text_sizes(values: pa.Array) -> NDArray[np.float64]:
    """Return upper bounds of the values' JSON sizes in bytes, not counting digits; at least two."""
    values = plain(values)
    kind, size = values.type, len(values)
    sizes = np.full(size, 2.0)
    if not size:
        return sizes
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        bounds = numbers_of(values.offsets).astype(np.int64)
        first, count = int(bounds[0]), int(bounds[-1] - bounds[0])
        ends = np.zeros(count + 1)
        for part in (values.keys, values.items) if pa.types.is_map(kind) else (values.values,):
            ends[1:] += np.cumsum(text_sizes(part.slice(first, count)))
        sizes += np.diff(ends[bounds - first])
    elif pa.types.is_fixed_size_list(kind):
        width = kind.list_size
        items = text_sizes(values.values.slice(values.offset * width, size * width))
        sizes += items.reshape(size, width).sum(axis=1)
    elif pa.types.is_struct(kind):
        for i in range(kind.num_fields):
            sizes += text_sizes(values.field(i))
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        sizes += numbers_of(pc.fill_null(pc.binary_length(values), 0))
    elif pa.types.is_nested(kind) or pa.types.is_string_view(kind):
        sizes[:] = UNKNOWN_BYTES
    else:
        sizes[:] = _SCALAR_BYTES
    return sizes


def nested_values(values: pa.Array, scalars: Scalars) -> list[Any]:
    """Convert Arrow values to the Python values that a filter sees."""
    values = plain(values)
    read = _reader(values.type)
    if read is None or not len(values):
        return scalars(values)
    found = read(values, scalars)
    nulls = null_mask(values)
    if nulls is not None:
        for place in nulls.nonzero()[0].tolist():
            found[place] = None
    return found


def _reader(kind: pa.DataType) -> Callable[[pa.Array, Scalars], list[Any]] | None:
    if pa.types.is_struct(kind):
        return _structs
    if pa.types.is_map(kind):
        return _maps
    if pa.types.is_fixed_size_list(kind):
        return _fixed_lists
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return _list_views
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists
    return None


def _structs(values: pa.StructArray, scalars: Scalars) -> list[Any]:
    kind = values.type
    names = [kind.field(i).name for i in range(kind.num_fields)]
    parts = [nested_values(values.field(i), scalars) for i in range(kind.num_fields)]
    if not parts:
        return [{} for _ in range(len(values))]
    return [dict(zip(names, row, strict=True)) for row in zip(*parts, strict=True)]


def _maps(values: pa.MapArray, scalars: Scalars) -> list[Any]:
    """Only string keys become members."""
    if not (pa.types.is_string(values.type.key_type) or pa.types.is_large_string(values.type.key_type)):
        return [{} for _ in range(len(values))]
    bounds = values.offsets.to_pylist()
    first, size = bounds[0], bounds[-1] - bounds[0]
    keys = nested_values(values.keys.slice(first, size), scalars)
    items = nested_values(values.items.slice(first, size), scalars)
    spans = [(start - first, end - first) for start, end in pairwise(bounds)]
    return [dict(zip(keys[start:end], items[start:end], strict=True)) for start, end in spans]


def _fixed_lists(values: pa.FixedSizeListArray, scalars: Scalars) -> list[Any]:
    size = values.type.list_size
    items = nested_values(values.values.slice(values.offset * size, len(values) * size), scalars)
    return [items[place * size : (place + 1) * size] for place in range(len(values))]


def _list_views(values: Any, scalars: Scalars) -> list[Any]:
    starts, sizes = values.offsets.to_pylist(), values.sizes.to_pylist()
    return [
        nested_values(values.values.slice(start, size), scalars) if size else []
        for start, size in zip(starts, sizes, strict=True)
    ]


def _lists(values: Any, scalars: Scalars) -> list[Any]:
    bounds = values.offsets.to_pylist()
    first = bounds[0]
    items = nested_values(values.values.slice(first, bounds[-1] - first), scalars)
    return [items[start - first : end - first] for start, end in pairwise(bounds)]
