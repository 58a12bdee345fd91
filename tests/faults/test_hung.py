"""A process that hangs instead of dying: readiness says so, and it mends itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from accidents import frozen, readiness, victims_of
from scene import BUSY, scene
from service_support import until

pytestmark = pytest.mark.service

NOTICED_S = 120.0
MENDED_S = 400.0


def hang(data: Path, seed: int, kinds: list[str]) -> None:
    """Stop the processes of one kind after the other with SIGSTOP, and never let them go on."""
    with scene(data, seed, pipeline_stall_s=20, **BUSY) as played:
        for kind in kinds:
            played.load.flow(played.random.randrange(1, 100))
            with frozen(victims_of(played.service, kind)):
                if kind != "snapshot":
                    said = until(lambda: readiness(played.service) != {}, NOTICED_S, f"({kind}: not ready)")
                    assert said
                until(lambda: readiness(played.service) == {}, MENDED_S, f"({kind}: ready again)")
                played.load.flow(50, MENDED_S)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["driver", "java", "task", "gateway", "indexer"])
def test_whatever_hangs_is_noticed_and_replaced(tmp_path: Path, kind: str) -> None:
    """A process in a debugger, on a dead network disk, or in a loop; twice, as the first time may be luck."""
    hang(tmp_path / "data", 82, [kind, kind])
