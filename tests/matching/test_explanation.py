"""The explanation of an index agrees with its arrays."""

from __future__ import annotations

import json

import numpy as np
import pytest
from encrypted_library import every_library
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.doses import drawn

from fieldfare.filters import compile_filter
from fieldfare.matching.index import Index, LiveIndex
from fieldfare.matching.library import Library
from fieldfare.matching.part import Part, build_part
from fieldfare.matching.plain.cell_values import values_of_cells, values_of_codes
from fieldfare.matching.plain.codes import encode
from fieldfare.matching.plain.library import PlainLibrary
from fieldfare.matching.versions import Closings, IndexEntry
from fieldfare.model import OPEN_END, Change
from fieldfare_lab.workloads.synthetic import WORKLOADS

from matching_support import Compiler, columns_of, entry, events, normal_forms, values  # isort: skip


def _part(*texts: str) -> Part:
    compiled = [(number, text, compile_filter(text).compiled) for number, text in enumerate(texts)]
    return build_part(IndexEntry(n, n, 0, OPEN_END, form, text, "sql") for n, text, form in compiled)


def test_a_part_counts_its_rows_by_how_they_are_found() -> None:
    alerts = [f"data.city = 'c{i}' AND data.price < {i}" for i in range(300)]
    part = _part(*alerts, "data.price > 7 OR data.size > 8", "data.name LIKE '%x' AND data.size > 1", "1 = 2")
    whole = part.explain()
    found = whole.filters
    assert (whole.subscriptions, found.rows, found.undecided_rows) == (303, 303, 1)
    assert [key.paths for key in found.keys] == [(("data", "city"),)]
    assert (found.keys[0].entries, found.rows_in_keys, found.rows_in_tiles, found.tiles) == (300, 300, 3, 1)
    assert found.constants == 300 + 300 + 2
    assert sum(whole.size_bytes.values()) == part.size_bytes
    text = str(whole)
    assert "300 rows found by 1 key:\n    data.city: 300 entries" in text
    assert "3 rows in 1 tile" in text and "1 row undecided" in text


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_every_row_of_a_workload_has_a_key_or_a_tile(name: str) -> None:
    part = build_part(entry(n, form) for n, form in enumerate(WORKLOADS[name].normal_forms(3000, 1)))  # type: ignore[arg-type]
    index, found = Index((part,)), part.explain().filters
    places = [index.explain_subscription(number) or () for number in range(0, 3000, 10)]
    keys = {key.paths for key in found.keys}
    assert found.rows == len(part.filters.groups.rows.subscription)
    for place in (place.chosen for mine in places for place in mine):
        ways = (place.key in keys, place.needle is not None, 0 <= place.tile < found.tiles)
        assert sum(ways) == 1
        assert str(place)
    assert any(places)


def test_the_explanation_locates_a_filter() -> None:
    alerts = [f"data.city = 'c{i}' AND data.price < {i}" for i in range(100)]
    odd = "data.name LIKE '%x' AND data.size BETWEEN 1 AND 5"
    index = Index((_part(*alerts, odd, "1 = 2", "data.city IN ('c1', 'c2')"),))
    (listed,) = index.explain_subscription(7) or ()
    assert str(listed) == "part 0: found by the key data.city"
    (tiled,) = index.explain_subscription(100) or ()
    assert str(tiled) == (
        "part 0: in tile 0 with 0 other rows, compared where data.size is a number from 1 to 5 "
        "and data.name is any string; the filter is evaluated for its candidates"
    )
    assert index.explain_subscription(101) == ()
    assert str((index.explain_subscription(102) or ())[0]).endswith("under 2 combinations of values")
    assert index.explain_subscription(103) is None


def test_the_explanation_names_needles() -> None:
    words = [f"data.title LIKE '%wörd{i:03d}%'" for i in range(200)]
    index = Index((_part(*words, "data.title ILIKE '%Storm%' AND data.size = 2", *(["data.size = 1"] * 3)),))
    (explained,) = index.explain().parts
    part = explained.filters
    found = {(use.path, use.folded): (use.needles, use.rows) for use in part.needles}
    assert found[("data", "title"), False] == (200, 200)
    assert part.rows_in_needles == sum(use.rows for use in part.needles)
    assert part.rows == 204 == len(index.parts[0].filters.groups.rows.subscription)
    assert "200 rows found by 200 texts in data.title" in str(explained)
    (place,) = index.explain_subscription(7) or ()
    assert place.chosen.needle == (("data", "title"), "wörd007") and place.chosen.exact
    assert str(place) == "part 0: found by the text 'wörd007' in data.title"


def test_an_explanation_follows_changes() -> None:
    """The current version is in the newest part that contains it; a removed subscription is in none."""
    live = LiveIndex(_part("data.a > 1", "data.b = 2"), 2)
    live.apply([Change(3, "default", 0, "data.a > 2")])
    index = live.apply([Change(4, "default", 1, None)]).index
    (place,) = index.explain_subscription(0) or ()
    assert place.part == 1
    assert index.explain_subscription(1) is None
    assert str(index.explain()).startswith("2 parts, 3 subscription versions of which 2 ended, ")
    assert Index((), Closings()).explain_subscription(0) is None


@every_library
def test_every_library_explains_its_parts(library: Library) -> None:
    live = LiveIndex(library=library)
    live.apply([Change(1, "default", 0, "data.x > 2"), Change(2, "default", 1, "data.y = 2")])
    index = live.apply([Change(3, "default", 1, None)]).index
    (place,) = index.explain_subscription(0) or ()
    assert str(place).startswith("part 0: ") and place.document()["part"] == 0
    assert index.explain_subscription(1) is None
    (part,) = index.explain().parts
    assert sum(part.size_bytes.values()) == index.parts[0].size_bytes
    assert str(index.explain()).startswith("1 part, 2 subscription versions of which 1 ended, ")
    document = json.loads(json.dumps(index.explain().document()))
    assert (document["closings"], document["parts"][0]["subscriptions"]) == (1, 2)


@settings(max_examples=drawn(60))
@given(st.lists(normal_forms, min_size=1, max_size=8), st.lists(events, min_size=1, max_size=6), values)
def test_a_value_is_among_the_values_of_its_cell(forms: list, batch: list, value: object) -> None:
    """Cells convert back to values; strings that are not constants may share a gap."""
    compiler = Compiler()
    entries = [entry(n, form, text=compiler.register(form)) for n, form in enumerate(forms)]
    part = build_part(entries, PlainLibrary(compiler))
    batch[0] = {**batch[0], ("a",): value}
    columns = columns_of(batch)
    cells = part.filters.locate(columns, 0, len(batch))
    codes = np.zeros((len(cells) + 1, 32), np.uint16)
    dictionary = part.filters.groups.dictionary
    encode(dictionary.code_shift, dictionary.string_cell, cells, codes)
    for a, path in enumerate(part.filters.indexed_paths):
        for e in range(len(batch)):
            if path not in columns.columns:
                continue
            found = columns.value(path, e)
            if isinstance(found, str) and not dictionary.strings_ordered[a]:
                continue
            assert found in values_of_cells(part.filters.groups, a, int(cells[a, e]), int(cells[a, e]))
            assert found in values_of_codes(part.filters.groups, a, int(codes[a, e]), int(codes[a, e]))
