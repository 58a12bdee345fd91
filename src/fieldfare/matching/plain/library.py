"""The library `plain`: filters that the service can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters import compile_filter
from fieldfare.filters.encoding import encode_normal_form
from fieldfare.matching.files import read_only
from fieldfare.matching.library import PLAIN_LIBRARY, Indexed
from fieldfare.matching.plain.building.arrays import Material, build_arrays, prepare
from fieldfare.matching.plain.building.derived import with_columns
from fieldfare.matching.plain.building.gathering import Gatherer
from fieldfare.matching.plain.index import PlainIndex
from fieldfare.matching.plain.kept import CompileFilter
from fieldfare.matching.plain.layout import Arrays


@dataclass(frozen=True, slots=True)
class PlainLibrary:
    """Filters of all dialects, indexed by their normal forms; see ``library.Library``.

    Attributes
    ----------
    compile_filter
        Compiles a filter from its text and dialect.
    """

    compile_filter: CompileFilter = compile_filter
    name: str = PLAIN_LIBRARY

    def compile(self, text: str, dialect: str) -> bytes:
        """See ``library.Library``."""
        compiled: bytes = self.compile_filter(text, dialect).compiled
        return compiled

    def builder(self) -> PlainBuilder:
        """See ``library.Library``."""
        return PlainBuilder(self.compile_filter)

    def open(self, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> PlainIndex:
        """See ``library.Library``."""
        return PlainIndex.open(meta, arrays, self.compile_filter)


class PlainBuilder:
    """A builder of a `PlainIndex`, which stores the added filters as arrays only. See ``library.Builder``."""

    def __init__(self, compile_filter: CompileFilter) -> None:
        self._compile_filter = compile_filter
        self._gatherer = Gatherer()
        self._filters: list[tuple[int, str, str]] = []

    def add(self, filters: Sequence[Indexed]) -> None:
        """See ``library.Builder``."""
        forms = [
            form if isinstance(form, bytes) else encode_normal_form(form)
            for form in [filter.compiled for filter in filters]
        ]
        base = self._gatherer.size
        for i in self._gatherer.add(forms).tolist():
            self._filters.append((base + i, filters[i].text, filters[i].dialect))

    def finish(self, order: NDArray[np.int64]) -> PlainIndex:
        """See ``library.Builder``."""
        return index_of(self._gathered().in_order(order), self._compile_filter)

    def _gathered(self) -> Material:
        gatherer, self._gatherer = self._gatherer, Gatherer()
        return Material(*gatherer.finish(), self._filters)


def index_of(material: Material, compile_filter: CompileFilter) -> PlainIndex:
    """Build an index of the gathered filters."""
    material = with_columns(material)
    prepared = prepare(material)
    del material  # frees memory that a large index needs
    indexed, further, arrays = build_arrays(prepared, compile_filter)
    groups: dict[str, Any] = arrays._asdict()
    frozen = Arrays(**{name: type(group)(*map(read_only, group)) for name, group in groups.items()})
    return PlainIndex(indexed, further, frozen, compile_filter)
