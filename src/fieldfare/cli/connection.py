"""Opening a client for a command."""

from __future__ import annotations

from typing import Literal, cast

from fieldfare.cli.output import EXIT_USAGE, fail
from fieldfare.client.batching import BatchPolicy
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
    """A client, or a usage error when what it is made of is wrong."""
    try:
        return Client(url, space, batch=batch, retry=retry, compression=cast(Compression | None, compression))
    except (ValueError, ImportError) as error:
        fail(str(error), EXIT_USAGE)
