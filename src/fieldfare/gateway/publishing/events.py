"""Decode CloudEvents from a request's bytes to JSON lines, one compact line per event.

The bytes of an event are kept as received. A batch is checked by one typed decode in C. Only if that finds
something unusual (an extension attribute, an error) are its events checked one by one, so that valid events
are accepted and each invalid one is reported.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal
from urllib.parse import unquote_to_bytes

import msgspec

from fieldfare.gateway.problems import RefusedDocument
from fieldfare.gateway.publishing.json_array import split_array
from fieldfare.gateway.publishing.large_numbers import may_have_large_number
from fieldfare.gateway.text import Places, count_bytes
from fieldfare.model import RECORD_EVENTS_MAX

DEPTH_MAX = 100
"""Maximum nesting depth of an event's JSON; deeper events are refused, as readers recurse."""

WHOLE_MAX_BYTES = 512 << 10
"""Maximum bytes of a batch decoded in one call; larger ones are decoded event by event.

One long decode would block the other threads.
"""

SCANNED_MIN_BYTES = 4 << 10
"""Minimum bytes of a batch that is scanned for numbers out of range; smaller ones are decoded."""

INLINE_BYTES = 64 << 10
"""Maximum bytes of a body decoded or checked on the event loop; larger ones go to a thread."""

SPLIT_MAX_COMMAS = 200_000
"""Maximum commas in a batch above `WHOLE_MAX_BYTES` that is parsed in C. With more, it is split in small
steps, which stop at the maximum number of events.
"""

Text = Annotated[str, msgspec.Meta(min_length=1)]


