"""The index files of every space: its slices, its partitioning, and the registry revision that they cover.

A manifest is immutable and numbered. As JSON::

    {"format": 3, "number": 7, "revision": 4711,
     "spaces": {"default": {
         "partitioning": {"kind": "hash", "matchers": 1, "slices": 0}, "slices": [{"matcher": 0, "library":
         "plain", "size": 40003,
                     "snapshot": {"file": "snapshot-5-0.part", "revision": 4000}, "deltas":
                     ["delta-7-0.part"], "closings": null}]}}}

The additional member `checksum` is the CRC-32 of this JSON without `checksum`; manifests of older versions
have none. A slice's number is its index in the list. The manifest, not the partitioning, decides which
matcher holds a slice.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from fieldfare.matching.library import PLAIN_LIBRARY
from fieldfare.partitioning import ONE_SLICE, Partitioning
from fieldfare.partitioning.encoding import EncodedPartitioning, decoded_partitioning, encoded_partitioning

FORMAT = 3
"""The current format. In format 1 a version's validity was a range of log offsets instead of revisions; in
format 2 a space had one index, and the file name contained the snapshot's revision."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A part that contains all versions valid at a registry revision, and the name of its file."""

    file: str
    revision: int


@dataclass(frozen=True, slots=True)
class SliceManifest:
    """The index of one slice: a snapshot, the parts added since, and the versions closed since.

    `snapshot` and `closings` are None if there is no such file. `library` is the name of the filters'
    library, `size` the number of versions.
    """

    matcher: int = 0
    library: str = PLAIN_LIBRARY
    snapshot: Snapshot | None = None
    deltas: tuple[str, ...] = ()
    closings: str | None = None
    size: int = 0

    @property
    def parts(self) -> tuple[str, ...]:
        """The file names of the parts, the snapshot first."""
        return (*((self.snapshot.file,) if self.snapshot else ()), *self.deltas)

    def files(self) -> tuple[str, ...]:
        """Return all file names."""
        return (*self.parts, *((self.closings,) if self.closings else ()))


@dataclass(frozen=True, slots=True)
class SpaceManifest:
    """The slices of one space, and its partitioning, which assigns subscriptions and events to them."""

    slices: tuple[SliceManifest, ...] = (SliceManifest(),)
    partitioning: Partitioning = ONE_SLICE

    @property
    def matchers(self) -> int:
        """The number of matchers that hold the space; 1 for a single slice, whatever its matcher's number."""
        return 1 + max(part.matcher for part in self.slices) if len(self.slices) > 1 else 1

    def files(self) -> frozenset[str]:
        """Return all file names."""
        return frozenset(name for part in self.slices for name in part.files())


@dataclass(frozen=True, slots=True)
class Manifest:
    """The indexes of all spaces at one registry revision."""

    number: int
    revision: int
    spaces: Mapping[str, SpaceManifest] = field(default_factory=dict)

    def files(self) -> frozenset[str]:
        """Return all file names."""
        return frozenset().union(*(space.files() for space in self.spaces.values()))

    @property
    def matchers(self) -> int:
        """The number of matchers that the manifest needs."""
        return max((space.matchers for space in self.spaces.values()), default=1)

    @property
    def snapshot_revision(self) -> int:
        """The oldest registry revision of the snapshots; 0 without snapshots."""
        slices = (part for space in self.spaces.values() for part in space.slices)
        return min((part.snapshot.revision for part in slices if part.snapshot), default=0)


class _EncodedSpace(msgspec.Struct, forbid_unknown_fields=True):
    partitioning: EncodedPartitioning
    slices: tuple[SliceManifest, ...]


class _Encoded(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    format: int
    number: int
    revision: int
    spaces: dict[str, _EncodedSpace]
    checksum: int | None = None


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode the manifest as JSON."""
    spaces = {
        name: _EncodedSpace(encoded_partitioning(space.partitioning), space.slices)
        for name, space in manifest.spaces.items()
    }
    encoded = _Encoded(FORMAT, manifest.number, manifest.revision, spaces)
    encoded.checksum = _checksum(encoded)
    return msgspec.json.encode(encoded, order="deterministic")


def _checksum(encoded: _Encoded) -> int:
    """The CRC-32 of a manifest's JSON without its `checksum`."""
    without = msgspec.structs.replace(encoded, checksum=None)
    return zlib.crc32(msgspec.json.encode(without, order="deterministic"))


def decode_manifest(data: bytes) -> Manifest:
    """Decode a manifest. Raise ValueError if it is invalid."""
    try:
        version = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get("format")
        if version is None or bytes(version) != str(FORMAT).encode():
            raise ValueError(f"a manifest must have format {FORMAT}")
        encoded = msgspec.json.decode(data, type=_Encoded)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a manifest: {error}") from error
    if encoded.checksum not in (None, _checksum(encoded)):
        raise ValueError("the manifest is corrupt: its checksum does not match")
    return Manifest(
        encoded.number,
        encoded.revision,
        {name: _decoded_space(name, space) for name, space in encoded.spaces.items()},
    )


def _decoded_space(name: str, encoded: _EncodedSpace) -> SpaceManifest:
    try:
        partitioning = decoded_partitioning(encoded.partitioning)
    except ValueError as error:
        raise ValueError(f"not a manifest: space {name}: {error}") from error
    if len(partitioning.slices) != len(encoded.slices):
        raise ValueError(
            f"not a manifest: space {name} is cut into {len(partitioning.slices)} slices,"
            f" and {len(encoded.slices)} are listed"
        )
    return SpaceManifest(encoded.slices, partitioning)
