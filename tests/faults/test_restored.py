"""Older copies put back: it goes on, or says in a sentence what to do; nothing wrong is delivered."""

from __future__ import annotations

from pathlib import Path

import pytest
from accidents import readiness
from ledger import Key
from load import LoadSettings
from scene import BUSY, CALM_LOAD, Scene, copied, scene
from service_support import until

from fieldfare.model import Position

pytestmark = [pytest.mark.service, pytest.mark.timeout(1200)]

KEPT = {**BUSY, "retention_bytes": 32 << 30}
"""Retention removes nothing: what an old copy of one file lacks must still be in the others."""
PARTS = ("log.db", "registry.db", "matches", "index")
AWAY: Key = ("default", "pulled")
"""Nobody reads this subscription between the copy and its return: what it is owed lies in the match log."""

Confirmed = dict[Key, dict[Position, int]]


def copy_and_put_back(played: Scene, what: str, copies: Path) -> None:
    """Copy one part at rest, let much happen, and put the copy back while all processes are dead."""
    load = played.load
    load.flow(played.random.randrange(100, 300))
    load.settle()
    put_back = copied(played.data / what, copies)
    confirmed = {key: dict(reader.confirmed) for key, reader in load.readers.items()}
    end = max(load.ledger.records) + 1
    load.resume()
    load.readers[AWAY].pause()
    load.flow(200)
    load.settle()
    played.service.kill()
    put_back()
    if what == "log.db":
        load.rewind(end)
    elif what == "registry.db":
        load.forget_acks(confirmed)


def starts_or_explains(played: Scene) -> bool:
    """Start the service; whether it does. If not, its console must name what is wrong."""
    played.restart(ready=False)
    process = played.service.process
    until(lambda: process.poll() is not None or readiness(played.service) == {}, 400, played.service.console)
    if process.poll() is None:
        return True
    print(played.service.console)
    assert "Traceback" not in played.service.console
    assert any(name in played.service.console for name in PARTS)
    return False


def suffer(tmp_path: Path, what: str, seed: int, load: LoadSettings | None = None) -> None:
    with scene(tmp_path / "data", seed, load, **KEPT) as played:
        copy_and_put_back(played, what, tmp_path / "copies")
        if starts_or_explains(played):
            played.load.resume()
            played.load.flow(200)
        else:
            played.over = True


def test_an_older_log_put_back_gives_new_events_no_old_matches(tmp_path: Path) -> None:
    """Somebody restores log.db alone: its offsets are given again, and blocks of the old ones lie there."""
    suffer(tmp_path, "log.db", 121, CALM_LOAD)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("what", ["registry.db", "matches", "index"])
def test_an_older_copy_of_one_part_delivers_nothing_wrong(tmp_path: Path, what: str) -> None:
    """One part alone is from before, all others are of now."""
    suffer(tmp_path, what, 122)
