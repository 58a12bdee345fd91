"""State of the exchange with each other broker, shared by the steps that move entries."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable

from fieldfare.storage.brokers import Run, StoredBroker
from fieldfare.storage.links import Correspondent


class Correspondence:
    """The correspondents, and as of which of their revisions this broker knows their filters.

    Used by one thread at a time, but for the runs: maintenance forgets them meanwhile.
    """

    def __init__(
        self,
        correspondents: dict[str, Correspondent],
        brokers: Iterable[StoredBroker],
        runs: Iterable[Run],
    ) -> None:
        self._known = correspondents
        self.brokers = {each.name: each for each in brokers}
        """The brokers that have sent filters."""
        self._lock = threading.Lock()
        self._runs: dict[int, tuple[list[int], list[int]]] = {}
        for run in runs:
            self.add_run(run)

    def get(self, name: str) -> Correspondent:
        """Return a broker's state."""
        return self._known.get(name) or Correspondent(name)

    def put(self, changed: Iterable[Correspondent]) -> None:
        """Take over states that are stored now."""
        self._known.update((each.name, each) for each in changed)

    @property
    def names(self) -> list[str]:
        """The names of all brokers with a state or filters."""
        return sorted({*dict(self._known), *self.brokers})

    def add_run(self, run: Run) -> None:
        """Add a broker's next run; see `storage.brokers`."""
        with self._lock:
            revisions, theirs = self._runs.setdefault(run.number, ([], []))
            if revisions and revisions[-1] == run.revision:
                theirs[-1] = run.theirs
                return
            revisions.append(run.revision)
            theirs.append(run.theirs)

    def last_run(self, number: int) -> Run | None:
        """Return a broker's last run; None before the first."""
        with self._lock:
            if number not in self._runs:
                return None
            revisions, theirs = self._runs[number]
            return Run(number, revisions[-1], theirs[-1])

    def theirs(self, number: int, stamp: int) -> int | None:
        """Return the broker's revision whose filters records with a stamp meet; None before its first run."""
        with self._lock:
            revisions, theirs = self._runs.get(number, ([], []))
            place = bisect_right(revisions, stamp)
            return theirs[place - 1] if place else None

    def forget_runs(self, before: int) -> None:
        """Drop the runs that no stamp from `before` on needs."""
        with self._lock:
            for revisions, theirs in self._runs.values():
                surplus = bisect_right(revisions, before) - 1
                if surplus > 0:
                    del revisions[:surplus], theirs[:surplus]
