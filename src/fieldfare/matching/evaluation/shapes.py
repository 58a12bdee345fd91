"""Evaluation of filters that differ in their constants only, together.

The *shape* of an expression is the expression with each constant replaced by a parameter. Most filters of a
service are written by few programs, so there are few shapes. Pairs of events and filters are evaluated over
rows that have the constants of their own filter as additional columns: the cost of each kernel call, which a
filter with few candidates would pay alone, is shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import cached_property
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from fieldfare.filters.expression import (
    Attribute,
    Comparison,
    Expression,
    In,
    Like,
    Literal,
    Scalar,
    Wild,
    with_parts,
)
from fieldfare.matching.evaluation.compiler import CHUNK_ROWS, condition_of, expanded
from fieldfare.matching.evaluation.conditions import Condition
from fieldfare.matching.evaluation.operands import constants, joined
from fieldfare.matching.evaluation.tables import frozen
from fieldfare.matching.evaluation.texts import ONE, pieces_as_arrays, pieces_of
from fieldfare.matching.evaluation.truth import TRUE
from fieldfare.matching.evaluation.view import PARAMETER, Part, PieceParameter, Pieces, Rows, Values, View
from fieldfare.matching.events.columns import ColumnBatch
from fieldfare.model import Path

_ITEMS_MAX = 16
"""Maximum items of an IN that become parameters; a longer list stays constant, and is looked up in a
table."""


Constant: TypeAlias = "Scalar | bytes"
"""A difference between filters of one shape: a value, or a piece of a pattern as bytes."""


def shape_of(expression: Expression) -> tuple[Expression, tuple[Constant, ...]]:
    """Return an expression's shape, and its constants."""
    found: list[Constant] = []

    def change(e: Expression) -> Expression:
        if isinstance(e, Literal):
            if isinstance(e.value, bool) or not isinstance(e.value, int | Decimal | str):
                return e
            found.append(e.value)
            return Attribute((PARAMETER, len(found) - 1))
        if isinstance(e, In) and len(e.items) > _ITEMS_MAX:
            return e
        return like(e) if isinstance(e, Like) else with_parts(e, change)

    def like(e: Like) -> Expression:
        operand = change(e.operand)
        if not e.pattern or (len(e.pattern) == 1 and isinstance(e.pattern[0], str)):
            return Comparison("=", operand, change(Literal(str(e.pattern[0]) if e.pattern else "")))
        pieces = pieces_of(e.pattern)
        if pieces is None:
            return Like(operand, e.pattern)
        parts: list[Any] = []
        for piece in pieces:
            assert isinstance(piece, bytes)
            if piece.strip(ONE):
                parts.append(PieceParameter(len(found), ONE in piece))
                found.append(piece)
            else:
                parts += [Wild.ONE] * len(piece)
            parts.append(Wild.RUN)
        return Like(operand, tuple(parts[:-1]))

    return change(expanded(expression)), tuple(found)


class Shape:
    """The filters of one shape: their constants, and their common condition."""

    def __init__(self, expression: Expression) -> None:
        self._expression = expression
        self._rows: list[tuple[Constant, ...]] = []
        self._parameters: dict[int, Values] = {}
        self._pieces: dict[tuple[Part, ...], Pieces] = {}

    def __len__(self) -> int:
        return len(self._rows)

    @cached_property
    def condition(self) -> Condition:
        """The compiled condition, made on first use: compiling takes longer than a few evaluations in
        Python."""
        return condition_of(self._expression)

    def add(self, given: tuple[Constant, ...]) -> int:
        """Add a filter's constants; return its number."""
        self._rows.append(given)
        self._pieces.clear()
        return len(self._rows) - 1

    def parameter(self, number: int) -> Values:
        """Return the constants of all filters for one parameter."""
        known = self._parameters.get(number)
        count = len(known.kinds) if known is not None else 0
        if known is None or count < len(self._rows):
            new = constants([cast("Scalar", row[number]) for row in self._rows[count:]], 1)
            known = self._parameters[number] = joined(known, new) if known is not None else new
        return known

    def pieces(self, parts: Sequence[Part]) -> Pieces:
        """Return the pieces of a pattern for all filters."""
        key = tuple(parts)
        known = self._pieces.get(key)
        if known is None:
            patterns = [
                [part if isinstance(part, bytes) else cast("bytes", row[part.number]) for part in parts]
                for row in self._rows
            ]
            known = self._pieces[key] = pieces_as_arrays(patterns)
        return known

    def matches(
        self, batch: ColumnBatch, events: Rows, filters: Rows
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return whether each event matches its filter, and where that is unknown and Python must evaluate
        it.

        Parameters
        ----------
        events : int64[n]
            Indices into the batch.
        filters : int64[n]
            Numbers of filters as returned by `add`.
        """
        matches, doubtful = np.zeros(len(events), bool), np.zeros(len(events), bool)
        for start in range(0, len(events), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            places = np.arange(start, min(start + CHUNK_ROWS, len(events)))
            view = _PairView(self, batch, events[part], filters[part], places, doubtful)
            matches[part] = self.condition.truths(view, False) == TRUE
        return matches, doubtful


class _PairView(View):
    """Rows that are pairs of an event and a filter of one shape.

    Rows that only Python can decide are marked as doubtful; then the filter itself is evaluated, not its
    shape.
    """

    __slots__ = ("doubtful", "filters", "places", "shape")

    def __init__(
        self,
        shape: Shape,
        batch: ColumnBatch,
        events: Rows,
        filters: Rows,
        places: Rows,
        doubtful: NDArray[np.bool_],
    ) -> None:
        super().__init__(batch, events)
        self.shape = shape
        self.filters = filters
        self.places = places
        self.doubtful = doubtful

    def operand(self, path: Path) -> Values:
        if not path or path[0] is not PARAMETER:
            return super().operand(path)
        given = self.shape.parameter(int(path[1]))
        kinds, words = frozen(given.kinds.take(self.filters)), frozen(given.words.take(self.filters))
        return Values(kinds, words, frozen(given.seconds.take(self.filters)), given.text, 1)

    def knows(self, paths: Iterable[Path]) -> bool:
        return super().knows(path for path in paths if not path or path[0] is not PARAMETER)

    def pieces(self, fixed: Pieces, parts: Sequence[Part]) -> Pieces:
        pieces = self.shape.pieces(parts)
        return Pieces(pieces.text, pieces.starts, frozen(self.filters.view()), 1)

    def doubts(self, rows: Rows | slice) -> bool:
        self.doubtful[self.places[rows]] = True
        return True

    def take(self, rows: Rows) -> View:
        events: Any = self.rows
        places, doubtful = self.places[rows], self.doubtful
        view = _PairView(self.shape, self.batch, events[rows], self.filters[rows], places, doubtful)
        view.parent = (self, rows)
        return view
