"""The filters of links: which events may be sent to a neighbour, for subscribers there or behind it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec

from fieldfare.filters import Filter, FilterError, compile_filter
from fieldfare.gateway.federation.wire import Events, decode_entry, encoder
from fieldfare.storage.errors import FormatError

_event = msgspec.json.Decoder(dict)


def read_link_filters(path: Path | None, peers: Collection[str]) -> Mapping[str, Filter]:
    """Return the filters in a file, one a line after the neighbour's name, by neighbour.

    Raises
    ------
    FormatError
        The file cannot be read, or a line has no known neighbour or no filter: its number is named.
    """
    found: dict[str, Filter] = {}
    try:
        lines = [] if path is None else path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, _, text = line.strip().partition(" ")
        if name not in peers or name in found:
            reason = (
                "has a filter already"
                if name in found
                else f"is not a neighbour; the neighbours are {sorted(peers)}"
            )
            raise FormatError(f"{path}, line {number}: {name!r:.80} {reason}")
        try:
            found[name] = compile_filter(text.strip())
        except FilterError as error:
            raise FormatError(f"{path}, line {number}: {error}") from None
    return found


def permitted(data: bytes, filter: Filter) -> tuple[bytes, int]:
    """Return an encoded entry with the events that a link's filter matches, and the number of the others.

    An entry without events is sent, too: it keeps the exchange in order.
    """
    # A relay without filters of links need not load Arrow.
    import pyarrow as pa

    from fieldfare.arrow_events.json_text import json_lines
    from fieldfare.arrow_events.stream import is_arrow, read_events, write_events

    entry = decode_entry(data)
    if not isinstance(entry, Events) or not entry.payload:
        return data, 0
    table = read_events(entry.payload) if is_arrow(entry.payload) else None
    lines = [line for line in entry.payload.split(b"\n") if line] if table is None else json_lines(table)
    chosen = [index for index, line in enumerate(lines) if filter.matches(_event.decode(line))]
    if len(chosen) == len(lines):
        return data, 0
    if not chosen:
        payload = b""
    elif table is None:
        payload = b"\n".join([*map(lines.__getitem__, chosen), b""])
    else:
        payload = bytes(write_events(table.take(pa.array(chosen, pa.int64()))))
    changed = msgspec.structs.replace(entry, payload=payload, count=len(chosen) or entry.count)
    return encoder.encode(changed), len(lines) - len(chosen)
