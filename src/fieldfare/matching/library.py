"""The library interface: how one kind of filter is compiled, indexed and searched.

    text ─▶ Library.compile ─▶ bytes, in the registry
    bytes ─▶ Builder ─▶ FilterIndex ─┬▶ find ─▶ candidates ─▶ (validity, limits) ─▶ confirm ─▶ matches
                                     └▶ arrays and meta, in a file ─▶ Library.open

A library identifies filters by their *place*, 0 to n - 1, and events by columns. It does not know which
version of which subscription is at a place, for which records that version is valid, whether it has ended,
how many parts there are, when they are rebuilt, or how their files are written. All this is common to all
libraries: ``versions``, ``part``, ``index``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.work import Work
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.matching.pairs import IN_NO_TILES
from fieldfare.model import Path

if TYPE_CHECKING:
    from fieldfare.filters import NormalForm


PLAIN_LIBRARY = "plain"
"""The name of the library of filters that are not encrypted."""


class TooManyPairs(Exception):
    """A window of events has more pairs than allowed. Retry with fewer events."""


class Candidates(NamedTuple):
    """Pairs of an event and a filter, in any order; may contain duplicates."""

    pairs: NDArray[np.int32]
    """int32[k, 2]: an event, counted from the first requested one, and the place of a matching filter; or
    ~place if the filter must still be evaluated by `confirm`; or a run of matching events (``grouping``).
    Writable."""
    tile_ends: NDArray[np.int64] = IN_NO_TILES
    """The end of each tile's slots, if slots are grouped by tiles, which contain the same filters for every
    batch of events. Slots without a tile come before the first. Empty: no tiles."""


class Indexed(Protocol):
    """A filter to be indexed."""

    @property
    def compiled(self) -> NormalForm | bytes:
        """The result of `Library.compile`."""

    @property
    def text(self) -> str: ...

    @property
    def dialect(self) -> str: ...


class Chosen(Protocol):
    """The structure that a library chose for a filter or a piece of one; ``str()`` gives the text."""

    def document(self) -> dict[str, Any]:
        """Return the choice as JSON."""


class SearchExplanation(Protocol):
    """The structures that a library chose for the filters of an index."""

    @property
    def size_bytes(self) -> Mapping[str, int]:
        """The size of all arrays, by purpose."""

    def lines(self) -> list[str]:
        """Return lines of text: a summary first, then details."""

    def document(self) -> dict[str, Any]:
        """Return the explanation as JSON, without the sizes."""


class FilterIndex(Protocol):
    """n indexed filters; immutable, and safe for use in several threads."""

    @property
    def paths(self) -> tuple[Path, ...]:
        """The attributes that a batch of events must have as columns, if any event has them."""

    @property
    def width(self) -> int:
        """The number of attributes that `find` reads per event; bounds the number of events per call."""

    @property
    def confirms(self) -> bool:
        """Whether some filters must be evaluated after `find`."""

    def find(self, columns: ColumnBatch, start: int, end: int, most: int) -> Candidates:
        """Return the pairs of the events [start, end) and the filters that they match or may match.

        A filter with a nonzero entry in `works` must be a candidate exactly where its normal form may hold,
        because which filters exceed the work limit (``work_limits``) must not depend on the library. Raises
        TooManyPairs if there are more than `most` pairs.
        """

    def works(self, places: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return for each of k filters the number of its `work`, or 0 if confirming it is always cheap."""

    def work(self, number: int) -> Work:
        """Return the work that a number from `works` identifies."""

    def confirm(
        self, columns: ColumnBatch, events: NDArray[np.int64], places: NDArray[np.int32]
    ) -> NDArray[np.bool_]:
        """Evaluate filters: whether events[i], an index into the batch, matches the filter at places[i]:
        bool[k]."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays that `Library.open` needs, by name: ``group.field``."""

    def meta(self) -> dict[str, Any]:
        """Return the other data that `Library.open` needs, as JSON."""

    def explain(self) -> SearchExplanation:
        """Return the structures chosen for the filters."""

    def explain_filter(self, place: int) -> tuple[Chosen, ...]:
        """Return the structure chosen for each piece of a filter; empty if no event can match it."""


class Builder(Protocol):
    """A builder of a `FilterIndex`: `add` filters in batches, then `finish`."""

    def add(self, filters: Sequence[Indexed]) -> None:
        """Add filters. Raise ValueError if a compiled form is invalid."""

    def finish(self, order: NDArray[np.int64]) -> FilterIndex:
        """Return the index. The filter at place i is the one added as number ``order[i]``. Call once."""


class Library(Protocol):
    """A kind of filter: how it is compiled, indexed and searched."""

    @property
    def name(self) -> str:
        """The library's name in files and manifests."""

    def compile(self, text: str, dialect: str) -> bytes:
        """Return the compiled form that the registry stores beside the text. Raise FilterError for an invalid
        filter."""

    def builder(self) -> Builder:
        """Return an empty builder."""

    def open(self, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> FilterIndex:
        """Open an index from the output of its `meta` and `arrays`; other arrays are ignored."""
