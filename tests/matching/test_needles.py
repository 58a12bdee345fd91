"""Rows found by texts in strings: correct for every kind of pattern and string, and chosen by cost."""

from __future__ import annotations

import json
import random
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.filters import (
    Conjunction,
    Filter,
    NormalForm,
    compile_filter,
    encode_normal_form,
)
from fieldfare.filters.needles import AT_END, AT_START, FOLDED
from fieldfare.filters.values import ABSENT
from fieldfare.matching import files
from fieldfare.matching.events.event_columns import columns_of_events
from fieldfare.matching.index import Index
from fieldfare.matching.part import Part, build_part
from fieldfare.matching.plain.building import needles
from fieldfare.matching.plain.building.gathering import Gatherer
from fieldfare.matching.plain.search.needle_kernels import HITS_MAX, PROBES_MAX
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END

PIECES = [
    "a",
    "e",
    "st",
    "orm",
    "storm",
    "ice",
    "İ",
    "ß",
    "SS",
    "ſ",
    "ı",
    "I",
    "語",
    "台風",
    "д",
    "%",
    "_",
    " ",
    "é",
]

Event = dict[str, Any]


def _text(rng: random.Random, most: int) -> str:
    return "".join(rng.choice([*PIECES, *PIECES, "Ice", "STORM"]) for _ in range(rng.randint(1, most)))


def _literal(text: str) -> str:
    return "".join(f"\\{c}" if c in "%_\\" else c for c in text).replace("'", "''")


def _filter(rng: random.Random) -> str:
    """One pattern or several, with and without other predicates."""
    one, two = _literal(_text(rng, 4)), _literal(_text(rng, 2))
    a, b = rng.choice(["t", "u", "data.t"]), rng.choice(["t", "u"])
    like, escape = rng.choice(["LIKE", "LIKE", "ILIKE"]), r"ESCAPE '\'"
    kind = f"kind = 'k{rng.randrange(3)}'"
    forms = [
        f"{a} {like} '%{one}%' {escape}",
        f"{a} {like} '%{one}' {escape}",
        f"{a} {like} '{one}%' {escape}",
        f"{a} {like} '{one}' {escape}",
        f"{a} {like} '{two}%{one}' {escape}",
        f"{a} {like} '%{one}_{two}%' {escape} AND {kind}",
        f"{a} {like} '%{one}%' {escape} AND {b} LIKE '%{two}%' {escape}",
        f"{a} LIKE '%{one}%' {escape} OR {b} ILIKE '%{two}' {escape}",
        f"{a} LIKE '%{one}%' {escape} AND {b} NOT LIKE '%{two}%' {escape}",
        f"{a} {like} '%{one}%' {escape} AND {kind} AND n > {rng.randrange(5)}",
        f"LOWER({a}) LIKE '%{one.lower()}%' {escape} AND {kind}",
        f"UPPER(TRIM({a})) LIKE '%{one.upper()}%' {escape}",
        f"{kind} AND n < {rng.randrange(5)}",
        f"{a} NOT {like} '%{one}%' {escape} AND {kind}",
    ]
    return rng.choice(forms)


def _event(rng: random.Random) -> Event:
    event: Event = {"n": rng.randrange(6)}
    if rng.random() < 0.8:
        event["kind"] = f"k{rng.randrange(4)}"
    for name in ("t", "u"):
        if rng.random() < 0.9:
            event[name] = rng.choice(
                [_text(rng, 6), _text(rng, 6), _text(rng, 2), "", None, 5, True, ["storm"]]
            )
    if rng.random() < 0.5:
        event["data"] = {"t": _text(rng, 5)}
    return event


def _part(filters: list[Filter]) -> Part:
    return build_part(
        IndexEntry(n, n, 0, OPEN_END, each.compiled, each.text, each.dialect)
        for n, each in enumerate(filters)
    )


def _found(part: Part, events: list[Event]) -> list[list[int]]:
    columns = columns_of_events(events, part.paths)
    return Index((part,)).match(columns, np.zeros(len(events), np.int64)).lists()


def _expected(filters: list[Filter], events: list[Event]) -> list[list[int]]:
    return [[n for n, each in enumerate(filters) if each.matches(event)] for event in events]


