"""Vector loops over *lanes*: one event per bit, 512 per bitset, which is one cache line and one register.

With fewer events, a bitset is a quarter of that or a single word: shorter tables stay in nearer caches.

numba's own loops over small integers are ten times slower than these few instructions, so they are generated
as LLVM code, which supports them on every processor. Each has a twin in plain Python, used when numba's
compilation is disabled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import config
from numba.core import cgutils, types
from numba.extending import intrinsic

from fieldfare.matching.plain.search.vectors import (
    BLOCK,
    CODES,
    GROUP_BLOCKS,
    I8,
    I16,
    I32,
    I64,
    MASK,
    WORDS,
    data_of,
    everywhere,
    for_width,
    load,
    set_type,
    store,
    words_not_zero,
    zeros,
)

HEAD_SETS = 3
"""The number of a row's sets that `pass_first` reads."""
SETS_AHEAD = 1024
"""Prefetch distance in sets: about two kilobytes."""


def _keep_between(codes: Any, start: int, low: Any, high: Any, blocks: int, masks: Any) -> None:
    """Clear the bits in `masks` of codes outside [low, high]; a mask has one bit per code of a block."""
    for b in range(blocks):
        for lane in range(BLOCK):
            if not low <= codes[start + BLOCK * b + lane] <= high:
                masks[b] &= ~np.uint32(1 << lane)


def _keep_between_typing(
    _context: Any, codes: Any, start: Any, low: Any, high: Any, blocks: Any, masks: Any
) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        codes_data, masks_data = (data_of(context, builder, signature, arguments, i) for i in (0, 5))
        _, start, low, high, blocks, _ = arguments
        lows = everywhere(builder, builder.trunc(low, I16), CODES)
        spans = everywhere(builder, builder.trunc(builder.sub(high, low), I16), CODES)
        with cgutils.for_range(builder, blocks) as loop:
            place = builder.add(start, builder.mul(loop.index, ir.Constant(I64, BLOCK)))
            values = builder.sub(load(builder, codes_data, place, CODES), lows)
            inside = builder.bitcast(builder.icmp_unsigned("<=", values, spans), I32)
            pointer = builder.gep(masks_data, [loop.index])
            builder.store(builder.and_(builder.load(pointer), inside), pointer)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(codes, i64, i64, i64, i64, masks), generate


def _gather(codes: Any, start: int, blocks: int, masks: Any, out: Any, out_start: int) -> int:
    """Write the codes whose bits are set in `masks` consecutively; return how many.

    `out` must have room for one more block.
    """
    count = 0
    for b in range(blocks):
        for lane in range(BLOCK):
            if int(masks[b]) >> lane & 1:
                out[out_start + count] = codes[start + BLOCK * b + lane]
                count += 1
    return count


def _gather_typing(
    _context: Any, codes: Any, start: Any, blocks: Any, masks: Any, out: Any, out_start: Any
) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        codes_data, masks_data, out_data = (
            data_of(context, builder, signature, arguments, i) for i in (0, 3, 4)
        )
        _, start, blocks, _, _, out_start = arguments
        kind = ir.FunctionType(CODES, [CODES, MASK, CODES])
        compress = cgutils.get_or_insert_function(
            builder.module, kind, "llvm.experimental.vector.compress.v32i16"
        )
        count = cgutils.alloca_once_value(builder, ir.Constant(I64, 0))
        with cgutils.for_range(builder, blocks) as loop:
            place = builder.add(start, builder.mul(loop.index, ir.Constant(I64, BLOCK)))
            mask = builder.load(builder.gep(masks_data, [loop.index]))
            values = load(builder, codes_data, place, CODES)
            undefined = ir.Constant(CODES, ir.Undefined)
            values = builder.call(compress, [values, builder.bitcast(mask, MASK), undefined])
            before = builder.load(count)
            store(builder, values, out_data, builder.add(out_start, before))
            builder.store(builder.add(before, builder.zext(builder.ctpop(mask), I64)), count)
        return builder.load(count)

    i64 = types.int64
    return i64(codes, i64, i64, masks, out, i64), generate


def _fill_edges(
    codes: Any, start: int, lanes: int, edges: Any, first: int, last: int, table: Any, entry: int, words: int
) -> None:
    """Write a bitset for each of edges [first, last): the lanes whose code has reached it.

    They become the bitsets of `table` from number `entry` on. Bits beyond `lanes` are undefined.
    """
    for i in range(first, last):
        for lane in range(lanes):
            word = (entry + i - first) * words + (lane >> 6)
            bit = np.uint64(1 << (lane & 63))
            if codes[start + lane] >= edges[i]:
                table[word] |= bit
            else:
                table[word] &= ~bit


