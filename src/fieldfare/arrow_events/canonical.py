"""Conversion of Arrow columns to the types that the log keeps: those representable in JSON, without
encodings.

=====================================  ===========================================================
input                                  kept as
=====================================  ===========================================================
null, boolean, integers, decimals,     itself
dates, times, timestamps, string
float64, float32                       itself, but NaN and infinities as null, which JSON lacks
float16                                a float64 that prints as the float16 does
large string, string view              string
binary of every layout                 string, in base64
dictionary, run-end encoding           the encoded values
extension                              its storage
struct, map with strings as keys       itself
lists of every layout                  list
duration, interval, union              rejected
=====================================  ===========================================================

Filters and subscribers therefore see equal values, and the log contains nothing that an event does not.
"""

from __future__ import annotations

import binascii

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fieldfare.arrow_events.errors import TableRefused, TableTooLarge

FIELDS_MAX = 5_000
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
"""The years 1 to 9999, in seconds since 1970-01-01."""


class SizeBudget:
    """A budget for the conversion: the bytes to unpack from encodings, and the number of fields."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = self._left_bytes = max_bytes
        self._left_fields = FIELDS_MAX

    def spend(self, size_bytes: int) -> None:
        """Spend bytes. Raise TableTooLarge if the budget is exceeded."""
        self._left_bytes -= size_bytes
        if self._left_bytes < 0:
            raise TableTooLarge("the events are too large when unpacked", max_bytes=self._max_bytes)

    def field(self) -> None:
        """Count one more field. Raise TableRefused if there are more than FIELDS_MAX."""
        self._left_fields -= 1
        if self._left_fields < 0:
            raise TableRefused(f"the table has more than {FIELDS_MAX} fields")


def canonical(values: pa.Array, place: str, budget: SizeBudget) -> pa.Array:
    """Convert an array to a type that the log keeps.

    Parameters
    ----------
    values : pa.Array
        A fully validated array.
    place : str
        The column's path, for errors.
    budget : SizeBudget
        The budget for the result.

    Raises
    ------
    TableRefused
        The type cannot be represented in JSON, or a date has no text.
    TableTooLarge
        The budget is exceeded.
    """
    budget.field()
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        return canonical(values.storage, place, budget)
    if pa.types.is_dictionary(kind):
        return _from_dictionary(values, place, budget)
    if pa.types.is_run_end_encoded(kind):
        return _from_runs(values, place, budget)
    if pa.types.is_struct(kind):
        return _struct(values, place, budget)
    if pa.types.is_map(kind):
        return _map(values, place, budget)
    if is_list(kind):
        return _list(values, place, budget)
    budget.spend(_size_bytes(values))
    return _plain(values, place)


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is a list type."""
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )


def is_binary(kind: pa.DataType) -> bool:
    """Whether a type is a binary type."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or kind == pa.binary_view()
    )


def below_encodings(kind: pa.DataType) -> pa.DataType:
    """Return a type without the dictionaries, run-end encodings and extensions around it."""
    while True:
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            kind = kind.value_type
        else:
            return kind


def _plain(values: pa.Array, place: str) -> pa.Array:
    kind = values.type
    if (
        kind == pa.string()
        or pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_null(kind)
    ):
        return values
    if kind in (pa.large_string(), pa.string_view()):
        return pc.cast(values, pa.string())
    if pa.types.is_float16(kind):
        values = widened(values)
    if pa.types.is_floating(kind):
        finite = pc.is_finite(values)
        return values if pc.all(finite).as_py() is not False else pc.if_else(finite, values, None)
    if pa.types.is_decimal(kind) or pa.types.is_time(kind):
        return values
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _moments(values, place)
    if is_binary(kind):
        encoded = [None if v is None else binascii.b2a_base64(v, newline=False) for v in values.to_pylist()]
        return pa.array(encoded, pa.binary()).cast(pa.string())
    raise TableRefused(f"the column {place} has type {kind}, which JSON cannot represent", place)


def widened(values: pa.Array) -> pa.Array:
    """Convert float16 numbers to float64 numbers that print equally."""
    texts = [None if number is None else str(np.float16(number)) for number in values.to_pylist()]
    return pa.array([None if text is None else float(text) for text in texts], pa.float64())


def _moments(values: pa.Array, place: str) -> pa.Array:
    kind = values.type
    if pa.types.is_date(kind):
        values = pc.cast(values, pa.date32(), safe=False)
        numbers, per_second, seconds_each = pc.cast(values, pa.int32()), 1, 86_400
    else:
        if kind.tz is not None and kind.tz != "UTC":
            values = pc.cast(values, pa.timestamp(kind.unit, "UTC"))
        numbers, per_second, seconds_each = pc.cast(values, pa.int64()), _PER_SECOND[kind.unit], 1
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is not None:
        first, last = (bounds[end] * seconds_each // per_second for end in ("min", "max"))
        if first < _FIRST_SECOND or last > _LAST_SECOND:
            raise TableRefused(f"the column {place} has a date outside the years 1 to 9999", place)
    return values


def _struct(values: pa.StructArray, place: str, budget: SizeBudget) -> pa.Array:
    kind = values.type
    names = [kind.field(number).name for number in range(kind.num_fields)]
    refuse_duplicates(names, place)
    budget.spend(len(values) // 8)
    children = [
        canonical(values.field(number), f"{place}.{name}", budget) for number, name in enumerate(names)
    ]
    fields = [pa.field(name, child.type) for name, child in zip(names, children, strict=True)]
    if not fields:
        bits = None if not values.null_count else _bits(values)
        return pa.Array.from_buffers(pa.struct([]), len(values), [bits], values.null_count)
    mask = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def refuse_duplicates(names: list[str], place: str) -> None:
    """Raise TableRefused if a name occurs twice."""
    if len(set(names)) != len(names):
        twice = next(name for number, name in enumerate(names) if name in names[:number])
        path = f"{place}.{twice}" if place else twice
        raise TableRefused(f"there are two columns {path}", path)


def _map(values: pa.MapArray, place: str, budget: SizeBudget) -> pa.Array:
    offsets = values.offsets.to_numpy()
    first, size = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys = canonical(values.keys.slice(first, size), f"{place}.key", budget)
    if keys.type != pa.string() or is_binary(below_encodings(values.type.key_type)):
        raise TableRefused(f"the column {place} is a map whose keys are not strings", place)
    items = canonical(values.items.slice(first, size), f"{place}.value", budget)
    budget.spend(4 * len(values))
    mask = values.is_null() if values.null_count else None
    return pa.MapArray.from_arrays(pa.array(offsets - first, pa.int32()), keys, items, mask=mask)


def _list(values: pa.Array, place: str, budget: SizeBudget) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    budget.spend(int(offsets[-1]) + 4 * len(values))
    if pa.types.is_list_view(values.type) or pa.types.is_large_list_view(values.type):
        _refuse_shared(values.offsets.to_numpy(), lengths, place)
    items = canonical(values.flatten(), f"{place}[]", budget)
    mask = values.is_null() if values.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items, mask=mask)


def _refuse_shared(starts: NDArray[np.int64], lengths: NDArray[np.int64], place: str) -> None:
    """Raise TableRefused for list views that share items, whose copies could grow without bound."""
    filled = np.flatnonzero(lengths)
    order = filled[np.argsort(starts[filled])]
    if (starts[order[1:]] < starts[order[:-1]] + lengths[order[:-1]]).any():
        raise TableRefused(f"the column {place} has list views that share items", place)


def _from_dictionary(values: pa.DictionaryArray, place: str, budget: SizeBudget) -> pa.Array:
    _refuse_nested(values.type.value_type, place)
    dictionary = canonical(values.dictionary, place, budget)
    if not len(dictionary):  # an index below a null struct may refer to nothing
        return pa.nulls(len(values), dictionary.type)
    if pa.types.is_string(dictionary.type):
        budget.spend(_text_bytes(pc.binary_length(dictionary).take(values.indices)))
    else:
        budget.spend(16 * len(values))
    return dictionary.take(values.indices)


def _from_runs(values: pa.RunEndEncodedArray, place: str, budget: SizeBudget) -> pa.Array:
    _refuse_nested(values.type.value_type, place)
    runs = canonical(values.values, place, budget)
    ends = values.run_ends.to_numpy()
    rows = np.arange(values.offset, values.offset + len(values))
    places = pa.array(np.searchsorted(ends, rows, side="right"))
    if pa.types.is_string(runs.type):
        budget.spend(_text_bytes(pc.binary_length(runs).take(places)))
    else:
        budget.spend(16 * len(values))
    return runs.take(places)


def _refuse_nested(kind: pa.DataType, place: str) -> None:
    if pa.types.is_nested(below_encodings(kind)):
        raise TableRefused(f"the column {place} is a dictionary or run-end encoding of {kind}", place)


def _text_bytes(lengths: pa.Array) -> int:
    return int(pc.sum(pc.cast(lengths, pa.int64())).as_py() or 0)


def _size_bytes(values: pa.Array) -> int:
    """Return the written size of an array without nested types."""
    kind = values.type
    if kind in (pa.string_view(), pa.binary_view()) and len(values):
        end = values.offset + len(values)
        views: NDArray[np.int32] = np.frombuffer(values.buffers()[1], np.int32, 4 * end).reshape(-1, 4)
        lengths = views[values.offset :, 0].astype(np.int64)
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        return int(lengths[valid].sum()) + 4 * len(values)
    return int(values.nbytes) * (2 if is_binary(kind) or pa.types.is_float16(kind) else 1)


def _bits(values: pa.Array) -> pa.Buffer:
    return pa.py_buffer(np.packbits(values.is_valid().to_numpy(zero_copy_only=False), bitorder="little"))