class UsualEvent(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An event with the common context attributes and no extensions.

    The syntax of its data is checked, which is faster than decoding it; `_check_values` checks the rest.
    """

    specversion: Annotated[Literal["1.0"], "Version of CloudEvents."]
    id: Annotated[Text, "Id of the event; unique among the events of its source."]
    source: Annotated[Text, "What the event comes from, as a URI reference."]
    type: Annotated[Text, "Kind of the event."]
    subject: Annotated[Text | None, "What the event is about, within its source."] = None
    time: Annotated[
        Annotated[datetime, msgspec.Meta(tz=True)] | None,
        "Time of the event (RFC 3339, with a time zone).",
    ] = None
    datacontenttype: Annotated[Text | None, "Media type of the data; default: application/json."] = None
    dataschema: Annotated[Text | None, "URI of the schema of the data."] = None
    data: Annotated[msgspec.Raw | msgspec.UnsetType, "Payload of the event: any JSON value."] = msgspec.UNSET


@dataclass(frozen=True, slots=True)
class Limits:
    """Maximum bytes of an event, and maximum events of a batch."""

    event_max_bytes: int = 1 << 20
    batch_max_events: int = RECORD_EVENTS_MAX


CLAIM_CHECK = (
    "Store large data elsewhere, and publish an event that says where, with CloudEvents' extension dataref."
)
"""Hint to publishers whose event is larger than the limit."""


@dataclass(frozen=True, slots=True)
class EventRefusal:
    """A refused event: its index in the batch, the reason, and the position of the fault."""

    index: int
    detail: str
    pointer: str | None = None
    byte: int | None = None
    line: int | None = None
    column: int | None = None
    too_large: bool = False

    def document(self) -> RefusedDocument:
        """Return the refusal as a client sees it."""
        return RefusedDocument(
            self.index,
            self.detail,
            pointer=self.pointer,
            byte=self.byte,
            line=self.line,
            column=self.column,
            hint=CLAIM_CHECK if self.too_large else None,
        )


@dataclass(frozen=True, slots=True)
class DecodedEvents:
    """Decoded events: the accepted ones as JSON lines, the batch index of each, and the refused ones."""

    payload: bytes
    accepted: Sequence[int]
    refused: tuple[EventRefusal, ...] = ()

    @property
    def count(self) -> int:
        return len(self.accepted)


class EventRefused(ValueError):
    """An event is refused; ``byte`` counts from the event's own start."""

    def __init__(
        self, detail: str, pointer: str | None = None, byte: int | None = None, *, too_large: bool = False
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.pointer = pointer
        self.byte = byte
        self.too_large = too_large


class BatchTooLong(ValueError):
    """The batch has more events than allowed; ``count`` is a lower bound of their number."""

    def __init__(self, count: int) -> None:
        super().__init__(f"the batch has {count} events")
        self.count = count


_NO_OPENING = bytes(byte for byte in range(256) if byte not in b"{[\n")

_SPACE = b" \t\r\n"

_LINE = re.compile(rb"[^\n]+")

_any = msgspec.json.Decoder()
_raw_array = msgspec.json.Decoder(list[msgspec.Raw])
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_usual = msgspec.json.Decoder(UsualEvent)
_usual_array = msgspec.json.Decoder(list[UsualEvent])


def decode_array_fast(body: bytes, limits: Limits) -> DecodedEvents | None:
    """Decode a JSON array of usual events; return None if it needs the closer look of `decode_array`.

    Raise BatchTooLong if it has too many events.
    """
    raws: Sequence[Any]
    try:
        if len(body) <= WHOLE_MAX_BYTES:
            _usual_array.decode(body)
            raws = _raw_array.decode(body)
            _check_values(body, raws)
        elif count_bytes(body, b",") > SPLIT_MAX_COMMAS:
            return None
        else:
            raws = _raw_array.decode(body)
            for raw in raws[: limits.batch_max_events]:
                _usual.decode(raw)
            _check_values(body, raws[: limits.batch_max_events])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    count = len(raws)
    if count > limits.batch_max_events:
        raise BatchTooLong(count)
    if count == 0:
        return DecodedEvents(b"", range(0))
    pieces: list[Any] = list(raws)
    if b"\n" in body or b"\r" in body:
        pieces = [_one_line(bytes(raw)) for raw in raws]
    pieces.append(b"")
    payload = b"\n".join(pieces)
    pieces.pop()
    return _unless_extreme(payload, count, pieces, limits)


def decode_lines_fast(body: bytes, limits: Limits) -> DecodedEvents | None:
    """Decode one usual event per line; return None if the body needs the closer look of `decode_lines`."""
    if not body.endswith(b"\n"):
        body += b"\n"
    lines = body.split(b"\n", limits.batch_max_events)
    if lines.pop() or b"\r" in body:
        return None
    # Line by line rather than all together: each decoded object is freed while it is in the cache and before
    # the garbage collector has looked at it. This also insists on one value per line.
    try:
        for line in lines:
            _usual.decode(line)
        _check_values(body, lines)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not all(line[:1] == b"{" and line[-1:] == b"}" for line in lines):
        return None
    return _unless_extreme(body, len(lines), lines, limits)


def _check_values(body: bytes, events: Iterable[bytes | msgspec.Raw]) -> None:
    """Check in events' data what checking its syntax leaves out: UTF-8, and the range of numbers.

    Raise UnicodeDecodeError or msgspec.DecodeError.
    """
    if not body.isascii():
        body.decode()
    if len(body) < SCANNED_MIN_BYTES or may_have_large_number(body):
        for event in events:
            _any.decode(event)


def _unless_extreme(
    payload: bytes, count: int, pieces: Sequence[Any], limits: Limits
) -> DecodedEvents | None:
    """Return the batch, or None if an event is too large or may nest too deeply."""
    if len(payload) > limits.event_max_bytes and max(map(len, pieces)) > limits.event_max_bytes:
        return None
    # Only the openings of each line are left, including those inside strings: these cost a closer look at
    # worst.
    openings = payload.translate(None, _NO_OPENING)
    if len(openings) > DEPTH_MAX and max(map(len, openings.split(b"\n"))) > DEPTH_MAX:
        return None
    return DecodedEvents(payload, range(count))


def decode_array(body: bytes, limits: Limits) -> DecodedEvents:
    """Decode a JSON array of events, and validate each event on its own."""
    try:
        if len(body) > WHOLE_MAX_BYTES and count_bytes(body, b",") > SPLIT_MAX_COMMAS:
            raise msgspec.DecodeError
        raws = [bytes(raw) for raw in _raw_array.decode(body)]
        places: list[int] = []
        at = 0
        for raw in raws:
            at = body.index(raw, at)
            places.append(at)
            at += len(raw)
        lost: EventRefusal | None = None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = split_array(body, limits.batch_max_events)
        raws = [body[start:end] for start, end in found.pieces]
        places = [start for start, _ in found.pieces]
        lost = None
        if found.lost_at is not None:
            line, column = Places(body).find(found.lost_at)
            detail = f"the batch cannot be read from here on: {found.lost_because}"
            lost = EventRefusal(len(raws), detail, None, found.lost_at, line, column)
    if len(raws) > limits.batch_max_events:
        raise BatchTooLong(len(raws))
    decoded = _judge(zip(raws, places, strict=True), body, limits)
    if lost is None:
        return decoded
    return DecodedEvents(decoded.payload, decoded.accepted, (*decoded.refused, lost))


def decode_lines(body: bytes, limits: Limits) -> DecodedEvents:
    """Decode one event per line, and validate each on its own; blank lines are skipped."""
    pieces: list[tuple[bytes, int]] = []
    for line in _LINE.finditer(body):
        if line[0].strip():
            pieces.append((line[0], line.start()))
            if len(pieces) > limits.batch_max_events:
                raise BatchTooLong(len(pieces))
    return _judge(pieces, body, limits)


def decode_single(body: bytes, limits: Limits) -> DecodedEvents:
    """Decode one event in structured mode."""
    return _judge([(body, 0)], body, limits)


def _judge(pieces: Iterable[tuple[bytes, int]], body: bytes, limits: Limits) -> DecodedEvents:
    lines: list[bytes] = []
    accepted: list[int] = []
    refused: list[EventRefusal] = []
    places = Places(body)
    for index, (piece, start) in enumerate(pieces):
        stripped = piece.lstrip(_SPACE)
        start += len(piece) - len(stripped)
        try:
            lines.append(check_event(stripped.rstrip(_SPACE), limits.event_max_bytes))
        except EventRefused as error:
            byte = line = column = None
            if error.byte is not None:
                byte = start + error.byte
                line, column = places.find(byte)
            refused.append(
                EventRefusal(index, error.detail, error.pointer, byte, line, column, error.too_large)
            )
        else:
            accepted.append(index)
    payload = b"\n".join(lines) + b"\n" if lines else b""
    return DecodedEvents(payload, accepted, tuple(refused))


def check_event(piece: bytes, event_max_bytes: int) -> bytes:
    """Return the event as one compact line. Raise EventRefused with the reason if it is invalid."""
    if len(piece) > event_max_bytes:
        detail = f"the event has {len(piece)} bytes; one event may have {event_max_bytes}"
        raise EventRefused(detail, too_large=True)
    try:
        event = _any.decode(piece)
    except UnicodeDecodeError:
        raise _not_utf8(piece) from None
    except msgspec.ValidationError:
        raise _out_of_range(piece) from None
    except msgspec.DecodeError as error:
        raise _not_json(piece, str(error)) from None
    except RecursionError:
        raise EventRefused(f"the event's JSON nests deeper than {DEPTH_MAX} levels") from None
    check_attributes(event)
    if piece.count(b"{") + piece.count(b"[") > DEPTH_MAX and _depth(event) > DEPTH_MAX:
        raise EventRefused(f"the event's JSON nests deeper than {DEPTH_MAX} levels")
    if "expirytime" in event and b'"expirytime"' not in piece:  # escaped: delivery searches for these bytes
        piece = msgspec.json.encode(_members.decode(piece))
    return _one_line(piece)


def _one_line(piece: bytes) -> bytes:
    if b"\n" in piece or b"\r" in piece:
        return msgspec.json.format(piece, indent=-1)
    return piece


def _depth(value: Any) -> int:
    depth = 0
    level = [value]
    while level:
        depth += 1
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
        level = [item for item in inner if isinstance(item, dict | list)]
    return depth


def _not_utf8(piece: bytes) -> EventRefused:
    try:
        piece.decode()
    except UnicodeDecodeError as error:
        return EventRefused("the event is not valid UTF-8 here", byte=error.start)
    return EventRefused("a string of the event is not valid UTF-8")


def _not_json(piece: bytes, message: str) -> EventRefused:
    """Explain a syntax error with the standard library's parser, which is clearer, if it finds one, too."""
    if not piece:
        return EventRefused("there is no event here", byte=0)
    try:
        json.loads(piece)
    except json.JSONDecodeError as error:
        byte = len(error.doc[: error.pos].encode())
        return EventRefused(f"the event is not valid JSON: {error.msg}", byte=byte)
    except UnicodeDecodeError as error:
        return EventRefused("the event is not valid UTF-8 here", byte=error.start)
    except (ValueError, RecursionError):
        pass
    found = re.search(r"^(?:JSON is malformed: )?(.*?)(?: \(byte (\d+)\))?$", message, re.DOTALL)
    assert found is not None
    said = found[1]
    if "truncated" in said:
        said = "a \\u escape is half of a surrogate pair"
    return EventRefused(f"the event is not valid JSON: {said}", byte=int(found[2]) if found[2] else None)


_STRING_OR_NUMBER = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]*', re.DOTALL)


def _out_of_range(piece: bytes) -> EventRefused:
    """Name the first number that is out of range: JSON does not bound numbers, but every reader does."""
    for token in _STRING_OR_NUMBER.finditer(piece):
        if token[0][:1] != b'"':
            try:
                _any.decode(token[0])
            except msgspec.DecodeError:
                shown = token[0][:30].decode() + ("..." if len(token[0]) > 30 else "")
                return EventRefused(f"the number {shown} is out of range", byte=token.start())
    return EventRefused("the event has a number that is out of range")


_NAME = re.compile(r"[a-z0-9]+")
_TIME = re.compile(
    r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])[Tt ](?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d+)?"
    r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
