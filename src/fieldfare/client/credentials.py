"""What a client is known by: an API key, or a token, which may be another one at each request."""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from fieldfare.client.errors import ConnectionFailed, FieldfareError

logger = logging.getLogger("fieldfare.client")

GiveKey = Callable[[], str]
AsyncGiveKey = Callable[[], str | Awaitable[str]]
"""Gives what is valid now; called before each request, so it remembers what it gave until that is old."""

_KEY = re.compile(r"[\x21-\x7e]{1,8192}")
_OF_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
_NO_KEY = "holds no API key: that is one line of visible characters"


def choose_key(key: str | AsyncGiveKey | None, url: str) -> str | AsyncGiveKey | None:
    """The API key: the argument, else FIELDFARE_API_KEY, else the file that FIELDFARE_API_KEY_FILE names.

    The file is read again when it has changed: who renews a token there need not start the program again. No
    error says what a key is, only where it came from.
    """
    source = "key"
    if not key:
        source = "FIELDFARE_API_KEY"
        key = os.environ.get(source)
    if not key:
        path = os.environ.get("FIELDFARE_API_KEY_FILE")
        if not path:
            return None
        key = _RereadFile(Path(path))
    elif isinstance(key, str) and not _KEY.fullmatch(key):
        raise ValueError(f"{source} {_NO_KEY}")
    if url.startswith("http:") and urlsplit(url).hostname not in _OF_THIS_MACHINE:
        logger.warning("an API key goes to %s in the clear: whoever is on the way can use it", url)
    return key


class _RereadFile:
    """The key in a file, which must hold one now; if it cannot be read later, what it last held counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_of: tuple[int, int, int] | None = None
        try:
            self._key = self._read()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is no text"
            raise ValueError(f"FIELDFARE_API_KEY_FILE={path} cannot be read: {reason}") from None
        if not _KEY.fullmatch(self._key):
            raise ValueError(f"FIELDFARE_API_KEY_FILE={path} {_NO_KEY}")

    def __call__(self) -> str:
        try:
            key = self._read()
        except (OSError, UnicodeDecodeError):
            return self._key
        if _KEY.fullmatch(key):  # or somebody is writing it
            self._key = key
        return self._key

    def _read(self) -> str:
        status = self._path.stat()
        now_of = (status.st_ino, status.st_mtime_ns, status.st_size)
        if now_of == self._read_of:
            return self._key
        key = self._path.read_text().strip()
        self._read_of = now_of
        return key


class Bearer(httpx.Auth):
    """Sends with each request what a callable gives then.

    Parameters
    ----------
    give
        The callable; for a client of asyncio it may give an awaitable.
    url
        The service's, for errors.
    """

    def __init__(self, give: AsyncGiveKey, url: str) -> None:
        self._give = give
        self._url = url

    def sync_auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        try:
            key = self._give()
        except Exception as error:
            raise self._failed(error) from error
        self._put(request, key)
        yield request

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        try:
            key = self._give()
            if inspect.isawaitable(key):
                key = await key
        except Exception as error:
            raise self._failed(error) from error
        self._put(request, key)
        yield request

    def _failed(self, error: Exception) -> ConnectionFailed:
        """Whoever gives keys may be away for a while, like the service. What it says may hold secrets."""
        return ConnectionFailed(f"there is no key for {self._url} ({type(error).__name__})", self._url)

    @staticmethod
    def _put(request: httpx.Request, key: Any) -> None:
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise FieldfareError(f"what gives the key gave a {type(key).__name__} that {_NO_KEY}")
        request.headers["authorization"] = f"Bearer {key}"
