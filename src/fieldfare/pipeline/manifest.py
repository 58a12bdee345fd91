"""What matching must use: for every space the files of its index, and the registry revision they cover.

A manifest is immutable and numbered. As JSON::

    {"format": 2, "number": 7, "revision": 4711,
     "spaces": {"default": {"snapshot": "s-4000.idx", "deltas": ["d-4711.idx"], "closings": null}}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

FORMAT = 2
"""With 1 a version was valid from offset to offset of the log, not from revision to revision."""


@dataclass(frozen=True, slots=True)
class SpaceManifest:
    """The index of one space: a snapshot, the parts added since, and the versions closed since.

    All are names of files of the index store. None: there is no such file, nothing to read.
    """

    snapshot: str | None = None
    deltas: tuple[str, ...] = ()
    closings: str | None = None

    def files(self) -> frozenset[str]:
        """All the files named."""
        return frozenset((*self.deltas, *(name for name in (self.snapshot, self.closings) if name)))


@dataclass(frozen=True, slots=True)
class Manifest:
    """The indexes of all spaces as of one registry revision."""

    number: int
    revision: int
    spaces: Mapping[str, SpaceManifest] = field(default_factory=dict)

    def files(self) -> frozenset[str]:
        """All the files that this manifest needs."""
        return frozenset().union(*(space.files() for space in self.spaces.values()))


class _Encoded(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    number: int
    revision: int
    spaces: dict[str, SpaceManifest]


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as JSON."""
    encoded = _Encoded(FORMAT, manifest.number, manifest.revision, dict(manifest.spaces))
    return msgspec.json.encode(encoded, order="deterministic")


def decode_manifest(data: bytes) -> Manifest:
    """Read a manifest back; ValueError says what is wrong with it."""
    try:
        version = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get("format")
        if version is None or bytes(version) != str(FORMAT).encode():
            raise ValueError(f"a manifest of format {FORMAT} was expected")
        encoded = msgspec.json.decode(data, type=_Encoded)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a manifest: {error}") from error
    return Manifest(encoded.number, encoded.revision, encoded.spaces)
