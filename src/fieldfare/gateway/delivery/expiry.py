"""Expired events: the CloudEvents extension ``expirytime`` says how long an event is useful.

It is checked when an event is about to be delivered, and only in records that contain the attribute.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

ATTRIBUTE = "expirytime"
MARK = b'"expirytime"'
"""A line without these bytes lacks the attribute: publishing always writes the name in this form."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Expiring(msgspec.Struct, gc=False):
    expirytime: str | None = None


_decoder = msgspec.json.Decoder(_Expiring)


def is_over(line: bytes, now_s: float) -> bool:
    """Whether an event has expired at a time in seconds since 1970."""
    if MARK not in line:
        return False
    try:
        text = _decoder.decode(line).expirytime
        return text is not None and expiry_s(text) <= now_s
    except ValueError:  # an event published before this check existed, or a data member of that name
        return False


def expiry_s(text: str) -> float:
    """Convert an RFC 3339 timestamp that publishing has accepted to seconds since 1970."""
    # Neither Python nor Unix time has a second 60.
    is_leap = text[17:19] == "60"
    moment = datetime.fromisoformat((text[:17] + "59" + text[19:] if is_leap else text).upper())
    return (moment - _EPOCH + timedelta(seconds=is_leap)).total_seconds()
