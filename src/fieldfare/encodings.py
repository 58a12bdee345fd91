"""Packed HTTP bodies, by the names that ``Content-Encoding`` has for it: gzip and zstd.

A few bytes may unpack to gigabytes. So what is unpacked is bounded twice, by a size and by a ratio, and it
is looked at while it comes: no more than one byte beyond the bound is ever made.
"""

from __future__ import annotations

import gzip
import sys
import zlib
from importlib import import_module
from typing import Any, Protocol

try:
    zstd: Any = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
except ImportError:  # A client can do without.
    zstd = None

_ERRORS: tuple[type[Exception], ...] = (zlib.error,) if zstd is None else (zlib.error, zstd.ZstdError)

GZIP, ZSTD = "gzip", "zstd"

ENCODINGS = (GZIP, ZSTD)

FREE_BYTES = 1 << 20
RATIO_MAX = 200
"""What unpacks to more than the first may have at most so many bytes for each packed one. JSON packs to a
tenth, events that are all alike to a hundredth."""

MEMBERS_MAX = 1_000
"""Packed bodies may be put one behind the other; each one costs something, however little is in it."""

WINDOW_LOG_MAX = 23
"""8 MiB: the memory that a zstd body may ask for, as RFC 9659 bounds it."""

PIECE_BYTES = 64 << 10

MADE_BYTES = 256 << 10
"""So much comes out in one step: what the last one made is not known where it ends in an error."""


class BadPacking(ValueError):
    """Bytes that are not packed as is said; ``size_bytes`` came out of them before that was seen."""

    def __init__(self, message: str, size_bytes: int = 0) -> None:
        super().__init__(message)
        self.size_bytes = size_bytes


class TooMuchPacked(ValueError):
    """More comes out than may; ``max_bytes`` is how much may."""

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
    """Whether this Python has what an encoding needs."""
    return encoding == GZIP or (encoding == ZSTD and zstd is not None)


def pack(body: bytes, encoding: str) -> bytes:
    """Pack a body: quickly rather than as small as can be."""
    if encoding == ZSTD:
        return bytes(zstd.compress(body, 1))
    return gzip.compress(body, 1, mtime=0)


def unpack(body: bytes, encoding: str, max_bytes: int) -> bytes:
    """Unpack a body.

    Parameters
    ----------
    body : bytes
        Packed once or, as both encodings allow it, several pieces that were packed one by one.
    encoding : str
        One of `ENCODINGS`.
    max_bytes : int
        As much may come out, and less if the body is small: see `RATIO_MAX`.

    Raises
    ------
    BadPacking
        It is not packed so, ends too early, or something stands behind its end.
    TooMuchPacked
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
                raise TooMuchPacked(most_bytes)
            pieces.append(piece)
            if unpacker.eof:
                data, unpacker = unpacker.unused_data, None
                has_more = bool(data)
            else:  # gzip gives back what it has not looked at, zstd keeps it; either may hold something ready
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