def _fill_edges_typing(
    _context: Any,
    codes: Any,
    start: Any,
    lanes: Any,
    edges: Any,
    first: Any,
    last: Any,
    table: Any,
    entry: Any,
    words: Any,
) -> Any:
    """A group of blocks stays in registers while all edges are processed."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        codes_data, edges_data, table_data = (
            data_of(context, builder, signature, arguments, i) for i in (0, 3, 6)
        )
        _, start, lanes, _, first, last, _, entry, words = arguments
        masks_data = builder.bitcast(table_data, I32.as_pointer())

        def write(width: int) -> None:
            blocks_of_set = 64 * width // BLOCK
            group_blocks = min(GROUP_BLOCKS, blocks_of_set)
            size = ir.Constant(I64, group_blocks * BLOCK)
            groups = builder.udiv(builder.add(lanes, ir.Constant(I64, group_blocks * BLOCK - 1)), size)
            with cgutils.for_range(builder, groups) as group:
                place = builder.add(start, builder.mul(group.index, size))
                blocks = [
                    load(builder, codes_data, builder.add(place, ir.Constant(I64, BLOCK * b)), CODES)
                    for b in range(group_blocks)
                ]
                into = builder.mul(group.index, ir.Constant(I64, group_blocks))
                with cgutils.for_range(builder, builder.sub(last, first)) as loop:
                    edge = builder.load(builder.gep(edges_data, [builder.add(first, loop.index)]))
                    edge = everywhere(builder, edge, CODES)
                    number = builder.add(entry, loop.index)
                    target = builder.add(into, builder.mul(number, ir.Constant(I64, blocks_of_set)))
                    for b, block in enumerate(blocks):
                        reached = builder.bitcast(builder.icmp_unsigned(">=", block, edge), I32)
                        pointer = builder.gep(masks_data, [builder.add(target, ir.Constant(I64, b))])
                        builder.store(reached, pointer)

        for_width(builder, words, write)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(codes, i64, i64, edges, i64, i64, table, i64, i64), generate


def _fill_sets(table: Any, set_gate: Any, gates: Any, first: int, last: int, entry: int, words: int) -> None:
    """Write the bitset of each of sets [first, last): the lanes that pass one of its gates.

    Set u has gates [set_gate[u], set_gate[u + 1]). A gate (open, shut) passes the lanes that are in bitset
    `open` of `table` and not in `shut`. The results are the bitsets from number `entry` on.
    """
    for u in range(first, last):
        for w in range(words):
            word = np.uint64(0)
            for g in range(set_gate[u], set_gate[u + 1]):
                opened, shut = int(gates[g, 0]) * words, int(gates[g, 1]) * words
                word |= table[opened + w] & ~table[shut + w]
            table[(entry + u - first) * words + w] = word


def _fill_sets_typing(
    _context: Any, table: Any, set_gate: Any, gates: Any, first: Any, last: Any, entry: Any, words: Any
) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table_data, set_data, gates_data = (
            data_of(context, builder, signature, arguments, i) for i in range(3)
        )
        _, _, _, first, last, entry, words = arguments
        one = ir.Constant(I64, 1)

        def write(width: int) -> None:
            ones = ir.Constant(set_type(width), [-1] * width)
            union = cgutils.alloca_once(builder, set_type(width))
            with cgutils.for_range(builder, builder.sub(last, first)) as loop:
                number = builder.add(first, loop.index)
                start = builder.load(builder.gep(set_data, [number]))
                end = builder.load(builder.gep(set_data, [builder.add(number, one)]))
                builder.store(zeros(width), union)
                with cgutils.for_range(builder, builder.sub(end, start)) as gate:
                    place = builder.shl(builder.add(start, gate.index), one)
                    opened, shut = (
                        _bitset(
                            builder,
                            table_data,
                            gates_data,
                            builder.add(place, ir.Constant(I64, side)),
                            width,
                        )
                        for side in range(2)
                    )
                    passing = builder.and_(opened, builder.xor(shut, ones))
                    builder.store(builder.or_(builder.load(union), passing), union)
                target = builder.mul(builder.add(entry, loop.index), ir.Constant(I64, width))
                store(builder, builder.load(union), table_data, target)

        for_width(builder, words, write)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(table, set_gate, gates, i64, i64, i64, i64), generate


def _bitset(builder: Any, table_data: Any, numbers_data: Any, place: Any, words: int) -> Any:
    """Load the bitset whose number is at a place of an array."""
    number = builder.zext(builder.load(builder.gep(numbers_data, [place])), I64)
    return load(builder, table_data, builder.mul(number, ir.Constant(I64, words)), set_type(words))


def _pass_sets(
    table: Any,
    sets: Any,
    start: int,
    step: Any,
    width: Any,
    rows: Any,
    first: int,
    left: Any,
    passed: Any,
    count: int,
    words: int,
) -> int:
    """Find the lanes that are in all `width` sets of each row.

    Row r's sets, as numbers of bitsets in `table`, are those of `sets` from ``start + r * step`` on. For a
    row with lanes left, numbered from `first`, its bitset is written to `left`, its number to `passed`.
    Returns `count` plus the number of such rows; both arrays must have room for one more.
    """
    for row in range(rows):
        result = [table[w] for w in range(words)]
        for i in range(start + row * step, start + row * step + width):
            for w in range(words):
                result[w] &= table[int(sets[i]) * words + w]
        for w in range(words):
            left[count * words + w] = result[w]
        passed[count] = first + row
        count += any(result)
    return count


def _pass_sets_typing(
    _context: Any,
    table: Any,
    sets: Any,
    start: Any,
    step: Any,
    width: Any,
    rows: Any,
    first: Any,
    left: Any,
    passed: Any,
    count: Any,
    words: Any,
) -> Any:
    """The conjunction stays in a register, without branches."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table_data, sets_data, left_data, passed_data = (
            data_of(context, builder, signature, arguments, i) for i in (0, 1, 7, 8)
        )
        _, _, start, step, width, rows, first, _, _, count, words = arguments
        found = cgutils.alloca_once_value(builder, count)

        def write(size: int) -> None:
            everything = load(builder, table_data, ir.Constant(I64, 0), set_type(size))
            conjunction = cgutils.alloca_once(builder, set_type(size))
            with cgutils.for_range(builder, rows) as loop:
                builder.store(everything, conjunction)
                place = builder.add(start, builder.mul(loop.index, step))
                with cgutils.for_range(builder, width) as member:
                    bitset = _bitset(builder, table_data, sets_data, builder.add(place, member.index), size)
                    builder.store(builder.and_(builder.load(conjunction), bitset), conjunction)
                result, k = builder.load(conjunction), builder.load(found)
                store(builder, result, left_data, builder.mul(k, ir.Constant(I64, size)))
                number = builder.trunc(builder.add(first, loop.index), I32)
                builder.store(number, builder.gep(passed_data, [k]))
                mask = words_not_zero(builder, result, size)
                any_left = builder.icmp_unsigned("!=", mask, ir.Constant(mask.type, 0))
                builder.store(builder.add(k, builder.zext(any_left, I64)), found)

        for_width(builder, words, write)
        return builder.load(found)

    i64 = types.int64
    return i64(table, sets, i64, i64, i64, i64, i64, left, passed, i64, i64), generate


