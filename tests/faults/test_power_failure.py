"""What was not synced may be empty, torn or gone when the power is back: the service goes on where it can."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from accidents import empty, lossy_disk, newest, tear
from scene import BUSY, CALM_LOAD, Scene, scene

from fieldfare.storage.folder import DataFolder

pytestmark = [pytest.mark.service, pytest.mark.timeout(1200)]


DAMAGES: dict[str, Callable[[Path], None]] = {
    "the heartbeat is empty": lambda data: empty([DataFolder(data).heartbeat]),
    "the heartbeat is torn": lambda data: tear([DataFolder(data).heartbeat]),
    "the newest manifest is empty": lambda data: empty(newest(DataFolder(data).index / "manifests")),
    "the newest manifests are torn": lambda data: tear(newest(DataFolder(data).index / "manifests", 3)),
    "the newest index files are empty": lambda data: empty(newest(DataFolder(data).index / "files", 3)),
    "the index is gone": lambda data: shutil.rmtree(DataFolder(data).index),
    "all of run is gone": lambda data: shutil.rmtree(DataFolder(data).run),
}


def damage(played: Scene, names: list[str]) -> None:
    """Kill everything at once, damage files, start again."""
    played.load.flow(played.random.randrange(1, 300))
    played.service.kill()
    for name in names:
        print(name)
        DAMAGES[name](played.data)
    played.restart()
    played.load.flow(100)


def test_it_starts_after_a_power_failure_that_emptied_the_newest_unsynced_files(tmp_path: Path) -> None:
    """ext4 leaves empty files where the newest were."""
    names = ["the heartbeat is empty", "the newest manifest is empty"]
    with scene(tmp_path / "data", 111, CALM_LOAD, **BUSY) as played:
        damage(played, names)
        assert max(each.most_at_once for each in played.load.publishers) > 1


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", DAMAGES)
def test_it_goes_on_when(tmp_path: Path, name: str) -> None:
    """One kind of damage at a time, twice: the second hits what the first mend has left."""
    with scene(tmp_path / "data", 112, **BUSY) as played:
        for _ in range(2):
            damage(played, [name])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [113, 114, 115])
def test_the_power_fails_at_any_moment(tmp_path: Path, seed: int) -> None:
    """A real file system loses all that nobody has synced: three times, at random moments of the load."""
    options = {**BUSY, "disk_free_min_bytes": 0}  # the whole disk is smaller than the usual reserve
    with lossy_disk(tmp_path) as disk, scene(disk.at / "data", seed, **options) as played:
        for _ in range(3):
            played.load.flow(played.random.randrange(1, 500))
            played.service.freeze()  # Nothing is answered any more that is not on the disk.
            after = disk.fail()
            played.service.kill()
            disk.drop_old()
            played.data = after / "data"
            played.restart()
            played.load.flow(100)
