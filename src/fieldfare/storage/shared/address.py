"""The address of a place that other machines reach: ``file:///PATH``, ``s3://BUCKET/PATH``, ``hdfs://HOST/PATH``.

What follows a question mark is for who opens it (S3: ``region``, ``endpoint_override``, ``scheme``), except
for `cache_bytes`. Secrets are not said here but where S3's own programs look for them, on every machine: the
variables ``AWS_ACCESS_KEY_ID`` and ``AWS_SECRET_ACCESS_KEY``, or a role.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode

SCHEMES = ("file", "s3", "hdfs", "viewfs", "gs", "abfs", "abfss")
CACHE_BYTES = 8 << 30
"""What a machine keeps of it on a disk of its own. Larger: old files need not be fetched again."""

_FORM = "the address of the index store is file:///PATH, s3://BUCKET/PATH or hdfs://HOST:PORT/PATH"


@dataclass(frozen=True, slots=True)
class SharedAddress:
    """A place, and how much of it a machine keeps.

    Parameters
    ----------
    place
        The address without options.
    options
        What who opens it needs to know.
    cache_bytes
        How much a machine that fetches files keeps of them.
    """

    place: str
    options: tuple[tuple[str, str], ...] = ()
    cache_bytes: int = CACHE_BYTES

    @classmethod
    def parse(cls, url: str) -> SharedAddress:
        """The address in a URL; ValueError for anything else."""
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
        """The address as text."""
        if self.cache_bytes == CACHE_BYTES:
            return self.opened
        return f"{self.opened}{'&' if self.options else '?'}cache_bytes={self.cache_bytes}"

    @property
    def opened(self) -> str:
        """What is given to who opens it."""
        return f"{self.place}{'?' if self.options else ''}{urlencode(self.options, safe=':/')}"