_OPTIONAL_TEXTS = ("subject", "datacontenttype", "dataschema")
_KNOWN = frozenset(
    ("specversion", "id", "source", "type", "time", "expirytime", "data", "data_base64", *_OPTIONAL_TEXTS)
)
_INT32 = range(-(1 << 31), 1 << 31)


def check_attributes(event: Any) -> None:
    """Validate an event against CloudEvents 1.0. Raise EventRefused with the invalid attribute."""
    if not isinstance(event, dict):
        raise EventRefused(f"an event is a JSON object, not {_kind(event)}")
    for name in ("specversion", "id", "source", "type"):
        value = event.get(name)
        if value is None:
            raise EventRefused(f"the required attribute {name} is missing", f"/{name}")
        if not isinstance(value, str) or not value:
            raise EventRefused(f"{name} must be a non-empty string, not {_kind(value)}", f"/{name}")
    if event["specversion"] != "1.0":
        raise EventRefused(f'specversion must be "1.0", not {event["specversion"]!r}', "/specversion")
    for name in _OPTIONAL_TEXTS:
        value = event.get(name)
        if value is not None and (not isinstance(value, str) or not value):
            raise EventRefused(f"{name} must be a non-empty string, not {_kind(value)}", f"/{name}")
    for name in ("time", "expirytime"):
        check_time(name, event.get(name))
    if event.get("data_base64") is not None:
        _check_base64(event["data_base64"], event.get("data"))
    for name, value in event.items():
        if name not in _KNOWN:
            _check_extension(name, value)


