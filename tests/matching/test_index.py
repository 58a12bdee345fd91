"""An index with changes at any time matches every event like a replay of its history."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Any

import matching_support as support
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from matching_support import Compiler, NormalForm, columns_of, entry, matches_of
from naive_library import each_kind
from tests.doses import drawn

from fieldfare.matching.index import DELTAS_MAX, Index, LiveIndex
from fieldfare.matching.library import Library
from fieldfare.matching.part import Part, build_part
from fieldfare.matching.versions import Closings
from fieldfare.model import OPEN_END, Change

steps = st.lists(
    st.tuples(
        st.integers(0, 5),  # number
        st.one_of(st.none(), support.normal_forms),  # removed, or put
        st.sampled_from(["more", "more", "apply", "apply", "rebase"]),
    ),
    max_size=24,
)


class History:
    """The naive replay: all versions with the revisions between which they are valid."""

    def __init__(self, compiler: Compiler, library: Library) -> None:
        self.compiler = compiler
        self.library = library
        self.versions: list[list[Any]] = []  # revision, number, closed_by, form, text

    def change(self, revision: int, number: int, form: NormalForm | None) -> Change:
        for version in self.versions:
            if version[1] == number and version[2] == OPEN_END:
                version[2] = revision
        text = None
        if form is not None:
            text = self.compiler.register(form)
            self.versions.append([revision, number, OPEN_END, form, text])
        return Change(revision, "default", number, text, "sql")

    def snapshot(self, revision: int) -> Part:
        """The part that a background build makes of the registry's versions known at a revision."""
        entries = [
            entry(v[0], v[3], number=v[1], start=v[0], end=v[2] if v[2] <= revision else OPEN_END, text=v[4])
            for v in self.versions
            if v[0] <= revision
        ]
        return build_part(entries, self.library)

    def expected(self, events: list[dict[Any, Any]], stamp: int) -> list[list[int]]:
        valid = [v for v in self.versions if v[0] <= stamp < v[2]]
        return [sorted({v[1] for v in valid if matches_of(v[3], event)}) for event in events]


@each_kind
@settings(max_examples=drawn(60))
@given(steps, st.lists(support.events, min_size=1, max_size=4), st.integers(0, 5))
def test_every_event_matches_the_subscriptions_valid_at_its_stamp(
    library_of: Callable[[Compiler], Library],
    steps: list[tuple[int, NormalForm | None, str]],
    events: list[dict[Any, Any]],
    back: int,
) -> None:
    compiler = Compiler()
    library = library_of(compiler)
    history, live = History(compiler, library), LiveIndex(library=library)
    kept: set[int] = set()
    changes: list[Change] = []
    for revision, (number, form, then) in enumerate(steps, start=1):
        changes.append(history.change(revision, number, form))
        if then == "more":
            continue
        applied = live.apply(changes)
        kept = (kept - {id(p) for p in applied.dropped}) | {id(p) for p in applied.written}
        changes = []
        if then == "rebase":
            old = max(0, revision - back)
            snapshot = history.snapshot(old)
            applied = live.rebase(snapshot, old)
            kept = (kept - {id(p) for p in applied.dropped}) | {id(p) for p in (*applied.written, snapshot)}
        assert kept == {id(part) for part in applied.index.parts}
        assert len(applied.index.parts) <= DELTAS_MAX + 1
    live.apply(changes)
    _check(live.index, history, events, len(steps))
    _check(_saved_and_opened(live.index, library), history, events, len(steps))


def _check(index: Index, history: History, events: list[dict[Any, Any]], last: int) -> None:
    repeated = [event for _ in range(last + 1) for event in events]
    stamps = np.repeat(np.arange(last + 1), len(events))
    expected = [row for stamp in range(last + 1) for row in history.expected(events, stamp)]
    assert index.match(columns_of(repeated), stamps).lists() == expected


def _saved_and_opened(index: Index, library: Library) -> Index:
    with tempfile.TemporaryDirectory() as folder:
        parts = []
        libraries = {library.name: library}
        for i, part in enumerate(index.parts):
            part.save(FilePath(folder, f"{i}.part"))
            parts.append(Part.open(FilePath(folder, f"{i}.part"), verify=True, libraries=libraries))
        index.closings.save(FilePath(folder, "closings"))
        return Index(parts, Closings.open(FilePath(folder, "closings")))


def test_an_index_without_parts_matches_nothing() -> None:
    index = Index()
    assert index.paths == ()
    assert index.match(columns_of([{}, {}]), np.zeros(2, np.int64)).lists() == [[], []]


@each_kind
def test_changes_already_applied_are_ignored(library_of: Callable[[Compiler], Library]) -> None:
    compiler = Compiler()
    everything = compiler.register(NormalForm((support.Conjunction(()),)))
    live = LiveIndex(library=library_of(compiler))
    change = Change(1, "default", 7, everything, "sql")
    live.apply([change])
    assert live.apply([change]).written == ()
    assert live.index.match(columns_of([{}]), np.ones(1, np.int64)).lists() == [[7]]


@each_kind
def test_many_single_changes_keep_the_parts_few_and_a_bulk_makes_one(
    library_of: Callable[[Compiler], Library],
) -> None:
    compiler = Compiler()
    everything = compiler.register(NormalForm((support.Conjunction(()),)))
    live = LiveIndex(library=library_of(compiler))
    bulk = live.apply(Change(r, "default", r, everything, "sql") for r in range(1, 2001))
    assert [part.size for part in bulk.written] == [2000]
    for revision in range(2001, 2101):
        applied = live.apply([Change(revision, "default", revision, everything, "sql")])
        assert len(applied.index.parts) <= DELTAS_MAX
        assert bulk.written[0] in applied.index.parts
    assert live.index.match(columns_of([{}]), np.full(1, 2100)).lists() == [list(range(1, 2101))]
