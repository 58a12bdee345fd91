# Made from client/asynchronous/connection.py by `make client`: change it there.
"""A client's HTTP connections."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from fieldfare.client.endpoint import Endpoint
from fieldfare.client.errors import ApiError, ConnectionFailed
from fieldfare.client.protocol import ApiCall, Result
from fieldfare.client.retry import Backoff, RetrySettings
from fieldfare.client.synchronous.concurrency import Flag, off_the_loop
from fieldfare.client.transport import (
    HTTP_ERRORS,
    PACKED_FROM_BYTES,
    Compression,
    choose_packing,
    make_http,
    make_request,
    raise_translated,
    read_answer,
)


class Connection:
    """The connections of one client to its endpoint.

    Attributes
    ----------
    endpoint : Endpoint
        The service's address and how to connect to it.
    http : httpx.Client
        The pool of connections.
    trouble : str, optional
        The error of the last attempt, while a call is being repeated.
    """

    def __init__(self, endpoint: Endpoint, compression: Compression | None) -> None:
        self.endpoint = endpoint
        self.http = make_http(endpoint)
        self.trouble: str | None = None
        self._compression = compression
        self._packed: Callable[[ApiCall[Any]], ApiCall[Any]] | None = choose_packing(compression)

    def again(self) -> Connection:
        """Return a new pool for the endpoint; the old one stays open, as others may use it."""
        return Connection(self.endpoint, self._compression)

    def moved_to(self, url: str, token: str) -> Connection:
        """Return connections to another service; see `Endpoint.moved_to`."""
        return Connection(self.endpoint.moved_to(url, token), self._compression)

    def perform(self, call: ApiCall[Result]) -> Result:
        """Send one request and return its result."""
        packed = self._packed
        if packed is not None and len(call.content or b"") >= PACKED_FROM_BYTES:
            plain = call
            call = off_the_loop(lambda: packed(plain))
        try:
            response = self.http.send(make_request(self.http, call, self.endpoint.timeout_s))
        except HTTP_ERRORS as error:
            raise_translated(error, self.endpoint)
        return read_answer(call, response, self.endpoint)

    def perform_until(self, call: ApiCall[Result], retry: RetrySettings) -> Result:
        """Send a request that may be repeated, and retry it after temporary failures as ``retry`` says."""
        backoff = Backoff(retry, time.monotonic(), random.Random())
        try:
            while True:
                try:
                    return self.perform(call)
                except (ApiError, ConnectionFailed) as error:
                    wait_s = backoff.next_wait_s(error, time.monotonic())
                    if wait_s is None:
                        raise
                    self.trouble = str(error)
                Flag().wait(wait_s)
        finally:
            self.trouble = None

    def close(self) -> None:
        """Close the connections."""
        self.http.close()
