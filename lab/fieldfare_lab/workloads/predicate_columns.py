"""Subscriptions given as columns of predicates: a part of a million of them is built in seconds.

A subscription is the conjunction of its predicates, each on a different attribute::

    part = build_part_from_columns(
        paths=[("data", "price"), ("data", "symbol")],
        predicates=[
            RangePredicates(subscription=[0, 1], path=[0, 0], low=[10.5, -np.inf], high=[20, 18.5]),
            ValuePredicates(subscription=[0, 1], path=[1, 1], values=pa.array(["YHOO", "IBM"])),
        ],
        numbers=[7, 8],
    )

Conditions that columns cannot express (OR, NOT, LIKE, IS NULL) are built from filters: see
``matching.part.build_part``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from fieldfare.filters import compile_filter
from fieldfare.filters.normal_form import path_order
from fieldfare.filters.values import exact_number
from fieldfare.matching.libraries import PLAIN
from fieldfare.matching.part import Part
from fieldfare.matching.plain.building.arrays import Material
from fieldfare.matching.plain.building.gathering import NO_NEEDLES, Constants, Gathered
from fieldfare.matching.plain.building.gathering_kernels import Interned
from fieldfare.matching.plain.layout import starts_of
from fieldfare.matching.plain.library import index_of
from fieldfare.matching.versions import in_order
from fieldfare.model import OPEN_END, Path
from fieldfare_lab.workloads.column_kernels import (
    count_pieces,
    count_predicates,
    first_met,
    place_attributes,
    sort_rows,
    write_numbers,
    write_ranges,
    write_strings,
)


@dataclass(frozen=True, slots=True, eq=False)
class RangePredicates:
    """k predicates for numbers between two bounds. Arrays are numpy's, Arrow's, or sequences.

    Attributes
    ----------
    subscription : int[k]
        Index of each one's subscription in ``numbers``.
    path : int[k]
        Index of the attribute in ``paths``.
    low, high : int64[k] or float64[k]
        An infinity is no bound, a float is the decimal that it prints as.
    low_closed, high_closed
        Whether a number equal to the bound matches: bool[k], or one for all.
    """

    subscription: Any
    path: Any
    low: Any
    high: Any
    low_closed: Any = True
    high_closed: Any = True


@dataclass(frozen=True, slots=True, eq=False)
class ValuePredicates:
    """k predicates for one of several values: all of them strings, or all numbers.

    Attributes
    ----------
    subscription : int[k]
        Index of each one's subscription in ``numbers``.
    path : int[k]
        Index of the attribute in ``paths``.
    values
        The values of all predicates, end to end: strings as an Arrow array (plain or dictionary) or a
        sequence of str, numbers as int64[v] or float64[v].
    value_start : int64[k + 1], predicate i requires one of values[value_start[i]:value_start[i + 1]];
        without it each predicate has one value
    """

    subscription: Any
    path: Any
    values: Any
    value_start: Any = None


def build_part_from_columns(
    paths: Sequence[Path],
    predicates: Sequence[RangePredicates | ValuePredicates],
    numbers: ArrayLike,
    *,
    versions: ArrayLike | None = None,
    valid_from: ArrayLike = 0,
    valid_to: ArrayLike = OPEN_END,
) -> Part:
    """Build a part of n subscriptions, each a conjunction of predicates (of none: it matches all events).

    Parameters
    ----------
    paths
        The attributes that predicates name.
    predicates
        Blocks of predicates in any order; no two of a subscription on the same attribute.
    numbers : uint32[n]
        The subscriptions' numbers, which matches contain.
    versions : int64[n]
        distinct; default 0 to n - 1.
    valid_from, valid_to : int64[n], or one for all
        The stamps of events for which a subscription is valid.

    Raises
    ------
    ValueError
        Columns are of different lengths, name what does not exist, or hold a NaN or a null.
    """
    number = np.asarray(_array(numbers, "numbers", "u"), np.uint32)
    size = len(number)
    version = np.arange(size) if versions is None else _array(versions, "versions", "i", size)
    blocks = [_block(each, size, len(paths)) for each in predicates]
    bounds = [np.broadcast_to(np.asarray(each, np.int64), size) for each in (valid_from, valid_to)]
    versions, order = in_order(np.asarray(version, np.int64), number, *bounds)
    gathered = _gather(tuple(paths), blocks, size)
    del predicates, blocks  # free the memory: a large index needs it
    material = [Material(*gathered, ()).in_order(order)]
    del gathered
    return Part(versions, index_of(material.pop(), compile_filter), PLAIN.name)


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """Predicates in the kernels' form: `columns` begins with subscription and path."""

    write: Callable[..., Any]
    columns: tuple[NDArray[Any], ...]
    value_start: NDArray[np.int64] | None = None
    bounds: tuple[NDArray[Any], ...] = ()
    """Return the arrays of numbers, by the number that the kernel assigns."""


