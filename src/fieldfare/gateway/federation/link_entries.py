"""Entries as links store and send them."""

from __future__ import annotations

import msgspec

from fieldfare.gateway.federation.wire import (
    Destination,
    Entry,
    Events,
    Interest,
    Lost,
    Sent,
    decode_entry,
    encoder,
)
from fieldfare.storage.links import Inbound

LOST = encoder.encode(Lost())
"""An entry without content, in place of one that a disk has lost."""


def is_for(entry: Sent, name: str) -> bool:
    """Return whether a broker is a destination of an entry."""
    return any(each.name == name for each in entry.destinations)


def inbound_of(entry: Sent, mine: Destination) -> Inbound:
    """Return an entry as it waits in the inbox of a destination."""
    kind = str(type(entry).__struct_config__.tag)
    sequence = entry.sequence if isinstance(entry, Interest) else mine.sequence
    floor = mine.revision if isinstance(entry, Events) else None
    return Inbound(0, entry.source, kind, sequence, floor, encoder.encode(entry))


def emptied(data: bytes) -> bytes:
    """Return an encoded entry without its events or filters: only what keeps the exchange in order."""
    entry = decode_entry(data)
    if isinstance(entry, Events):
        entry = msgspec.structs.replace(entry, payload=b"")
    elif isinstance(entry, Interest):
        removed = (msgspec.structs.replace(each, filter=None) for each in entry.filters)
        entry = msgspec.structs.replace(entry, filters=tuple(removed))
    return encoder.encode(entry)


def place_of(entry: Entry) -> str:
    """Return a description of an entry, for the log."""
    if isinstance(entry, Events):
        place = f"{entry.count} events of {entry.source} from offset {entry.offset}"
        return f"{place} in the space {entry.space}"
    return f"filters of {entry.source}" if isinstance(entry, Interest) else type(entry).__name__
