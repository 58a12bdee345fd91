"""Events that are published for later, as HTTP says it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from fieldfare.client.batching import MAX_RECORD_EVENTS
from fieldfare.client.errors import PublishError, Refusal, read_refusal
from fieldfare.client.protocol import LINES_CONTENT, Answer, ApiCall, read_error

When = float | timedelta | datetime
"""Seconds from now, or a moment (with a time zone)."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class DelayedEvents:
    """Events that wait for their time: by what they are cancelled, when they are due, and how many.

    ``refused`` are those of the call that the service did not take, by their index in it.
    """

    id: str
    due: datetime
    count: int
    refused: tuple[Refusal, ...] = ()


def publish_later(space: str, lines: Sequence[bytes], when: When, producer: str) -> ApiCall[DelayedEvents]:
    """Have events wait for their time; a repeat with the same producer is harmless."""
    if not 1 <= len(lines) <= MAX_RECORD_EVENTS:
        raise ValueError(f"1 to {MAX_RECORD_EVENTS} events are published together, not {len(lines)}")
    return ApiCall(
        "POST",
        f"/v1/spaces/{quote(space, safe='')}/events",
        _read_kept,
        content=b"\n".join(lines) + b"\n",
        headers=(
            LINES_CONTENT,
            ("fieldfare-producer", producer),
            ("fieldfare-sequence", "0"),
            _header(when),
        ),
        # 400 and 413 are good answers when they speak of the events.
        good_statuses=frozenset({202, 400, 413}),
    )


def list_delayed(
    space: str, after: str | None, limit: int
) -> ApiCall[tuple[list[DelayedEvents], str | None]]:
    """A page of what waits, soonest first, and behind what the next one begins."""
    query = urlencode({"limit": limit} | ({"after": after} if after is not None else {}))
    return ApiCall("GET", f"{_path(space)}?{query}", _read_page)


def cancel_delayed(space: str, id: str) -> ApiCall[None]:
    """Have events not come that wait for their time."""
    return ApiCall("DELETE", f"{_path(space)}/{quote(id, safe='')}", lambda answer: None)


def _path(space: str) -> str:
    return f"/v1/spaces/{quote(space, safe='')}/delayed"


def _header(when: When) -> tuple[str, str]:
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise ValueError("a moment needs a time zone: datetime.now(UTC) + ..., for example")
        return "fieldfare-deliver-at", when.isoformat()
    seconds = when.total_seconds() if isinstance(when, timedelta) else float(when)
    if not 0 <= seconds < 1e12:
        raise ValueError(f"a delay is a number of seconds, 0 or more, not {when}")
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
