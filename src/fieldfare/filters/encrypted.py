"""Encrypted filters, the dialect ``aspe``: rows of numbers for numeric conditions, and tokens for texts.

::

    {"any": [{"e": 1, "r": ["<base64 of D float64>", ...], "t": [["<attribute id>", false, ["<token>"]]]}],
     "e": 1, "c": "<the text, encrypted>"}

An event matches an alternative if it has the alternative's epoch, its products with all rows are positive,
and each named attribute's token is in the list; or, where the flag is true, exists and is not in the list.
The service compiles epoch and tokens to a separate filter, on ``data.e`` and ``data.t``. See
docs/decisions/encrypted.md.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from fieldfare.filters.errors import FilterError, Problem
from fieldfare.filters.filter import compile_filter
from fieldfare.model import Path

ENCRYPTED = "aspe"
"""The name of the dialect, and of the library that matches its filters."""
VECTOR, EPOCH, TOKENS = "v", "e", "t"
VECTOR_PATH: Path = ("data", VECTOR)
EPOCH_PATH: Path = ("data", EPOCH)

DIMENSIONS_MAX = 258
"""Maximum length of a vector, which encrypts 64 numbers; longer ones are rejected."""
ALTERNATIVES_MAX = 512
ROWS_MAX = 128
LENGTHS = 1e-100, 1e100
"""Bounds of a vector's Euclidean length, so that products do not overflow; other vectors are rejected."""
FORMAT = 1

_NAME = re.compile(r"[0-9a-f]{12}")
_TOKEN = re.compile(r"[A-Za-z0-9+/]{22}==")
_EPOCHS = 1, 1 << 31


class _Alternative(msgspec.Struct, forbid_unknown_fields=True):
    e: int
    r: list[str] = []
    t: list[tuple[str, bool, list[str]]] = []


class _Wire(msgspec.Struct, forbid_unknown_fields=True):
    any: Annotated[list[_Alternative], msgspec.Meta(max_length=ALTERNATIVES_MAX)]
    c: str
    e: int = 1


_wire = msgspec.json.Decoder(_Wire)
_compiled = msgspec.msgpack.Decoder(tuple[int, list[tuple[int, list[bytes], str, bytes]]])


@dataclass(frozen=True, slots=True)
class EncryptedAlternative:
    """One alternative of an encrypted filter; the filter matches if one alternative does.

    Attributes
    ----------
    epoch
        The key's epoch.
    rows
        Vectors, each as the bytes of D float64.
    text, compiled
        The filter on tokens and epoch: its SQL text and its encoded normal form. Both empty if there are no
        tokens: the rows alone decide.
    """

    epoch: int
    rows: tuple[bytes, ...]
    text: str = ""
    compiled: bytes = b""


@dataclass(frozen=True, slots=True)
class EncryptedFilter:
    """A checked filter of the dialect ``aspe``.

    Attributes
    ----------
    dimensions
        The length of its rows; 0 if it has none.
    cost
        The cost of matching it, in predicates, as for other filters.
    """

    text: str
    compiled: bytes
    dimensions: int
    cost: int


def compile_encrypted(text: Any) -> EncryptedFilter:
    """Check and compile an encrypted filter; raise FilterError if it is invalid."""
    if not isinstance(text, str):
        text = msgspec.json.encode(text).decode()
    try:
        wire = _wire.decode(text)
    except (msgspec.DecodeError, RecursionError):
        # The decoder's message would quote the text, which may be a filter sent without encryption.
        raise _refused("this is not a filter encrypted by a client with the key") from None
    alternatives = []
    sizes = set()
    cost = 0
    for place, each in enumerate(wire.any):
        where = f"alternative {place}: "
        if not _EPOCHS[0] <= each.e < _EPOCHS[1]:
            raise _refused(f"{where}an epoch is a whole number from 1 on")
        if len(each.r) > ROWS_MAX or len(each.t) > ROWS_MAX:
            raise _refused(f"{where}more than {ROWS_MAX} conditions")
        rows = tuple(_row(row, where) for row in each.r)
        sizes |= {len(row) // 8 for row in rows}
        tokens = "" if rows and not each.t else _on_tokens(each, where)
        compiled = compile_filter(tokens).compiled if tokens else b""
        alternatives.append((each.e, rows, tokens, compiled))
        cost += max(1, len(rows) + sum(max(1, len(found)) for _, _, found in each.t))
    if len(sizes) > 1:
        raise _refused("its rows have different lengths")
    compiled = msgspec.msgpack.encode((FORMAT, alternatives))
    return EncryptedFilter(text, compiled, sizes.pop() if sizes else 0, max(1, cost))


def decode_encrypted(data: bytes) -> Sequence[EncryptedAlternative]:
    """Decode the alternatives of a compiled filter; raise ValueError if the bytes are not one."""
    try:
        version, found = _compiled.decode(data)
    except msgspec.DecodeError as error:
        raise ValueError(f"this is not an encrypted filter: {error}") from error
    if version != FORMAT:
        raise ValueError(f"the encrypted filter has format {version}, expected {FORMAT}")
    return [EncryptedAlternative(epoch, tuple(rows), text, form) for epoch, rows, text, form in found]


def read_vector(text: str) -> bytes | None:
    """Decode a vector from base64 to its bytes; None if it is invalid or its length is out of bounds."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    if not raw or len(raw) % 8 or len(raw) // 8 > DIMENSIONS_MAX:
        return None
    # An infinity makes the length infinite, a NaN makes it NaN: both fail the comparison.
    length = math.hypot(*struct.unpack(f"<{len(raw) // 8}d", raw))
    return raw if LENGTHS[0] <= length <= LENGTHS[1] else None


def _row(text: str, where: str) -> bytes:
    found = read_vector(text)
    if found is None:
        raise _refused(f"{where}a row is the base64 of 1 to {DIMENSIONS_MAX} numbers of 64 bits")
    return found


def _on_tokens(each: _Alternative, where: str) -> str:
    """Return an alternative's conditions on epoch and tokens as an SQL filter."""
    parts = [f"data.{EPOCH} = {each.e}"]
    for name, is_not, tokens in each.t:
        if not _NAME.fullmatch(name) or not all(map(_TOKEN.fullmatch, tokens)):
            raise _refused(
                f"{where}an attribute id has 12 hexadecimal digits, a token is the base64 of 16 bytes"
            )
        path = f'data.{TOKENS}."{name}"'
        if not is_not and not tokens:
            parts.append("FALSE")
        else:
            listed = ", ".join(f"'{token}'" for token in tokens)
            parts.append(
                f"{path} {'NOT ' if is_not else ''}IN ({listed})" if tokens else f"{path} IS NOT NULL"
            )
    return " AND ".join(parts)


def _refused(message: str) -> FilterError:
    hint = "encrypt filters with the key of the space: docs/encrypted-spaces.md"
    return FilterError("", [Problem(message, 1, 1, hint, 0)])
