"""What is written as messages: a header that says what it is, and a payload in as many pieces as it takes.

Brokers limit a message, to 1 MB by default. So a larger payload is several messages of one partition, each
with the whole header. What was written stands where its first piece does; the offsets of the others are
holes. A piece whose first one is not there belongs to what a reader began behind, or what retention has cut.
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
"""The name of the Kafka header that holds ours, as a JSON object."""


Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""Anybody may write to a topic: a header with another number in it is nobody's of ours."""

Pieces = Annotated[int, msgspec.Meta(ge=1, lt=1 << 31)]


class Pieced(Protocol):
    """What every header says of the pieces."""

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
    """What the pieces of one payload have in common, and no others: also of a process made by fork."""
    return next(_names)


def header_of(message: Message, kind: type[H]) -> H | None:
    """A message's header; None when somebody else wrote it, which is as good as a hole."""
    for name, value in message.headers() or ():
        if name == HEADER and isinstance(value, bytes):
            try:
                return msgspec.json.decode(value, type=kind)
            except (msgspec.DecodeError, UnicodeDecodeError):
                return None
    return None


def cut(payload: memoryview, piece_bytes: int) -> Iterator[memoryview]:
    """The pieces of a payload, one at least."""
    for start in range(0, max(1, len(payload)), piece_bytes):
        yield payload[start : start + piece_bytes]


@dataclass(slots=True)
class Whole(Generic[H]):
    """What one header and its payload are, and where its first and its last piece stand."""

    header: H
    first: int
    last: int
    met: int = 0
    parts: list[bytes] = field(default_factory=list)
    """The payload, unless it is more than is kept."""

    @property
    def complete(self) -> bool:
        return self.met == self.header.pieces

    @property
    def payload(self) -> bytes | None:
        """None when it is more than is kept."""
        if len(self.parts) != self.met:
            return None
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)


class Assembly(Generic[H]):
    """Puts pieces together, whose writers may have come between each other.

    Parameters
    ----------
    kind
        Of the headers.
    most_pieces
        Payloads of more are not kept.
    """

    def __init__(self, kind: type[H], most_pieces: int | None = None) -> None:
        self._kind = kind
        self._most = most_pieces
        self._open: dict[str, Whole[H]] = {}

    def __bool__(self) -> bool:
        """Whether pieces are missing of what has begun."""
        return any(not each.complete for each in self._open.values())

    def add(self, message: Message, *, begin: bool = True) -> Whole[H] | None:
        """Take a message in; returns what it completes. Without ``begin`` only what has begun goes on."""
        header = header_of(message, self._kind)
        if header is None or header.piece >= header.pieces:
            return None
        offset = message.offset()
        whole = self._open.get(header.id)
        if whole is None:
            if header.piece or not begin:
                return None
            whole = self._open[header.id] = Whole(header, offset, offset)
        elif header.piece != whole.met:
            return None
        whole.met += 1
        if self._most is None or header.pieces <= self._most:
            whole.parts.append(message.value() or b"")
        whole.last = offset
        return whole if whole.complete else None

    def in_order(self) -> Iterator[Whole[H]]:
        """What is complete, by its first piece, up to what is not; it is forgotten."""
        for name, whole in list(self._open.items()):
            if not whole.complete:
                return
            del self._open[name]
            yield whole

    def drop(self, whole: Whole[H]) -> None:
        """Forget what was completed."""
        self._open.pop(whole.header.id, None)

    def go_on_with(self, other: Assembly[H]) -> None:
        """Take over what another has begun."""
        self._open |= other._open

    def give_up_before(self, offset: int) -> None:
        """Forget what has not gone on since an offset: who wrote it did not come to its end."""
        for name, whole in list(self._open.items()):
            if whole.last < offset and not whole.complete:
                del self._open[name]
