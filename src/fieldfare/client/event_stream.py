"""A parser of server-sent events: fast for the frames that the service writes, correct for all others.

The service writes ``id: POSITION\\ndata: EVENT\\n\\n``. Such a frame is split at its line ends; all else that
the format allows (comments, other fields, several data lines, CR line ends) is parsed more slowly.
"""

from __future__ import annotations

import msgspec

from fieldfare.client.errors import SubscriptionDeleted, UnexpectedAnswer
from fieldfare.model import Position


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One server-sent event, as bytes; ``kind`` is its ``event:`` field, empty without one.

    ``attempt`` is the number of the delivery attempt, from 1.
    """

    id: bytes
    data: bytes
    kind: bytes = b""
    attempt: int = 1


class EventStreamParser:
    """Splits a stream of bytes into frames; chunks may end anywhere."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Frame]:
        """Return the frames that this chunk completes; comments, such as heartbeats, are skipped."""
        text = self._rest + chunk if self._rest else chunk
        if b"\r" in text:
            return self._feed_with_returns(text)
        parts = text.split(b"\n\n")
        self._rest = parts.pop()
        frames = []
        for part in parts:
            head, found, data = part.partition(b"\ndata: ")
            if found and head[:4] == b"id: " and b"\n" not in data and b"\n" not in head:
                frames.append(Frame(head[4:], data))
            elif (frame := _read_frame(part)) is not None:
                frames.append(frame)
        return frames

    def _feed_with_returns(self, text: bytes) -> list[Frame]:
        # A CR at the end may be the first half of a CRLF: keep it for the next chunk.
        held = b"\r" if text.endswith(b"\r") else b""
        plain = text[: len(text) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._rest = b""
        frames = self.feed(plain)
        self._rest += held
        return frames


def _read_frame(part: bytes) -> Frame | None:
    """Parse one frame by the complete rules of the format; None if it has no data."""
    identifier = kind = b""
    attempt = 1
    data: list[bytes] = []
    for line in part.split(b"\n"):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"id":
            identifier = value
        elif name == b"event":
            kind = value
        elif name == b"attempt" and value.isdigit():
            attempt = int(value[:9])
    return Frame(identifier, b"\n".join(data), kind, attempt) if data else None


SOUGHT = b"sought"
"""The kind of the frame after a seek: messages that were acked may be delivered again."""


def read_position(id: str, frame: Frame) -> Position | None:
    """Return the position of a message; None for a frame that is not a message.

    Raises
    ------
    SubscriptionDeleted
        The frame reports that the subscription was deleted.
    UnexpectedAnswer
        The frame has no valid position.
    """
    if frame.kind == b"deleted":
        raise SubscriptionDeleted(f"the subscription {id!r} was deleted")
    if frame.kind not in (b"", b"message"):
        return None
    try:
        return Position.parse(frame.id.decode())
    except ValueError as error:
        raise UnexpectedAnswer(f"the stream sent a message without a position: {error}") from None
