"""The address of a shared store: ``file:///PATH``, ``s3://BUCKET/PATH``, ``hdfs://HOST:PORT/PATH``, ...

The options after a question mark are passed to the file system (S3: ``region``, ``endpoint_override``,
``scheme``), except for ``cache_bytes``. Secrets are not part of the address. Like other S3 clients, each
machine takes them from the variables ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY``, or from a role.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

SCHEMES = ("file", "s3", "hdfs", "viewfs", "gs", "abfs", "abfss")
CACHE_BYTES = 8 << 30
"""Default maximum bytes of the store that a machine caches on its own disk. Larger: fewer repeated
fetches."""

_FORM = "the address of the index store is file:///PATH, s3://BUCKET/PATH or hdfs://HOST:PORT/PATH"


@dataclass(frozen=True, slots=True)
class SharedAddress:
    """The address of a shared store, and the size of each machine's cache of it.

    Parameters
    ----------
    place
        The address without options.
    options
        Names and values of the options for the file system.
    cache_bytes
        Maximum bytes of fetched files that a machine caches.
    """

    place: str
    options: tuple[tuple[str, str], ...] = ()
    cache_bytes: int = CACHE_BYTES

    @classmethod
    def parse(cls, url: str) -> SharedAddress:
        """Parse an address from a URL; ValueError if it is invalid."""
        place, _, query = url.partition("?")
        scheme, separator, rest = place.partition("://")
        user, at, _ = rest.partition("/")[0].rpartition("@")
        if at and (":" in user or scheme == "s3"):
            raise ValueError(f"{_FORM}, without a password: secrets are in each machine's environment")
        if scheme not in SCHEMES or not separator or not rest.strip("/"):
            raise ValueError(f"{_FORM}, not {place!r}")
        if scheme == "file" and not rest.startswith("/"):
            raise ValueError(f"{_FORM}: a folder's whole path, not {place!r}")
        options = dict(parse_qsl(query, keep_blank_values=True))
        if {"access_key", "secret_key", "session_token"} & options.keys():
            raise ValueError(f"{_FORM}, without a password: secrets are in each machine's environment")
        cache_bytes = options.pop("cache_bytes", str(CACHE_BYTES))
        if not cache_bytes.isdecimal() or not 0 < int(cache_bytes) < 1 << 60:
            raise ValueError(f"{_FORM}; cache_bytes is a number from 1 on, not {cache_bytes!r}")
        return cls(place.rstrip("/"), tuple(sorted(options.items())), int(cache_bytes))

    @property
    def url(self) -> str:
        """The address as a URL with all options."""
        if self.cache_bytes == CACHE_BYTES:
            return self.opened
        return f"{self.opened}{'&' if self.options else '?'}cache_bytes={self.cache_bytes}"

    @property
    def opened(self) -> str:
        """The address as a URL for the file system, without ``cache_bytes``."""
        return f"{self.place}{'?' if self.options else ''}{urlencode(self.options, safe=':/')}"
