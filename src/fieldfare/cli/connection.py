"""Opening a client for a command."""

from __future__ import annotations

from typing import Literal

from fieldfare.cli.output import EXIT_USAGE, fail
from fieldfare.client.batching import BatchPolicy
from fieldfare.client.retry import RetrySettings
from fieldfare.client.synchronous.client import Client


def connect(
    url: str | None,
    space: str | None = None,
    batch: BatchPolicy | Literal["auto"] = "auto",
    retry: RetrySettings | None = None,
) -> Client:
    """A client, or a usage error when the URL is none."""
    try:
        return Client(url, space, batch=batch, retry=retry)
    except ValueError as error:
        fail(str(error), EXIT_USAGE)
