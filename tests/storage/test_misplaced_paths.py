"""A folder where a database belongs, or a file where a folder belongs, is named at the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from fieldfare.runtimes.service.serve import CannotStart, take_directory
from fieldfare.storage.folder import DataFolder


@pytest.mark.parametrize("name", ["log.db", "registry.db", "delayed.db", "links.db"])
def test_a_folder_in_place_of_a_database_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(CannotStart, match=f"{name} is a folder, and must be a database file; move it away"):
        take_directory(DataFolder(tmp_path))


@pytest.mark.parametrize("name", ["matches", "index", "run", "logs", "pasts", "quarantine", "corrupt"])
def test_a_file_in_place_of_a_folder_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(CannotStart, match=f"{name} is a file, and must be a folder; move it away"):
        take_directory(DataFolder(tmp_path))


def test_a_new_directory_is_taken(tmp_path: Path) -> None:
    take_directory(DataFolder(tmp_path / "new")).release()
