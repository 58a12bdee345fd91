"""Reading server-sent events from bytes: fast for the frames the service writes, right for all others.

The service writes ``id: POSITION\\ndata: EVENT\\n\\n``. Such a frame is cut at its two line ends; anything
else the format allows (comments, other fields, several data lines, CR line ends) goes the longer way.
"""

from __future__ import annotations

from dataclasses import dataclass

from fieldfare.client.errors import SubscriptionDeleted, UnexpectedAnswer
from fieldfare.model import Position


@dataclass(frozen=True, slots=True)
class Frame:
    """One server-sent event, as bytes; ``kind`` is its ``event:`` field, empty where it has none.

    ``attempt`` says which time a message is given.
    """

    id: bytes
    data: bytes
    kind: bytes = b""
    attempt: int = 1


class EventStreamParser:
    """Cuts a stream of bytes into frames; chunks may end anywhere."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Frame]:
        """The frames that this chunk completes. Comments, such as heartbeats, give none."""
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
        # A last CR may be the first half of a CRLF: it waits for what follows.
        held = b"\r" if text.endswith(b"\r") else b""
        plain = text[: len(text) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._rest = b""
        frames = self.feed(plain)
        self._rest += held
        return frames


def _read_frame(part: bytes) -> Frame | None:
    """One frame by the whole of the format's rules; None when it has no data."""
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
"""The kind of the frame that says that what was acked may come again."""


def read_position(id: str, frame: Frame) -> Position | None:
    """The position of a message; None for a frame that is no message. The service's goodbye is an error."""
    if frame.kind == b"deleted":
        raise SubscriptionDeleted(f"the subscription {id!r} was deleted")
    if frame.kind not in (b"", b"message"):
        return None
    try:
        return Position.parse(frame.id.decode())
    except ValueError as error:
        raise UnexpectedAnswer(f"the stream sent a message without a position: {error}") from None
