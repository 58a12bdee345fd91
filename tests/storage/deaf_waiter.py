"""A waiter that hears nothing, for stores whose readers have to look."""

from __future__ import annotations

import threading


class DeafWaiter(threading.Event):
    """See `fieldfare.storage.bell.Waiter`."""

    hears = False

    def close(self) -> None:
        """Nothing is held."""
