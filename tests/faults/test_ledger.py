"""The ledger says so when the requests of a publisher that had several under way stand in the wrong order."""

from __future__ import annotations

from typing import Any

import pytest
from ledger import Fault, Ledger


def numbered(*numbers: int) -> list[dict[str, Any]]:
    return [{"data": {"n": number}} for number in numbers]


def test_records_in_the_order_of_their_numbers_are_in_order() -> None:
    ledger = Ledger()
    ledger.acknowledge("b", 4, 0, numbered(1_000_000_003, 1_000_000_004), 1)
    ledger.acknowledge("a", 7, 0, numbered(5), 1)
    ledger.acknowledge("a", 2, 0, numbered(1, 2), 1)
    ledger.acknowledge("b", 9, 0, numbered(1_000_000_005), 1)
    ledger.check_order()


def test_what_lies_behind_a_place_is_counted_in_the_order_of_offsets() -> None:
    """Answers to requests under way together are heard in any order."""
    ledger = Ledger()
    for offset, size_bytes in ((5, 10), (2, 100), (9, 1_000), (7, 10_000)):
        ledger.sending("a", numbered(offset))
        ledger.acknowledge("a", offset, 0, numbered(offset), size_bytes)
    assert [ledger.place_before(size) for size in (1_000, 1_001, 11_011, 20_000)] == [9, 7, 2, None]
    ledger.waiting = {("a", "s"): {7: set()}, ("a", "t"): {2: set()}}
    assert ledger.behind_bytes([("a", "s")]) == 11_000
    assert ledger.behind_bytes([("a", "s"), ("a", "t")]) == 11_110
    assert ledger.behind_bytes([("a", "nobody")]) == 0
    ledger.forget_from(7)
    assert ledger.place_before(100) == 2
    assert ledger.behind_bytes([("a", "t")]) == 110


@pytest.mark.parametrize("later", [[1, 2], [6, 5]])
def test_a_record_behind_a_later_one_is_in_the_wrong_place(later: list[int]) -> None:
    ledger = Ledger()
    ledger.acknowledge("a", 2, 0, numbered(3, 4), 1)
    ledger.acknowledge("a", 7, 0, numbered(*later), 1)
    with pytest.raises(Fault, match="a: record 7 stands behind a later one") as found:
        ledger.check_order()
    assert found.value.kind == "wrong"
