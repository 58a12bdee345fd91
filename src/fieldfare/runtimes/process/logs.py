"""Size limits for log files."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

LOG_VARIABLE = "FIELDFARE_PROCESS_LOG"
"""Environment variable with the log file of a process that a supervisor started."""

LOG_MAX_BYTES = 16 << 20
"""Maximum bytes of a log file; a larger one is moved to ``.1``, replacing the previous one."""


def set_aside_large(log: Path, max_bytes: int = LOG_MAX_BYTES) -> None:
    """Rotate a log file that has grown too large.

    It is copied and truncated, not renamed: processes that have it open for appending continue to write to
    it. Lines written in between are lost; on a full disk the older copy is removed first.
    """
    older = log.with_suffix(f"{log.suffix}.1")
    try:
        if log.stat().st_size <= max_bytes:
            return
        older.unlink(missing_ok=True)
        try:
            shutil.copyfile(log, older)
        except OSError:
            older.unlink(missing_ok=True)
        os.truncate(log, 0)
    except OSError:
        pass  # Missing or not writable: no reason to stop anything.


def reopen_log() -> None:
    """Redirect this process's output to the file that has its log's name now, after a rotation by rename.

    Does nothing in a process that no supervisor started; keeps the old file if the new one cannot be opened.
    """
    path = os.environ.get(LOG_VARIABLE)
    if path is None:
        return
    with suppress(OSError):
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for standard in (1, 2):
            os.dup2(log, standard)
        os.close(log)
