"""A WebSocket that sends messages and receives the client's commands.

It uses CloudEvents' subprotocol ``cloudevents.json``: each text frame is one event, in both directions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.types import Receive
from starlette.websockets import WebSocket, WebSocketDisconnect

from fieldfare.delivery.delivery import Session
from fieldfare.gateway.delivery.records import PARTS, Write, write_event
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.transports.steps import Disconnect
from fieldfare.gateway.transports.stream_sender import StreamSender
from fieldfare.storage.errors import StorageError

logger = logging.getLogger("fieldfare.gateway")

SUBPROTOCOL = "cloudevents.json"

FRAMES_BATCH_SIZE = 50
"""Frames sent in a row before other tasks get a turn."""

ANSWERED_BATCH_SIZE = 64
"""Maximum client commands in progress; more wait. They run concurrently, as each waits for the disk."""

NORMAL, GOING_AWAY, POLICY, FAILED = 1000, 1001, 1008, 1011
"""WebSocket close codes."""


class Conversation(Protocol):
    """Executes the client's commands and builds the events that answer them."""

    async def answer(self, text: bytes) -> bytes:
        """Execute a client's command, and return the answer."""

    def event(self, name: str, data: dict[str, Any]) -> bytes:
        """Return an event that tells the client something other than a message."""


def agreed(offered: Sequence[str]) -> str | None:
    """Return the agreed subprotocol, or None if the client offers none.

    Raise Problem 400 if it offers only others.
    """
    if offered and SUBPROTOCOL not in offered:
        detail = f"The WebSocket subprotocol is not supported: offer {SUBPROTOCOL}, or none."
        raise HttpProblem(400, "subprotocol", detail)
    return SUBPROTOCOL if offered else None


@dataclass(eq=False)
class MessageSocket:
    """One open WebSocket.

    Parameters
    ----------
    sender
        Sends the messages.
    conversation
        Executes the client's commands, and builds the events that are not messages.
    websocket, subprotocol
        The connection, and the agreed subprotocol.
    """

    sender: StreamSender
    conversation: Conversation
    websocket: WebSocket
    subprotocol: str | None

    async def __call__(self) -> None:
        socket = self.websocket
        with self.sender.opened() as session:
            try:
                await socket.accept(self.subprotocol)
            except OSError:
                return  # the client disconnected meanwhile
            try:
                await self._converse(session)
            except WebSocketDisconnect:
                pass  # the client disconnected in the middle of a message
            except (StorageError, OSError) as error:
                logger.error("storage failed: %s", error)
                with suppress(WebSocketDisconnect):
                    await socket.close(FAILED, "the service's storage failed: try again later")

    async def _converse(self, session: Session) -> None:
        socket, delivery, deliveries = self.websocket, self.sender.delivery, self.sender.deliveries
        async with CommandReader(socket.receive, self._answer) as heard:
            await self.sender.run(session, self, heard)
        if delivery.deleted:
            kind = "moved" if delivery.moved else "deleted"
            await self._send(self.conversation.event(kind, delivery.moved))
            await socket.close(NORMAL, f"the subscription was {kind}")
        elif heard.is_refused:
            await socket.close(POLICY, "the API key is not valid any more")
        elif deliveries.closing:
            await socket.close(GOING_AWAY, "the gateway is stopping")

    @property
    def write(self) -> Write:
        return write_event

    async def send_messages(self, parts: Sequence[bytes]) -> None:
        for start in range(0, len(parts), PARTS):
            if start and start % (FRAMES_BATCH_SIZE * PARTS) == 0:
                await asyncio.sleep(0)
            await self._send(b"".join(parts[start : start + PARTS]))

    async def send_sought(self) -> None:
        await self._send(self.conversation.event("sought", {}))

    async def _answer(self, text: bytes) -> None:
        said = await self.conversation.answer(text)
        with suppress(OSError, WebSocketDisconnect, RuntimeError):  # closed meanwhile, by either side
            await self._send(said)

    async def _send(self, event: bytes) -> None:
        await self.websocket.send({"type": "websocket.send", "text": event.decode()})


class CommandReader(Disconnect):
    """Reads the client's commands until it disconnects.

    Parameters
    ----------
    receive
        Returns the next ASGI message.
    answer
        Executes a command and answers it.
    """

    def __init__(self, receive: Receive, answer: Callable[[bytes], Coroutine[Any, Any, None]]) -> None:
        self._answer = answer
        self._answers: set[asyncio.Task[None]] = set()
        self.is_refused = False
        """Whether the connection was ended because its API key is no longer valid."""
        super().__init__(receive)

    async def _watch(self) -> None:
        answers = self._answers
        while (message := await self._receive())["type"] == "websocket.receive":
            text = message.get("text")
            said = text.encode() if text is not None else message.get("bytes") or b""
            answer = asyncio.ensure_future(self._answer(said))
            answers.add(answer)
            answer.add_done_callback(answers.discard)
            if len(answers) >= ANSWERED_BATCH_SIZE:
                await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        # The connection is over, even if commands are still being executed: those may take as long as the
        # disk.
        self.is_refused = message.get("code") == POLICY
