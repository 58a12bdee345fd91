"""Events of an encrypted space: nothing that is not encrypted gets into its log."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import msgspec

from fieldfare.arrow_events.stream import is_arrow
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.publishing.events import DecodedEvents, EventRefusal, Text
from fieldfare.storage.registry import SpaceEncryption

INLINE_BYTES = 64 << 10
"""More is looked at on a thread."""

PROTECTION = (
    "Obfuscation against a curious service that knows no plaintexts. It sees which events match which"
    " filters, equal texts, and, with time, the order of numbers; who knows a few events beside their"
    " vectors reads the numbers of all. See docs/encrypted-spaces.md."
)
"""What is said of an encrypted space wherever one is shown."""


class _Data(msgspec.Struct, forbid_unknown_fields=True):
    e: int
    v: str
    c: str
    t: dict[str, str] = {}


class _Sealed(msgspec.Struct, forbid_unknown_fields=True):
    specversion: str
    id: Text
    source: Text
    type: Literal["fieldfare.aspe.1"]
    data: _Data
    expirytime: str | None = None


_decoder = msgspec.json.Decoder(_Sealed)


def space_document(name: str, encryption: SpaceEncryption | None) -> dict[str, Any]:
    """A space as clients are told of it."""
    if encryption is None:
        return {"name": name}
    said = {"library": encryption.library, "dimensions": encryption.dimensions, "protection": PROTECTION}
    return {"name": name, "encryption": said}


async def sealed_only(decoded: DecodedEvents, encryption: SpaceEncryption) -> DecodedEvents:
    """The events that are encrypted; the others are refused, and nothing of them is repeated."""
    if is_arrow(decoded.payload):
        raise HttpProblem(400, "not-encrypted", "The space is encrypted, and its events are JSON.")
    if len(decoded.payload) <= INLINE_BYTES:
        return _sealed_only(decoded, encryption)
    return await asyncio.to_thread(_sealed_only, decoded, encryption)


def _sealed_only(decoded: DecodedEvents, encryption: SpaceEncryption) -> DecodedEvents:
    characters = (8 * encryption.dimensions + 2) // 3 * 4
    kept, accepted, refused = [], [], list(decoded.refused)
    for index, line in zip(decoded.accepted, decoded.payload.splitlines(), strict=True):
        try:
            problem = (
                None if len(_decoder.decode(line).data.v) == characters else "its vector is of another key"
            )
        except (msgspec.DecodeError, UnicodeDecodeError):
            problem = "it is not"
        if problem is None:
            kept.append(line)
            accepted.append(index)
        else:
            refused.append(
                EventRefusal(index, f"the events of this space are encrypted with its key, and {problem}")
            )
    if len(kept) == decoded.count:
        return decoded
    payload = b"\n".join([*kept, b""]) if kept else b""
    return DecodedEvents(payload, accepted, tuple(sorted(refused, key=lambda each: each.index)))
