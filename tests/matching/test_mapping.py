"""A part's file is memory-mapped: opening takes equal time for any size, and processes share the memory."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fieldfare.matching.files import IndexFileError, open_arrays, save_arrays
from fieldfare.matching.index import Index
from fieldfare.matching.part import Part
from fieldfare_lab.workloads.columns import range_columns
from fieldfare_lab.workloads.predicate_columns import build_part_from_columns
from fieldfare_lab.workloads.synthetic import WORKLOADS

pytestmark = pytest.mark.long

SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="module")
def saved() -> Iterator[Path]:
    """A part on a disk: the pages of a file in memory would count as its readers' own."""
    paths, predicates, count = range_columns(20_000, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.part"
        build_part_from_columns(paths, predicates, np.arange(count)).save(path)
        yield path


def _resident_pages(array: np.ndarray[tuple[int], np.dtype[np.uint8]], path: Path) -> tuple[int, int]:
    """(kB of the file's mapping touched by this process, kB of them that are private), from the kernel."""
    touched = own = 0
    mine = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split(" ")[0]:
            mine = line.endswith(str(path))
        elif mine and line.startswith("Rss:"):
            touched += int(line.split()[1])
        elif mine and line.startswith(("Private_Dirty:", "Anonymous:")):
            own += int(line.split()[1])
    return touched, own


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not tell what is mapped")
def test_opening_reads_almost_nothing_and_matching_copies_nothing(saved: Path) -> None:
    part = Part.open(saved)
    rows = part.filters.groups.rows.pieces
    size_kb = saved.stat().st_size // 1024
    touched, _ = _resident_pages(rows, saved)  # type: ignore[arg-type]
    assert touched < size_kb // 4
    Index((part,)).match(WORKLOADS["range"].events(256, 2), np.zeros(256, np.int64))
    touched, own = _resident_pages(rows, saved)  # type: ignore[arg-type]
    assert touched > 0
    assert own == 0
    assert isinstance(rows.base, mmap.mmap | memoryview | np.ndarray)
    assert not rows.flags.writeable


def test_another_process_finds_equal_matches_in_the_file(saved: Path) -> None:
    program = (
        "import sys, numpy as np\n"
        "from fieldfare.matching.index import Index\n"
        "from fieldfare.matching.part import Part\n"
        "from fieldfare_lab.workloads.synthetic import WORKLOADS\n"
        "part = Part.open(sys.argv[1], verify=True)\n"
        "print(Index((part,)).match(WORKLOADS['range'].events(64, 2), np.zeros(64, np.int64)).lists())\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, str(saved)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    here = Index((Part.open(saved),)).match(WORKLOADS["range"].events(64, 2), np.zeros(64, np.int64))
    assert found.stdout.strip() == str(here.lists())


def test_a_concurrent_reader_sees_the_complete_old_or_new_file(tmp_path: Path) -> None:
    """Files are written under another name and renamed; a process that mapped the old file keeps it."""
    path = tmp_path / "arrays"
    save_arrays(path, "test", {"a": np.zeros(100_000, np.int64)}, {"value": 0})
    _, first = open_arrays(path, "test")
    done = threading.Event()

    def rewrite() -> None:
        for value in range(1, 12):
            save_arrays(path, "test", {"a": np.full(100_000 + value, value)}, {"value": value})
        done.set()

    writer = threading.Thread(target=rewrite)
    writer.start()
    while not done.is_set():
        meta, arrays = open_arrays(path, "test", verify=True)
        assert len(arrays["a"]) == 100_000 + meta["value"]
        assert (arrays["a"] == meta["value"]).all()
    writer.join()
    assert not first["a"].any()
    assert [found.name for found in tmp_path.iterdir()] == ["arrays"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "arrays"
    save_arrays(path, "test", {"a": np.arange(3)}, {})
    with pytest.raises(TypeError):
        save_arrays(path, "test", {"a": np.arange(5)}, {"value": object()})
    os.mkdir(tmp_path / "folder")
    with pytest.raises(OSError, match="folder"):
        save_arrays(tmp_path / "folder", "test", {"a": np.arange(5)}, {})
    assert open_arrays(path, "test", verify=True)[1]["a"].tolist() == [0, 1, 2]
    assert sorted(found.name for found in tmp_path.iterdir()) == ["arrays", "folder"]


def test_an_array_of_an_unsupported_type_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(IndexFileError, match="complex128"):
        save_arrays(tmp_path / "odd", "test", {"a": np.zeros(2, np.complex128)}, {})
        open_arrays(tmp_path / "odd", "test")
