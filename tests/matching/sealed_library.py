"""`aspe` for suites of plain filters and events: it encrypts what they give it, with a key of its own.

What a suite draws that cannot be encrypted is drawn again (`drawn_for`); what events become on the wire says
`as_sent`. So the suites hold for it that say what parts, deltas and manifests do, whatever their library is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import msgspec
import pytest
from naive_library import BOTH
from numpy.typing import NDArray

from fieldfare.client.encryption import EncryptionError, SpaceKey
from fieldfare.client.records import NewSubscription
from fieldfare.filters.encrypted import ENCRYPTED, compile_encrypted
from fieldfare.matching.libraries import ASPE
from fieldfare.matching.library import Builder, FilterIndex, Indexed, Library

KEY = SpaceKey.generate({"data.x": (-10, 10, "0.5"), "data.y": (-10, 10, "0.5")}, ["data.word"])


@dataclass(frozen=True)
class Sealed:
    """A filter as it is sent."""

    text: str
    compiled: bytes
    dialect: str = ENCRYPTED


@cache
def sealed(text: str) -> Sealed:
    found = KEY.seal_filter(NewSubscription(text)).filter
    return Sealed(found, compile_encrypted(found).compiled)


@dataclass(frozen=True)
class SealingLibrary:
    name: str = ENCRYPTED

    def compile(self, text: str, dialect: str) -> bytes:
        return sealed(text).compiled

    def builder(self) -> SealingBuilder:
        return SealingBuilder(ASPE.builder())

    def open(self, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> FilterIndex:
        return ASPE.open(meta, arrays)


@dataclass
class SealingBuilder:
    of_sealed: Builder

    def add(self, filters: Sequence[Indexed]) -> None:
        self.of_sealed.add([sealed(each.text) for each in filters])

    def finish(self, order: NDArray[Any]) -> FilterIndex:
        return self.of_sealed.finish(order)


SEALING: Library = SealingLibrary()
ALL: Mapping[str, Library] = {**BOTH, SEALING.name: SEALING}
every_library = pytest.mark.parametrize("library", ALL.values(), ids=ALL)
"""For tests that draw their filters with `drawn_for`, and send their events `as_sent`."""

Drawn = TypeVar("Drawn", str, dict[str, Any])


def drawn_for(library: Library, draw: Callable[[], Drawn]) -> Drawn:
    """A filter or an event that the library's space can hold."""
    while True:
        found = draw()
        try:
            if library is SEALING:
                sealed(found) if isinstance(found, str) else as_sent(library, msgspec.json.encode(found))
        except EncryptionError:
            continue
        return found


def as_sent(library: Library, lines: bytes) -> bytes:
    """Events, a line of JSON each, as the log of such a space has them."""
    if library is not SEALING:
        return lines
    return b"".join(line + b"\n" for line in KEY.seal_lines(lines.splitlines()))
