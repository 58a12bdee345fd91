"""The library `aspe` for tests of plain filters and events, which it encrypts with its own key.

Tests redraw filters and events that cannot be encrypted (`drawn_for`) and encrypt events with `as_sent`.
Tests of parts, deltas and manifests, which hold for every library, thus run for this one, too.
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
class Encrypted:
    """A filter as sent to the service."""

    text: str
    compiled: bytes
    dialect: str = ENCRYPTED


@cache
def encrypt(text: str) -> Encrypted:
    found = KEY.seal_filter(NewSubscription(text)).filter
    return Encrypted(found, compile_encrypted(found).compiled)


@dataclass(frozen=True)
class SealingLibrary:
    name: str = ENCRYPTED

    def compile(self, text: str, dialect: str) -> bytes:
        return encrypt(text).compiled

    def builder(self) -> SealingBuilder:
        return SealingBuilder(ASPE.builder())

    def open(self, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> FilterIndex:
        return ASPE.open(meta, arrays)


@dataclass
class SealingBuilder:
    of_encrypted: Builder

    def add(self, filters: Sequence[Indexed]) -> None:
        self.of_encrypted.add([encrypt(each.text) for each in filters])

    def finish(self, order: NDArray[Any]) -> FilterIndex:
        return self.of_encrypted.finish(order)


SEALING: Library = SealingLibrary()
ALL: Mapping[str, Library] = {**BOTH, SEALING.name: SEALING}
every_library = pytest.mark.parametrize("library", ALL.values(), ids=ALL)
"""Parametrize tests that draw filters with `drawn_for` and send events `as_sent`."""

Drawn = TypeVar("Drawn", str, dict[str, Any])


def drawn_for(library: Library, draw: Callable[[], Drawn]) -> Drawn:
    """Draw until a filter or an event can be encrypted for the library's space."""
    while True:
        found = draw()
        try:
            if library is SEALING:
                encrypt(found) if isinstance(found, str) else as_sent(library, msgspec.json.encode(found))
        except EncryptionError:
            continue
        return found


def as_sent(library: Library, lines: bytes) -> bytes:
    """Events as the log of an encrypted space stores them, one JSON object per line."""
    if library is not SEALING:
        return lines
    return b"".join(line + b"\n" for line in KEY.seal_lines(lines.splitlines()))
