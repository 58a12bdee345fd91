"""Encoding of events (a mapping becomes one line of JSON) and decoding (bytes become a mapping)."""

from __future__ import annotations

import binascii
import json
import math
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Protocol, cast, runtime_checkable

import msgspec

from fieldfare.client.errors import InvalidEvent
from fieldfare.client.tracing import add_context


@runtime_checkable
class SdkEvent(Protocol):
    """A CloudEvent of the CloudEvents SDK for Python: ``cloudevents.core``, or version 1's ``http``."""

    def get_attributes(self) -> Mapping[str, Any]: ...

    def get_data(self) -> Any: ...


Publishable = Mapping[str, Any] | SdkEvent | bytes | bytearray | memoryview | str
"""An event to publish: a CloudEvent as a mapping, as an object of the CloudEvents SDK, or as JSON text."""

# Decimals are written digit by digit as JSON numbers, so that a price of 18.50 stays exact.
_encoder = msgspec.json.Encoder(decimal_format="number")
_decoder = msgspec.json.Decoder()


def encode_event(event: Publishable) -> bytes:
    """Return an event as one line of JSON, a complete CloudEvent.

    A mapping must have ``source`` and ``type``; ``specversion``, ``id`` (a random UUID), ``time`` (now) and,
    in an OpenTelemetry span, ``traceparent`` are filled in if missing. Values may be any JSON value, and also
    datetime, date, time, UUID, Decimal (an exact number), enums, dataclasses and msgspec structs; NaN and
    infinite floats become null, as JSON has no such numbers. ``data`` of type bytes is sent as
    ``data_base64``. An event of the CloudEvents SDK is sent with its attributes and its data. Encoded JSON
    (bytes or str) is sent as it is, with line breaks removed: the service checks it.

    Raises
    ------
    InvalidEvent
        An attribute is missing or cannot be written as JSON; the message says which.
    """
    if isinstance(event, bytes):
        return event if b"\n" not in event and event else _one_line(event)
    if isinstance(event, Mapping):
        return _encode_mapping(event)
    if isinstance(event, str):
        return _one_line(_as_utf8(event))
    if isinstance(event, (bytearray, memoryview)):
        return _one_line(bytes(event))
    if isinstance(event, SdkEvent):
        return _encode_mapping(_mapping_of(event))
    raise InvalidEvent(
        "an event is a mapping (a CloudEvent), an event of the CloudEvents SDK, or its JSON as bytes or text,"
        f" not {type(event).__name__}"
    )


def _mapping_of(event: SdkEvent) -> dict[str, Any]:
    """Return an SDK event as a mapping, without the attributes that are None (not set)."""
    found = {name: value for name, value in event.get_attributes().items() if value is not None}
    data = event.get_data()
    return found if data is None else {**found, "data": data}


def _encode_mapping(event: Mapping[str, Any]) -> bytes:
    for name in ("source", "type"):
        value = event.get(name)
        if not isinstance(value, str) or not value:
            raise InvalidEvent(_describe_missing(event, name))
    complete = {"specversion": "1.0", **event}
    if not complete.get("id"):
        complete["id"] = str(uuid.uuid4())
    if "time" not in complete:
        complete["time"] = datetime.now(UTC)
    if isinstance(complete.get("data"), (bytes, bytearray, memoryview)):
        _move_bytes(complete)
    add_context(complete)
    try:
        line = _encoder.encode(complete)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidEvent(f"the event (type {event['type']!r}) cannot be written as JSON: {error}") from None
    if b"NaN" in line or b"Infinity" in line:
        # Harmless inside a string; but a Decimal NaN would make the line invalid JSON.
        _check_json(line)
    return line


def _move_bytes(event: dict[str, Any]) -> None:
    """Move binary ``data`` to ``data_base64``, as the CloudEvents JSON format requires."""
    if event.get("data_base64") is not None:
        raise InvalidEvent("an event has data or data_base64, not both: leave one out")
    event["data_base64"] = binascii.b2a_base64(bytes(event.pop("data")), newline=False).decode()


def _describe_missing(event: Mapping[str, Any], name: str) -> str:
    if name not in event:
        known = ", ".join(sorted(map(str, event))[:6]) or "nothing at all"
        return (
            f"an event needs {name!r}: a CloudEvent has source, type and data, "
            f'e.g. {{"source": "/quotes", "type": "quote", "data": {{...}}}}; this one has {known}'
        )
    value = event[name]
    shown = (
        repr(value) if isinstance(value, (str, bool, float)) else f"a value of type {type(value).__name__}"
    )
    return f"an event's {name!r} is a non-empty string, not {shown}"


def _one_line(text: bytes) -> bytes:
    """Return encoded JSON without line breaks, which would split the event in a request."""
    text = text.strip()
    if not text:
        raise InvalidEvent("an event is a JSON object; this one is empty")
    if b"\n" not in text:
        return text
    try:
        return msgspec.json.format(text, indent=-1)
    except (ValueError, RecursionError) as error:
        raise InvalidEvent(f"the event is not JSON: {error}") from None


def _as_utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidEvent(f"the event's text is not Unicode: {error}") from None


def _check_json(line: bytes) -> None:
    try:
        _decoder.decode(line)
    except msgspec.ValidationError:
        return  # A number beyond float's range: allowed in JSON, and exact for the service.
    except (ValueError, RecursionError) as error:
        raise InvalidEvent(
            f"the event cannot be written as JSON, which has no NaN or infinity: {error}"
        ) from None


def decode_event(raw: bytes) -> dict[str, Any]:
    """Decode an event. Integers are exact at any size; a number beyond float's range becomes a Decimal."""
    try:
        return cast(dict[str, Any], _decoder.decode(raw))
    except msgspec.ValidationError:
        return cast(dict[str, Any], json.loads(raw, parse_float=_float_or_decimal))


def _float_or_decimal(text: str) -> float | Decimal:
    value = float(text)
    return value if math.isfinite(value) else Decimal(text)
