"""Memory that a process has freed, but its allocators keep for later."""

from __future__ import annotations

import ctypes
from contextlib import suppress

import pyarrow as pa


def release_free_memory() -> None:
    """Return freed memory to the system, as far as the allocators can; for moments when nothing is to do.

    It takes some milliseconds. After a burst most of a process's memory may be free.
    """
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):  # The C library is not GNU's.
        ctypes.CDLL(None).malloc_trim(0)
