"""Kernels that multiply events' vectors with filters' rows: float32 screens groups, float64 decides.

A *group* is 16 alternatives. Their first rows are multiplied with all events, four at a time; events that are
certainly not on the positive side of any are dropped, and the next rows are multiplied with the remaining
ones. Alternatives of a group are similar (`index._learnt`), so most events are dropped early. Pairs whose
products were all certainly positive match; those within the rounding error are decided in float64::

    lanes  float32[groups, rows, D, 16]     rows  float64[alternatives, rows, D]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import config
from numba.core import cgutils, types
from numba.extending import intrinsic

from fieldfare.matching.compiled import compiled, lowest_bit

LANES = 16
EVENTS = 4
CHUNK_BYTES = 1 << 18
"""Size of a chunk of lanes, in bytes; before each chunk there must be room for all its possible matches."""
NEGLIGIBLE = 2.0**-60
"""Magnitude below which numbers are treated as zero in the screening."""

_F32, _I64 = ir.FloatType(), ir.IntType(64)
_FLOATS = ir.VectorType(_F32, LANES)
_LANE_MASK = ir.IntType(LANES)


def floor_of(dimensions: int) -> float:
    """Return the bound at or below which a float32 product of two vectors of length 1 is certainly not
    positive.

    Each number has a relative error of 2**-24, and so has each step of the sum; together the error is at most
    D + 2 times that (Higham 2002, section 3.1), because the sum of the products' magnitudes is at most 1. The
    error from `NEGLIGIBLE` numbers is less than the margin.
    """
    return -(dimensions + 4) * 2.0**-24 * (1 + 2.0**-10)


def without_negligible(numbers: Any) -> Any:
    """Replace negligible numbers by zeros.

    A regular client's vectors have none, but a malicious one's might, whose subnormal products would take a
    processor fifty times as long.
    """
    return np.where(np.abs(numbers) < NEGLIGIBLE, 0.0, numbers)


def _screen(
    lanes: Any, row: int, events: Any, where: Any, first: int, dimensions: int, floor: Any, sure: Any
) -> Any:
    """Return the pairs of 16 rows and 4 events whose product is above `floor`: bit ``16 * event + row``.

    The events begin at ``where[first : first + 4]``. The bits of products above ``-floor`` are written to
    `sure`.
    """
    mask = above = 0
    for e in range(EVENTS):
        for lane in range(LANES):
            product = np.float32(0)
            for d in range(dimensions):
                product += lanes[row + d * LANES + lane] * events[where[first + e] + d]
            mask |= int(product > floor) << (LANES * e + lane)
            above |= int(product > -floor) << (LANES * e + lane)
    sure[0] = np.uint64(above)
    return np.uint64(mask)


def _screen_typing(
    _context: Any,
    lanes: Any,
    row: Any,
    events: Any,
    where: Any,
    first: Any,
    dimensions: Any,
    floor: Any,
    sure: Any,
) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes_data, events_data, where_data, sure_data = (
            context.make_array(signature.args[i])(context, builder, value=arguments[i]).data
            for i in (0, 2, 3, 7)
        )
        _, row, _, _, first, dimensions, floor, _ = arguments
        starts = [
            builder.load(builder.gep(where_data, [builder.add(first, ir.Constant(_I64, e))]))
            for e in range(EVENTS)
        ]
        kind = ir.FunctionType(_FLOATS, [_FLOATS, _FLOATS, _FLOATS])
        multiply_add = cgutils.get_or_insert_function(builder.module, kind, "llvm.fmuladd.v16f32")
        zero = ir.Constant(_FLOATS, [0.0] * LANES)
        sums = [cgutils.alloca_once_value(builder, zero) for _ in range(EVENTS)]
        for each in sums:
            builder.store(zero, each)
        with cgutils.for_range(builder, dimensions) as loop:
            place = builder.add(row, builder.mul(loop.index, ir.Constant(_I64, LANES)))
            coefficients = builder.load(
                builder.bitcast(builder.gep(lanes_data, [place]), _FLOATS.as_pointer())
            )
            coefficients.align = 4
            for e in range(EVENTS):
                number = builder.load(builder.gep(events_data, [builder.add(starts[e], loop.index)]))
                added = builder.call(
                    multiply_add, [coefficients, _everywhere(builder, number), builder.load(sums[e])]
                )
                builder.store(added, sums[e])
        masks = []
        for bound in (floor, builder.fneg(floor)):
            bounds, mask = _everywhere(builder, bound), ir.Constant(_I64, 0)
            for e in range(EVENTS):
                above = builder.fcmp_ordered(">", builder.load(sums[e]), bounds)
                bits = builder.zext(builder.bitcast(above, _LANE_MASK), _I64)
                mask = builder.or_(mask, builder.shl(bits, ir.Constant(_I64, LANES * e)))
            masks.append(mask)
        builder.store(masks[1], sure_data)
        return masks[0]

    i64 = types.int64
    return types.uint64(lanes, i64, events, where, i64, i64, types.float32, sure), generate


def _everywhere(builder: Any, value: Any) -> Any:
    undefined = ir.Constant(_FLOATS, ir.Undefined)
    single = builder.insert_element(undefined, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(
        single, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    )


screen = _screen if config.DISABLE_JIT else intrinsic(_screen_typing)


@compiled
def are_positive(rows: Any, first: int, end: int, vector: Any) -> bool:
    """Whether a vector has positive products with all of some rows, in float64."""
    dimensions = len(vector)
    for r in range(first, end):
        a = b = c = d = 0.0
        whole = dimensions & ~3
        for i in range(0, whole, 4):
            a += rows[r, i] * vector[i]
            b += rows[r, i + 1] * vector[i + 1]
            c += rows[r, i + 2] * vector[i + 2]
            d += rows[r, i + 3] * vector[i + 3]
        for i in range(whole, dimensions):
            a += rows[r, i] * vector[i]
        if not (a + b) + (c + d) > 0.0:
            return False
    return True


@compiled
def scan(
    lanes: Any,
    shape: Any,
    rows: Any,
    place: Any,
    events32: Any,
    events64: Any,
    numbers: Any,
    floor: Any,
    group: int,
    pairs: Any,
    found: int,
) -> Any:
    """Append the pairs of events and alternatives whose products are all positive.

    Parameters
    ----------
    lanes : float32, flat
    shape
        (groups, rows per alternative, dimensions).
    rows : float64[alternatives * rows, D]
    place : int32[alternatives]
    events32, events64 : [m, D]
        Vectors of length 1; the first flat, and padded by four events.
    numbers : int32[m]
        The numbers of the events.
    group : int
        The first group.

    Returns
    -------
    tuple
        The group from which to continue, once there is room for more pairs, and the number of pairs.
    """
    groups, depth, dimensions = shape
    size = depth * dimensions * LANES
    chunk = max(1, CHUNK_BYTES // (4 * size))
    events = len(numbers)
    every = np.arange(events + EVENTS) * dimensions
    every[events:] = events * dimensions
    left = np.empty(events + EVENTS, np.int64)
    where = np.empty(events + EVENTS, np.int64)
    while group < groups:
        end = min(groups, group + chunk)
        if len(pairs) - found < (end - group) * LANES * events:
            break
        for g in range(group, end):
            count = _pass_rows(lanes, g * size, depth, dimensions, events32, every, where, left, floor)
            for i in range(count):
                event, sure, alive = left[i] >> 32, left[i] >> LANES, left[i] & 0xFFFF
                while alive != 0:
                    bit = lowest_bit(np.uint64(alive))
                    alive &= alive - 1
                    alternative = g * LANES + bit
                    if (sure >> bit) & 1 == 0:
                        # Padding lanes are zero, and so never sure.
                        if alternative >= len(place):
                            continue
                        first = alternative * depth
                        if not are_positive(rows, first, first + depth, events64[event]):
                            continue
                    pairs[found, 0], pairs[found, 1] = numbers[event], place[alternative]
                    found += 1
        group = end
    return group, found


@compiled
def _pass_rows(
    lanes: Any,
    first_row: int,
    depth: int,
    dimensions: int,
    events32: Any,
    every: Any,
    where: Any,
    left: Any,
    floor: float,
) -> int:
    """Pass all events through the rows of a group; return how many remain.

    For each remaining event, `left` gets its number, the alternatives whose products were all certainly
    positive, and those that it may match (32, 16 and 16 bits), and `where` its offset.
    """
    sure = np.empty(1, np.uint64)
    starts, count = every, len(every) - EVENTS
    for r in range(depth):
        row, kept = first_row + r * dimensions * LANES, 0
        for e in range(0, count, EVENTS):
            mask = np.int64(screen(lanes, row, events32, starts, e, dimensions, floor, sure))
            above = np.int64(sure[0])
            for i in range(e, min(e + EVENTS, count)):
                shift = LANES * (i - e)
                passed = ((above >> shift) & 0xFFFF) << LANES | (mask >> shift) & 0xFFFF
                state = i << 32 | passed if r == 0 else left[i] & (-1 << 32 | passed)
                where[kept] = starts[i]
                left[kept] = state
                kept += (state & 0xFFFF) != 0
        starts, count = where, kept
        where[count : count + EVENTS] = every[-1]
    return count


@compiled
def keep_positive(pairs: Any, start: Any, rows: Any, vectors: Any, is_vector: Any) -> int:
    """Keep the pairs whose event has positive products with the rows of its alternative; return how many."""
    kept = 0
    for i in range(len(pairs)):
        event, alternative = pairs[i, 0], pairs[i, 1]
        first, end = start[alternative], start[alternative + 1]
        if first == end or (is_vector[event] and are_positive(rows, first, end, vectors[event])):
            pairs[kept, 0], pairs[kept, 1] = event, alternative
            kept += 1
    return kept


@compiled
def read_base64(is_text: Any, words: Any, text: Any, sextets: Any, out: Any) -> None:
    """Decode each text that is base64 of the expected length; clear the mark of others.

    Parameters
    ----------
    is_text : bool[n]
    words : int64[n]
        Start and length of each text, as in a column.
    sextets : uint8[256]
        The six bits of each character; 255 for invalid ones.
    out : uint8[n, bytes]
    """
    size = out.shape[1]
    characters = (size * 8 + 5) // 6
    padded = (size + 2) // 3 * 4
    for n in range(len(words)):
        if not is_text[n]:
            continue
        start = words[n] >> 32
        if (words[n] & 0xFFFFFFFF) != padded:
            is_text[n] = False
            continue
        bits: Any = 0
        held, at = 0, 0
        bad = False
        for i in range(characters):
            sextet = sextets[text[start + i]]
            bad |= sextet == 255
            bits = (bits << 6) | np.int64(sextet & 63)
            held += 6
            if held >= 8:
                held -= 8
                out[n, at] = (bits >> held) & 255
                bits &= (1 << held) - 1
                at += 1
        is_text[n] = not bad
