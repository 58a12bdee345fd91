"""The HTTP requests for delayed events: publish later, list, cancel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import msgspec

from fieldfare.client.errors import PublishError, Refusal, read_refusal
from fieldfare.client.paths import path_segment, space_path
from fieldfare.client.protocol import LINES_CONTENT, Answer, ApiCall, read_error
from fieldfare.model import RECORD_EVENTS_MAX

When = float | timedelta | datetime
"""When to publish: seconds from now, a timedelta from now, or a datetime with a time zone."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class DelayedEvents:
    """Delayed events of one call: the id to cancel them by, when they are due, and how many there are.

    ``refused`` lists the events of the call that the service refused, with their index in the call.
    """

    id: str
    due: datetime
    count: int
    refused: tuple[Refusal, ...] = ()


def publish_later(space: str, lines: Sequence[bytes], when: When, producer: str) -> ApiCall[DelayedEvents]:
    """Publish events at a later time; a repeat with the same producer id has no effect."""
    if not 1 <= len(lines) <= RECORD_EVENTS_MAX:
        raise ValueError(f"publish_later takes 1 to {RECORD_EVENTS_MAX:,} events, not {len(lines):,}")
    return ApiCall(
        "POST",
        f"{space_path(space)}/events",
        _read_kept,
        content=b"\n".join(lines) + b"\n",
        headers=(
            LINES_CONTENT,
            ("fieldfare-producer", producer),
            ("fieldfare-sequence", "0"),
            _header(when),
        ),
        # 400 and 413 are regular answers if they list refused events.
        good_statuses=frozenset({202, 400, 413}),
    )


def list_delayed(
    space: str, after: str | None, limit: int
) -> ApiCall[tuple[list[DelayedEvents], str | None]]:
    """Read a page of delayed events, soonest first, and the ``after`` of the next page (None: no more)."""
    query = urlencode({"limit": limit} | ({"after": after} if after is not None else {}))
    return ApiCall("GET", f"{_path(space)}?{query}", _read_page)


def cancel_delayed(space: str, id: str) -> ApiCall[None]:
    """Cancel delayed events."""
    return ApiCall("DELETE", f"{_path(space)}/{path_segment(id)}", lambda answer: None)


def _path(space: str) -> str:
    return f"{space_path(space)}/delayed"


def _header(when: When) -> tuple[str, str]:
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ValueError(f"the datetime {when} needs a time zone: for example datetime.now(UTC) + ...")
        return "fieldfare-deliver-at", when.isoformat()
    seconds = when.total_seconds() if isinstance(when, timedelta) else float(when)
    if not 0 <= seconds < 1e12:
        raise ValueError(f"a delay must be 0 or more seconds (below 1e12), not {when}")
    return "fieldfare-deliver-after", f"{seconds:.6f}"


def _read_kept(answer: Answer) -> DelayedEvents:
    value = msgspec.json.decode(answer.body)
    refused = tuple(read_refusal(item) for item in value.get("refused", ()))
    if answer.status != 202:
        if not refused:
            raise read_error(answer)
        raise PublishError((), refused)
    return _make(value, refused)


def _read_page(answer: Answer) -> tuple[list[DelayedEvents], str | None]:
    value = msgspec.json.decode(answer.body)
    return [_make(item) for item in value["delayed"]], value["next"]


def _make(value: dict[str, Any], refused: tuple[Refusal, ...] = ()) -> DelayedEvents:
    due = _EPOCH + timedelta(milliseconds=value["due_ms"])
    return DelayedEvents(value["id"], due, value["count"], refused)
