"""The one way kernels are compiled: nopython, without the interpreter's lock, kept on disk.

numba counts references to an array wherever it passes it on, with an atomic instruction each time: in a
scanner of small functions that took most of the time. `borrowed` is for a kernel whose caller keeps the
arrays alive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir
from numba import config, njit
from numba.core import cgutils, types
from numba.extending import intrinsic

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(function: Kernel) -> Kernel:
    """Compile a kernel when it is first called, and keep it on disk."""
    kernel: Kernel = njit(cache=True, nogil=True)(function)
    return kernel


def inlined(function: Kernel) -> Kernel:
    """The same for a small function that is called for every few bytes."""
    kernel: Kernel = njit(
        cache=True, nogil=True, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True
    )(function)
    return kernel


def _borrowed(array: Any) -> Any:
    """The same array, as numba sees it when there is nothing to count."""
    return array


def _borrowed_typing(_context: Any, array: Any) -> Any:
    """The same array without an owner: it must not outlive the call that it was passed to."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        structure = context.make_array(signature.args[0])(context, builder, value=arguments[0])
        structure.meminfo = cgutils.get_null_value(structure.meminfo.type)
        structure.parent = cgutils.get_null_value(structure.parent.type)
        return structure._getvalue()

    return array(array), generate


borrowed = _borrowed if config.DISABLE_JIT else intrinsic(_borrowed_typing)
"""``borrowed(array)``, in a kernel: the same array without reference counting."""


BLOCK = 8
"""Words that ``and_blocks`` takes at once: a cache line."""

_I1, _I8, _I32, _I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))
_VECTOR = ir.VectorType(_I64, BLOCK)


def _and_blocks(bits: Any, places: Any, count: int, shift: int, left: Any) -> int:
    """The conjunction of ``count`` blocks of bits, those from ``places[i] + shift`` on, written to ``left``.

    Returns a mask of the words that are not zero. There is at least one block.
    """
    mask = 0
    for w in range(BLOCK):
        word = bits[places[0] + shift + w]
        for i in range(1, count):
            word &= bits[places[i] + shift + w]
        left[w] = word
        mask |= int(word != 0) << w
    return mask


def _and_blocks_typing(_context: Any, bits: Any, places: Any, count: Any, shift: Any, left: Any) -> Any:
    """One vector register is the whole of the state: numba's loops are ten times slower."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def data(i: int) -> Any:
            return context.make_array(signature.args[i])(context, builder, value=arguments[i]).data

        bits_data, places_data, left_data = data(0), data(1), data(4)
        conjunction = cgutils.alloca_once_value(builder, ir.Constant(_VECTOR, [-1] * BLOCK))
        with cgutils.for_range(builder, arguments[2]) as loop:
            place = builder.add(builder.load(builder.gep(places_data, [loop.index])), arguments[3])
            block = builder.load(builder.bitcast(builder.gep(bits_data, [place]), _VECTOR.as_pointer()))
            block.align = 8
            builder.store(builder.and_(builder.load(conjunction), block), conjunction)
        result = builder.load(conjunction)
        builder.store(result, builder.bitcast(left_data, _VECTOR.as_pointer())).align = 8
        nonzero = builder.icmp_unsigned("!=", result, ir.Constant(_VECTOR, [0] * BLOCK))
        return builder.zext(builder.bitcast(nonzero, _I8), _I64)

    return types.int64(bits, places, types.int64, types.int64, left), generate


def _find_bitsets(
    tables: Any,
    columns: Any,
    start: int,
    end: int,
    buckets: Any,
    event: int,
    first: int,
    words: int,
    places: Any,
) -> int:
    """Where the bitset of an event's bucket is, for columns [start, end) of a tile.

    Column c is of the attribute ``columns[c]``; its bucket b has the bitset number ``tables[c, b]``, which
    is ``words`` long and counted from ``first``. Returns the lowest number.
    """
    lowest = 1
    for c in range(start, end):
        number = tables[c, buckets[event, columns[c]]]
        places[c - start] = first + number * words
        lowest = min(lowest, number)
    return lowest


def _find_bitsets_typing(
    _context: Any,
    tables: Any,
    columns: Any,
    start: Any,
    end: Any,
    buckets: Any,
    event: Any,
    first: Any,
    words: Any,
    places: Any,
) -> Any:
    """Without numba's care for negative indexes, which took most of the time."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def array(i: int) -> Any:
            return context.make_array(signature.args[i])(context, builder, value=arguments[i])

        table, column, bucket, place = (array(i) for i in (0, 1, 4, 8))
        _, _, start, end, _, event, first, words, _ = arguments
        width = builder.extract_value(bucket.shape, 1)
        size = builder.extract_value(table.shape, 1)
        event_buckets = builder.gep(bucket.data, [builder.mul(event, width)])
        lowest = cgutils.alloca_once_value(builder, ir.Constant(_I32, 1))
        with cgutils.for_range(builder, builder.sub(end, start)) as loop:
            c = builder.add(start, loop.index)
            attribute = builder.zext(builder.load(builder.gep(column.data, [c])), _I64)
            found = builder.zext(builder.load(builder.gep(event_buckets, [attribute])), _I64)
            number = builder.load(builder.gep(table.data, [builder.add(builder.mul(c, size), found)]))
            least = builder.load(lowest)
            is_lower = builder.icmp_signed("<", number, least)
            builder.store(builder.select(is_lower, number, least), lowest)
            offset = builder.add(first, builder.mul(builder.sext(number, _I64), words))
            builder.store(offset, builder.gep(place.data, [loop.index]))
        return builder.sext(builder.load(lowest), _I64)

    i64 = types.int64
    return i64(tables, columns, i64, i64, buckets, i64, i64, i64, places), generate


def _lowest_bit(word: int) -> int:
    """The place of the lowest bit that is set in a word other than 0."""
    return (int(word) & -int(word)).bit_length() - 1


def _lowest_bit_typing(_context: Any, word: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(_I1, 1))

    return types.int64(types.int64), generate


def _prefetch(array: Any, place: int) -> None:
    """Ask the processor to bring an element into its second cache; it will be read soon."""


def _prefetch_typing(_context: Any, array: Any, place: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, value=arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), _I8.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [_I8.as_pointer(), _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        read, second_cache, of_data = (ir.Constant(_I32, value) for value in (0, 2, 1))
        builder.call(function, [pointer, read, second_cache, of_data])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


and_blocks = _and_blocks if config.DISABLE_JIT else intrinsic(_and_blocks_typing)
find_bitsets = _find_bitsets if config.DISABLE_JIT else intrinsic(_find_bitsets_typing)
lowest_bit = _lowest_bit if config.DISABLE_JIT else intrinsic(_lowest_bit_typing)
prefetch = _prefetch if config.DISABLE_JIT else intrinsic(_prefetch_typing)
