"""A data directory of an older format, opened on a full disk: an error, and later all of its data."""

from __future__ import annotations

import gc
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from accidents import MIB, fill, small_disk

from fieldfare.storage import open_delayed, open_event_log, open_registry
from fieldfare.storage.errors import StorageError
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.sqlite.rebuild import mend_databases

OLDER = Path(__file__).parents[1] / "scenarios" / "testdata" / "first-format.tar.xz"


def extract(to: Path) -> DataFolder:
    with tarfile.open(OLDER) as archive:
        archive.extractall(to)
    return DataFolder(to / "data")


def content(folder: DataFolder) -> dict[str, Any]:
    """Open the databases, as a start does, which upgrades them; return what they hold."""
    mend_databases(folder.databases, lambda line: None)
    with (
        closing(open_registry(folder.registry_url)) as registry,
        closing(open_event_log(folder.log_url)) as log,
    ):
        open_delayed(folder.delayed_url).close()
        (partition,) = log.partitions
        return {
            "records": list(partition.read(partition.start(), partition.end())),
            "versions": list(registry.versions(registry.revision(), 0)),
            "cursors": registry.load_cursors(list(range(1, 7))),
            "spaces": registry.stored_spaces(),
        }


@pytest.mark.parametrize("leave_kib", [0, 4, 16, 40, 64, 100, 160, 240, 400])
def test_an_upgrade_that_found_no_room_is_made_once_there_is_some(tmp_path: Path, leave_kib: int) -> None:
    expected = content(extract(tmp_path / "roomy"))
    assert len(expected["records"]) == 7
    with small_disk(tmp_path / "disk", 8 * MIB) as disk:
        folder = extract(disk)
        ballast = fill(disk, leave_bytes=leave_kib << 10)
        try:
            found = content(folder)
        except StorageError as error:
            assert "disk" in str(error) and str(disk) in str(error), error
        else:
            assert found == expected
        ballast.unlink()
        assert content(folder) == expected
        assert content(folder) == expected
        gc.collect()  # each thread's connection for reading is closed when nothing refers to it
