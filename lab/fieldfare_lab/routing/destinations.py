"""Destination lists as compressed bitmaps: at most 130 bytes for 1,000 brokers.

The brokers of a cluster are numbered in the order of their names, as the sender's TRT has them; their links
do not matter. TRTs become equal by themselves, so numberings are not negotiated: a tag tells the receiver
whether it has the sender's. It tries its present numbering and the latest earlier ones. While brokers join or
are removed, none may fit; then the receiver does not accept the entry, and the sender repeats it with names.

    head   5 bytes: 1 bit for the form of the body, 39 bits of the tag
    body   one bit for each broker, the first broker's highest; or, if that is shorter, lengths of runs:
           brokers left out, brokers listed, brokers left out, ...

The tag is a keyed digest of the body and of the entry's place on its link; the numbering is the key. So no
broker can choose a name in advance such that another's entry fits two numberings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from fieldfare.routing.messages import BROKERS_MAX
from fieldfare.routing.overlay import Overlay

HEAD_BYTES = 5
BITMAP_BYTES_MAX = HEAD_BYTES + BROKERS_MAX // 8
"""Maximum bytes of a destination list's bitmap; a longer one is refused."""

NUMBERINGS_MAX = 4
"""Maximum numberings of a cluster's brokers that are kept for lists on their way."""

_RUNS = 0x80


@dataclass(frozen=True, slots=True)
class Numbering:
    """The brokers of a cluster in the order of their names."""

    names: tuple[str, ...]
    _numbers: dict[str, int] = field(init=False, repr=False, compare=False)
    _key: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_numbers", {name: number for number, name in enumerate(self.names)})
        digest = blake2b(repr(self.names).encode("utf-8", "surrogatepass"))
        object.__setattr__(self, "_key", digest.digest())

    def encode(self, session: int, number: int, destinations: Iterable[str]) -> bytes | None:
        """Return the bitmap of the destinations of a link's entry; None if one of them has no number."""
        try:
            numbers = sorted([self._numbers[name] for name in destinations])
        except KeyError:
            return None
        runs = _runs(numbers, self._bits_bytes)
        if len(runs) < self._bits_bytes:
            return self._head(session, number, _RUNS, runs) + runs
        bits = self._bits(numbers)
        return self._head(session, number, 0, bits) + bits

    def fits(self, session: int, number: int, bitmap: bytes) -> bool:
        """Return whether a bitmap was made with this numbering, for this entry."""
        head, body = bitmap[:HEAD_BYTES], bitmap[HEAD_BYTES:]
        return bool(head) and head == self._head(session, number, head[0] & _RUNS, body)

    def decode(self, bitmap: bytes) -> tuple[str, ...] | None:
        """Return the destinations of a bitmap that fits; None if it is not valid."""
        count, body = len(self.names), bitmap[HEAD_BYTES:]
        if bitmap[0] & _RUNS:
            numbers = _numbers_of_runs(body, count) if len(body) < self._bits_bytes else None
            if numbers is None or _runs(numbers, self._bits_bytes) != body:
                return None
            return tuple([self.names[each] for each in numbers])
        bits = f"{int.from_bytes(body):0{8 * len(body)}b}"
        if len(body) != self._bits_bytes or "1" in bits[count:]:
            return None
        return tuple([name for name, bit in zip(self.names, bits, strict=False) if bit == "1"])

    @property
    def _bits_bytes(self) -> int:
        return (len(self.names) + 7) // 8

    def _bits(self, numbers: Sequence[int]) -> bytes:
        found = bytearray(self._bits_bytes)
        for number in numbers:
            found[number >> 3] |= 0x80 >> (number & 7)
        return bytes(found)

    def _head(self, session: int, number: int, runs: int, body: bytes) -> bytes:
        place = f"{session} {number} {runs} ".encode()
        tag = bytearray(blake2b(place + body, digest_size=HEAD_BYTES, key=self._key).digest())
        tag[0] = tag[0] & ~_RUNS | runs
        return bytes(tag)


@dataclass(slots=True)
class Numberings:
    """The numbering of a cluster's present brokers, and some earlier ones, the latest first."""

    kept: list[Numbering] = field(default_factory=list)
    _digest: str = ""

    def of(self, overlay: Overlay) -> list[Numbering]:
        """Return them as of now."""
        if overlay.digest() != self._digest:
            self._digest = overlay.digest()
            names = tuple(overlay.members())
            if not self.kept or self.kept[0].names != names:
                self.kept.insert(0, Numbering(names))
                del self.kept[NUMBERINGS_MAX:]
        return self.kept


def _runs(numbers: Sequence[int], bytes_max: int) -> bytes:
    """Return the lengths of the runs that sorted numbers make; not all of them if they take `bytes_max`."""
    found = bytearray()
    end = place = 0
    while place < len(numbers) and len(found) < bytes_max:
        begin, first = numbers[place], place
        while place < len(numbers) and numbers[place] - begin == place - first:
            place += 1
        for length in (begin - end, place - first):
            while length >= 0x80:
                found.append(length & 0x7F | 0x80)
                length >>= 7
            found.append(length)
        end = begin + place - first
    return bytes(found)


def _numbers_of_runs(body: bytes, count: int) -> list[int] | None:
    """Return the numbers of runs; None if they go beyond the numbered brokers."""
    numbers: list[int] = []
    end, is_listed = 0, False
    for length in _integers(body):
        if length > count - end:
            return None
        if is_listed:
            numbers.extend(range(end, end + length))
        end, is_listed = end + length, not is_listed
    return numbers


def _integers(body: bytes) -> Iterator[int]:
    """Yield integers of 7 bits a byte, the low ones first."""
    value = shift = 0
    for byte in body:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0
