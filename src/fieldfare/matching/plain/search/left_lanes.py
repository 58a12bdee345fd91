"""Enumeration of the lanes left of a row, and of the events that they stand for.

Generated as LLVM code, each with a twin in plain Python, like `lanes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import config
from numba.core import cgutils, types
from numba.extending import intrinsic

from fieldfare.matching.plain.search.vectors import (
    I1,
    I64,
    data_of,
    for_width,
    load,
    set_type,
    words_not_zero,
)

UNROLLED = 4
"""Lanes of a word written without a branch; most words have at most this many left."""


def _words_set(bitsets: Any, number: int, words: int) -> int:
    """Return a mask of the nonzero words of a bitset."""
    mask = 0
    for w in range(words):
        mask |= int(bitsets[number * words + w] != 0) << w
    return mask


def _words_set_typing(_context: Any, bitsets: Any, number: Any, words: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = data_of(context, builder, signature, arguments, 0)
        _, number, words = arguments
        found = cgutils.alloca_once_value(builder, ir.Constant(I64, 0))

        def write(width: int) -> None:
            place = builder.mul(number, ir.Constant(I64, width))
            value = load(builder, data, place, set_type(width))
            builder.store(builder.zext(words_not_zero(builder, value, width), I64), found)

        for_width(builder, words, write)
        return builder.load(found)

    i64 = types.int64
    return i64(bitsets, i64, i64), generate


def _lanes_set(bitsets: Any, number: int, words: int) -> int:
    """Return the number of lanes in a bitset."""
    return sum(int(bitsets[number * words + w]).bit_count() for w in range(words))


def _lanes_set_typing(_context: Any, bitsets: Any, number: Any, words: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = data_of(context, builder, signature, arguments, 0)
        _, number, words = arguments
        count = cgutils.alloca_once_value(builder, ir.Constant(I64, 0))

        def write(width: int) -> None:
            vector = set_type(width)
            value = load(builder, data, builder.mul(number, ir.Constant(I64, width)), vector)
            for name, result in ((f"ctpop.v{width}i64", vector), (f"vector.reduce.add.v{width}i64", I64)):
                kind = ir.FunctionType(result, [vector])
                function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}")
                value = builder.call(function, [value])
            builder.store(value, count)

        for_width(builder, words, write)
        return builder.load(count)

    i64 = types.int64
    return i64(bitsets, i64, i64), generate


def _flatten(bitsets: Any, number: int, words: int, values: Any, start: int, out: Any, out_start: int) -> int:
    """Write the values of a bitset's lanes consecutively; return how many.

    Lane k's value is at ``values[start + k]``. Up to 64 values after the last lane are read, and up to
    UNROLLED places after the last value are written.
    """
    count = 0
    for w in range(words):
        for bit in range(64):
            if int(bitsets[number * words + w]) >> bit & 1:
                out[out_start + count] = values[start + 64 * w + bit]
                count += 1
    return count


def _flatten_typing(
    _context: Any, bitsets: Any, number: Any, words: Any, values: Any, start: Any, out: Any, out_start: Any
) -> Any:
    """UNROLLED lanes of each word are written unconditionally, because mispredicted branches would take
    longer."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits_data, values_data, out_data = (
            data_of(context, builder, signature, arguments, i) for i in (0, 3, 5)
        )
        _, number, words, _, start, _, out_start = arguments
        one = ir.Constant(I64, 1)
        first, place = builder.mul(number, words), cgutils.alloca_once_value(builder, out_start)
        rest = cgutils.alloca_once(builder, I64)

        def write_lowest(word: Any, base: Any, target: Any) -> Any:
            value = builder.load(builder.gep(values_data, [builder.add(base, cttz(builder, word))]))
            builder.store(value, builder.gep(out_data, [target]))
            return builder.and_(word, builder.sub(word, one))

        with cgutils.for_range(builder, words) as loop:
            word = builder.load(builder.gep(bits_data, [builder.add(first, loop.index)]))
            base = builder.add(start, builder.shl(loop.index, ir.Constant(I64, 6)))
            begin = builder.load(place)
            builder.store(builder.add(begin, builder.ctpop(word)), place)
            for k in range(UNROLLED):
                word = write_lowest(word, base, builder.add(begin, ir.Constant(I64, k)))
            builder.store(word, rest)
            at = cgutils.alloca_once(builder, I64)
            builder.store(builder.add(begin, ir.Constant(I64, UNROLLED)), at)
            with _while_not_zero(builder, rest):
                target = builder.load(at)
                builder.store(write_lowest(builder.load(rest), base, target), rest)
                builder.store(builder.add(target, one), at)
        return builder.sub(builder.load(place), out_start)

    i64 = types.int64
    return i64(bitsets, i64, i64, values, i64, out, i64), generate


def cttz(builder: Any, word: Any) -> Any:
    """Return the index of the lowest set bit; 64 if there is none."""
    return builder.cttz(word, ir.Constant(I1, 0))


@contextmanager
def _while_not_zero(builder: Any, pointer: Any) -> Iterator[None]:
    """Loop while the value at a pointer is not zero."""
    check, body, end = (builder.append_basic_block(name) for name in ("check", "body", "end"))
    builder.branch(check)
    builder.position_at_end(check)
    builder.cbranch(builder.icmp_unsigned("!=", builder.load(pointer), ir.Constant(I64, 0)), body, end)
    builder.position_at_end(body)
    yield
    builder.branch(check)
    builder.position_at_end(end)


def _is_inside(pieces: Any, first: int, last: int, cells: Any, event: Any) -> int:
    """Return 1 if an event's cells lie in all pieces [first, last), each (attribute, first cell, last
    cell)."""
    inside = 1
    for i in range(first, last):
        inside &= int(pieces[i, 1] <= cells[event, pieces[i, 0]] <= pieces[i, 2])
    return inside


def _is_inside_typing(_context: Any, pieces: Any, first: Any, last: Any, cells: Any, event: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pieces_data = data_of(context, builder, signature, arguments, 0)
        cells_array = context.make_array(signature.args[3])(context, builder, value=arguments[3])
        _, first, last, _, event = arguments
        width = builder.extract_value(cells_array.shape, 1)
        cells_data = builder.gep(cells_array.data, [builder.mul(event, width)])
        inside = cgutils.alloca_once_value(builder, ir.Constant(I1, 1))
        with cgutils.for_range(builder, builder.sub(last, first)) as loop:
            place = builder.mul(builder.add(first, loop.index), ir.Constant(I64, 3))
            attribute, low, high = (
                builder.load(builder.gep(pieces_data, [builder.add(place, ir.Constant(I64, i))]))
                for i in range(3)
            )
            cell = builder.load(builder.gep(cells_data, [builder.zext(attribute, I64)]))
            is_in = builder.icmp_unsigned("<=", builder.sub(cell, low), builder.sub(high, low))
            builder.store(builder.and_(builder.load(inside), is_in), inside)
        return builder.zext(builder.load(inside), I64)

    i64 = types.int64
    return i64(pieces, i64, i64, cells, i64), generate


words_set = _words_set if config.DISABLE_JIT else intrinsic(_words_set_typing)
lanes_set = _lanes_set if config.DISABLE_JIT else intrinsic(_lanes_set_typing)
flatten = _flatten if config.DISABLE_JIT else intrinsic(_flatten_typing)
is_inside = _is_inside if config.DISABLE_JIT else intrinsic(_is_inside_typing)
