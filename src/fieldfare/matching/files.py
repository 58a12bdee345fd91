"""Flat array files, written atomically (temporary file and rename) and mapped read-only.

    magic (8 bytes) | format uint32 | CRC-32 of the header uint32 | header length uint64 | header | arrays

The header is JSON: the kind of file, `meta`, the size of the arrays, and for each array its name, dtype,
shape, offset and CRC-32. Arrays start at multiples of 64 bytes. Opening reads the header only, so its
duration does not depend on the file's size; ``verify=True`` also reads and checks every array.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from fieldfare.files import write_file

MAGIC = b"FLDFARE\n"
FORMAT = 4
OLDER_FORMAT = 3
"""The oldest readable format; its parts have no needles."""
ALIGNMENT = 64
_PREFIX = struct.Struct("<8sIIQ")
_DTYPES = frozenset(["uint8", "int8", "uint16", "int32", "uint32", "int64", "float64"])


class IndexFileError(Exception):
    """An index file is corrupt, truncated, or of another format; the message names the file and the
    reason."""


def save_arrays(
    path: str | os.PathLike[str], kind: str, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
) -> int:
    """Write a file atomically; return its size in bytes."""
    places: list[dict[str, Any]] = []
    start = 0
    for name, array in arrays.items():
        start = _aligned(start)
        data = np.ascontiguousarray(array)
        places.append(
            {
                "name": name,
                "dtype": data.dtype.name,
                "shape": list(data.shape),
                "start": start,
                "crc": zlib.crc32(data.data) if data.size else 0,
            }
        )
        start += data.nbytes
    header = json.dumps({"kind": kind, "meta": dict(meta), "arrays": places, "data_bytes": start}).encode()
    data_start = _aligned(_PREFIX.size + len(header))

    def write(file: BinaryIO) -> None:
        file.write(_PREFIX.pack(MAGIC, FORMAT, zlib.crc32(header), len(header)))
        file.write(header)
        for place, array in zip(places, arrays.values(), strict=True):
            file.write(bytes(data_start + place["start"] - file.tell()))
            file.write(np.ascontiguousarray(array).data)

    write_file(FilePath(path), write)
    return data_start + start


def open_arrays(
    path: str | os.PathLike[str], kind: str, *, verify: bool = False
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Map a file; return its `meta` and its arrays, read-only.

    Raises IndexFileError if the file is not a complete file of this kind and format; with `verify`, also if
    the checksum of an array does not match. A missing file raises OSError.
    """
    name = os.fspath(path)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _PREFIX.size:
            raise IndexFileError(f"{name}: not an index file: only {size} bytes long")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    magic, version, crc, length = _PREFIX.unpack_from(mapped)
    if magic != MAGIC:
        raise IndexFileError(f"{name}: not an index file")
    if version not in (FORMAT, OLDER_FORMAT):
        raise IndexFileError(f"{name}: format {version}; this program reads format {FORMAT}")
    if length > size - _PREFIX.size:
        raise IndexFileError(f"{name}: truncated within its header")
    raw = mapped[_PREFIX.size : _PREFIX.size + length]
    if zlib.crc32(raw) != crc:
        raise IndexFileError(f"{name}: the header is corrupt: its checksum does not match")
    header = json.loads(raw)
    if header["kind"] != kind:
        raise IndexFileError(f"{name}: contains {header['kind']}; expected {kind}")
    data_start = _aligned(_PREFIX.size + length)
    expected = data_start + header["data_bytes"]
    if size != expected and (header["data_bytes"] or size < _PREFIX.size + length):
        raise IndexFileError(f"{name}: {size} bytes long; expected {expected}")
    return header["meta"], {
        place["name"]: _view(mapped, name, data_start, place, verify) for place in header["arrays"]
    }


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Make an array read-only and contiguous, so that kernels see the type of a mapped one and compile only
    once."""
    array = np.ascontiguousarray(array)
    array.flags.writeable = False
    return array


def _view(mapped: mmap.mmap, name: str, data_start: int, place: dict[str, Any], verify: bool) -> NDArray[Any]:
    if place["dtype"] not in _DTYPES:
        raise IndexFileError(f"{name}: array {place['name']} has unknown type {place['dtype']}")
    dtype = np.dtype(place["dtype"])
    count = math.prod(place["shape"])
    if count == 0:
        array = np.zeros(place["shape"], dtype)
        array.flags.writeable = False
        return array
    array = np.frombuffer(mapped, dtype, count, data_start + place["start"]).reshape(place["shape"])
    if verify and zlib.crc32(array.data) != place["crc"]:
        raise IndexFileError(f"{name}: the checksum of array {place['name']} does not match")
    return array


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
