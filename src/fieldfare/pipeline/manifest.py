"""What matching must use: for every space its slices, how they were cut, and the revision that they cover.

A manifest is immutable and numbered. As JSON::

    {"format": 3, "number": 7, "revision": 4711,
     "spaces": {"default": {
         "partitioning": {"kind": "hash", "matchers": 1, "slices": 0},
         "slices": [{"matcher": 0, "library": "plain", "size": 40003,
                     "snapshot": {"file": "snapshot-5-0.part", "revision": 4000},
                     "deltas": ["delta-7-0.part"], "closings": null}]}}}

A slice's number is its place. Which matcher holds it is said here, whatever the partitioning proposed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from fieldfare.matching.libraries import PLAIN
from fieldfare.partitioning import ONE_SLICE, Partitioning
from fieldfare.partitioning.encoding import EncodedPartitioning, decoded_partitioning, encoded_partitioning

FORMAT = 3
"""With 1 a version was valid from offset to offset of the log, not from revision to revision; with 2 a space
had one index, and the revision of its snapshot stood in the file's name."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A part that holds all versions as of a registry revision, and the file that it is in."""

    file: str
    revision: int


@dataclass(frozen=True, slots=True)
class SliceManifest:
    """The index of one slice: a snapshot, the parts added since, and the versions closed since.

    `snapshot` and `closings` may be None: there is no such file, nothing to read. `library` is the name of
    its filters' library, `size` how many versions it holds.
    """

    matcher: int = 0
    library: str = PLAIN.name
    snapshot: Snapshot | None = None
    deltas: tuple[str, ...] = ()
    closings: str | None = None
    size: int = 0

    @property
    def parts(self) -> tuple[str, ...]:
        """The files of its parts, the snapshot's first."""
        return (*((self.snapshot.file,) if self.snapshot else ()), *self.deltas)

    def files(self) -> tuple[str, ...]:
        """All the files named."""
        return (*self.parts, *((self.closings,) if self.closings else ()))


@dataclass(frozen=True, slots=True)
class SpaceManifest:
    """The slices of one space, and what says which of them hold a subscription and which an event visits."""

    slices: tuple[SliceManifest, ...] = (SliceManifest(),)
    partitioning: Partitioning = ONE_SLICE

    @property
    def matchers(self) -> int:
        """How many matchers it is held at: 1 where there is one slice, whoever is to hold that."""
        return 1 + max(part.matcher for part in self.slices) if len(self.slices) > 1 else 1

    def files(self) -> frozenset[str]:
        """All the files named."""
        return frozenset(name for part in self.slices for name in part.files())


@dataclass(frozen=True, slots=True)
class Manifest:
    """The indexes of all spaces as of one registry revision."""

    number: int
    revision: int
    spaces: Mapping[str, SpaceManifest] = field(default_factory=dict)

    def files(self) -> frozenset[str]:
        """All the files that this manifest needs."""
        return frozenset().union(*(space.files() for space in self.spaces.values()))

    @property
    def matchers(self) -> int:
        """How many matchers it takes."""
        return max((space.matchers for space in self.spaces.values()), default=1)

    @property
    def snapshot_revision(self) -> int:
        """The registry revision that all snapshots were built from, or later ones; 0 when there is none."""
        slices = (part for space in self.spaces.values() for part in space.slices)
        return min((part.snapshot.revision for part in slices if part.snapshot), default=0)


class _EncodedSpace(msgspec.Struct, forbid_unknown_fields=True):
    partitioning: EncodedPartitioning
    slices: tuple[SliceManifest, ...]


class _Encoded(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    number: int
    revision: int
    spaces: dict[str, _EncodedSpace]


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as JSON."""
    spaces = {
        name: _EncodedSpace(encoded_partitioning(space.partitioning), space.slices)
        for name, space in manifest.spaces.items()
    }
    encoded = _Encoded(FORMAT, manifest.number, manifest.revision, spaces)
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
