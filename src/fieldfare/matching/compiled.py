"""The one way kernels are compiled: nopython, without the interpreter's lock, kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def compiled(function: Kernel) -> Kernel:
    """Compile a kernel when it is first called with arguments of some types."""
    kernel: Kernel = njit(cache=True, nogil=True)(function)
    return kernel
