"""Compression of HTTP bodies, by the names in ``Content-Encoding``: gzip and zstd.

A few bytes may decompress to gigabytes. So the output is bounded by a size and by a ratio, and checked while
it is produced: never more than one byte beyond the bound.
"""

from __future__ import annotations

import gzip
import sys
import zlib
from importlib import import_module
from typing import Any, Protocol

try:
    zstd: Any = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
except ImportError:  # Optional for clients.
    zstd = None

_ERRORS: tuple[type[Exception], ...] = (zlib.error,) if zstd is None else (zlib.error, zstd.ZstdError)

GZIP, ZSTD = "gzip", "zstd"

ENCODINGS = (GZIP, ZSTD)

FREE_BYTES = 1 << 20
RATIO_MAX = 200
"""Maximum bytes per compressed byte in a body that decompresses to more than `FREE_BYTES`; more are refused.
JSON compresses to about a tenth, similar events to a hundredth."""

MEMBERS_MAX = 1_000
"""Maximum concatenated compressed members in a body; more are refused, as even an empty one costs time."""

WINDOW_LOG_MAX = 23
"""Maximum window of a zstd body, as a power of two in bytes (8 MiB, the bound of RFC 9659)."""

PIECE_BYTES = 64 << 10

MADE_BYTES = 256 << 10
"""Maximum output of one decompression step, in bytes. If a step fails, its output is not counted."""


class BadPacking(ValueError):
    """A body that is not valid in its encoding; ``size_bytes`` were decompressed before the error."""

    def __init__(self, message: str, size_bytes: int = 0) -> None:
        super().__init__(message)
        self.size_bytes = size_bytes


class DecompressedTooLarge(ValueError):
    """A body that decompresses to more than ``max_bytes``."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the body unpacks to more than {max_bytes} bytes")
        self.max_bytes = max_bytes


class _Unpacker(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes | memoryview, max_length: int, /) -> bytes: ...


def can_pack(encoding: str) -> bool:
    """Whether this Python supports an encoding."""
    return encoding == GZIP or (encoding == ZSTD and zstd is not None)


def pack(body: bytes, encoding: str) -> bytes:
    """Compress a body, at a fast level."""
    if encoding == ZSTD:
        return bytes(zstd.compress(body, 1))
    return gzip.compress(body, 1, mtime=0)


def unpack(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Decompress a body.

    Parameters
    ----------
    body : bytes
        One compressed member or, as both encodings allow, several in a row.
    encoding : str
        One of `ENCODINGS`.
    max_bytes : int
        Maximum size of the output; less for a small body, see `RATIO_MAX`.

    Raises
    ------
    BadPacking
        The body is not valid in this encoding, is truncated, or has other data after its end.
    TooMuchPacked
        The output is larger than allowed.
    """
    most_bytes = min(max_bytes, max(FREE_BYTES, RATIO_MAX * len(body)))
    pieces: list[bytes] = []
    size_bytes = members = 0
    unpacker: _Unpacker | None = None
    view = memoryview(body)
    for at in range(0, len(body), PIECE_BYTES):
        data: bytes | memoryview = view[at : at + PIECE_BYTES]
        has_more = True
        while has_more:
            if unpacker is None:
                members += 1
                if members > MEMBERS_MAX:
                    raise BadPacking(f"the body has more than {MEMBERS_MAX} packed parts", size_bytes)
                unpacker = _open(encoding)
            step_bytes = min(MADE_BYTES, most_bytes - size_bytes + 1)
            try:
                piece = unpacker.decompress(data, step_bytes)
            except _ERRORS as error:
                raise BadPacking(_explained(encoding, members, error), size_bytes) from None
            size_bytes += len(piece)
            if size_bytes > most_bytes:
                raise DecompressedTooLarge(most_bytes)
            pieces.append(piece)
            if unpacker.eof:
                data, unpacker = unpacker.unused_data, None
                has_more = bool(data)
            else:  # gzip returns unread input, zstd keeps it; either may hold more output.
                data = getattr(unpacker, "unconsumed_tail", b"")
                has_more = len(piece) == step_bytes
    if unpacker is not None or not members:
        raise BadPacking(f"the body is not valid {encoding}: it ends too early", size_bytes)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _open(encoding: str) -> _Unpacker:
    if encoding == ZSTD:
        bounds = {zstd.DecompressionParameter.window_log_max: WINDOW_LOG_MAX}
        unpacker: _Unpacker = zstd.ZstdDecompressor(options=bounds)
        return unpacker
    return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)


def _explained(encoding: str, members: int, error: Exception) -> str:
    if members > 1:
        return f"behind the end of what is packed as {encoding} stands something else ({error})"
    return f"the body is not valid {encoding}: {error}"