def check_time(name: str, value: Any) -> None:
    """Validate a timestamp against RFC 3339; None is valid. Raise EventRefused with the attribute's name."""
    if value is None:
        return
    if isinstance(value, str) and _TIME.fullmatch(value):
        try:
            # Python does not accept leap seconds; CloudEvents' timestamps may have them.
            datetime.fromisoformat(value[:10])
            return
        except ValueError:
            pass
    shown = repr(value) if isinstance(value, str) else _kind(value)
    raise EventRefused(
        f"{name} must be an RFC 3339 timestamp such as 2013-01-01T05:00:00Z, not {shown[:60]}", f"/{name}"
    )


def _check_base64(value: Any, data: Any) -> None:
    if data is not None:
        raise EventRefused("an event has data or data_base64, not both", "/data_base64")
    try:
        if not isinstance(value, str):
            raise ValueError(_kind(value))
        binascii.a2b_base64(value.encode("ascii"), strict_mode=True)
    except ValueError:  # binascii.Error and UnicodeEncodeError are ValueErrors
        raise EventRefused("data_base64 must be a string of base64", "/data_base64") from None


def _check_extension(name: str, value: Any) -> None:
    pointer = "/" + name.replace("~", "~0").replace("/", "~1")
    if not _NAME.fullmatch(name):
        detail = (
            f"the attribute name {name[:60]!r} has characters other than lower-case letters a-z and digits"
        )
        raise EventRefused(detail, pointer)
    if value is None or isinstance(value, str | bool):
        return
    if isinstance(value, int):
        if value in _INT32:
            return
        raise EventRefused(f"the extension {name} is beyond 32 bits; send it as a string", pointer)
    raise EventRefused(
        f"the extension {name} must be a string, a whole number or a boolean, not {_kind(value)}", pointer
    )


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, str):
        return "an empty string" if not value else "a string"
    if isinstance(value, int | float):
        return "a number"
    return "an array" if isinstance(value, list) else "an object"


