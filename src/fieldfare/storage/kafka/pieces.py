"""Records and blocks as Kafka messages: a header and a payload, split into as many pieces as needed.

Brokers limit the size of a message, to 1 MB by default. So a larger payload becomes several messages of one
partition, each with the complete header. The offset of a record or block is that of its first piece; the
offsets of the other pieces are holes. A piece without its first piece is ignored: the reader began after the
first piece, or retention removed it.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Generic, Protocol, TypeVar

import msgspec
from confluent_kafka import Message

HEADER = "fieldfare"
"""Name of the Kafka message header that holds the fieldfare header, a JSON object."""


Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""A number in a header, from 0 to 2^63 - 1. Other programs may write to the topic; a header with a number out
of range is ignored."""

Pieces = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]


class Pieced(Protocol):
    """The fields of every header: ID of the payload, number of this piece, number of pieces."""

    id: str
    piece: int
    pieces: int


H = TypeVar("H", bound=Pieced)

_names: Iterator[str]


def _begin_names() -> None:
    global _names
    _names = map(f"{uuid.uuid4().hex[:12]}-{{}}".format, itertools.count())


_begin_names()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_names)


def new_id() -> str:
    """Return a new ID for the pieces of one payload, unique across processes, including forked ones."""
    return next(_names)


def header_of(message: Message, kind: type[H]) -> H | None:
    """Return a message's header; None for a message of another program, which is treated as a hole."""
    try:
        for name, value in message.headers() or ():
            if name == HEADER and isinstance(value, bytes):
                return msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, SystemError):
        return None  # SystemError: a header's name is not in UTF-8
    return None


def cut(payload: memoryview, piece_bytes: int) -> Iterator[memoryview]:
    """Yield the pieces of a payload, each of at most `piece_bytes`; an empty payload has one piece."""
    for start in range(0, max(1, len(payload)), piece_bytes):
        yield payload[start : start + piece_bytes]


@dataclass(slots=True)
class AssembledRecord(Generic[H]):
    """A header with its payload so far, and the offsets of its first and its last piece."""

    header: H
    first: int
    last: int
    met: int = 0
    parts: list[bytes] = field(default_factory=list)
    """The pieces of the payload; empty if it exceeds the assembly's limit."""

    @property
    def complete(self) -> bool:
        return self.met == self.header.pieces

    @property
    def payload(self) -> bytes | None:
        """The joined payload; None if it exceeds the assembly's limit."""
        if len(self.parts) != self.met:
            return None
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)


class Assembly(Generic[H]):
    """A joiner of pieces, which may be interleaved with the pieces of other writers.

    Parameters
    ----------
    kind
        Type of the headers.
    most_pieces
        Maximum pieces of a payload that is kept in memory; of larger ones only the header is kept. None means
        no limit.
    """

    def __init__(self, kind: type[H], most_pieces: int | None = None) -> None:
        self._kind = kind
        self._most = most_pieces
        self._open: dict[str, AssembledRecord[H]] = {}

    def __bool__(self) -> bool:
        """Return whether a payload has begun but is not complete."""
        return any(not each.complete for each in self._open.values())

    def first(self) -> int | None:
        """Return the offset of the first payload that `in_order` has not yielded; None if there is none."""
        return min((each.first for each in self._open.values()), default=None)

    def add(self, message: Message, *, begin: bool = True) -> AssembledRecord[H] | None:
        """Add a message and return the payload that it completes; without `begin`, start no new payload."""
        header = header_of(message, self._kind)
        if header is None or header.piece >= header.pieces:
            return None
        offset = message.offset()
        whole = self._open.get(header.id)
        if whole is None:
            if header.piece or not begin:
                return None
            whole = self._open[header.id] = AssembledRecord(header, offset, offset)
        elif header.piece != whole.met:
            return None
        whole.met += 1
        if self._most is None or header.pieces <= self._most:
            whole.parts.append(message.value() or b"")
        whole.last = offset
        return whole if whole.complete else None

    def in_order(self) -> Iterator[AssembledRecord[H]]:
        """Remove and yield complete payloads by their first piece, up to the first incomplete one."""
        for name, whole in list(self._open.items()):
            if not whole.complete:
                return
            del self._open[name]
            yield whole

    def drop(self, whole: AssembledRecord[H]) -> None:
        """Remove a completed payload."""
        self._open.pop(whole.header.id, None)

    def adopt_payloads(self, other: Assembly[H]) -> None:
        """Adopt the payloads that another assembly has begun."""
        self._open |= other._open

    def give_up_before(self, offset: int) -> None:
        """Drop incomplete payloads without a piece since an offset: their writers did not finish them."""
        for name, whole in list(self._open.items()):
            if whole.last < offset and not whole.complete:
                del self._open[name]
