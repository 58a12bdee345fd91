"""What a matcher has under way: a hand-over, a take-over, a second look at the snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field

from fieldfare.effects import Ask, Effect
from fieldfare.membership.messages import Restore
from fieldfare.membership.table import Span


@dataclass(frozen=True, slots=True)
class MembershipSettings:
    """The knobs of membership, all in seconds.

    Parameters
    ----------
    beat_s
        How often a matcher gossips (the paper: 1). Shorter: news spreads sooner; longer: less talk.
    dead_after_s
        The silence after which a matcher is taken for dead. Shorter: spans are taken over sooner; longer:
        fewer live matchers are taken for dead. Must be many beats.
    linger_s
        How long given spans are kept, and when a snapshot is read again. Must be longer than a dispatcher's
        table may be old.
    """

    beat_s: float = 1.0
    dead_after_s: float = 10.0
    linger_s: float = 30.0


@dataclass(slots=True)
class Giving:
    """A hand-over under way: which dimensions are done, and whom else was asked for which, by number.

    A split has one `receiver`; a leaving matcher's neighbours are found anew for each attempt.
    """

    spans: dict[int, Span]
    since_s: float
    receiver: str | None = None
    done: set[int] = field(default_factory=set)
    asked: dict[str, tuple[int, frozenset[int]]] = field(default_factory=dict)

    @property
    def left(self) -> set[int]:
        """The dimensions that are still to be done."""
        return self.spans.keys() - self.done


@dataclass(slots=True)
class Restoring:
    """A take-over under way: what to own then, whose it was, and what was asked of the snapshot, when."""

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

    A span is through when an answer to the second question has come; until then it is asked again.

    Parameters
    ----------
    delay_s
        How long after the event that made it necessary, and between questions.
    """

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._waiting: dict[tuple[int, Span], _Rereading] = {}

    def __bool__(self) -> bool:
        """Whether any is not through."""
        return bool(self._waiting)

    def add(self, dimension: int, span: Span, now: float) -> None:
        """Read a span's snapshot after the delay."""
        self._waiting[dimension, span] = _Rereading(now + self._delay_s)

    def due(self, now: float) -> list[Effect]:
        """What to ask now."""
        due = {asked: reading for asked, reading in self._waiting.items() if reading.due_s <= now}
        for reading in due.values():
            reading.due_s, reading.asked = now + self._delay_s, True
        return [Ask(Restore(dimension, span)) for dimension, span in due]

    def answered(self, dimension: int, span: Span) -> None:
        """A snapshot has been read, for whatever reason."""
        reading = self._waiting.get((dimension, span))
        if reading is not None and reading.asked:
            del self._waiting[dimension, span]
