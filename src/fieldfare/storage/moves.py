"""Subscriptions that move between brokers, in their stored form.

A *move* is one broker's part of a session between two brokers, see docs/decisions/balancing.md. It is stored
with the registry: each step is one transaction with the changes of the subscription that belong to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fieldfare.model import Labels, Offsets, Subscription
from fieldfare.storage.registry import Conflict

State = Literal[
    "offered",
    "cancelled",
    "ending",
    "ended",
    "moved",
    "arriving",
    "accepted",
    "counting",
    "ready",
    "here",
]
"""The states of a move: the first five at the broker that a subscription leaves, the others at the one where
it arrives."""


@dataclass(frozen=True, slots=True)
class Move:
    """One broker's part in a move; a subscription has at most one at a broker.

    Attributes
    ----------
    space, id
        The key of the space, and the subscription.
    session
        A text drawn at random by the broker that the subscription leaves.
    peer
        The other broker.
    number
        The subscription's number at this broker.
    revision
        The revision of this registry that the present state waits for: see `gateway.federation.moving`.
    begins
        Where the arriving subscription's matches begin.
    bounds
        By origin, the greatest stamp of records that the broker left behind delivers.
    url, token
        Where clients read the subscription after it has moved, and a credential for it.
    digest
        The SHA-256 of such a credential that is valid here.
    delivery
        The subscription's settings as JSON: those to hand over, or once the other broker has handed it over.
    owner, labels
        The subscription's owner and labels, as of the same time as its settings.
    is_told
        Whether the other broker has confirmed the end of the session.
    filter, dialect
        The subscription's filter while another one stands here in its place.
    earlier
        The move by which an arriving subscription had left, in case that it does not come after all.
    """

    space: str
    id: str
    session: str
    peer: str
    state: State
    number: int = 0
    revision: int = 0
    begins: Offsets = ()
    bounds: Mapping[str, int] = field(default_factory=dict)
    url: str = ""
    token: str = field(default="", repr=False)
    digest: bytes = b""
    delivery: bytes = field(default=b"", repr=False)
    is_told: bool = False
    filter: str = ""
    dialect: str = "sql"
    earlier: Move | None = None
    owner: str = ""
    labels: Labels = ()

    @property
    def key(self) -> tuple[str, str]:
        """The key of the space, and the id of the subscription."""
        return self.space, self.id


Results = Sequence[Subscription | Conflict | None]
