"""Events whose time is over: CloudEvents' extension ``expirytime`` says until when one is of use.

Looked at when an event is about to be given, and only in records of which one at least has the attribute.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

ATTRIBUTE = "expirytime"
MARK = b'"expirytime"'
"""No line without this has the attribute: publishing sees to it that the name is written so."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Expiring(msgspec.Struct, gc=False):
    expirytime: str | None = None


_decoder = msgspec.json.Decoder(_Expiring)


def is_over(line: bytes, now_s: float) -> bool:
    """Whether the time of an event is over, in seconds since 1970."""
    if MARK not in line:
        return False
    try:
        text = _decoder.decode(line).expirytime
        return text is not None and expiry_s(text) <= now_s
    except ValueError:  # an event of before publishing looked at it, or a data member of that name
        return False


def expiry_s(text: str) -> float:
    """An RFC 3339 timestamp that publishing has taken, in seconds since 1970."""
    # Python knows no second 60, and neither does a clock that counts from 1970.
    is_leap = text[17:19] == "60"
    moment = datetime.fromisoformat((text[:17] + "59" + text[19:] if is_leap else text).upper())
    return (moment - _EPOCH + timedelta(seconds=is_leap)).total_seconds()
