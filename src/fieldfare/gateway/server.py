"""The HTTP server of a gateway or a relay."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from contextlib import suppress
from types import FrameType
from typing import Protocol

import uvicorn

from fieldfare.gateway.admission.acceptor import Acceptor
from fieldfare.gateway.maintenance.garbage import Garbage

SHUTDOWN_S = 10
TICK_S = 1.0
"""Interval at which the date of answers is renewed, in seconds."""


class Served(Protocol):
    """The parts that answer the requests."""

    def stop_requests(self) -> None:
        """End everything that keeps requests open."""

    def reload(self) -> None:
        """Reread files that settings name, and reopen the log files; called on a thread."""


class Server(uvicorn.Server):
    """A uvicorn server that ends open streams when it stops, and prints one line when it is ready."""

    def __init__(self, config: uvicorn.Config, gateway: Served, address: str, name: str = "gateway") -> None:
        super().__init__(config)
        self._gateway = gateway
        self._address = address
        self._name = name
        self._garbage = Garbage()
        self._acceptors: list[Acceptor] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stops = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._garbage.start()
            self._acceptors = [Acceptor(each, self._make_connection) for each in sockets or ()]
            loop = self._loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, loop.run_in_executor, None, self._gateway.reload)
            with suppress(OSError):  # On a full disk the line is lost, and nothing else.
                print(f"fieldfare {self._name} ready on {self._address} (pid {os.getpid()})", flush=True)

    async def main_loop(self) -> None:
        """Wait for the stop; uvicorn's own loop looks ten times per second, and notices a stop as late."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._stops.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Before uvicorn waits for open requests, as streams would never end by themselves.
        self._gateway.stop_requests()
        self._garbage.close()
        for acceptor in self._acceptors:
            acceptor.close()
        await super().shutdown(sockets)

    def _make_connection(self) -> asyncio.Protocol:
        return self.config.http_protocol_class(
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,  # type: ignore[call-arg]
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        logging.getLogger(f"fieldfare.{self._name}").info("stopping on %s", signal.Signals(sig).name)
        super().handle_exit(sig, frame)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stops.set)
        # Uvicorn raises the signal again after it has stopped; a clean stop is exit code 0 here.
        self._captured_signals.clear()
