"""A WebSocket on which messages are sent, and what the client says of them is heard.

It speaks CloudEvents' subprotocol ``cloudevents.json``: every text frame is one event, in both directions.
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
from fieldfare.gateway.transports.outflow import Outflow
from fieldfare.gateway.transports.steps import Disconnect
from fieldfare.storage.errors import StorageError

logger = logging.getLogger("fieldfare.gateway")

SUBPROTOCOL = "cloudevents.json"

FRAMES_AT_ONCE = 50
"""After so many frames others have their turn."""

ANSWERED_AT_ONCE = 64
"""So much that a client says is done at a time: each waits for the disk, and what was said later need not
wait for it."""

NORMAL, GOING_AWAY, POLICY, FAILED = 1000, 1001, 1008, 1011
"""Codes with which a socket is closed."""


class Conversation(Protocol):
    """Knows what to say, and does what is said."""

    async def answer(self, text: bytes) -> bytes:
        """What to say to what the client says, when it is done."""

    def event(self, name: str, data: dict[str, Any]) -> bytes:
        """Something to be said to the client."""


def agreed(offered: Sequence[str]) -> str | None:
    """The subprotocol; Problem 400 when the client can speak some, but not this one."""
    if offered and SUBPROTOCOL not in offered:
        detail = f"Of WebSocket subprotocols only {SUBPROTOCOL} is spoken here."
        raise HttpProblem(400, "subprotocol", detail)
    return SUBPROTOCOL if offered else None


@dataclass(eq=False)
class MessageSocket:
    """One open socket.

    Parameters
    ----------
    outflow
        What is sent.
    conversation
        What is said besides, and what to do about what the client says.
    websocket, subprotocol
        Carry it.
    """

    outflow: Outflow
    conversation: Conversation
    websocket: WebSocket
    subprotocol: str | None

    async def __call__(self) -> None:
        socket = self.websocket
        with self.outflow.opened() as session:
            try:
                await socket.accept(self.subprotocol)
            except OSError:
                return  # the client went away meanwhile
            try:
                await self._converse(session)
            except WebSocketDisconnect:
                pass  # the client went away in the middle of a message
            except (StorageError, OSError) as error:
                logger.error("storage failed: %s", error)
                with suppress(WebSocketDisconnect):
                    await socket.close(FAILED, "the service's storage cannot be used at the moment")

    async def _converse(self, session: Session) -> None:
        socket, delivery, pump = self.websocket, self.outflow.delivery, self.outflow.pump
        async with Heard(socket.receive, self._answer) as heard:
            await self.outflow.run(session, self, heard)
        if delivery.deleted:
            await self._send(self.conversation.event("deleted", {}))
            await socket.close(NORMAL, "the subscription was deleted")
        elif heard.is_refused:
            await socket.close(POLICY, "the API key is not valid any more")
        elif pump.closing:
            await socket.close(GOING_AWAY, "the gateway is stopping")

    @property
    def write(self) -> Write:
        return write_event

    async def send_messages(self, parts: Sequence[bytes]) -> None:
        for start in range(0, len(parts), PARTS):
            if start and start % (FRAMES_AT_ONCE * PARTS) == 0:
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


class Heard(Disconnect):
    """Hears what the client says until it has gone.

    Parameters
    ----------
    receive
        The next thing that it says.
    answer
        Does that, and answers it.
    """

    def __init__(self, receive: Receive, answer: Callable[[bytes], Coroutine[Any, Any, None]]) -> None:
        self._answer = answer
        self._answers: set[asyncio.Task[None]] = set()
        self.is_refused = False
        """Whether it may not go on."""
        super().__init__(receive)

    async def _watch(self) -> None:
        answers = self._answers
        while (message := await self._receive())["type"] == "websocket.receive":
            text = message.get("text")
            said = text.encode() if text is not None else message.get("bytes") or b""
            answer = asyncio.ensure_future(self._answer(said))
            answers.add(answer)
            answer.add_done_callback(answers.discard)
            if len(answers) >= ANSWERED_AT_ONCE:
                await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
        # It is over now, whatever is still being done of what was said: that may take as long as the disk.
        self.is_refused = message.get("code") == POLICY
