"""Decoding many encoded normal forms at once: in any order, in pieces, or corrupt."""

from __future__ import annotations

from decimal import Decimal

import matching_support as support
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matching_support import Compiler, NormalForm, columns_of, entry, matches_of
from tests.doses import drawn

from fieldfare.filters import compile_filter, encode_normal_form
from fieldfare.filters.encoding import DERIVED_FORMAT, FORMAT, NEEDLES_FORMAT
from fieldfare.matching.index import Index
from fieldfare.matching.part import build_part
from fieldfare.matching.plain.building import gathering, gathering_kernels
from fieldfare.matching.plain.building.gathering import Gatherer
from fieldfare.matching.plain.library import PlainLibrary

FILTER = "data.a BETWEEN 1 AND 2.5 AND (data.b IN ('x', '') OR NOT data.c LIKE 'é%' OR data.d > 1e300)"


def test_the_kernel_reads_encoded_normal_forms() -> None:
    read = gathering_kernels.FORMAT, gathering_kernels.NEEDLES_FORMAT, gathering_kernels.DERIVED_FORMAT
    assert read == (FORMAT, NEEDLES_FORMAT, DERIVED_FORMAT)


@settings(max_examples=drawn(40))
@given(
    st.lists(support.normal_forms, min_size=1, max_size=8), st.lists(support.events, max_size=4), st.data()
)
def test_entries_may_come_in_any_order_and_are_read_in_chunks(
    forms: list[NormalForm], events: list[dict[tuple[str | int, ...], object]], data: st.DataObject
) -> None:
    compiler = Compiler()
    entries = [entry(n, form, text=compiler.register(form)) for n, form in enumerate(forms)]
    shuffled = data.draw(st.permutations(entries))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gathering, "CHUNK_BYTES", data.draw(st.sampled_from([1, 50, 200])))
        part = build_part(shuffled, PlainLibrary(compiler))
    assert part.versions.version.tolist() == list(range(len(forms)))
    found = Index((part,)).match(columns_of(events), np.zeros(len(events), np.int64)).lists()
    assert found == [[n for n, form in enumerate(forms) if matches_of(form, event)] for event in events]


@pytest.mark.parametrize(
    "filter",
    [
        FILTER,
        "data.a ILIKE '%ab%' AND data.b LIKE '%c' OR data.c = 1",
        "HOUR(time) BETWEEN 3 AND 5 AND data.a < data.b OR data.c LIKE '%x%'",
    ],
)
def test_corrupt_normal_forms_are_rejected(filter: str) -> None:
    """Truncated anywhere or with any byte changed, a form raises ValueError or decodes to another one."""
    whole = encode_normal_form(compile_filter(filter).normal_form)
    other = encode_normal_form(compile_filter("data.z = 1").normal_form)
    for size in range(len(whole)):
        with pytest.raises(ValueError, match="normal form"):
            Gatherer().add([other, whole[:size], other])
    for place in range(len(whole)):
        for change in (1, 0x40, 0xFF):
            changed = whole[:place] + bytes([whole[place] ^ change]) + whole[place + 1 :]
            try:
                Gatherer().add([changed, other])
            except (ValueError, ArithmeticError):
                continue
    with pytest.raises(ValueError, match="format 4"):
        Gatherer().add([msgspec.msgpack.encode([DERIVED_FORMAT + 1, []])])


@pytest.mark.parametrize(
    "number",
    ["0", "-0", "0.1", "-17.25", "123456789012345.5", "1234567890123456.5", "9007199254740992",
     "9007199254740993", "-9223372036854775808", "9223372036854775808", "1E+400", "1E-400", "1E+15", "12.50",
     "0.000000000000001",
     "5E-324", "1E-290", "123456789.0123456789"],
)  # fmt: skip
def test_a_constant_keeps_its_exact_value(number: str) -> None:
    from fieldfare.filters.values import ValueSet, points

    exact = Decimal(number)
    form = NormalForm((support.Conjunction(((("a",), ValueSet(numbers=points([exact]))),)),))
    near = [Decimal(repr(float(exact)))] if abs(float(exact)) < 1e308 else []
    steps = exact.scaleb(-40) if exact else Decimal("1e-40")
    events = [{("a",): value} for value in [exact, exact + steps, exact - steps, *near]]
    found = (
        Index((build_part([entry(0, form)]),))
        .match(columns_of(events), np.zeros(len(events), np.int64))
        .lists()
    )
    assert found == [[0] if event[("a",)] == exact else [] for event in events]
