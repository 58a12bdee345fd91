"""Filters that the service cannot read, the dialect ``aspe``: rows of numbers, and tokens for texts.

::

    {"any": [{"e": 1, "r": ["<base64 of D float64>", ...], "t": [["<attribute id>", false, ["<token>"]]]}],
     "e": 1, "c": "<the text, sealed>"}

An event matches one of the alternatives if it is of its epoch, has positive products with all of its rows,
and its tokens are among those named; or, with true, are there and not among them. What the service makes of
tokens is a filter of its own, on ``data.t``. See docs/decisions/encrypted.md.
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
"""The name of the dialect, and of the library that its filters are of."""
VECTOR, EPOCH, TOKENS = "v", "e", "t"
VECTOR_PATH: Path = ("data", VECTOR)
EPOCH_PATH: Path = ("data", EPOCH)

DIMENSIONS_MAX = 132
"""64 numbers: the longest vectors."""
ALTERNATIVES_MAX = 512
ROWS_MAX = 128
LENGTHS = 1e-100, 1e100
"""Between these a row's length lies: what is made of it does not overflow."""
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
    """One of the ways in which an encrypted filter may match.

    Attributes
    ----------
    epoch
        Of the key.
    rows
        Each the bytes of D float64.
    text, compiled
        The filter on tokens and epoch: its text, and its encoded normal form. Empty: there are no tokens, and
        the rows are all.
    """

    epoch: int
    rows: tuple[bytes, ...]
    text: str = ""
    compiled: bytes = b""


@dataclass(frozen=True, slots=True)
class EncryptedFilter:
    """A filter of the dialect ``aspe``, checked.

    Attributes
    ----------
    dimensions
        Of its rows; 0 if it has none.
    cost
        As of other filters: in predicates.
    """

    text: str
    compiled: bytes
    dimensions: int
    cost: int


def compile_encrypted(text: Any) -> EncryptedFilter:
    """Check an encrypted filter; FilterError says what is wrong with it."""
    if not isinstance(text, str):
        text = msgspec.json.encode(text).decode()
    try:
        wire = _wire.decode(text)
    except (msgspec.DecodeError, RecursionError):
        # What is wrong with it would be said in its own words, and these may be what was to be hidden.
        raise _refused("it is not what a client with the key makes") from None
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
        raise _refused("its rows are not all of one length")
    compiled = msgspec.msgpack.encode((FORMAT, alternatives))
    return EncryptedFilter(text, compiled, sizes.pop() if sizes else 0, max(1, cost))


def decode_encrypted(data: bytes) -> Sequence[EncryptedAlternative]:
    """The alternatives of what was compiled; ValueError if it is no such."""
    try:
        version, found = _compiled.decode(data)
    except msgspec.DecodeError as error:
        raise ValueError(f"this is no encrypted filter: {error}") from error
    if version != FORMAT:
        raise ValueError(f"the encrypted filter has format {version}, expected {FORMAT}")
    return [EncryptedAlternative(epoch, tuple(rows), text, form) for epoch, rows, text, form in found]


def read_vector(text: str) -> bytes | None:
    """The bytes of a vector as it is sent; None if it is none, or its length is out of bounds."""
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    if not raw or len(raw) % 8 or len(raw) // 8 > DIMENSIONS_MAX:
        return None
    # The length of a vector with an infinity is infinite, and that of one with a NaN is none.
    length = math.hypot(*struct.unpack(f"<{len(raw) // 8}d", raw))
    return raw if LENGTHS[0] <= length <= LENGTHS[1] else None


def _row(text: str, where: str) -> bytes:
    found = read_vector(text)
    if found is None:
        raise _refused(f"{where}a row is the base64 of 1 to {DIMENSIONS_MAX} numbers of 64 bits")
    return found


def _on_tokens(each: _Alternative, where: str) -> str:
    """What an alternative asks of epoch and tokens, in sql."""
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
