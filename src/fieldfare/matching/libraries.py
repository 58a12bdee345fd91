"""The available libraries, by name."""

from __future__ import annotations

from collections.abc import Mapping

from fieldfare.matching.aspe.library import AspeLibrary
from fieldfare.matching.library import Library
from fieldfare.matching.plain.library import PlainLibrary

PLAIN: Library = PlainLibrary()
ASPE: Library = AspeLibrary(PLAIN)
LIBRARIES: Mapping[str, Library] = {library.name: library for library in (PLAIN, ASPE)}


def library_of(dialect: str | None) -> Library:
    """Return the library for filters of a dialect. The service ensures that a space uses a single library."""
    return ASPE if dialect == ASPE.name else PLAIN
