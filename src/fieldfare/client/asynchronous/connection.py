"""A client's HTTP connections."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from fieldfare.client.asynchronous.concurrency import AsyncFlag, off_the_loop
from fieldfare.client.endpoint import Endpoint
from fieldfare.client.errors import ApiError, ConnectionFailed
from fieldfare.client.protocol import ApiCall, Result
from fieldfare.client.retry import Backoff, RetrySettings
from fieldfare.client.transport import (
    HTTP_ERRORS,
    PACKED_FROM_BYTES,
    Compression,
    choose_packing,
    make_async_http,
    make_request,
    raise_translated,
    read_answer,
)


class AsyncConnection:
    """The connections of one client to its endpoint.

    Attributes
    ----------
    endpoint : Endpoint
        The service's address and how to connect to it.
    http : httpx.AsyncClient
        The pool of connections.
    trouble : str, optional
        The error of the last attempt, while a call is being repeated.
    """

    def __init__(self, endpoint: Endpoint, compression: Compression | None) -> None:
        self.endpoint = endpoint
        self.http = make_async_http(endpoint)
        self.trouble: str | None = None
        self._compression = compression
        self._packed: Callable[[ApiCall[Any]], ApiCall[Any]] | None = choose_packing(compression)

    def again(self) -> AsyncConnection:
        """Return a new pool for the endpoint; the old one stays open, as others may use it."""
        return AsyncConnection(self.endpoint, self._compression)

    def moved_to(self, url: str, token: str) -> AsyncConnection:
        """Return connections to another service; see `Endpoint.moved_to`."""
        return AsyncConnection(self.endpoint.moved_to(url, token), self._compression)

    async def perform(self, call: ApiCall[Result]) -> Result:
        """Send one request and return its result."""
        packed = self._packed
        if packed is not None and len(call.content or b"") >= PACKED_FROM_BYTES:
            plain = call
            call = await off_the_loop(lambda: packed(plain))
        try:
            response = await self.http.send(make_request(self.http, call, self.endpoint.timeout_s))
        except HTTP_ERRORS as error:
            raise_translated(error, self.endpoint)
        return read_answer(call, response, self.endpoint)

    async def perform_until(self, call: ApiCall[Result], retry: RetrySettings) -> Result:
        """Send a request that may be repeated, and retry it after temporary failures as ``retry`` says."""
        backoff = Backoff(retry, time.monotonic(), random.Random())
        try:
            while True:
                try:
                    return await self.perform(call)
                except (ApiError, ConnectionFailed) as error:
                    wait_s = backoff.next_wait_s(error, time.monotonic())
                    if wait_s is None:
                        raise
                    self.trouble = str(error)
                await AsyncFlag().wait(wait_s)
        finally:
            self.trouble = None

    async def close(self) -> None:
        """Close the connections."""
        await self.http.aclose()
