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

_I1 = ir.IntType(1)

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


def _prefetch(array: Any, place: int) -> None:
    """Ask the processor to bring an element into its second cache; it will be read soon."""


def _prefetch_typing(_context: Any, array: Any, place: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, value=arguments[0]).data
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        read, second_cache, of_data = (ir.Constant(number, value) for value in (0, 2, 1))
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        builder.call(function, [pointer, read, second_cache, of_data])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


prefetch = _prefetch if config.DISABLE_JIT else intrinsic(_prefetch_typing)


def _lowest_bit(word: Any) -> int:
    """The place of the lowest bit that is set in a word other than 0."""
    return (int(word) & -int(word)).bit_length() - 1


def _lowest_bit_typing(_context: Any, word: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(_I1, 1))

    return types.int64(types.int64), generate


lowest_bit = _lowest_bit if config.DISABLE_JIT else intrinsic(_lowest_bit_typing)
