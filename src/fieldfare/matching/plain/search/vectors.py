"""Building blocks of the LLVM code of `lanes` and `left_lanes`: bitsets and codes in registers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

BLOCK = 32
"""Codes per register; masks and arrays of codes have room for complete blocks."""
GROUP_BLOCKS = 4
"""Blocks that `fill_edges` compares at a time; at the end it may write this many complete blocks."""
LANES = 512
WORDS = LANES // 64
WIDTHS = (1, 2, 4, 8)
"""Supported widths of a bitset, in words; all bitsets of a table have equal width."""

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
CODES = ir.VectorType(I16, BLOCK)
MASK = ir.VectorType(I1, BLOCK)


def set_type(words: int) -> Any:
    """The LLVM type of a bitset in a register."""
    return ir.VectorType(I64, words)


def zeros(words: int) -> Any:
    return ir.Constant(set_type(words), [0] * words)


def for_width(builder: Any, words: Any, write: Callable[[int], None]) -> None:
    """Generate the loop for each of WIDTHS, and branch to the one for bitsets of `words` words."""
    for width in WIDTHS:
        with builder.if_then(builder.icmp_unsigned("==", words, ir.Constant(I64, width))):
            write(width)


def words_not_zero(builder: Any, value: Any, words: int) -> Any:
    """Return a mask of the nonzero words of a bitset, as an integer of `words` bits."""
    nonzero = builder.icmp_unsigned("!=", value, zeros(words))
    return builder.bitcast(nonzero, ir.IntType(words))


def data_of(context: Any, builder: Any, signature: Any, arguments: Any, i: int) -> Any:
    return context.make_array(signature.args[i])(context, builder, value=arguments[i]).data


def load(builder: Any, data: Any, place: Any, vector: Any) -> Any:
    loaded = builder.load(builder.bitcast(builder.gep(data, [place]), vector.as_pointer()))
    loaded.align = vector.element.width // 8
    return loaded


def store(builder: Any, value: Any, data: Any, place: Any) -> None:
    pointer = builder.bitcast(builder.gep(data, [place]), value.type.as_pointer())
    builder.store(value, pointer).align = value.type.element.width // 8


def everywhere(builder: Any, value: Any, vector: Any) -> Any:
    """Return a vector with one value in all places."""
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(I32, 0))
    zeros = ir.Constant(ir.VectorType(I32, vector.count), [0] * vector.count)
    return builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), zeros)