def _block(given: RangePredicates | ValuePredicates, size: int, path_count: int) -> _Block:
    subscription = _array(given.subscription, "subscription", "i")
    path = _array(given.path, "path", "i", len(subscription))
    for name, places, end in (("subscription", subscription, size), ("path", path, path_count)):
        if len(places) and not 0 <= places.min() <= places.max() < end:
            raise ValueError(f"{name} has a place beyond the {end} there are")
    count = len(subscription)
    if isinstance(given, RangePredicates):
        low, high = (_numbers(getattr(given, name), name, count) for name in ("low", "high"))
        if low.dtype != high.dtype:
            raise ValueError(f"low is of {low.dtype} and high of {high.dtype}")
        closed = [
            np.broadcast_to(np.asarray(_plain(each), bool), count if np.ndim(each) else 1).copy()
            for each in (given.low_closed, given.high_closed)
        ]
        return _Block(write_ranges, (subscription, path, low, high, *closed), None, (low, high))
    start = np.arange(count + 1) if given.value_start is None else given.value_start
    start = np.asarray(_array(start, "value_start", "i", count + 1), np.int64)
    total = len(given.values)
    if start[0] != 0 or start[-1] != total or bool((np.diff(start) < 0).any()):
        raise ValueError(f"value_start does not divide the {total} values")
    if _are_strings(given.values):
        return _Block(write_strings, (subscription, path, start, *_texts(given.values)), start)
    values = _numbers(given.values, "values", total)
    return _Block(write_numbers, (subscription, path, start, values), start, (values,))


def _plain(given: Any) -> Any:
    """Return an Arrow array as numpy's."""
    if isinstance(given, pa.Array | pa.ChunkedArray):
        if given.null_count:
            raise ValueError("a column holds a null")
        return (
            given.to_numpy() if isinstance(given, pa.ChunkedArray) else given.to_numpy(zero_copy_only=False)
        )
    return given


def _array(given: Any, name: str, kinds: str, size: int | None = None) -> NDArray[Any]:
    array = np.ascontiguousarray(_plain(given))
    if not len(array):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise ValueError(f"{name} is no column of whole numbers")
    if size is not None and len(array) != size:
        raise ValueError(f"{name} has {len(array)} rows, expected {size}")
    return array


def _numbers(given: Any, name: str, size: int) -> NDArray[Any]:
    array = np.ascontiguousarray(_plain(given))
    if array.dtype.kind in "iu" and array.dtype != np.uint64:
        array = array if array.dtype == np.int32 else array.astype(np.int64, copy=False)
    elif array.dtype.kind == "f":
        array = array.astype(np.float64, copy=False)
        if bool(np.isnan(array).any()):
            raise ValueError(f"{name} holds a NaN")
    else:
        raise ValueError(f"{name} is of {array.dtype}, and no column of int64 or float64")
    if array.shape != (size,):
        raise ValueError(f"{name} has {len(array)} rows, expected {size}")
    return array


def _are_strings(values: Any) -> bool:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        found = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
        return bool(pa.types.is_string(found) or pa.types.is_large_string(found))
    return len(values) > 0 and isinstance(values[0], str)


