"""Events on their way out (a mapping becomes one line of JSON) and in (bytes become a mapping)."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, cast

import msgspec

from fieldfare.client.errors import InvalidEvent
from fieldfare.client.tracing import add_context

Publishable = Mapping[str, Any] | bytes | bytearray | memoryview | str
"""What can be published: a CloudEvent as a mapping, or its JSON text already encoded."""

# Decimals are written digit by digit as JSON numbers, so that a price of 18.50 stays exactly that.
_encoder = msgspec.json.Encoder(decimal_format="number")
_decoder = msgspec.json.Decoder()


def encode_event(event: Publishable) -> bytes:
    """Turn an event into one line of JSON, complete as a CloudEvent.

    A mapping must have ``source`` and ``type``; ``specversion``, ``id`` (a random UUID), ``time`` (now) and,
    in a span of OpenTelemetry, ``traceparent`` are filled in where missing. Values may be anything that JSON
    has, and also datetime, date, time, UUID, Decimal (an exact number), enums, dataclasses and msgspec
    structs; NaN and infinite floats become null, for JSON has no such numbers. Text that is already encoded
    is taken as it is: the service checks it.

    Raises
    ------
    InvalidEvent
        Nothing has been sent; the text says what is missing or cannot be written.
    """
    if isinstance(event, bytes):
        return event if b"\n" not in event and event else _one_line(event)
    if isinstance(event, Mapping):
        return _encode_mapping(event)
    if isinstance(event, str):
        return _one_line(event.encode())
    if isinstance(event, (bytearray, memoryview)):
        return _one_line(bytes(event))
    raise InvalidEvent(
        f"an event is a mapping (a CloudEvent) or its JSON as bytes or text, not {type(event).__name__}"
    )


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
    add_context(complete)
    try:
        line = _encoder.encode(complete)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidEvent(f"the event (type {event['type']!r}) cannot be written as JSON: {error}") from None
    if b"NaN" in line or b"Infinity" in line:
        # Perhaps only inside a string; a Decimal that is no number would break the line for every reader.
        _check_json(line)
    return line


def _describe_missing(event: Mapping[str, Any], name: str) -> str:
    if name not in event:
        known = ", ".join(sorted(map(str, event))[:6]) or "nothing at all"
        return (
            f"an event needs {name!r}: a CloudEvent has source, type and data, "
            f'e.g. {{"source": "/quotes", "type": "quote", "data": {{...}}}}; this one has {known}'
        )
    return f"an event's {name!r} is a non-empty string, not {event[name]!r}"


def _one_line(text: bytes) -> bytes:
    """Encoded JSON without the line ends that would cut it in two on the way."""
    text = text.strip()
    if not text:
        raise InvalidEvent("an event is a JSON object; this one is empty")
    if b"\n" not in text:
        return text
    try:
        return msgspec.json.format(text, indent=-1)
    except msgspec.DecodeError as error:
        raise InvalidEvent(f"the event is not JSON: {error}") from None


def _check_json(line: bytes) -> None:
    try:
        _decoder.decode(line)
    except msgspec.ValidationError:
        return  # A number beyond float's range: allowed in JSON, and exact for the service.
    except msgspec.DecodeError as error:
        raise InvalidEvent(
            f"the event cannot be written as JSON, which has no NaN or infinity: {error}"
        ) from None


def decode_event(raw: bytes) -> dict[str, Any]:
    """Read an event. Integers are exact at any size; a number beyond float's range comes as a Decimal."""
    try:
        return cast(dict[str, Any], _decoder.decode(raw))
    except msgspec.ValidationError:
        return cast(dict[str, Any], json.loads(raw, parse_float=_float_or_decimal))


def _float_or_decimal(text: str) -> float | Decimal:
    value = float(text)
    return value if math.isfinite(value) else Decimal(text)
