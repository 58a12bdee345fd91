"""The head of a request that publishes events: its form, its producer's sequence, and its due time."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from starlette.requests import Request

from fieldfare.gateway.admission.request_guard import HEADERS, header
from fieldfare.gateway.delivery.expiry import expiry_s
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.publishing.events import UTF8, EventRefused, charset_of, check_time
from fieldfare.storage.event_log import FIRST

STRUCTURED = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
LINES = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"
BINARY = "binary"
"""The form of a request whose event's attributes are headers, and whose body is the event's data."""

AFTER, AT = "Fieldfare-Deliver-After", "Fieldfare-Deliver-At"
SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")

_READ = ("producer", "sequence", "follows", "deliver-after", "deliver-at")
_NAMES = (b"content-type", b"content-encoding", *(f"fieldfare-{name}".encode() for name in _READ))


@dataclass(frozen=True, slots=True)
class PublishHead:
    """The headers of a request that describe its events.

    Attributes
    ----------
    kind
        Form of the body: a media type, or `BINARY`.
    is_packed
        Whether the body has a Content-Encoding.
    producer, sequence, follows
        The producer, the sequence number of its request, and the sequence number that the request follows.
    due_ms
        When the events are to be appended, in milliseconds since 1970; None for immediately.
    """

    kind: str
    is_packed: bool
    producer: str | None
    sequence: int | None
    follows: int | None
    due_ms: int | None


def read_head(request: Request, now_ms: int, delay_max_s: float) -> PublishHead:
    """Read the headers of a request.

    Raise Problem 400 for a header that is wrong by itself or beside the others, 415 for an unknown form.
    """
    content_type, encoding, *sender, after, at = (header(request, name) for name in _NAMES)
    producer, sequence, follows = _sender(*sender)
    due_ms = _due_ms(after, at, now_ms, delay_max_s)
    if due_ms is not None and follows is not None:
        detail = (
            "Delayed events cannot have the header Fieldfare-Follows: leave it out, or publish without a"
            " delay."
        )
        raise HttpProblem(400, "bad-header", detail)
    kind = _kind(content_type or "", is_event=b"ce-specversion" in request.scope[HEADERS])
    return PublishHead(kind, encoding is not None, producer, sequence, follows, due_ms)


def _sender(
    producer: str | None, sequence: str | None, follows: str | None
) -> tuple[str | None, int | None, int | None]:
    """Return the checked producer, its sequence number, and the number that the request follows."""
    if producer is None and sequence is None:
        if follows is not None:
            detail = "Fieldfare-Follows needs Fieldfare-Producer and Fieldfare-Sequence."
            raise HttpProblem(400, "bad-header", detail)
        return None, None, None
    if producer is None or sequence is None:
        raise HttpProblem(
            400, "bad-header", "Send both Fieldfare-Producer and Fieldfare-Sequence, or neither."
        )
    if not 1 <= len(producer) <= 128:
        raise HttpProblem(400, "bad-header", "Fieldfare-Producer must have 1 to 128 characters.")
    if not (sequence.isascii() and sequence.isdigit() and len(sequence) <= 18):
        raise HttpProblem(
            400, "bad-header", "Fieldfare-Sequence must be a whole number of at most 18 digits."
        )
    if follows is None:
        return producer, int(sequence), None
    if follows != str(FIRST) and not (follows.isascii() and follows.isdigit() and len(follows) <= 18):
        raise HttpProblem(
            400,
            "bad-header",
            f"Fieldfare-Follows must be a sequence number, or {FIRST} for the first request.",
        )
    if int(follows) >= int(sequence):
        raise HttpProblem(400, "bad-header", "Fieldfare-Follows must be less than Fieldfare-Sequence.")
    return producer, int(sequence), int(follows)


def _due_ms(after: str | None, at: str | None, now_ms: int, most_s: float) -> int | None:
    """Return when a request's events are to be appended, in milliseconds since 1970; None for immediately.

    Raise Problem 400 for an invalid time, or one more than ``most_s`` seconds ahead.
    """
    if after is None and at is None:
        return None
    if after is not None and at is not None:
        raise HttpProblem(400, "bad-header", f"Send either {AFTER} or {AT}, not both.")
    if after is not None:
        if not SECONDS.fullmatch(after):
            raise HttpProblem(400, "bad-header", f"{AFTER} must be a number of seconds, such as 90 or 0.5.")
        due_ms = now_ms + math.ceil(1000 * float(after))
    else:
        assert at is not None
        try:
            check_time(AT, at)
        except EventRefused as refused:
            raise HttpProblem(400, "bad-header", f"{refused.detail}.") from None
        due_ms = math.ceil(1000 * expiry_s(at))
    if due_ms - now_ms > 1000 * most_s:
        detail = f"The delay is longer than {most_s:.15g} s, the maximum (FIELDFARE_DELAY_MAX_S)."
        raise HttpProblem(400, "too-late", detail, max_seconds=most_s)
    return max(due_ms, 0)


def _kind(content_type: str, *, is_event: bool) -> str:
    """Return the form of the request: a media type, or `BINARY`; else raise Problem 415."""
    media, _, parameters = content_type.partition(";")
    media = media.strip().lower()
    if media == "application/ndjson":
        media = LINES
    if media in (STRUCTURED, BATCH, LINES):
        if charset_of(parameters) not in (*UTF8, "us-ascii"):
            raise HttpProblem(
                415, "content-type", f"JSON events must be UTF-8, not {parameters.strip()[:60]}."
            )
        return media
    if media == ARROW:
        return media
    if not media.startswith("application/cloudevents") and is_event:
        return BINARY
    raise HttpProblem(
        415,
        "content-type",
        f"The Content-Type {media[:80] or '(none)'} is not supported for events.",
        accepted=[STRUCTURED, BATCH, LINES, ARROW],
        hint="One event may also come in binary mode: its attributes as ce- headers (ce-specversion, ce-id, "
        "ce-source, ce-type), its data as the body.",
    )
