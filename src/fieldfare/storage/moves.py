"""Subscriptions that move between brokers: interface of the store.

A *move* is one broker's part of a session between two brokers, see docs/decisions/balancing.md. It is stored
with the registry: each step is one transaction with the changes of the subscription that belong to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from fieldfare.model import Cursor, Labels, Offsets, Subscription
from fieldfare.storage.registry import Configure, Conflict, Put, Remove

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


class MoveStore(Protocol):
    """The moves of one broker; changed by the process that changes the registry."""

    def moves(self) -> list[Move]:
        """Return all moves. RegistryError if the row of one is corrupt: events would be lost or doubled."""
        ...

    def step(
        self,
        key: tuple[str, str],
        move: Callable[[Results], Move | None],
        changes: Sequence[Put | Configure | Remove],
        ends: Offsets,
        now_ms: int,
        cursor: Cursor | None = None,
    ) -> Move | None:
        """Apply changes of the registry and a step of a move in one transaction, durable on return.

        Parameters
        ----------
        key
            The key of the space, and the id.
        move
            Returns the move from the results of the changes; None removes it. If it raises, nothing changes.
        changes, ends, now_ms
            See `Registry.apply`.
        cursor
            The subscription's cursor, to be saved.
        """
        ...

    def forget_space(self, space: str, but: Collection[str]) -> None:
        """Remove the moves of a deleted space, but for those of some ids; durable on return."""
        ...

    def close(self) -> None:
        """Close this process's connections; they are opened again when needed."""
        ...
