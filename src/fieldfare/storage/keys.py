"""The API keys that a service has given out: what is kept of them, and the contract of who keeps it.

Of a key nothing is kept that would let somebody in: only its digest. It has 256 bits of chance in it, so
there is nothing to guess, and a digest that is quick to compute is as good as a slow one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredKey:
    """One key, without the key itself.

    Attributes
    ----------
    id : str
        Names it: in lists, in logs, and at the beginning of the key.
    digest : bytes
        SHA-256 of the whole key.
    space : str or None
        Where its rights hold; None for those that hold for the service.
    rights : tuple of str
    note : str
        For people: what it is for.
    created_ms : int
    created_by : str
        The id of the key that made it.
    revoked_ms : int or None
        Since when it lets nobody in.
    """

    id: str
    digest: bytes = field(repr=False)
    space: str | None
    rights: tuple[str, ...]
    note: str
    created_ms: int
    created_by: str
    revoked_ms: int | None = None


class KeyStore(Protocol):
    """Keeps keys. One process changes them."""

    def keys(self) -> list[StoredKey]:
        """All keys that there ever were, in the order in which they were made."""
        ...

    def add(self, key: StoredKey) -> None:
        """Keep one more; durable on return."""
        ...

    def revoke(self, id: str, now_ms: int) -> None:
        """Note that a key lets nobody in any more, if it did; durable on return."""
        ...

    def ended_spaces(self) -> dict[str, int]:
        """When a space of a name was last deleted, in milliseconds since 1970: by then its keys were revoked.

        What was signed before, and is kept nowhere, has no rights in a later space of that name.
        """
        ...

    def close(self) -> None:
        """Let go of this process's connections; they are opened again when needed."""
        ...
