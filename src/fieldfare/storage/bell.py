"""A bell: a file through which a process that has written something wakes the processes that wait for it.

Ringing writes one byte over the file's only byte; listeners are woken by the kernel (inotify). Nothing
depends on it: where nothing can be heard, or a writer is killed before it rings, listeners look by
themselves, later.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from fieldfare.files import make_folder

try:
    import inotify_simple  # type: ignore[import-untyped]
except ImportError:  # not Linux, or a worker of a cluster without it
    inotify_simple = None

_MODE = 0o600


class Waiter(Protocol):
    """An event, as of `threading`, for one thread that waits for something of others."""

    @property
    def hears(self) -> bool:
        """Whether the event is set by that; if not, the thread must look again after a short time."""

    def set(self) -> None:
        """Wake the waiting thread; from any thread."""

    def clear(self) -> None:
        """Forget that the event was set."""

    def wait(self, timeout_s: float, /) -> bool:
        """Wait until the event is set, or for none if it was since `clear`; say whether."""

    def close(self) -> None:
        """Release what is held; no thread may wait any more."""


class Bell:
    """A bell at a path; the file is created when it is needed. It can be pickled."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def __reduce__(self) -> tuple[type[Bell], tuple[Path]]:
        return Bell, (self.path,)

    def ring(self) -> None:
        """Wake all listeners; to be called when what they wait for can be read."""
        with suppress(OSError):
            if self._file is None:
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT, _MODE)
            os.pwrite(self._file, b"\0", 0)

    def listen(self) -> Listener:
        """Return a listener, which is woken by each ring from now on."""
        return Listener(self.path)

    def __del__(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                os.close(self._file)


def bell_of(database: Path) -> Bell:
    """Return the bell of a database, which rings at its commits."""
    return Bell(database.with_name(f"{database.name}-bell"))


class Listener:
    """A `Waiter` that each ring of a bell wakes.

    Attributes
    ----------
    hears : bool
        Whether rings are heard.
    """

    def __init__(self, path: Path) -> None:
        self._own, self._sets = os.pipe()
        for end in (self._own, self._sets):
            os.set_blocking(end, False)
        self._files = [self._own]
        self._inotify = None
        self.hears = False
        if inotify_simple is not None:
            with suppress(OSError):  # too many listeners, or a read-only disk
                make_folder(path.parent)
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT, _MODE))
                self._inotify = inotify_simple.INotify(nonblocking=True)
                self._inotify.add_watch(path, inotify_simple.flags.MODIFY)
                self._files.append(self._inotify.fileno())
                self.hears = True
        self._poll = select.poll()
        for file in self._files:
            self._poll.register(file, select.POLLIN)

    def set(self) -> None:
        """Wake the waiting thread; from any thread."""
        with suppress(BlockingIOError):
            os.write(self._sets, b"\0")

    def clear(self) -> None:
        """Forget earlier rings and calls of `set`."""
        for file in self._files:
            with suppress(BlockingIOError):
                os.read(file, 1 << 16)

    def wait(self, timeout_s: float) -> bool:
        """Wait for a ring or a call of `set`, or for none if there was one since `clear`; say whether."""
        if timeout_s < 0.001:
            time.sleep(timeout_s)  # poll takes whole milliseconds
            timeout_s = 0.0
        return bool(self._poll.poll(timeout_s * 1000))

    def close(self) -> None:
        """Release the files; no thread may wait any more."""
        if self._inotify is not None:
            self._inotify.close()
        os.close(self._own)
        os.close(self._sets)