COSTS: dict[str, dict[str, float]] = {
    "always": {"SCAN_NS": 0.0, "CONFIRM_NS": 1e9},
    "always, all sizes of grams": {"SCAN_NS": 0.0, "CONFIRM_NS": 1e9, "FEW_NEEDLES": 0},
    "one bit for many": {"SCAN_NS": 0.0, "CONFIRM_NS": 1e9, "BITS_PER_NEEDLE": 0},
    "never": {"SCAN_NS": 1e18},
    "as they are": {},
}


@pytest.mark.parametrize("costs", sorted(COSTS))
@settings(max_examples=drawn(25))
@given(seed=st.integers(0, 2**32))
def test_needles_find_the_same_as_the_evaluator(costs: str, seed: int) -> None:
    rng = random.Random(seed)
    filters = [compile_filter(_filter(rng)) for _ in range(rng.choice([1, 30, 100]))]
    events = [_event(rng) for _ in range(rng.choice([1, 12, 40]))]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in COSTS[costs].items():
            patch.setattr(needles, name, value)
        part = _part(filters)
    assert _found(part, events) == _expected(filters, events)


def _naive(texts: list[tuple[str, int]], string: object) -> list[int]:
    """The numbers of the needles that a value contains."""
    found = []
    for place, (text, kind) in enumerate(texts):
        searched = str(string).casefold() if kind & FOLDED else str(string)
        starts = [i for i in range(len(searched) + 1) if searched[i : i + len(text)] == text]
        starts = [i for i in starts if not kind & AT_START or i == 0]
        starts = [i for i in starts if not kind & AT_END or i + len(text) == len(searched)]
        if isinstance(string, str) and starts:
            found.append(place)
    return found


