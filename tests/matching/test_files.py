"""A part's file is opened completely or rejected with an error that says what is wrong."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from matching_support import columns_of, entry
from naive_library import BOTH, NAIVE, each_library

from fieldfare.filters import compile_filter
from fieldfare.matching.files import IndexFileError, open_arrays, save_arrays
from fieldfare.matching.index import Index
from fieldfare.matching.libraries import PLAIN
from fieldfare.matching.library import Library
from fieldfare.matching.part import Part, build_part
from fieldfare.matching.versions import Closings

FILTERS = [
    "data.symbol = 'YHOO' AND data.price < 18.5",
    "data.symbol IN ('YHOO', 'IBM') AND data.price BETWEEN 10 AND 20.25",
    "data.price > 9007199254740993 OR data.note LIKE 'a%'",
    "data.price * 2 > 30",
]


def part_of(library: Library) -> Part:
    entries = [
        entry(n, compile_filter(text).normal_form, text=text)  # type: ignore[arg-type]
        for n, text in enumerate(FILTERS)
    ]
    return build_part(entries, library)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "one.part"
    part_of(PLAIN).save(path)
    return path


@each_library
def test_an_opened_part_matches_like_the_built_one(library: Library, tmp_path: Path) -> None:
    events = [
        {("data", "symbol"): "YHOO", ("data", "price"): 18.25},
        {("data", "symbol"): "IBM", ("data", "price"): 9007199254740994},
        {("data", "note"): "abc", ("data", "price"): 15},
    ]
    part = part_of(library)
    size = part.save(tmp_path / "a.part")
    assert part.size_bytes < size == (tmp_path / "a.part").stat().st_size
    opened = Part.open(tmp_path / "a.part", verify=True, libraries=BOTH)
    assert (opened.library, opened.size, opened.paths) == (library.name, len(FILTERS), part.paths)
    found = Index((opened,)).match(columns_of(events), np.zeros(3, np.int64))
    assert found.lists() == [[0, 1, 3], [2, 3], [2]]
    assert found.indptr.dtype == np.int64
    assert found.subscriptions.dtype == np.uint32


def test_a_part_of_an_unknown_library_is_rejected(tmp_path: Path) -> None:
    part_of(NAIVE).save(tmp_path / "a.part")
    with pytest.raises(IndexFileError, match=r"a\.part: library 'naive' is unknown"):
        Part.open(tmp_path / "a.part")


def test_a_part_without_a_library_name_is_plain(saved: Path) -> None:
    """Files written when there was only one library."""
    meta, arrays = open_arrays(saved, "part")
    assert meta.pop("library") == "plain"
    save_arrays(saved, "part", arrays, meta)
    assert Part.open(saved, verify=True).library == "plain"


def test_every_truncation_is_rejected_with_the_file_name(saved: Path, tmp_path: Path) -> None:
    whole = saved.read_bytes()
    broken = tmp_path / "broken.part"
    for size in [0, 1, 23, 24, 100, len(whole) // 2, len(whole) - 1]:
        broken.write_bytes(whole[:size])
        with pytest.raises(IndexFileError, match=r"broken\.part"):
            Part.open(broken)
    broken.write_bytes(whole + b"x")
    with pytest.raises(IndexFileError, match="bytes long; expected"):
        Part.open(broken)


def test_a_changed_byte_is_found(saved: Path, tmp_path: Path) -> None:
    """A changed header is always detected; a changed array, if the reader verifies all bytes."""
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


def test_a_file_of_another_kind_or_format_is_rejected(saved: Path, tmp_path: Path) -> None:
    closings = tmp_path / "closings"
    Closings(np.array([1, 2]), np.array([5, 6])).save(closings)
    assert Closings.open(closings).valid_to.tolist() == [5, 6]
    with pytest.raises(IndexFileError, match="contains closings; expected part"):
        Part.open(closings)
    whole = bytearray(saved.read_bytes())
    whole[8:12] = struct.pack("<I", 99)
    saved.write_bytes(whole)
    with pytest.raises(IndexFileError, match="format 99"):
        Part.open(saved)


def test_saving_leaves_no_temporary_files(saved: Path) -> None:
    assert [path.name for path in saved.parent.iterdir()] == ["one.part"]
