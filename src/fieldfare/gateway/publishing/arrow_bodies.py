"""Decode a request's Arrow stream of events into the payload of one log record."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from fieldfare.arrow_events.canonical import SizeBudget
from fieldfare.arrow_events.checking import BadRow, check_events
from fieldfare.arrow_events.errors import TableRefused, TableTooLarge
from fieldfare.arrow_events.stream import write_events
from fieldfare.arrow_events.wire import read_stream
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.publishing.events import DecodedEvents, EventRefusal, Limits

UNPACKED_FACTOR = 2
"""Size limit of events with their encodings removed, as a multiple of a request's byte limit. List items
count, too. Larger streams get a 413.
"""


def decode_arrow(body: bytes, limits: Limits, max_bytes: int) -> DecodedEvents:
    """Decode a stream of events as the payload of one record: one uncompressed batch without encodings.

    Parameters
    ----------
    max_bytes : int
        Maximum size of a request in bytes, before and after decompression.

    Raises
    ------
    Problem
        400 if the body is not a stream of events, 413 if it is too large.
    """
    try:
        batches = read_stream(body, limits.batch_max_events, max_bytes)
        if not batches:
            return DecodedEvents(b"", ())
        checked = check_events(batches, limits.event_max_bytes, SizeBudget(max_bytes * UNPACKED_FACTOR))
    except TableRefused as error:
        members: dict[str, Any] = {} if error.hint is None else {"hint": error.hint}
        if error.column is not None:
            members |= {"column": error.column, "pointer": f"/{error.column}"}
        raise HttpProblem(400, "bad-table", f"{_sentence(error.detail)}.", **members) from None
    except pa.ArrowException as error:
        raise HttpProblem(400, "bad-table", f"The stream cannot be used: {str(error)[:200]}") from None
    except TableTooLarge as error:
        bounds = ", ".join(f"{name} = {most}" for name, most in error.limits.items())
        detail = f"{_sentence(error.detail)}; the limit of one request is {bounds}."
        limits_passed: dict[str, Any] = dict(error.limits)
        raise HttpProblem(413, "table-too-large", detail, **limits_passed) from None
    refused = tuple(_refusal(bad) for bad in checked.refused)
    if not checked.accepted:
        return DecodedEvents(b"", (), refused)
    return DecodedEvents(bytes(write_events(checked.events)), checked.accepted, refused)


def _refusal(bad: BadRow) -> EventRefusal:
    pointer = None if bad.column is None else f"/{bad.column}"
    return EventRefusal(bad.row, bad.detail, pointer, too_large=bad.too_large)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
