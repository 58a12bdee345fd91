"""Log files that do not grow for ever, whoever writes them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

LOG_MAX_BYTES = 16 << 20
"""A log file larger than this is set aside as ``.1``, over the one before."""


def set_aside_large(log: Path, max_bytes: int = LOG_MAX_BYTES) -> None:
    """Begin a log file anew when it has grown too large.

    It is copied and emptied, not renamed: processes that have it open, always to append, go on writing into
    it. What they write in between is lost; on a full disk the older copy goes first.
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
        pass  # It was never written, or cannot be: no reason to stop anything.
