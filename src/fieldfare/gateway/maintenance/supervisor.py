"""The state of the supervisor that started this gateway, read from its file ``run/serve.json``."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import msgspec

from fieldfare.files import decode_file
from fieldfare.storage.folder import DataFolder

Process = Literal["gateway", "indexer", "pipeline"]
_Count = Annotated[int, msgspec.Meta(ge=0)]


class SupervisorBeat(msgspec.Struct):
    """The supervisor's state, written at each change; ``deaths`` counts the processes that died or hung."""

    pid: int
    state: str
    time_ms: int
    restarts: int = 0
    deaths: dict[Process, _Count] = {}


def read_supervisor(folder: DataFolder) -> SupervisorBeat | None:
    """Return the supervisor's state; None if it cannot be read, or this gateway was not started by it."""
    beat = decode_file(folder.heartbeat_of("serve"), SupervisorBeat)
    return None if beat is None or beat.pid != os.getppid() else beat
