"""What lets somebody in: API keys, all in memory, so that to look at one takes microseconds, and tokens.

A key is ``ff_ID_SECRET``. The id finds it, and the digest of the whole decides, compared in constant time.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from fieldfare.gateway.admission.callers import EVERYBODY, NOBODY, Caller, Right, invalid_key
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.settings import UnusableFile
from fieldfare.storage.keys import KeyStore, StoredKey

if TYPE_CHECKING:  # a service without tokens need not load what they take
    from fieldfare.gateway.admission.tokens import WebTokens

ADMIN = "admin"
"""The id of the key that is not kept in the store but read from a file at the start."""

ADMIN_MIN_CHARS = 32
KEYS_MAX = 10_000
KEYS_OF_SPACE_MAX = 1_000
"""Keys that let somebody in at a time: of all, and of one space, whose managers leave room for others."""

_KEY = re.compile(rb"ff_([0-9a-f]{12})_[0-9a-f]{64}")
_LONGEST_BYTES = 512
_SECRET = re.compile(rb"[\x21-\x7e]+")


class AdminKeyError(UnusableFile):
    """The file with the first key cannot be used."""


def read_admin_key(path: Path) -> bytes:
    """The digest of the first admin key, from the file that holds it."""
    try:
        text = path.read_bytes().strip()
    except OSError as error:
        raise AdminKeyError(f"the admin key cannot be read: {path}: {error.strerror or error}") from None
    if not _SECRET.fullmatch(text) or not ADMIN_MIN_CHARS <= len(text) <= _LONGEST_BYTES:
        raise AdminKeyError(
            f"{path} holds no admin key: one line of {ADMIN_MIN_CHARS} to {_LONGEST_BYTES} visible"
            " characters, made by chance; `openssl rand -hex 32` makes one"
        )
    return _digest(text)


class Keyring:
    """Finds who asks, and changes who may.

    Parameters
    ----------
    store
        Where keys are kept.
    admin_digest
        Of the first admin key; None where there is none.
    tokens
        Knows who may come with a token; None where nobody may.

    Attributes
    ----------
    required : bool
        Whether who asks needs a key. Once there was one it stays so, whatever is revoked: a service must not
        be open to all because somebody took back a key.
    """

    def __init__(self, store: KeyStore, admin_digest: bytes | None, tokens: WebTokens | None = None) -> None:
        self._store = store
        self._admin = None if admin_digest is None else Caller(ADMIN, {None: (Right.ADMIN,)})
        self._admin_digest = admin_digest or b""
        self._tokens = tokens
        kept = store.keys()
        self.required = bool(kept) or admin_digest is not None or tokens is not None
        if self.required and not kept:
            # One that never let anybody in: it keeps the service closed when a setting is forgotten.
            store.add(
                StoredKey(ADMIN, b"", None, (), "keys are asked for", _now_ms(), "", revoked_ms=_now_ms())
            )
        self._keys = {key.id: key for key in kept if key.revoked_ms is None}
        self._callers = {key.id: _caller_of(key) for key in self._keys.values()}
        self._anyone = NOBODY if self.required else EVERYBODY
        self.changing = asyncio.Lock()
        """Held while keys, or the spaces that they are for, are made or ended."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("keys travel nowhere")

    def find(self, authorization: bytes | None) -> Caller:
        """Who sends this header; Problem 401 when it is there and its key lets nobody in."""
        if authorization is None or not self.required:
            return self._anyone
        scheme, _, key = authorization.partition(b" ")
        key = key.strip(b" ")
        if scheme.lower() != b"bearer":
            raise invalid_key()
        if self._tokens is not None and key.count(b".") == 2:
            return self._tokens.find(key)
        if len(key) > _LONGEST_BYTES:
            raise invalid_key()
        found = _KEY.fullmatch(key)
        caller = self._callers.get(found[1].decode()) if found else None
        if caller is not None and hmac.compare_digest(self._keys[caller.id].digest, _digest(key)):
            return caller
        if self._admin is not None and hmac.compare_digest(self._admin_digest, _digest(key)):
            return self._admin
        raise invalid_key()

    def listed(self, by: Caller) -> list[StoredKey]:
        """The keys that somebody may look after, the oldest first."""
        return [key for key in self._keys.values() if _looks_after(by, key)]

    async def create(
        self,
        by: Caller,
        space: str | None,
        rights: Iterable[Right],
        note: str,
        check_space: Callable[[str], object],
    ) -> tuple[StoredKey, str]:
        """Make a key; what is kept of it, and the key itself, which nobody can read again.

        ``check_space`` raises a Problem when there is no such space, or none any more.
        """
        id = secrets.token_hex(6)
        text = f"ff_{id}_{secrets.token_hex(32)}"
        names = tuple(sorted(set(rights)))
        key = StoredKey(id, _digest(text.encode()), space, names, note, _now_ms(), by.id)
        async with self.changing:
            if by.has_ended:  # while others were made or revoked: it makes no heir after its end
                raise invalid_key()
            if space is not None:
                check_space(space)
            of_space = sum(each.space == space for each in self._keys.values())
            if len(self._keys) >= KEYS_MAX or (space is not None and of_space >= KEYS_OF_SPACE_MAX):
                whose = "of this space" if of_space >= KEYS_OF_SPACE_MAX else "at all"
                detail = f"There are as many keys {whose} as there may be; revoke some that are not used."
                raise HttpProblem(409, "too-many-keys", detail)
            await asyncio.to_thread(self._store.add, key)
            self._keys[id] = key
            self._callers[id] = _caller_of(key)
        return key, text

    async def revoke(self, by: Caller, id: str) -> StoredKey:
        """Let a key let nobody in any more, in open streams neither; Problem 404 when there is none."""
        async with self.changing:
            if by.has_ended:
                raise invalid_key()
            key = self._keys.get(id)
            if key is None or not _looks_after(by, key):
                raise HttpProblem(404, "unknown-key", f"There is no key {id[:80]!r}.")
            await asyncio.to_thread(self._store.revoke, id, _now_ms())
            del self._keys[id]
            self._callers.pop(id).end()
        return key

    def end_space(self, name: str) -> None:
        """A space was deleted, and its keys revoked with it: what is open for them, and for tokens, ends."""
        for id in [key.id for key in self._keys.values() if key.space == name]:
            del self._keys[id]
            self._callers.pop(id).end()
        if self._tokens is not None:
            self._tokens.end_space(name, _now_ms())


def key_document(key: StoredKey) -> dict[str, Any]:
    """A key as clients see it."""
    return {
        "id": key.id,
        "space": key.space,
        "rights": list(key.rights),
        "note": key.note,
        "created_ms": key.created_ms,
        "created_by": key.created_by,
    }


def _caller_of(key: StoredKey) -> Caller:
    return Caller(key.id, {key.space: map(Right, key.rights)})


def _looks_after(by: Caller, key: StoredKey) -> bool:
    return by.may(Right.MANAGE, key.space) if key.space is not None else by.is_admin


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()
