"""Flat array files: written once under another name and renamed, then mapped read-only.

    magic (8 bytes) | format uint32 | CRC-32 of the header uint32 | header length uint64 | header | arrays

The header is JSON: the kind of file, `meta`, the file's size, and for each array its name, dtype, shape,
offset and CRC-32. Arrays start at multiples of 64 bytes. Opening reads the header only, so that it takes
the same time whatever the size; ``verify=True`` also reads and checks every array.
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
"""A part of this one has no needles; it is read as it is."""
ALIGNMENT = 64
_PREFIX = struct.Struct("<8sIIQ")
_DTYPES = frozenset(["uint8", "int8", "uint16", "int32", "uint32", "int64", "float64"])


class IndexFileError(Exception):
    """An index file is broken, truncated, or of another format; the message names it and says why."""


def save_arrays(
    path: str | os.PathLike[str], kind: str, arrays: Mapping[str, NDArray[Any]], meta: Mapping[str, Any]
) -> int:
    """Write a file that is either wholly there or not at all; return its size in bytes."""
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

    Raises IndexFileError if the file is not one of this kind and format, whole; with `verify`, also if
    the bytes of an array are not those that were written. A file that is not there is an OSError.
    """
    name = os.fspath(path)
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < _PREFIX.size:
            raise IndexFileError(f"{name}: only {size} bytes long, which is no index file")
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
        raise IndexFileError(f"{name}: the header's checksum is wrong")
    header = json.loads(raw)
    if header["kind"] != kind:
        raise IndexFileError(f"{name}: holds {header['kind']}, not {kind}")
    data_start = _aligned(_PREFIX.size + length)
    expected = data_start + header["data_bytes"]
    if size != expected and (header["data_bytes"] or size < _PREFIX.size + length):
        raise IndexFileError(f"{name}: {size} bytes long, and should be {expected}")
    return header["meta"], {
        place["name"]: _view(mapped, name, data_start, place, verify) for place in header["arrays"]
    }


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A built array with the same type for the kernels as a mapped one, so that they compile once."""
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
        raise IndexFileError(f"{name}: the checksum of array {place['name']} is wrong")
    return array


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
