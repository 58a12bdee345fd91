"""The keys that tokens are signed with: a JSON Web Key Set (RFC 7517) in a file or at a URL, kept fresh.

Both are read on threads: a file when it has changed, a URL every so often, and either once more when a token
names a key that is not known, but seldom, or who sends made-up tokens would have the issuer flooded. What
cannot be read changes nothing: the keys that were known stay.
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
"""How long a server may say nothing, and how long all may take."""

WAIT_MAX_S = 10.0
"""The longest that a request waits for them."""

FILE_LOOK_S = 2.0
ASKED_LOOK_S = 30.0
"""How often a file is looked at, and how often an unknown key has them looked for."""

NONE_YET_LOOK_S = 5.0
SWEEP_S = 1.0

_ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
    "Ed25519": ("EdDSA",),
}
"""What a key may have signed with, by its type or its curve. A shared secret is no key to know others by."""


class TokenKeysError(UnusableFile):
    """The set of keys cannot be had; the text says from where, and why."""


@dataclass(frozen=True, slots=True)
class Signer:
    """A key that tokens may be signed with, and by which algorithms alone."""

    key: Any
    algorithms: tuple[str, ...]
    thumb: str
    """Tells one key from another, whatever their names."""


Signers = Mapping[str | None, Signer]
"""By `kid`; one that has none is found by None."""


class KeySource(Protocol):
    """Where a set of keys comes from."""

    look_s: float

    def read(self) -> Signers | None:
        """The keys; None when they are as they were. TokenKeysError when they cannot be had. Blocks."""


def parse_keys(text: bytes, source: str) -> Signers:
    """The keys of a set that may sign tokens; others in it are left out."""
    try:
        listed = json.loads(text)["keys"]
        if not isinstance(listed, list):
            raise TypeError
    except (ValueError, TypeError, KeyError, RecursionError):
        raise TokenKeysError(f'{source} holds no key set: that is JSON such as {{"keys": [...]}}') from None
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
    """A key set in a file, read again when that has changed."""

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
        self._read_of = now_of  # not before: one that is being written may be whole the next time
        return found


class KeyUrl:
    """A key set that an issuer shows at a URL."""

    def __init__(self, url: str, look_s: float) -> None:
        self.look_s = look_s
        self._url = url

    def read(self) -> Signers | None:
        import httpx  # which takes a while, and is here on a thread

        until_s = time.monotonic() + FETCH_MAX_S
        text = b""
        http = httpx.Client(verify=caller_context(None), timeout=FETCH_PAUSE_S)
        # Of a head that trickles nothing is seen here before its end.
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
    """Whether a set of keys is named by a URL, and not by a file."""
    return place.startswith(("http://", "https://"))


def open_source(place: str, refresh_s: float) -> KeySource:
    """Where a set of keys comes from, by its name."""
    return KeyUrl(place, refresh_s) if is_url(place) else KeyFile(Path(place))


class KeyWatch:
    """Keeps the keys fresh, and ends what has expired.

    Parameters
    ----------
    source
        Where the keys come from.
    use
        Is given them when they may have changed.
    sweep
        Is called every second.
    """

    def __init__(self, source: KeySource, use: Callable[[Signers], None], sweep: Callable[[], None]) -> None:
        self._source = source
        self._use = use
        self._sweep = sweep
        self._has_any = False
        self._trouble = ""
        self._looked_s = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        # One of its own: a server that never ends its answer takes no thread from those who read storage.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fieldfare-token-keys")
        self._running: asyncio.Task[None] | None = None

    def read_now(self) -> None:
        """Read the keys, here: before there is an event loop. TokenKeysError when they cannot be had."""
        found = self._source.read()
        if found is not None:
            self._has_any = True
            self._use(found)

    def start(self) -> None:
        """Begin to look after the keys, on the running event loop."""
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """End that; a thread that still reads is not waited for."""
        tasks = [task for task in (self._running, self._looking) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def look_again(self) -> None:
        """Somebody names a key that is not known: look for it, unless that was done a moment ago."""
        if time.monotonic() - self._looked_s >= ASKED_LOOK_S:
            self._look()
        if self._looking is not None:  # all who ask meanwhile wait for the same look
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
                    logger.warning("the set of keys for tokens holds none: no token lets anybody in")
                self._has_any = True
                self._use(found)
            self._trouble = ""
        except TokenKeysError as error:
            if str(error) != self._trouble:
                kept = "those known stay" if self._has_any else "until then no token lets anybody in"
                logger.warning("the keys for tokens cannot be had, %s: %s", kept, error)
            self._trouble = str(error)
        except Exception:
            logger.exception("the keys for tokens cannot be had; it will be tried again")
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
                logger.exception("the keys for tokens could not be looked after; it will be tried again")
            await asyncio.sleep(SWEEP_S)
