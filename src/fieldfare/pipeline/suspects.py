"""Finding the record that makes matching fail: the failed range is halved until one record fails alone.

    start             upto                    end
      ├─ being tried ──┤                       │
      └─ some of these made matching fail ─────┘

A state machine without I/O. Its input is the offset before which everything is matched (`tip`) and whether
the last attempt failed or passed; its output is the offset up to which to try next. A record that fails alone
twice is to be set aside. One bad record among n is found in about log2(n) attempts, and the good records are
matched on the way.

An attempt whose process died without an error message counts as failed, but is weak evidence against its
records: when memory runs out, the kernel kills the largest process, whatever it is matching. Deaths therefore
lead to trying a record alone, and a record is set aside for deaths only after many deaths in a row, see
`is_proven`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FAILED_ALONE_MAX = 2
"""Failures alone after which a record is set aside; one failure may be chance (a killed process)."""
DIED_ALONE_MAX = 12
"""Deaths in a row, without an error message, after which a record tried alone is set aside."""
DOUBLINGS_MAX = 6
"""Maximum number of times that `DIED_ALONE_MAX` is doubled for adjacent records set aside for deaths."""


@dataclass(frozen=True, slots=True)
class Suspects:
    """A range of records of which some may have made matching fail.

    Attributes
    ----------
    partition : int
        The partition of the log.
    start, end : int
        The range ``start <= offset < end``; all records before `start` are matched.
    upto : int
        The end of the current or next attempt: the records before this offset.
    failures : int
        The number of times that the record at `start` has failed alone.
    error : str
        The last failure's error message.
    deaths : int
        The number of times that a process died without an error message while it tried the record at `start`
        alone.
    """

    partition: int
    start: int
    end: int
    upto: int
    failures: int = 0
    error: str = ""
    deaths: int = 0

    def is_proven(self, given_up_before: int = 0) -> bool:
        """Return whether the record at `start` is to be set aside.

        Parameters
        ----------
        given_up_before : int
            The number of records directly before it that were set aside for deaths. If adjacent records all
            kill their process and nothing is matched in between, the likely cause is the machine, so each
            doubles the number of deaths required.
        """
        deaths_max = DIED_ALONE_MAX << min(given_up_before, DOUBLINGS_MAX)
        return self.failures >= FAILED_ALONE_MAX or self.deaths >= deaths_max

    def died(self, tip: int, error: str) -> Suspects | None:
        """Like `failed`, for an attempt whose process died without an error message."""
        if tip < self.upto and self._is_alone:
            return replace(self, end=self.upto, deaths=self.deaths + 1, error=error)
        return self.failed(tip, error)

    @property
    def _is_alone(self) -> bool:
        return self.upto - self.start == 1

    def failed(self, tip: int, error: str, named: tuple[int, int] | None = None) -> Suspects | None:
        """Record that the attempt failed with an error. Return None when no suspect is left.

        Parameters
        ----------
        tip : int
            All records before this offset are matched nevertheless.
        error : str
            The error message.
        named : (int, int), optional
            The start and end of the records that the failure names. They are tried alone next, after the
            records before them, because the failure may name the wrong ones.
        """
        if tip >= self.upto:
            return self.passed(tip)
        if self._is_alone:
            return replace(self, end=self.upto, failures=self.failures + 1, error=error)
        start = max(self.start, tip)
        if named and start <= named[0] < named[1] <= self.upto and named[1] - named[0] < self.upto - start:
            upto = named[0] if named[0] > start else named[1]
            return Suspects(self.partition, start, named[1], upto, error=error)
        # The attempted range contains the cause; later records are suspected again only if they fail.
        return self._halved(start, self.upto, error)

    def passed(self, tip: int) -> Suspects | None:
        """Record that all before `tip` are matched or set aside. Return None when no suspect is left."""
        if tip >= self.end:
            return None
        if tip < self.upto:
            same = tip == self.start
            return replace(
                self, start=tip, failures=self.failures if same else 0, deaths=self.deaths if same else 0
            )
        return self._halved(tip, self.end, self.error)

    def _halved(self, start: int, end: int, error: str) -> Suspects:
        return Suspects(self.partition, start, end, start + max(1, (end - start) // 2), error=error)
