"""The keys that sign tokens: a JSON Web Key Set (RFC 7517) in a file or at a URL, kept up to date.

Both are read on a thread: a file when it has changed, a URL periodically, and either again when a token names
an unknown key, but rarely: otherwise a client with made-up tokens could flood the issuer. If the set cannot
be read, the known keys stay valid.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jwt

from fieldfare.gateway.admission.tls import caller_context
from fieldfare.gateway.settings import UnusableFile

logger = logging.getLogger("fieldfare.gateway")

SET_MAX_BYTES = 256 << 10
KEYS_MAX = 100
FETCH_PAUSE_S = 3.0
FETCH_MAX_S = 6.0
"""Maximum seconds without data from the server, and maximum seconds of a fetch; then it fails."""

WAIT_MAX_S = 10.0
"""Maximum seconds that a request waits for a fetch of the keys; then it uses the known ones."""

FILE_LOOK_S = 2.0
ASKED_LOOK_S = 30.0
"""Seconds between checks of a file, and minimum seconds between two lookups of unknown keys."""

NONE_YET_LOOK_S = 5.0
SWEEP_S = 1.0

_ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
    "Ed25519": ("EdDSA",),
}
"""Algorithms that a key may sign with, by its type or curve.

Shared secrets are not accepted: a verifier could sign with one, too.
"""


class TokenKeysError(UnusableFile):
    """The key set cannot be read; the message has the source and the reason."""


@dataclass(frozen=True, slots=True)
class Signer:
    """A key that may sign tokens, with the only algorithms it may use."""

    key: Any
    algorithms: tuple[str, ...]
    thumb: str
    """Identifies the key itself, whatever its name."""


Signers = Mapping[str | None, Signer]
"""Keys by `kid`; one without is under None."""


class KeySource(Protocol):
    """A source of a key set."""

    look_s: float

    def read(self) -> Signers | None:
        """Return the keys, or None if they have not changed. Blocks.

        Raise TokenKeysError if they cannot be read.
        """


def parse_keys(text: bytes, source: str) -> Signers:
    """Return the keys of a set that may sign tokens; others are left out.

    Raise TokenKeysError if the text is no key set or holds a private key.
    """
    try:
        listed = json.loads(text)["keys"]
        if not isinstance(listed, list):
            raise TypeError
    except (ValueError, TypeError, KeyError, RecursionError):
        raise TokenKeysError(f'{source} holds no key set, which is JSON such as {{"keys": [...]}}') from None
    signers: dict[str | None, Signer] = {}
    for data in listed[:KEYS_MAX]:
        if isinstance(data, dict) and "d" in data:
            raise TokenKeysError(f"{source} holds a private key: name the set with the public ones")
        signer = _signer(data)
        if signer is not None:
            kid = data.get("kid")
            signers.setdefault(kid if isinstance(kid, str) else None, signer)
    return signers


def _signer(data: Any) -> Signer | None:
    if not isinstance(data, dict) or data.get("use", "sig") != "sig":
        return None
    kind = data.get("kty")
    algorithms = _ALGORITHMS.get(str(kind if kind == "RSA" else data.get("crv")), ())
    if "alg" in data:
        algorithms = tuple(each for each in algorithms if each == data["alg"])
    if not algorithms:
        return None
    try:
        key = jwt.PyJWK(data, algorithms[0]).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    thumb = json.dumps([data.get(part) for part in ("kty", "crv", "n", "e", "x", "y")])
    return Signer(key, algorithms, thumb)


class KeyFile:
    """A key set in a file, read again when the file has changed."""

    look_s = FILE_LOOK_S

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_of: tuple[int, int, int] | None = None

    def read(self) -> Signers | None:
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                now_of = (status.st_ino, status.st_mtime_ns, status.st_size)
                if now_of == self._read_of:
                    return None
                text = file.read(SET_MAX_BYTES + 1)
        except OSError as error:
            raise TokenKeysError(f"{self._path}: {error.strerror or error}") from None
        if len(text) > SET_MAX_BYTES:
            raise TokenKeysError(f"{self._path} is larger than {SET_MAX_BYTES:,} bytes")
        found = parse_keys(text, str(self._path))
        self._read_of = now_of  # only now: a file that is still being written may be complete the next time
        return found


class KeyUrl:
    """A key set that an issuer publishes at a URL."""

    def __init__(self, url: str, look_s: float) -> None:
        self.look_s = look_s
        self._url = url

    def read(self) -> Signers | None:
        import httpx  # imported late: it takes a while, and this runs on a thread

        until_s = time.monotonic() + FETCH_MAX_S
        text = b""
        http = httpx.Client(verify=caller_context(None), timeout=FETCH_PAUSE_S)
        # A head that trickles in cannot be seen here before it is complete: the timer ends it.
        too_late = threading.Timer(FETCH_MAX_S, http.close)
        too_late.daemon = True
        too_late.start()
        try:
            with http, http.stream("GET", self._url, headers={"accept-encoding": "identity"}) as answer:
                if answer.status_code != 200:
                    raise TokenKeysError(f"{self._url} answers {answer.status_code}")
                for piece in answer.iter_raw():
                    text += piece
                    if len(text) > SET_MAX_BYTES:
                        raise TokenKeysError(f"{self._url} sends more than {SET_MAX_BYTES:,} bytes")
                    if time.monotonic() > until_s:
                        raise TokenKeysError(f"{self._url} takes longer than {FETCH_MAX_S:g} s")
        except (httpx.HTTPError, httpx.InvalidURL, OSError, RuntimeError) as error:
            if time.monotonic() > until_s:
                raise TokenKeysError(f"{self._url} takes longer than {FETCH_MAX_S:g} s") from None
            reason = str(error) or type(error).__name__
            raise TokenKeysError(f"{self._url} cannot be read: {reason}") from None
        finally:
            too_late.cancel()
        return parse_keys(text, self._url)


def is_url(place: str) -> bool:
    """Return whether a key set is named by a URL rather than a file."""
    return place.startswith(("http://", "https://"))


def open_source(place: str, refresh_s: float) -> KeySource:
    """Return the source of a key set, given its URL or file."""
    return KeyUrl(place, refresh_s) if is_url(place) else KeyFile(Path(place))


class KeyWatch:
    """Keeps the keys up to date, and ends what has expired.

    Parameters
    ----------
    source
        Source of the keys.
    use
        Called with the keys when they may have changed.
    sweep
        Called every second to end expired tokens.
    """

    def __init__(self, source: KeySource, use: Callable[[Signers], None], sweep: Callable[[], None]) -> None:
        self._source = source
        self._use = use
        self._sweep = sweep
        self._has_any = False
        self._trouble = ""
        self._looked_s = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        # A thread of its own: a server that never completes its response takes none from the storage readers.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fieldfare-token-keys")
        self._running: asyncio.Task[None] | None = None

    def read_now(self) -> None:
        """Read the keys synchronously, before there is an event loop.

        Raise TokenKeysError if they cannot be read.
        """
        found = self._source.read()
        if found is not None:
            self._has_any = True
            self._use(found)

    def start(self) -> None:
        """Start to keep the keys up to date, on the running event loop."""
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop; a thread that still reads is not waited for."""
        tasks = [task for task in (self._running, self._looking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def look_again(self) -> None:
        """Look up the keys for an unknown one, unless that was done recently, and wait for the result."""
        if time.monotonic() - self._looked_s >= ASKED_LOOK_S:
            self._look()
        if self._looking is not None:  # all concurrent requests wait for the same fetch
            await asyncio.wait((self._looking,), timeout=WAIT_MAX_S)

    def _look(self) -> None:
        if self._looking is None:
            self._looked_s = time.monotonic()
            self._looking = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        try:
            found = await asyncio.get_running_loop().run_in_executor(self._thread, self._source.read)
            if found is not None:
                if not found:
                    logger.warning("the token issuer's key set is empty: all tokens are refused")
                self._has_any = True
                self._use(found)
            self._trouble = ""
        except TokenKeysError as error:
            if str(error) != self._trouble:
                kept = "the known keys stay in use" if self._has_any else "until then all tokens are refused"
                logger.warning("the token issuer's keys cannot be loaded, %s: %s", kept, error)
            self._trouble = str(error)
        except Exception:
            logger.exception("the token issuer's keys cannot be loaded; the gateway tries again")
        finally:
            self._looking = None

    async def _run(self) -> None:
        while True:
            try:
                self._sweep()
                look_s = self._source.look_s if self._has_any else min(NONE_YET_LOOK_S, self._source.look_s)
                if time.monotonic() - self._looked_s >= look_s:
                    self._look()
            except Exception:
                logger.exception("the token issuer's keys could not be renewed; the gateway tries again")
            await asyncio.sleep(SWEEP_S)