def _texts(values: Any) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return where each string starts, and the bytes."""
    array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, pa.large_string())
    if array.null_count:
        raise ValueError("values hold a null")
    array = array.cast(pa.large_string())
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    _, offsets, data = array.buffers()
    offset = (
        np.frombuffer(offsets, np.int64, len(array) + 1, 8 * array.offset)
        if offsets
        else np.zeros(1, np.int64)
    )
    return offset, np.frombuffer(data or b"", np.uint8)


def _gather(
    paths: tuple[Path, ...], blocks: Sequence[_Block], size: int
) -> tuple[tuple[Path, ...], Gathered, Constants]:
    """One row for each subscription, except those whose condition no number can satisfy."""
    sorted_paths = sorted(set(paths), key=path_order)
    if len(sorted_paths) < len(paths):
        raise ValueError("a path comes twice in paths")
    rank = np.array([sorted_paths.index(path) for path in paths], np.int32)
    predicate_start, attribute = _attributes(blocks, rank, size)
    piece_start = _piece_starts(blocks, rank, predicate_start, attribute)
    places = (rank, predicate_start, attribute, piece_start)
    ends = np.zeros(2 * int(piece_start[-1]), np.uint8), np.zeros(2 * int(piece_start[-1]))
    dead = np.zeros(size, bool)
    strings, odd = Interned.empty(), dict[tuple[int, Decimal], int]()
    for block in blocks:
        if block.write is write_strings:
            offset = block.columns[3]
            strings = strings.with_room(len(offset) - 1, int(offset[-1] - offset[0]))
            write_strings(block.columns, *places, ends, strings, dead)
        else:
            _write_numbers(block, places, ends, odd, dead)
    new = np.full(len(paths), -1, np.int32)
    used = first_met(attribute, new)
    by_new = np.argsort(new, kind="stable")[len(paths) - used :]
    strings = strings.trimmed()
    constants = Constants(
        tuple((int(new[a]), number) for a, number in odd),
        new[strings.attribute],
        strings.offset,
        strings.text,
        NO_NEEDLES,
    )
    rows, needles = np.arange(size, dtype=np.int32), (np.zeros(size + 1, np.int64), np.zeros(0, np.int32))
    gathered = Gathered(rows, predicate_start, attribute, piece_start, *ends, *needles)
    if dead.any():
        gathered = gathered.take(np.flatnonzero(~dead))
    return tuple(sorted_paths[i] for i in by_new.tolist()), gathered, constants


def _attributes(
    blocks: Sequence[_Block], rank: NDArray[np.int32], size: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return where each row's predicates start, and their attributes, sorted within the row."""
    counts = np.zeros(size, np.int64)
    for block in blocks:
        count_predicates(block.columns[0], counts)
    predicate_start = starts_of(counts)
    attribute = np.empty(int(predicate_start[-1]), np.int32)
    cursor = predicate_start[:-1].copy()
    for block in blocks:
        place_attributes(block.columns[0], block.columns[1], rank, cursor, attribute)
    twice = sort_rows(predicate_start, attribute)
    if twice >= 0:
        raise ValueError(f"the subscription at place {twice} has two predicates on one attribute")
    return predicate_start, attribute


def _piece_starts(
    blocks: Sequence[_Block],
    rank: NDArray[np.int32],
    predicate_start: NDArray[np.int64],
    attribute: NDArray[np.int32],
) -> NDArray[np.int64]:
    """Return where each predicate's pieces start: one for a range, one for a value."""
    if all(block.value_start is None for block in blocks):
        return np.arange(len(attribute) + 1)
    counts = np.ones(len(attribute), np.int64)
    for block in blocks:
        if block.value_start is not None:
            subscription, path = block.columns[:2]
            count_pieces(subscription, path, block.value_start, rank, predicate_start, attribute, counts)
    return starts_of(counts)


def _write_numbers(
    block: _Block,
    places: tuple[NDArray[Any], ...],
    ends: tuple[NDArray[np.uint8], NDArray[np.float64]],
    odd: dict[tuple[int, Decimal], int],
    dead: NDArray[np.bool_],
) -> None:
    """Write a block's ends; return the numbers that no float64 represents."""
    count = block.write(block.columns, *places, ends, np.zeros((0, 3), np.int64), dead)
    if not count:
        return
    found = np.zeros((count, 3), np.int64)
    block.write(block.columns, *places, ends, found, dead)
    _, _, attribute, piece_start = places
    for end, i, bound in found.tolist():
        predicate = int(np.searchsorted(piece_start, end >> 1, side="right")) - 1
        number = exact_number(block.bounds[bound][i].item())
        ends[1][end] = odd.setdefault((int(attribute[predicate]), number), len(odd))
