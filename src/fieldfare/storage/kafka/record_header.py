"""The header of the messages of a log's topic."""

from __future__ import annotations

from typing import Annotated

import msgspec

from fieldfare.model import RECORD_EVENTS_MAX
from fieldfare.storage.kafka.pieces import Count, Pieces

FORMAT = 1

TORN_AFTER = 1_000
"""Offsets without a further piece after which an incomplete record counts as abandoned: the pieces of a
record are written one after the other, in one transaction. Larger: more records are held back behind it."""


class RecordHeader(msgspec.Struct, omit_defaults=True):
    """The header of a message: the attributes of its record, and which piece of it this message is."""

    format: Count
    space: str
    count: Annotated[int, msgspec.Meta(ge=1, le=RECORD_EVENTS_MAX)]
    appended_ms: int
    stamp: Count
    id: str
    producer: str | None = None
    sequence: int | None = None
    piece: Count = 0
    pieces: Pieces = 1
