"""Finding the record that makes matching fail: what failed is halved until one record fails alone.

    start             upto                    end
      ├─ being tried ──┤                       │
      └─ some of these made matching fail ─────┘

A machine without I/O. It is told how far everything is matched (`tip`) and whether the last attempt failed
or passed; it says up to where to try next. A record that failed alone twice is to be set aside. Of n records
one bad one is found in about log2(n) attempts, and what is not bad is matched on the way.

An attempt whose process died without a word has failed too, but says little about its records: a machine
short of memory kills what is at work, whatever it is at. Such deaths lead to trying a record alone; of one
tried alone they prove something only when there are many of them and nothing else, see `is_proven`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FAILED_ALONE_MAX = 2
"""A record is set aside when it has failed alone so often: once may be chance, such as a killed process."""
DIED_ALONE_MAX = 12
"""A record is set aside when so many processes in a row died without a word while they tried it alone."""
DOUBLINGS_MAX = 6
"""That many is doubled at most so often."""


@dataclass(frozen=True, slots=True)
class Suspects:
    """Records of which some made matching fail, perhaps.

    Attributes
    ----------
    partition : int
        Of the log.
    start, end : int
        Its records ``start <= offset < end``; all before `start` are matched.
    upto : int
        Those before this offset are tried next, or at the moment.
    failures : int
        How often the record at `start` has failed alone.
    error : str
        What the last failure said.
    deaths : int
        How often a process died without a word while it tried the record at `start` alone.
    """

    partition: int
    start: int
    end: int
    upto: int
    failures: int = 0
    error: str = ""
    deaths: int = 0

    def is_proven(self, given_up_before: int = 0) -> bool:
        """Whether the record at `start` is to be set aside.

        Parameters
        ----------
        given_up_before : int
            How many records directly before it were set aside for deaths. Where one after the other kills,
            and nothing else was matched in between, the machine is to blame rather than they: each doubles
            the deaths that are asked for.
        """
        deaths_max = DIED_ALONE_MAX << min(given_up_before, DOUBLINGS_MAX)
        return self.failures >= FAILED_ALONE_MAX or self.deaths >= deaths_max

    def died(self, tip: int, error: str) -> Suspects | None:
        """The process ended in the attempt, and nobody has said why; otherwise like `failed`."""
        if tip < self.upto and self._is_alone:
            return replace(self, end=self.upto, deaths=self.deaths + 1, error=error)
        return self.failed(tip, error)

    @property
    def _is_alone(self) -> bool:
        return self.upto - self.start == 1

    def failed(self, tip: int, error: str, named: tuple[int, int] | None = None) -> Suspects | None:
        """The attempt failed, and said so; None when nothing is left to suspect.

        Parameters
        ----------
        tip : int
            All before it is matched all the same.
        error : str
            Why it failed.
        named : (int, int), optional
            The records, start and end, that the failure itself names. They are tried alone next, after those
            before them: what is said may be wrong.
        """
        if tip >= self.upto:
            return self.passed(tip)
        if self._is_alone:
            return replace(self, end=self.upto, failures=self.failures + 1, error=error)
        start = max(self.start, tip)
        if named and start <= named[0] < named[1] <= self.upto and named[1] - named[0] < self.upto - start:
            upto = named[0] if named[0] > start else named[1]
            return Suspects(self.partition, start, named[1], upto, error=error)
        # What made this attempt fail is in it: what lies behind is suspected again when it fails itself.
        return self._halved(start, self.upto, error)

    def passed(self, tip: int) -> Suspects | None:
        """All before `tip` is matched or set aside; None when nothing is left to suspect."""
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
