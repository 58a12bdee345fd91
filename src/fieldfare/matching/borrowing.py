"""Arrays without reference counts, for kernels made of many small functions.

numba counts references to an array wherever it passes it on, with an atomic instruction each time:
in a scanner of small functions that took two thirds of the time. A kernel that its caller keeps the
arrays alive for can do without.
"""

from __future__ import annotations

from typing import Any

from numba import config
from numba.core import cgutils
from numba.extending import intrinsic


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
