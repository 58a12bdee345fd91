"""A matcher's operations in progress: hand-overs, take-overs, and repeated reads of the snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field

from fieldfare.effects import Ask, Effect
from fieldfare_lab.membership.messages import Restore
from fieldfare_lab.membership.table import Span


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """The intervals of membership, in seconds.

    Parameters
    ----------
    beat_s
        Interval at which a matcher gossips (the paper: 1). Shorter: news spreads sooner; longer: fewer
        messages.
    dead_after_s
        The silence after which a matcher is considered dead. Shorter: spans are taken over sooner; longer:
        fewer live matchers are considered dead. Must be many beats.
    linger_s
        How long given spans are kept, and when a snapshot is read again. Must be longer than a dispatcher's
        table may be outdated.
    """

    beat_s: float = 1.0
    dead_after_s: float = 10.0
    linger_s: float = 30.0


@dataclass(slots=True)
class HandOverProgress:
    """A hand-over in progress: the completed dimensions, and each receiver's numbered request.

    A split has one `receiver`; a leaving matcher's neighbours are determined again for each attempt.
    """

    spans: dict[int, Span]
    since_s: float
    receiver: str | None = None
    done: set[int] = field(default_factory=set)
    asked: dict[str, tuple[int, frozenset[int]]] = field(default_factory=dict)

    @property
    def left(self) -> set[int]:
        """The dimensions that are not done."""
        return self.spans.keys() - self.done


@dataclass(slots=True)
class Restoring:
    """A take-over in progress: the future span, its previous owners, and the last request to the snapshot."""

    wanted: Span
    names: set[str]
    asked: Span
    asked_s: float


@dataclass(slots=True)
class _Rereading:
    due_s: float
    asked: bool = False


class Rereadings:
    """Spans whose snapshot is to be read once more, after others may have stored subscriptions of them.

    A span is done when the second request is answered; until then the request is repeated.

    Parameters
    ----------
    delay_s
        Seconds between the event that makes it necessary and the request, and between requests.
    """

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._waiting: dict[tuple[int, Span], _Rereading] = {}

    def __bool__(self) -> bool:
        """Whether a span is not done."""
        return bool(self._waiting)

    def add(self, dimension: int, span: Span, now: float) -> None:
        """Schedule a read of a span's snapshot after the delay."""
        self._waiting[dimension, span] = _Rereading(now + self._delay_s)

    def due(self, now: float) -> list[Effect]:
        """Return the requests that are due."""
        due = {asked: reading for asked, reading in self._waiting.items() if reading.due_s <= now}
        for reading in due.values():
            reading.due_s, reading.asked = now + self._delay_s, True
        return [Ask(Restore(dimension, span)) for dimension, span in due]

    def answered(self, dimension: int, span: Span) -> None:
        """Note that a snapshot was read, for whatever reason."""
        reading = self._waiting.get((dimension, span))
        if reading is not None and reading.asked:
            del self._waiting[dimension, span]