def _pass_first(
    table: Any, sets: Any, start: int, step: Any, rows: Any, first: int, left: Any, passed: Any
) -> int:
    """Like `pass_sets` for the first HEAD_SETS sets of each row, where a bitset is one word."""
    return _pass_sets(table, sets, start, step, HEAD_SETS, rows, first, left, passed, 0, 1)


def _pass_first_typing(
    _context: Any,
    table: Any,
    sets: Any,
    start: Any,
    step: Any,
    rows: Any,
    first: Any,
    left: Any,
    passed: Any,
) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table_data, sets_data, left_data, passed_data = (
            data_of(context, builder, signature, arguments, i) for i in (0, 1, 6, 7)
        )
        _, _, start, step, rows, first, _, _ = arguments
        found = cgutils.alloca_once_value(builder, ir.Constant(I64, 0))
        every = builder.load(table_data)
        with cgutils.for_range(builder, rows) as loop:
            place = builder.add(start, builder.mul(loop.index, step))
            _ask_for(builder, builder.gep(sets_data, [builder.add(place, ir.Constant(I64, SETS_AHEAD))]))
            word = every
            for i in range(HEAD_SETS):
                number = builder.load(builder.gep(sets_data, [builder.add(place, ir.Constant(I64, i))]))
                word = builder.and_(word, builder.load(builder.gep(table_data, [builder.zext(number, I64)])))
            k = builder.load(found)
            builder.store(word, builder.gep(left_data, [k]))
            number = builder.trunc(builder.add(first, loop.index), I32)
            builder.store(number, builder.gep(passed_data, [k]))
            any_left = builder.icmp_unsigned("!=", word, ir.Constant(I64, 0))
            builder.store(builder.add(k, builder.zext(any_left, I64)), found)
        return builder.load(found)

    i64 = types.int64
    return i64(table, sets, i64, i64, i64, i64, left, passed), generate


def _reached(edges: Any, first: int, last: int, code: Any) -> int:
    """Return how many of the edges [first, last) a code has reached; `edges` has room for one more block."""
    return sum(int(edges[i] <= code) for i in range(first, last))


