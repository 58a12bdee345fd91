"""The service in a test's own process: the gateway on one thread, the naive pipeline on another."""

from __future__ import annotations

import logging
import shutil
import socket
import tempfile
import threading
import time
from difflib import get_close_matches
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import uvicorn

from fieldfare.client import AsyncClient, Client
from fieldfare.gateway.admission.connections import server_config
from fieldfare.gateway.app import create_app
from fieldfare.gateway.context import Gateway
from fieldfare.gateway.settings import GatewaySettings
from fieldfare.runtimes.process.listening import listening_socket
from fieldfare.runtimes.process.locks import FileLock, LockTimeoutError
from fieldfare.storage.folder import DataFolder
from fieldfare.testing.naive_pipeline import NaivePipeline

START_WAIT_S = 30.0
STOP_S = 5
"""Seconds that open requests may take when the service stops."""
STOP_WAIT_S = 30.0
LOOK_S, UNHEARD_LOOK_S = 0.1, 0.01
"""Maximum seconds between looks at the log; the latter where the log's bell cannot be heard."""
BEAT_S = 1.0
"""Seconds between heartbeats, and at most between looks for subscriptions that began in the past."""

logger = logging.getLogger("fieldfare.testing")


class LocalService:
    """A service on a free port of this machine, for tests. Use it as a context manager.

    Parameters
    ----------
    data : Path, optional
        The data directory; default: a temporary one, which is deleted in the end.
    settings
        Settings of the service, as in docs/settings.md, in lower case: ``ack_deadline_s=0.5``.

    Attributes
    ----------
    url
        The service's address.

    Raises
    ------
    TypeError
        There is no such setting.
    RuntimeError
        Another service works on the data directory, or the service did not start or stop in time.

    Examples
    --------
    >>> with LocalService() as service, service.client() as client:  # doctest: +SKIP
    ...     client.create_subscription("data.price < 18.5", "cheap")
    ...     client.publish_many([{"source": "/quotes", "type": "quote", "data": {"price": 17.25}}])
    ...     service.wait_until_matched()
    ...     (message,) = client.pull("cheap")
    """

    def __init__(self, data: Path | None = None, **settings: Any) -> None:
        for name in settings:
            if name not in GatewaySettings.model_fields:
                near = get_close_matches(name, GatewaySettings.model_fields, n=1)
                meant = f"did you mean {near[0]}?" if near else "docs/settings.md lists all settings"
                raise TypeError(f"{name} is not a setting of the service: {meant}")
        self._temporary = None if data is not None else Path(tempfile.mkdtemp(prefix="fieldfare-testing-"))
        self._data = data or self._temporary
        self._settings = settings
        self._locks: list[FileLock] = []
        self._threads: tuple[threading.Thread, ...] = ()
        self.url = ""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def client(self, space: str | None = None, **options: Any) -> Client:
        """Return a client of the service; options as for `Client`."""
        return Client(self.url, space, **options)

    def async_client(self, space: str | None = None, **options: Any) -> AsyncClient:
        """Return a client of the service for asyncio; options as for `AsyncClient`."""
        return AsyncClient(self.url, space, **options)

    def wait_until_matched(self, timeout_s: float = 10.0) -> None:
        """Wait until all events that are published now are matched; TimeoutError after ``timeout_s`` seconds.

        Their matches can be pulled from then on, so a test need not wait for messages that must not come.
        """
        until_s = time.monotonic() + timeout_s
        end = self._log_end()
        matches = self._gateway.match_log.partition(0)
        while matches.end(self._gateway.log.partitions[0].start()) < end:
            if self._error is not None:
                raise RuntimeError("matching failed") from self._error
            if time.monotonic() >= until_s:
                raise TimeoutError(f"not all events were matched within {timeout_s:g} s")
            time.sleep(0.001)

    def close(self) -> None:
        """Stop the service; a temporary data directory is deleted."""
        if not self._threads:
            return
        self._stopping.set()
        self._appended.set()
        self._server.should_exit = True
        for thread in self._threads:
            thread.join(STOP_WAIT_S)
            if thread.is_alive():
                raise RuntimeError(f"the service did not stop within {STOP_WAIT_S:g} s")
        self._threads = ()
        self._appended.close()
        self._remove()

    def _log_end(self) -> int:
        return self._gateway.log.partitions[0].end()

    def _start(self) -> None:
        settings = GatewaySettings.model_validate({**self._settings, "data": self._data})
        self._take_directory(settings.folder)
        self._gateway = Gateway(settings)
        gateway, certificates = self._gateway, self._gateway.certificates
        self._pipeline = NaivePipeline(
            gateway.log, gateway.registry, gateway.match_log, gateway.settings.folder
        )
        self._error: Exception | None = None
        self._stopping = threading.Event()
        app = create_app(gateway)
        config = server_config(app, gateway.settings, certificates, timeout_graceful_shutdown=STOP_S)
        self._server = GatewayServer(config, gateway)
        listener = listening_socket("127.0.0.1", 0)
        scheme = "http" if certificates is None else "https"
        self.url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
        self._pipeline.beat()
        self._appended = gateway.log.listen({0: 0})
        self._threads = (
            threading.Thread(target=self._match, name="fieldfare-testing-pipeline", daemon=True),
            threading.Thread(
                target=self._server.run, args=([listener],), name="fieldfare-testing-gateway", daemon=True
            ),
        )
        for thread in self._threads:
            thread.start()
        until_s = time.monotonic() + START_WAIT_S
        while not self._server.started:
            if time.monotonic() >= until_s or not self._threads[1].is_alive():
                self._stopping.set()
                raise RuntimeError("the service did not start; its log says why")
            time.sleep(0.001)

    def _match(self) -> None:
        """Match events as they come, until the service stops."""
        beat_s = time.monotonic()
        try:
            while not self._stopping.is_set():
                self._appended.wait(LOOK_S if self._appended.hears else UNHEARD_LOOK_S)
                self._appended.clear()
                while self._log_end() > self._pipeline.step() and not self._stopping.is_set():
                    pass
                if self._gateway.registry.replays(only_open=True):
                    while self._pipeline.replay() and not self._stopping.is_set():
                        pass
                if time.monotonic() - beat_s >= BEAT_S:
                    self._pipeline.beat()
                    beat_s = time.monotonic()
        except Exception as error:
            logger.exception("matching failed; no further event is matched")
            self._error = error

    def _take_directory(self, folder: DataFolder) -> None:
        """Lock the data directory; RuntimeError if `fieldfare serve` or another object works on it."""
        folder.run.mkdir(parents=True, exist_ok=True)
        for name in ("serve", "gateway"):
            lock = FileLock(folder.lock_of(name), 0.0)
            try:
                lock.acquire()
            except LockTimeoutError:
                raise RuntimeError(f"another service works on {folder.root}: stop it first") from None
            self._locks.append(lock)

    def _remove(self) -> None:
        while self._locks:
            self._locks.pop().release()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)


class GatewayServer(uvicorn.Server):
    """A server that ends open streams when it stops: they would never end by themselves."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway) -> None:
        super().__init__(config)
        self._gateway = gateway

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._gateway.stop_requests()
        await super().shutdown(sockets)
