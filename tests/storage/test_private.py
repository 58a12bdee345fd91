"""A data directory is private: permissions left open by an older service are tightened, and no others."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from fieldfare.storage.folder import DataFolder
from fieldfare.storage.private import tighten

FILES = (
    *("log.db", "log.db-wal", "log.db.first-page", "registry.db", "registry.db.damaged-1", "delayed.db"),
    *("delayed.db-shm", "logs.json", "elastic.json", ".elastic.json.12-ab.tmp", "matches/0/1-2.block"),
    *("pasts/3-4/0000/1-2.block", "corrupt/log.db-1.json", "quarantine/1.json", "logs/gateway.log"),
)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def make(path: Path, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    path.chmod(mode)
    return path


@pytest.fixture
def older(tmp_path: Path) -> DataFolder:
    data = DataFolder(tmp_path / "data")
    data.make()
    for name in FILES:
        make(data.root / name)
    for folder in (data.root, *(path for path in data.root.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    return data


def test_what_an_older_service_left_open_is_closed(older: DataFolder) -> None:
    tighten(older)
    for path in (older.root, *older.root.rglob("*")):
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path
    tighten(older)


def test_unrelated_files_keep_their_permissions(older: DataFolder, tmp_path: Path) -> None:
    """`--data .` in a folder of sources, and Spark's folder with links to the jars it is installed with."""
    theirs = [make(older.root / name) for name in ("notes.txt", "run.sh", "index.html", ".log.db", "web/a")]
    jars = make(tmp_path / "installed" / "bin" / "spark", 0o755)
    (older.run / "home").mkdir()
    (older.run / "home" / "bin").symlink_to(jars.parent, target_is_directory=True)
    (older.run / "spark").symlink_to(jars)
    older.root.chmod(0o755)
    before = mode(jars.parent)
    tighten(older)
    assert {mode(path) for path in theirs} == {0o644}
    assert (mode(older.root), mode(jars), mode(jars.parent)) == (0o755, 0o755, before)
    assert mode(older.matches / "0" / "1-2.block") == 0o600 and mode(older.matches) == 0o700


def test_one_that_was_interrupted_is_done_again(older: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between any two changes leaves the unfinished folder open, so the next start finds it."""
    done = 0
    change = Path.chmod

    def killed(self: Path, mode: int) -> None:
        nonlocal done
        done += 1
        if done == 3:
            raise KeyboardInterrupt
        change(self, mode)

    monkeypatch.setattr(Path, "chmod", killed)
    with pytest.raises(KeyboardInterrupt):
        tighten(older)
    tighten(older)
    assert all(mode(path) & 0o077 == 0 for path in older.root.rglob("*"))


def test_a_new_directory_may_be_incomplete(tmp_path: Path) -> None:
    data = DataFolder(tmp_path / "new")
    data.root.mkdir()
    tighten(data)
    assert mode(data.root) == 0o700


def test_every_path_that_the_service_has_is_closed_and_none_is_forgotten(tmp_path: Path) -> None:
    """A path that `DataFolder` gains later is treated without naming it again."""
    data = DataFolder(tmp_path / "data")
    data.root.mkdir(mode=0o755)
    for name, each in vars(DataFolder).items():
        found = getattr(data, name) if isinstance(each, property) else None
        for path in found if isinstance(found, tuple) else (found,):
            if isinstance(path, Path) and path != data.root and not path.suffix:
                path.mkdir(parents=True, exist_ok=True)
                path.chmod(0o755)
            elif isinstance(path, Path) and path != data.root:
                make(path)
    tighten(data)
    assert {
        path: mode(path) & 0o077 for path in (data.root, *data.root.rglob("*")) if mode(path) & 0o077
    } == {}
