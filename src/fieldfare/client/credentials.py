"""A client's credentials: an API key, or a token that may change from request to request."""

from __future__ import annotations

import inspect
import ipaddress
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
"""A callable that returns the key that is valid now. It is called before each request, so it should keep its
token until that is about to expire."""

_KEY = re.compile(r"[\x21-\x7e]{1,8192}")
_NO_KEY = "holds no API key: a key is one line of visible ASCII characters, at most 8192"


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, so that no proxy and no network is in between."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


KEY_VARIABLE = "FIELDFARE_API_KEY"
KEY_FILE_VARIABLE = "FIELDFARE_API_KEY_FILE"
PASSPHRASE_VARIABLE = "FIELDFARE_SPACE_PASSPHRASE"


def choose_key(key: str | AsyncGiveKey | None, url: str) -> str | AsyncGiveKey | None:
    """Return the API key: the argument, else FIELDFARE_API_KEY, else the content of FIELDFARE_API_KEY_FILE.

    The file is read again when it has changed, so a renewed token needs no restart. Error messages never
    contain a key, only its source.
    """
    source = "key"
    if not key:
        source = KEY_VARIABLE
        key = os.environ.get(source)
    if not key:
        path = os.environ.get(KEY_FILE_VARIABLE)
        if not path:
            return None
        key = _RereadFile(Path(path))
    elif isinstance(key, str) and not _KEY.fullmatch(key):
        raise ValueError(f"{source} {_NO_KEY}")
    if url.startswith("http:") and not is_loopback(urlsplit(url).hostname or ""):
        logger.warning("the API key is sent to %s unencrypted, and can be read on the way: use https", url)
    return key


class _RereadFile:
    """The key in a file, which must hold one now; if it cannot be read later, the last key is used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_of: tuple[int, int, int] | None = None
        try:
            self._key = self._read()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not text"
            raise ValueError(f"FIELDFARE_API_KEY_FILE={path} cannot be read: {reason}") from None
        if not _KEY.fullmatch(self._key):
            raise ValueError(f"FIELDFARE_API_KEY_FILE={path} {_NO_KEY}")

    def __call__(self) -> str:
        try:
            key = self._read()
        except (OSError, UnicodeDecodeError):
            return self._key
        if _KEY.fullmatch(key):  # Otherwise the file is being written.
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
    """Authenticates each request with the key that a callable returns.

    Parameters
    ----------
    give
        The callable; for an asyncio client it may return an awaitable.
    url
        The service's address, for error messages.
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
        """Return the error for a failed callable: one that is retried, as the source of keys may be down.

        It leaves out the text of ``error``, which may hold secrets.
        """
        return ConnectionFailed(
            f"the callable for the API key of {self._url} raised {type(error).__name__}", self._url
        )

    @staticmethod
    def _put(request: httpx.Request, key: Any) -> None:
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise FieldfareError(
                f"the callable for the API key returned a {type(key).__name__} that {_NO_KEY}"
            )
        request.headers["authorization"] = f"Bearer {key}"
