"""The one way kernels are compiled: nopython, without the interpreter's lock, cached on disk.

numba takes a cached kernel for current while the kernel's own module is unchanged. But the kernels that it
calls are compiled into it, so here the modules that its module imports count, too.

numba counts references to an array wherever it is passed on, with one atomic instruction each; in a scanner
made of small functions this took most of the time. `borrowed` avoids it in kernels whose caller keeps the
arrays alive.
"""

from __future__ import annotations

import hashlib
import pickle
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from llvmlite import ir
from numba import config, njit
from numba.core import cgutils, types
from numba.core.caching import IndexDataCacheFile
from numba.extending import intrinsic

_I1 = ir.IntType(1)
_SOURCES = Path(__file__).parents[2]
_IMPORT = re.compile(rb"^from (fieldfare\.[\w.]+) import", re.MULTILINE)
_DIGEST_BYTES = 32
_KERNELS = b"matching.compiled import"

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(function: Kernel) -> Kernel:
    """Compile a kernel at its first call, and cache it on disk."""
    return _compiled(function, nogil=True)


def inlined(function: Kernel) -> Kernel:
    """Like `compiled`, for a small function that is called for every few bytes."""
    return _compiled(function, nogil=True, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def _compiled(function: Kernel, **options: bool) -> Kernel:
    kernel: Kernel
    try:
        kernel = njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no folder that it may write to: each process compiles for itself
        return njit(**options)(function)  # type: ignore[no-any-return]
    if (cached := getattr(kernel, "_cache", None)) is not None:
        file = cached._cache_file
        file._source_stamp = file._source_stamp, callees_digest(Path(function.__code__.co_filename))
        file.__class__ = _CacheFile
    return kernel


class _CacheFile(IndexDataCacheFile):  # type: ignore[misc]
    """The cache of one kernel; what cannot be read, or is not this kernel's code, counts as missing.

    numba writes the index before the code, each without a lock. So the code of other sources or other types
    may be in the file that the index names; and any bit of it may have changed on the disk.
    """

    def save(self, key: Any, data: Any) -> None:
        with suppress(OSError):  # The disk is full: each process compiles for itself.
            super().save(key, (self._source_stamp, key, data))

    def load(self, key: Any) -> Any:
        stamp, found, data = super().load(key) or (None, None, None)
        return data if (stamp, found) == (self._source_stamp, key) else None

    def _load_index(self) -> Any:
        try:
            return super()._load_index()
        except Exception:
            return {}

    def _save_data(self, name: str, data: Any) -> None:
        content = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(hashlib.sha256(content).digest() + content)

    def _load_data(self, name: str) -> Any:
        try:
            content = Path(self._data_path(name)).read_bytes()
            digest, content = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
            return pickle.loads(content) if hashlib.sha256(content).digest() == digest else None
        except Exception:
            return None


def callees_digest(module: Path) -> str:
    """Digest of the sources that a module's kernels are compiled with, as hexadecimal text: those of the
    kernels that they call, directly or not, and of the modules whose constants these use.
    """
    found: dict[Path, str] = {}
    _add_imports(module, found)
    del found[module]
    return hashlib.sha256("".join(found[path] for path in sorted(found)).encode()).hexdigest()


def _add_imports(module: Path, found: dict[Path, str]) -> None:
    found[module], imported = _read_module(module)
    for path in imported:
        if path not in found:
            _add_imports(path, found)


@cache
def _read_module(module: Path) -> tuple[str, tuple[Path, ...]]:
    """Digest of a module's source, and the modules of fieldfare that it imports if it has kernels."""
    source = module.read_bytes()
    names = _IMPORT.findall(source) if _KERNELS in source else ()
    imported = (_SOURCES.joinpath(*name.decode().split(".")).with_suffix(".py") for name in names)
    return hashlib.sha256(source).hexdigest(), tuple(path for path in imported if path.exists())


def _borrowed(array: Any) -> Any:
    """Return the array itself, where kernels are not compiled."""
    return array


def _borrowed_typing(_context: Any, array: Any) -> Any:
    """Type and code of an array without an owner, which must not outlive the call that it is passed to."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        structure = context.make_array(signature.args[0])(context, builder, value=arguments[0])
        structure.meminfo = cgutils.get_null_value(structure.meminfo.type)
        structure.parent = cgutils.get_null_value(structure.parent.type)
        return structure._getvalue()

    return array(array), generate


borrowed = _borrowed if config.DISABLE_JIT else intrinsic(_borrowed_typing)
"""``borrowed(array)``, in a kernel: the array without reference counting."""


def _prefetch(array: Any, place: int) -> None:
    """Prefetch an element that will be read soon into the second-level cache."""


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
    """Return the index of the lowest set bit of a nonzero word."""
    return (int(word) & -int(word)).bit_length() - 1


def _lowest_bit_typing(_context: Any, word: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(_I1, 1))

    return types.int64(types.int64), generate


lowest_bit = _lowest_bit if config.DISABLE_JIT else intrinsic(_lowest_bit_typing)
