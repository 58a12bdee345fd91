"""The API keys that a service has issued: their stored form.

The key itself is never stored, only its digest, which grants no access. A key has 256 random bits and cannot
be guessed, so a fast digest is as safe as a slow one.
"""

from __future__ import annotations

from dataclasses import dataclass, field


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
