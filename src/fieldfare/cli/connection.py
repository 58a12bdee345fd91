"""Clients for commands."""

from __future__ import annotations

from typing import Literal, cast

from fieldfare.cli.output import EXIT_USAGE, fail
from fieldfare.cli.space_keys import chosen_key, say_protection
from fieldfare.client.batching import BatchPolicy
from fieldfare.client.encrypting import NO_ENCRYPTION
from fieldfare.client.retry import RetrySettings
from fieldfare.client.synchronous.client import Client
from fieldfare.client.transport import Compression


def connect(
    url: str | None,
    space: str | None = None,
    batch: BatchPolicy | Literal["auto"] = "auto",
    retry: RetrySettings | None = None,
    compression: str | None = None,
) -> Client:
    """Return a client; exit with a usage error if an argument is not valid."""
    key = chosen_key()
    if key is not None:
        say_protection(key)
    try:
        return Client(
            url=url,
            space=space,
            batch=batch,
            retry=retry,
            compression=cast(Compression | None, compression),
            encryption=key or NO_ENCRYPTION,
        )
    except (ValueError, ImportError) as error:
        fail(str(error), EXIT_USAGE)
