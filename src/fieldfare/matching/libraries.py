"""The libraries that there are, by name."""

from __future__ import annotations

from collections.abc import Mapping

from fieldfare.matching.library import Library
from fieldfare.matching.plain.library import PlainLibrary

PLAIN: Library = PlainLibrary()
LIBRARIES: Mapping[str, Library] = {PLAIN.name: PLAIN}
