"""A part's file is opened whole or refused with a sentence that says what is wrong."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from matching_support import columns_of, entry

from fieldfare.filters import compile_filter
from fieldfare.matching.files import IndexFileError
from fieldfare.matching.index import Index
from fieldfare.matching.part import Part, build_part
from fieldfare.matching.versions import Closings

FILTERS = [
    "data.symbol = 'YHOO' AND data.price < 18.5",
    "data.symbol IN ('YHOO', 'IBM') AND data.price BETWEEN 10 AND 20.25",
    "data.price > 9007199254740993 OR data.note LIKE 'a%'",
    "data.price * 2 > 30",
]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "one.part"
    build_part(
        entry(n, compile_filter(text).normal_form, text=text)  # type: ignore[arg-type]
        for n, text in enumerate(FILTERS)
    ).save(path)
    return path


def test_an_opened_part_matches_as_the_built_one(saved: Path) -> None:
    events = [
        {("data", "symbol"): "YHOO", ("data", "price"): 18.25},
        {("data", "symbol"): "IBM", ("data", "price"): 9007199254740994},
        {("data", "note"): "abc", ("data", "price"): 15},
    ]
    found = Index((Part.open(saved, verify=True),)).match(columns_of(events), np.zeros(3, np.int64))
    assert found.lists() == [[0, 1, 3], [2, 3], [2]]
    assert found.indptr.dtype == np.int64
    assert found.subscriptions.dtype == np.uint32


def test_every_truncation_is_refused_with_the_files_name(saved: Path, tmp_path: Path) -> None:
    whole = saved.read_bytes()
    broken = tmp_path / "broken.part"
    for size in [0, 1, 23, 24, 100, len(whole) // 2, len(whole) - 1]:
        broken.write_bytes(whole[:size])
        with pytest.raises(IndexFileError, match=r"broken\.part"):
            Part.open(broken)
    broken.write_bytes(whole + b"x")
    with pytest.raises(IndexFileError, match="should be"):
        Part.open(broken)


def test_a_changed_byte_is_found(saved: Path, tmp_path: Path) -> None:
    """In the header always; in an array, where the reader asks for every byte to be checked."""
    whole = saved.read_bytes()
    header_end = 24 + struct.unpack_from("<Q", whole, 16)[0]
    broken = tmp_path / "broken.part"
    for place in [0, 9, 13, 24, 60, header_end - 1]:
        broken.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(IndexFileError, match=r"broken\.part"):
            Part.open(broken)
    place = len(whole) - 1
    broken.write_bytes(whole[:place] + bytes([whole[place] ^ 1]))
    with pytest.raises(IndexFileError, match="checksum of array"):
        Part.open(broken, verify=True)


def test_a_file_of_another_kind_or_format_is_refused(saved: Path, tmp_path: Path) -> None:
    closings = tmp_path / "closings"
    Closings(np.array([1, 2]), np.array([5, 6])).save(closings)
    assert Closings.open(closings).valid_to.tolist() == [5, 6]
    with pytest.raises(IndexFileError, match="holds closings, not part"):
        Part.open(closings)
    whole = bytearray(saved.read_bytes())
    whole[8:12] = struct.pack("<I", 99)
    saved.write_bytes(whole)
    with pytest.raises(IndexFileError, match="format 99"):
        Part.open(saved)


def test_nothing_is_left_behind_by_saving(saved: Path) -> None:
    assert [path.name for path in saved.parent.iterdir()] == ["one.part"]
