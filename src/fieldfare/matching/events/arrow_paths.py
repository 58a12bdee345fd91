"""Resolution of paths in an Arrow batch: through structs, lists and maps."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fieldfare.matching.events.arrow_numpy import array_of, numbers_of, truths_of
from fieldfare.model import Path


class Cells(NamedTuple):
    """The values at a path, one per row, and the rows where the path does not exist."""

    values: pa.Array
    missing: NDArray[np.bool_] | None


def resolve(batch: pa.RecordBatch, path: Path, resolved: dict[Path, Cells | None]) -> Cells | None:
    """Return the cells at a path; None if no row can have it. ``resolved`` caches results."""
    if path not in resolved:
        if not path:
            resolved[path] = Cells(batch.to_struct_array(), None)
        else:
            around = resolve(batch, path[:-1], resolved)
            resolved[path] = None if around is None else _descend(around, path[-1])
    return resolved[path]


def null_mask(values: pa.Array) -> NDArray[np.bool_] | None:
    """Return which values are null; None if none is."""
    if not values.null_count:
        return None
    return truths_of(values.is_null())


def numbers_in(
    buffer: pa.Buffer, first: int, count: int, width: type[np.signedinteger[Any]] = np.int64
) -> NDArray[Any]:
    """Return `count` integers of a buffer, whose size need not be a multiple of their width."""
    if not count:
        return np.zeros(0, width)
    return np.frombuffer(buffer, width, count, first * np.dtype(width).itemsize)


def _descend(around: Cells, step: str | int) -> Cells | None:
    values = plain(around.values)
    kind = values.type
    if isinstance(step, str):
        if pa.types.is_struct(kind):
            fields = kind.get_all_field_indices(step)
            if not fields:
                return None
            # Among fields with equal names the last counts, as in JSON.
            return Cells(pc.struct_field(values, [fields[-1]]), _either(around.missing, null_mask(values)))
        if pa.types.is_map(kind) and (
            pa.types.is_string(kind.key_type) or pa.types.is_large_string(kind.key_type)
        ):
            return _take(values.items, _find_in_map(values, step), values)
        return None
    if step < 0:
        return None
    if pa.types.is_fixed_size_list(kind):
        if step >= kind.list_size:
            return None
        rows = np.arange(values.offset, values.offset + len(values), dtype=np.int64)
        return _take(values.values, rows * kind.list_size + step, values)
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        starts, lengths = numbers_of(values.offsets), numbers_of(values.sizes)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets = numbers_of(values.offsets)
        starts, lengths = offsets[:-1], np.diff(offsets)
    else:
        return None
    return _take(values.values, np.where(lengths > step, starts.astype(np.int64) + step, -1), values)


def is_time(kind: pa.DataType) -> bool:
    """Whether a type is a date, time or timestamp."""
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind) or pa.types.is_time(kind))


def plain(values: pa.Array) -> pa.Array:
    """Return the values without extensions, dictionaries and run-end encodings around them."""
    while True:
        if isinstance(values.type, pa.BaseExtensionType):
            values = values.storage
        elif pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        elif pa.types.is_run_end_encoded(values.type):
            values = pc.run_end_decode(values)
        else:
            return values


def without_views(values: pa.Array) -> pa.Array:
    """Replace string views by strings, also in nested types: Arrow's `take` does not support views."""
    kind = _viewless(values.type)
    return values if kind == values.type else values.cast(kind)


@lru_cache(256)
def _viewless(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_large_list(kind):
        return pa.large_list(_viewless(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_viewless(kind.value_type), kind.list_size)
    if pa.types.is_list(kind):
        return pa.list_(_viewless(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_viewless(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_viewless(kind.key_type), _viewless(kind.item_type))
    return kind


def _find_in_map(values: pa.MapArray, key: str) -> NDArray[np.int64]:
    """Return the index of each row's item with a key (the last one, if repeated) among all items, or -1."""
    found = np.full(len(values), -1, np.int64)
    offsets = numbers_of(values.offsets)
    places = np.flatnonzero(truths_of(pc.equal(values.keys, key)))
    places = places[(places >= offsets[0]) & (places < offsets[-1])]
    # With repeated keys, the last assignment to a row stays.
    found[np.searchsorted(offsets, places, side="right") - 1] = places
    return found


def _take(items: pa.Array, places: NDArray[np.int64], around: pa.Array) -> Cells:
    """Return the items at the given indices; missing where the index is -1 or the surrounding value is
    null."""
    missing = places < 0
    nulls = null_mask(around)
    if nulls is not None:
        missing |= nulls
    return Cells(without_views(items).take(array_of(places, missing)), missing)


def _either(a: NDArray[np.bool_] | None, b: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
    if a is None or b is None:
        return b if a is None else a
    return a | b
