"""The API keys that a service has issued: their stored form, and the interface of a key store.

The key itself is never stored, only its digest, which grants no access. A key has 256 random bits and cannot
be guessed, so a fast digest is as safe as a slow one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredKey:
    """An API key as it is stored: its attributes and its digest, without the key itself.

    Attributes
    ----------
    id : str
        Identifies the key in lists, in logs, and at the beginning of the key.
    digest : bytes
        SHA-256 of the complete key.
    space : str or None
        Space in which its rights apply; None for rights on the service.
    rights : tuple of str
        Names of its rights.
    note : str
        Human-readable purpose.
    created_ms : int
        Time of its creation, in milliseconds since 1970.
    created_by : str
        ID of the key with which it was created.
    revoked_ms : int or None
        Time of its revocation, in milliseconds since 1970; None for a valid key.
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
    """A store of API keys; one process changes it."""

    def keys(self) -> list[StoredKey]:
        """Return the keys that are not revoked, in order of creation."""
        ...

    def has_any(self) -> bool:
        """Return whether a key was ever created."""
        ...

    def forget_revoked(self, before_ms: int, most: int) -> int:
        """Remove the keys revoked before a time, and all but the newest `most` revoked keys.

        Returns the number of removed keys. The newest key is never removed: it shows that keys are required.
        """
        ...

    def add(self, key: StoredKey) -> None:
        """Add a key; durable on return."""
        ...

    def revoke(self, id: str, now_ms: int) -> None:
        """Revoke a key unless it is revoked already; durable on return."""
        ...

    def ended_spaces(self) -> dict[str, int]:
        """Return when a space of each name was last deleted, in milliseconds since 1970.

        Tokens that were signed before, which are not stored, have no rights in a later space of that name.
        """
        ...

    def close(self) -> None:
        """Close this process's connections; they are opened again when needed."""
        ...
