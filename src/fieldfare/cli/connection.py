"""Opening a client for a command."""

from __future__ import annotations

from typing import Literal, cast

from fieldfare.cli.output import EXIT_USAGE, fail, say
from fieldfare.cli.space_keys import BANNER, chosen_key
from fieldfare.client.batching import BatchPolicy
from fieldfare.client.encrypting import PLAINLY
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
    key = chosen_key()
    if key is not None:
        say(BANNER)
    try:
        return Client(
            *(url, space),
            batch=batch,
            retry=retry,
            compression=cast(Compression | None, compression),
            encryption=key or PLAINLY,
        )
    except (ValueError, ImportError) as error:
        fail(str(error), EXIT_USAGE)