def decode_binary(headers: Mapping[str, str], body: bytes, limits: Limits) -> DecodedEvents:
    """Decode one event in binary mode: attributes from ``ce-`` headers, data from the body."""
    try:
        if len(body) > limits.event_max_bytes:
            detail = f"the data has {len(body)} bytes; one event may have {limits.event_max_bytes}"
            raise EventRefused(detail, too_large=True)
        line = _binary_event(headers, body)
        return DecodedEvents(check_event(line, limits.event_max_bytes) + b"\n", range(1))
    except EventRefused as error:
        return DecodedEvents(
            b"", (), (EventRefusal(0, error.detail, error.pointer, too_large=error.too_large),)
        )


def _binary_event(headers: Mapping[str, str], body: bytes) -> bytes:
    event: dict[str, Any] = {}
    for header, value in headers.items():
        header = header.lower()
        if header.startswith("ce-"):
            name = header[3:]
            if name in ("data", "data_base64", "datacontenttype"):
                raise EventRefused(f"the header {header} is not an attribute of an event", f"/{name}")
            event[name] = _header_value(header, value)
    content_type = headers.get("content-type")
    if content_type is not None:
        event["datacontenttype"] = content_type
    if body:
        media, _, parameters = (content_type or "application/octet-stream").partition(";")
        media = media.strip().lower()
        readable = _is_readable(body, charset_of(parameters))
        if readable and (media == "application/json" or media == "text/json" or media.endswith("+json")):
            return _with_json_data(event, body)
        if readable and media.startswith("text/") and _is_utf8(body):
            event["data"] = body.decode()
        else:
            event["data_base64"] = base64.b64encode(body).decode()
    return msgspec.json.encode(event)


def _header_value(header: str, value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] == '"':
        # The HTTP binding tells receivers to remove the quotes that older senders put around a value.
        value = re.sub(r"\\(.)", r"\1", value[1:-1])
    try:
        return unquote_to_bytes(value.encode("latin-1")).decode()
    except UnicodeDecodeError:
        raise EventRefused(f"the header {header} is not percent-encoded UTF-8", f"/{header[3:]}") from None


def _with_json_data(event: dict[str, Any], body: bytes) -> bytes:
    try:
        _any.decode(body)
    except UnicodeDecodeError:
        raise EventRefused("the data is not valid UTF-8", "/data") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise EventRefused(f"the data is not valid JSON: {error}", "/data") from None
    attributes = msgspec.json.encode(event)
    return attributes[:-1] + b',"data":' + _one_line(body.strip(_SPACE)) + b"}"


_CHARSET = re.compile(r"(?:^|;)\s*charset\s*=\s*\"?([^\s;\"]*)", re.IGNORECASE)
_WITH_ASCII_IN_IT = re.compile(r"us-ascii|ascii|iso-8859-\d{1,2}|latin-?1|windows-125\d|cp125\d")

UTF8 = ("utf-8", "utf8")


def charset_of(parameters: str) -> str:
    """Return the charset named in a media type's parameters, in lower case; "utf-8" if there is none."""
    named = _CHARSET.search(parameters) if parameters else None
    return named[1].lower() if named else "utf-8"


def _is_readable(body: bytes, charset: str) -> bool:
    """Return whether the body's bytes mean the same in their charset as in UTF-8.

    If not, they are kept as bytes: their declared charset stays true, and no codec chosen by a client runs on
    them.
    """
    return charset in UTF8 or (_WITH_ASCII_IN_IT.fullmatch(charset) is not None and body.isascii())


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True