@settings(max_examples=drawn(60))
@given(
    st.lists(
        st.tuples(st.text("abcéß語", min_size=1, max_size=9), st.sampled_from([0, AT_START, AT_END, 6])),
        min_size=1,
        max_size=30,
        unique=True,
    ),
    st.lists(st.text("abcéß語", max_size=40) | st.sampled_from([None, 3, ABSENT]), max_size=8),
    st.booleans(),
)
def test_the_needle_kernel_agrees_with_its_naive_twin(
    texts: list[tuple[str, int]], strings: list[Any], folded: bool
) -> None:
    if folded:
        texts = list(dict.fromkeys((text.casefold(), kind | FOLDED) for text, kind in texts))
    gathered = _anything()
    forms = [
        encode_normal_form(NormalForm((Conjunction(gathered, True, (needles_of(text, kind),)),)))
        for text, kind in texts
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(needles, "SCAN_NS", -1.0)
        part = build_part(IndexEntry(n, n, 0, OPEN_END, form, "", "sql") for n, form in enumerate(forms))
    assert len(part.filters.groups.needles.row) == len(texts)
    events = [{} if string is ABSENT else {"t": string} for string in strings]
    assert _found(part, events) == [_naive(texts, string) for string in strings]


def needles_of(text: str, kind: int) -> Any:
    from fieldfare.filters.needles import Needle

    return Needle(("t",), text, kind)


def _anything() -> Any:
    from fieldfare.filters.values import STRINGS

    return ((("t",), STRINGS),)


def _many(pattern: str, count: int) -> list[Filter]:
    return [compile_filter(pattern.format(i)) for i in range(count)]


def test_a_string_longer_than_all_buffers_is_searched_to_its_end() -> None:
    filters = _many("t LIKE '%word{:03}%'", 100)
    part = _part(filters)
    assert len(part.filters.groups.needles.row) == 100
    long = "wxrd " * (3 * PROBES_MAX) + "word042" + "word0" * HITS_MAX + "word099"
    assert _found(part, [{"t": long}, {"t": ""}, {"t": long + "word001"}]) == [[42, 99], [], [1, 42, 99]]


def test_a_needle_of_more_rows_than_all_buffers_finds_them_all() -> None:
    filters = _many("t LIKE '%storm%' AND n = {}", 20) * 500
    part = _part(filters)
    assert len(part.filters.groups.needles.row) in (0, len(filters))
    same = [compile_filter("t LIKE '%storm%'")] * 10_000
    events = [{"t": "a storm, no, two storms", "n": 3}, {"t": "calm", "n": 3}]
    assert _found(part, events) == [list(range(3, 10_000, 20)), []]
    part = _part(same)
    assert len(part.filters.groups.needles.row) == 10_000 and len(part.filters.groups.needles.entry) == 1
    assert _found(part, events) == [list(range(10_000)), []]


def test_rows_with_a_rare_value_are_found_by_it_and_their_filters_decide() -> None:
    filters = _many("id = 'i{}' AND t LIKE '%storm%'", 2000)
    part = _part(filters)
    assert len(part.filters.groups.needles.row) == 0 and len(part.filters.groups.texts.filter_place) == 2000
    assert _found(part, [{"id": "i7", "t": "a storm"}, {"id": "i7", "t": "calm"}]) == [[7], []]


def test_a_few_rows_do_not_pay_for_a_search_of_all_strings() -> None:
    filters = _many("t LIKE '%word{:03}%'", 3)
    part = _part(filters)
    assert len(part.filters.groups.needles.row) == 0
    assert _found(part, [{"t": "word001"}]) == [[1]]


def test_a_row_decided_by_its_needle_needs_no_filter() -> None:
    filters = _many("t ILIKE '%word{:03}%'", 100) + _many("LOWER(t) LIKE '%word{:03}%'", 100)
    part = _part(filters)
    assert part.filters.groups.texts.filter_place.tolist() == list(range(100, 200))
    assert _found(part, [{"t": "WORD007, Word050"}]) == [[7, 50, 107, 150]]


def test_a_saved_part_and_one_of_the_older_format_can_be_opened(tmp_path: FilePath) -> None:
    filters = _many("t LIKE '%word{:03}'", 100)
    events = [{"t": "a word042"}]
    _part(filters).save(tmp_path / "part")
    assert _found(Part.open(tmp_path / "part"), events) == [[42]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "FORMAT", files.OLDER_FORMAT)
        patch.setattr(needles, "SCAN_NS", 1e18)
        part = _part(filters)
        part.save(tmp_path / "older")
    assert _found(Part.open(tmp_path / "older"), events) == [[42]]


def test_normal_forms_without_needles_can_be_mixed_with_newer_ones() -> None:
    """A registry of an earlier version: its normal forms are read unchanged, and the filters confirm."""
    filters = _many("t LIKE '%word{:03}%'", 100)
    entries = []
    for n, each in enumerate(filters):
        form = each.normal_form
        if n % 2:
            form = NormalForm(tuple(Conjunction(c.constraints, False) for c in form.conjunctions))
        entries.append(IndexEntry(n, n, 0, OPEN_END, encode_normal_form(form), each.text, "sql"))
    part = build_part(entries)
    assert len(part.filters.groups.needles.row) == 50
    assert _found(part, [{"t": f"word{n:03}"} for n in range(100)]) == [[n] for n in range(100)]


def test_gathered_rows_keep_their_needles_in_any_order() -> None:
    gatherer = Gatherer()
    filters = [
        compile_filter(text) for text in ("t LIKE '%one%'", "n = 1", "t LIKE '%two%' AND t LIKE '%one%'")
    ]
    gatherer.add([each.compiled for each in filters])
    _, gathered, constants = gatherer.finish()
    texts = constants.needles

    def words(rows: Any) -> list[list[str]]:
        named = [
            texts.text[texts.offset[i] : texts.offset[i + 1]].tobytes().decode() for i in rows.needle.tolist()
        ]
        return [named[a:b] for a, b in zip(rows.needle_start[:-1], rows.needle_start[1:], strict=True)]

    assert words(gathered) == [["one"], [], ["one", "two"]]
    assert words(gathered.take(np.array([2, 1, 0, 2]))) == [["one", "two"], [], ["one"], ["one", "two"]]


def test_a_pattern_finds_texts_in_arrays() -> None:
    texts = [json.dumps({"data": {"file": [{"suffix": f"-{i}.png"}]}}) for i in range(100)]
    filters = [compile_filter(text, "eventbridge") for text in texts]
    part = _part(filters)
    assert len(part.filters.groups.needles.row) == 100
    events: list[Event] = [
        {"data": {"file": file}} for file in ("a-7.png", ["b", "b-7.png", "c-9.png"], 7, [])
    ]
    assert _found(part, events) == [[7], [7, 9], [], []]
