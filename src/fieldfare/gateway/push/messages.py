"""Events as HTTP requests, by the HTTP binding of CloudEvents: structured, binary and batch mode."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgspec

from fieldfare.delivery.keys import position_of
from fieldfare.gateway.publishing.events import UTF8, charset_of
from fieldfare.model import PushMode

Headers = list[tuple[bytes, bytes]]

ATTRIBUTES_MAX_BYTES = 4 << 10
"""Maximum size of the attributes in binary mode, in bytes; larger events are sent structured. Many servers
accept at most 8 KiB of head.
"""

_STRUCTURED = (b"content-type", b"application/cloudevents+json; charset=utf-8")
_BATCH = (b"content-type", b"application/cloudevents-batch+json; charset=utf-8")
_JSON = "application/json"
_AS_IS = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')

_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_any = msgspec.json.Decoder()


@dataclass(frozen=True, slots=True)
class Outgoing:
    """An event to send: its key, and its JSON with position and attempt as attributes."""

    key: int
    event: bytes


def request_of(mode: PushMode, messages: Sequence[Outgoing]) -> tuple[Headers, bytes]:
    """Return the headers and body of the request that sends the messages: exactly one, except in batch mode.

    In binary mode, an event is sent structured if binary mode cannot express it: without data (a webhook has
    a body), with long attributes, or with data that does not have the form of its type.
    """
    if mode == "batch":
        return [_BATCH], b"[" + b",".join(each.event for each in messages) + b"]"
    (message,) = messages
    found = _binary(message.event) if mode == "binary" else None
    return found or ([_STRUCTURED], message.event)


def _binary(event: bytes) -> tuple[Headers, bytes] | None:
    members = _members.decode(event)
    data, encoded = members.pop("data", None), members.pop("data_base64", None)
    media = _any.decode(members.pop("datacontenttype", b"null"))
    body = _body_of(data, encoded, media)
    if body is None:
        return None
    headers = [(b"content-type", quote(media or _JSON, safe=_AS_IS + ' "').encode())]
    for name, raw in members.items():
        value = _any.decode(raw)
        if value is not None:
            headers.append((b"ce-" + name.encode(), _text_of(value).encode()))
    size_bytes = sum(len(name) + len(value) for name, value in headers)
    return (headers, body) if size_bytes <= ATTRIBUTES_MAX_BYTES else None


def _text_of(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return quote(value if isinstance(value, str) else str(value), safe=_AS_IS)


def _body_of(data: msgspec.Raw | None, encoded: msgspec.Raw | None, media: str | None) -> bytes | None:
    """Return the data as bytes of its type; None if there is none or it has another form."""
    if encoded is not None and (text := _any.decode(encoded)) is not None:
        return base64.b64decode(text)
    if data is None or bytes(data) == b"null":
        return None
    kind, _, parameters = (media or _JSON).partition(";")
    kind = kind.strip().lower()
    charset = charset_of(parameters)
    if kind.endswith(("/json", "+json")):
        return bytes(data) if charset in UTF8 or bytes(data).isascii() else None
    value = _any.decode(data)
    if not isinstance(value, str) or not (charset in UTF8 or value.isascii()):
        return None
    return value.encode()


def id_of(number: int, messages: Sequence[Outgoing]) -> str:
    """Return the id by which a receiver recognizes a repeated request: same subscription, same messages."""
    if len(messages) == 1:
        return f"ff-{number}-{position_of(messages[0].key)}"
    keys = b",".join(b"%d" % each.key for each in messages)
    return f"ff-{number}-{hashlib.sha256(keys).hexdigest()[:32]}"
