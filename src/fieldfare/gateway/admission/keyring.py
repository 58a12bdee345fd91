"""Credentials: API keys, all in memory, so that checking one takes microseconds, and tokens.

A key is ``ff_ID_SECRET``. It is looked up by its id and verified by the digest of the complete key, compared
in constant time.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from msgspec import Meta, Struct

from fieldfare.gateway.admission.callers import ANONYMOUS, ANY_CALLER, Caller, Right, invalid_key
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.settings import UnusableFile
from fieldfare.storage.keys import StoredKey

if TYPE_CHECKING:  # a service without tokens, and a relay, need not load their dependencies
    from fieldfare.gateway.admission.tokens import WebTokens
    from fieldfare.storage.sql.keys import KeyStore

logger = logging.getLogger("fieldfare.gateway")

ADMIN = "admin"
"""Id of the key that is not in the store but read from a file at the start."""

ADMIN_MIN_CHARS = 32
KEYS_MAX = 10_000
KEYS_OF_SPACE_MAX = 1_000
"""Maximum valid keys, in total and per space; more are refused with a 409.

The limit per space leaves room for others.
"""

_KEY = re.compile(rb"ff_([0-9a-f]{12})_[0-9a-f]{64}")
_LONGEST_BYTES = 512
_SECRET = re.compile(rb"[\x21-\x7e]+")


class AdminKeyError(UnusableFile):
    """The file with the first admin key cannot be used."""


def read_admin_key(path: Path) -> bytes:
    """Return the digest of the first admin key, read from its file. Raise AdminKeyError if it is unusable."""
    try:
        text = path.read_bytes().strip()
    except OSError as error:
        raise AdminKeyError(f"the admin key cannot be read: {path}: {error.strerror or error}") from None
    if not _SECRET.fullmatch(text) or not ADMIN_MIN_CHARS <= len(text) <= _LONGEST_BYTES:
        raise AdminKeyError(
            f"{path} holds no admin key. A key is one line of {ADMIN_MIN_CHARS} to {_LONGEST_BYTES} random"
            " visible characters; `openssl rand -hex 32` makes one"
        )
    return _digest(text)


def read_peer_key(path: Path) -> str:
    """Return the API key for other services, read from its file. Raise AdminKeyError if it is unusable."""
    try:
        text = path.read_bytes().strip()
    except OSError as error:
        raise AdminKeyError(
            f"the key for neighbours cannot be read: {path}: {error.strerror or error}"
        ) from None
    if not _SECRET.fullmatch(text) or len(text) > _LONGEST_BYTES:
        raise AdminKeyError(f"{path} holds no API key, which is one line of visible characters")
    return text.decode()


_RightName = Annotated[str, Meta(extra_json_schema={"enum": [right.value for right in Right]})]
Rights = Annotated[
    list[_RightName],
    Meta(min_length=1, max_length=len(Right)),
    "What the key permits. A key of a space can have publish, subscribe and manage; a key of the service can"
    " have watch, admin and broker (another site).",
]
SpaceOfKey = Annotated[
    str | None, "The space that the rights apply to; null: the rights apply to the whole service."
]


class KeyDocument(Struct, kw_only=True):
    """An API key as shown to clients."""

    id: Annotated[str, "Id of the key, which is also how the secret key begins."]
    space: SpaceOfKey
    rights: Rights
    note: Annotated[str, "The note that was given when the key was created."]
    created_ms: Annotated[int, "Time of creation, in milliseconds since 1970."]
    created_by: Annotated[str, "Id of the key that created this one."]


class Keyring:
    """Finds the caller of a request, and creates and revokes keys.

    Parameters
    ----------
    store
        Durable storage of the keys.
    admin_digest
        Digest of the first admin key; None if there is none.
    tokens
        Finds the callers of tokens; None if tokens are not accepted.

    Attributes
    ----------
    required : bool
        Whether callers need a key. True forever once a key has existed, even if it is revoked: revoking a key
        must not open the service to everyone.
    """

    def __init__(self, store: KeyStore, admin_digest: bytes | None, tokens: WebTokens | None = None) -> None:
        self._store = store
        self._admin = None if admin_digest is None else Caller(ADMIN, {None: (Right.ADMIN,)})
        self._admin_digest = admin_digest or b""
        self._tokens = tokens
        has_any = store.has_any()
        self.required = has_any or admin_digest is not None or tokens is not None
        if self.required and not has_any:
            # A key that never was valid: it keeps the service closed if a setting is forgotten.
            store.add(
                StoredKey(ADMIN, b"", None, (), "keys are asked for", _now_ms(), "", revoked_ms=_now_ms())
            )
        self._keys: dict[str, StoredKey] = {}
        self._callers: dict[str, Caller] = {}
        for key in store.keys():  # noqa: SIM118 - it is no mapping
            try:
                self._callers[key.id] = _caller_of(key)
            except ValueError as error:
                logger.error("API key %s is left out, since its stored row is invalid: %s", key.id, error)
                continue
            self._keys[key.id] = key
        self.find_moved: Callable[[bytes], Caller | None] = lambda key: None
        """Finds the caller with the token of a subscription that has moved here."""
        self._anyone = ANONYMOUS if self.required else ANY_CALLER
        self.changing = asyncio.Lock()
        """Held while keys or their spaces are created or removed."""

    def reread_admin(self, path: Path | None) -> None:
        """Read the first admin key again; one that cannot be used is reported, and the old one stays."""
        try:
            if path is not None:
                self._admin_digest = read_admin_key(path)
        except UnusableFile as error:
            logger.warning("the new admin key cannot be used, the old one stays in use: %s", error)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a keyring cannot be pickled")

    def find(self, authorization: bytes | None) -> Caller:
        """Return the caller of this Authorization header. Raise Problem 401 if its key is not valid."""
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
        moved = self.find_moved(key)
        if moved is not None:
            return moved
        found = _KEY.fullmatch(key)
        caller = self._callers.get(found[1].decode()) if found else None
        if caller is not None and hmac.compare_digest(self._keys[caller.id].digest, _digest(key)):
            return caller
        if self._admin is not None and hmac.compare_digest(self._admin_digest, _digest(key)):
            return self._admin
        raise invalid_key()

    def listed(self, by: Caller) -> list[StoredKey]:
        """Return the keys that a caller may manage, the oldest first."""
        return [key for key in self._keys.values() if _may_manage(by, key)]

    async def create(
        self,
        by: Caller,
        space: str | None,
        rights: Iterable[Right],
        note: str,
        check_space: Callable[[str], object],
    ) -> tuple[StoredKey, str]:
        """Create a key; return its stored form, and the key itself, which cannot be read again.

        ``check_space`` raises a Problem if there is no such space, or if it was deleted. Raise Problem 409 if
        there are too many keys.
        """
        id = secrets.token_hex(6)
        text = f"ff_{id}_{secrets.token_hex(32)}"
        names = tuple(sorted(set(rights)))
        key = StoredKey(id, _digest(text.encode()), space, names, note, _now_ms(), by.id)
        async with self.changing:
            if by.has_ended:  # revoked while this waited: a revoked key must not create a successor
                raise invalid_key()
            if space is not None:
                check_space(space)
            of_space = sum(each.space == space for each in self._keys.values())
            if len(self._keys) >= KEYS_MAX or (space is not None and of_space >= KEYS_OF_SPACE_MAX):
                whose = "of this space" if of_space >= KEYS_OF_SPACE_MAX else "of this service"
                detail = f"The maximum number of keys {whose} is reached: revoke keys that are not used."
                raise HttpProblem(409, "too-many-keys", detail)
            await asyncio.to_thread(self._store.add, key)
            self._keys[id] = key
            self._callers[id] = _caller_of(key)
        return key, text

    async def revoke(self, by: Caller, id: str) -> StoredKey:
        """Revoke a key, and end its open streams. Raise Problem 404 if there is no such key."""
        async with self.changing:
            if by.has_ended:
                raise invalid_key()
            key = self._keys.get(id)
            if key is None or not _may_manage(by, key):
                raise HttpProblem(404, "unknown-key", f"There is no key {id[:80]!r}.")
            await asyncio.to_thread(self._store.revoke, id, _now_ms())
            del self._keys[id]
            self._callers.pop(id).end()
        return key

    def end_space(self, name: str) -> None:
        """End the open requests of a deleted space's keys, which are revoked, and of its tokens."""
        for id in [key.id for key in self._keys.values() if key.space == name]:
            del self._keys[id]
            self._callers.pop(id).end()
        if self._tokens is not None:
            self._tokens.end_space(name, _now_ms())


def key_document(key: StoredKey) -> KeyDocument:
    """Return a key as shown to clients."""
    return KeyDocument(
        id=key.id,
        space=key.space,
        rights=list(key.rights),
        note=key.note,
        created_ms=key.created_ms,
        created_by=key.created_by,
    )


def _caller_of(key: StoredKey) -> Caller:
    return Caller(key.id, {key.space: map(Right, key.rights)})


def _may_manage(by: Caller, key: StoredKey) -> bool:
    return by.may(Right.MANAGE, key.space) if key.space is not None else by.is_admin


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()
