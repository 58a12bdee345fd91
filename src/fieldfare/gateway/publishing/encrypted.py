"""Validation of events published to an encrypted space: only encrypted events enter its log."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from fieldfare.arrow_events.stream import is_arrow
from fieldfare.filters.encrypted import DIMENSIONS_MAX
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.publishing.events import INLINE_BYTES, DecodedEvents, EventRefusal, Text
from fieldfare.storage.registry import SpaceEncryption

PROTECTION = (
    "Obfuscation of what is matched; only the payload is encrypted. The service sees the order of numbers,"
    " and their values within a few per cent or less if it can guess how they are distributed or knows some;"
    " equal texts; and which events match which filters. Vectors of keys of scheme 1 show values outright."
    " See docs/encrypted-spaces.md."
)
"""Notice in every document of an encrypted space."""

Dimensions = Annotated[
    int,
    Meta(ge=1, le=DIMENSIONS_MAX),
    "Length of the vectors that events and filters are encrypted as; the key file gives it.",
]


class _Data(msgspec.Struct, forbid_unknown_fields=True):
    e: int
    v: str
    c: str
    t: dict[str, str] = {}


class _EncryptedEvent(msgspec.Struct, forbid_unknown_fields=True):
    specversion: str
    id: Text
    source: Text
    type: Literal["fieldfare.aspe.1"]
    data: _Data
    expirytime: str | None = None


_decoder = msgspec.json.Decoder(_EncryptedEvent)


class EncryptionDocument(Struct):
    """How a space is encrypted."""

    library: Annotated[
        str, Meta(extra_json_schema={"enum": ["aspe"]}), "Name of the library of encrypted filters."
    ]
    dimensions: Dimensions
    protection: Annotated[str, "What the encryption protects from, and what it does not."]


class SpaceDocument(Struct, omit_defaults=True):
    """A space as shown to clients."""

    name: Annotated[str, "Name of the space."]
    encryption: Annotated[EncryptionDocument | None, "How the space is encrypted; missing if it is not."] = (
        None
    )


def space_document(name: str, encryption: SpaceEncryption | None) -> SpaceDocument:
    """Return a space as shown to clients."""
    if encryption is None:
        return SpaceDocument(name)
    return SpaceDocument(name, EncryptionDocument(encryption.library, encryption.dimensions, PROTECTION))


async def encrypted_only(decoded: DecodedEvents, encryption: SpaceEncryption) -> DecodedEvents:
    """Keep the encrypted events and refuse the others, without repeating their content.

    Raise HttpProblem 400 for Arrow payloads: the events of an encrypted space are JSON.
    """
    if is_arrow(decoded.payload):
        raise HttpProblem(400, "not-encrypted", "The space is encrypted, and its events are JSON.")
    if len(decoded.payload) <= INLINE_BYTES:
        return _encrypted_only(decoded, encryption)
    return await asyncio.to_thread(_encrypted_only, decoded, encryption)


def _encrypted_only(decoded: DecodedEvents, encryption: SpaceEncryption) -> DecodedEvents:
    characters = (8 * encryption.dimensions + 2) // 3 * 4
    kept, accepted, refused = [], [], list(decoded.refused)
    for index, line in zip(decoded.accepted, decoded.payload.splitlines(), strict=True):
        try:
            problem = (
                None
                if len(_decoder.decode(line).data.v) == characters
                else "its vector was computed with another key"
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
