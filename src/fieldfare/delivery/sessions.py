"""Those who take messages, and for how long they have them."""

from __future__ import annotations

from collections.abc import Sequence


class Session:
    """Somebody who takes messages: one stream, or all pulls of a subscription.

    Parameters
    ----------
    window
        How many messages the session may hold unacked.
    is_auto
        Whether it settles messages itself, by their order: its leases have no end, and it needs its window.
    """

    __slots__ = ("ended", "held", "is_auto", "leases", "window")

    def __init__(self, window: int, *, is_auto: bool = False) -> None:
        self.window = window
        self.is_auto = is_auto
        self.held = 0
        self.leases: set[Lease] = set()
        """Those with messages that are not settled."""
        self.ended = False
        """Whether another session has taken its place: it is to take nothing more."""

    @property
    def room(self) -> int:
        return self.window - self.held


class Lease:
    """Messages given to one session at one time; ``open`` counts those that are not settled."""

    __slots__ = ("deadline_s", "keys", "open", "session")

    def __init__(self, session: Session, deadline_s: float, keys: Sequence[int]) -> None:
        self.session = session
        self.deadline_s = deadline_s
        self.keys = keys
        self.open = len(keys)

    def __lt__(self, other: Lease) -> bool:
        return self.deadline_s < other.deadline_s