def _reached_typing(_context: Any, edges: Any, first: Any, last: Any, code: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        edges_data = data_of(context, builder, signature, arguments, 0)
        _, first, last, code = arguments
        codes = everywhere(builder, builder.trunc(code, I16), CODES)
        block, one = ir.Constant(I64, BLOCK), ir.Constant(I64, 1)
        count = cgutils.alloca_once_value(builder, ir.Constant(I64, 0))
        size = builder.sub(last, first)
        blocks = builder.udiv(builder.add(size, ir.Constant(I64, BLOCK - 1)), block)
        with cgutils.for_range(builder, blocks) as loop:
            before = builder.mul(loop.index, block)
            values = load(builder, edges_data, builder.add(first, before), CODES)
            mask = builder.zext(builder.bitcast(builder.icmp_unsigned("<=", values, codes), I32), I64)
            left = builder.sub(size, before)
            left = builder.select(builder.icmp_unsigned("<", left, block), left, block)
            mask = builder.and_(mask, builder.sub(builder.shl(one, left), one))
            builder.store(builder.add(builder.load(count), builder.ctpop(mask)), count)
        return builder.load(count)

    i64 = types.int64
    return i64(edges, i64, i64, i64), generate


def _pass_bitsets(words: Any, places: Any, count: int, width: int, out: Any) -> int:
    """Write the conjunction of `count` bitsets of `width` words to `out`; return a mask of the nonzero words.

    The bitsets begin at ``words[places[k]]``; the width is a multiple of WORDS and at most 64.
    """
    mask = 0
    for w in range(width):
        out[w] = words[places[0] + w]
        for k in range(1, count):
            out[w] &= words[places[k] + w]
        mask |= int(out[w] != 0) << w
    return mask


def _pass_bitsets_typing(_context: Any, words: Any, places: Any, count: Any, width: Any, out: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        words_data, places_data, out_data = (
            data_of(context, builder, signature, arguments, i) for i in (0, 1, 4)
        )
        _, _, count, width, _ = arguments
        zero, one, size = (ir.Constant(I64, value) for value in (0, 1, WORDS))
        found = cgutils.alloca_once_value(builder, zero)
        conjunction = cgutils.alloca_once(builder, set_type(WORDS))
        with cgutils.for_range(builder, builder.udiv(width, size)) as part:
            offset = builder.mul(part.index, size)
            place = builder.add(builder.load(places_data), offset)
            builder.store(load(builder, words_data, place, set_type(WORDS)), conjunction)
            with cgutils.for_range(builder, builder.sub(count, one)) as member:
                place = builder.load(builder.gep(places_data, [builder.add(member.index, one)]))
                bitset = load(builder, words_data, builder.add(place, offset), set_type(WORDS))
                builder.store(builder.and_(builder.load(conjunction), bitset), conjunction)
            result = builder.load(conjunction)
            store(builder, result, out_data, offset)
            mask = builder.zext(words_not_zero(builder, result, WORDS), I64)
            builder.store(builder.or_(builder.load(found), builder.shl(mask, offset)), found)
        return builder.load(found)

    i64 = types.int64
    return i64(words, places, i64, i64, out), generate


def _prefetch(array: Any, place: int) -> None:
    """Prefetch an element that will be read soon."""


def _prefetch_typing(_context: Any, array: Any, place: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = data_of(context, builder, signature, arguments, 0)
        _ask_for(builder, builder.gep(data, [arguments[1]]))
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


def _ask_for(builder: Any, pointer: Any) -> None:
    """Prefetch the target of a pointer into all caches; it need not be mapped."""
    kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    read, all_caches, of_data = (ir.Constant(I32, value) for value in (0, 3, 1))
    builder.call(function, [builder.bitcast(pointer, I8.as_pointer()), read, all_caches, of_data])


keep_between = _keep_between if config.DISABLE_JIT else intrinsic(_keep_between_typing)
gather = _gather if config.DISABLE_JIT else intrinsic(_gather_typing)
fill_edges = _fill_edges if config.DISABLE_JIT else intrinsic(_fill_edges_typing)
fill_sets = _fill_sets if config.DISABLE_JIT else intrinsic(_fill_sets_typing)
pass_sets = _pass_sets if config.DISABLE_JIT else intrinsic(_pass_sets_typing)
pass_first = _pass_first if config.DISABLE_JIT else intrinsic(_pass_first_typing)
reached = _reached if config.DISABLE_JIT else intrinsic(_reached_typing)
pass_bitsets = _pass_bitsets if config.DISABLE_JIT else intrinsic(_pass_bitsets_typing)
prefetch = _prefetch if config.DISABLE_JIT else intrinsic(_prefetch_typing)
