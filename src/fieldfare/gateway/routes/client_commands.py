"""Client commands on a WebSocket, and their replies: CloudEvents in both directions.

A message is the event as it was published, with its position and attempt as extension attributes. A command
is an event of one of the types below, whose data is the body of the route of the same name; each is answered
by an event that has the command's id.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import HTTPConnection

from fieldfare.gateway.admission.bodies import JSON_INLINE_BYTES, Bodies, parse_json
from fieldfare.gateway.problems import HttpProblem, WriterClosed
from fieldfare.gateway.routes.acks import AckBody, ExtendBody, NackBody, Settling, TerminateBody
from fieldfare.storage.errors import StorageError

logger = logging.getLogger("fieldfare.gateway")

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class CommandAttributes(msgspec.Struct, tag_field="type"):
    """The context attributes required of a command; others are ignored."""

    specversion: Literal["1.0"]
    id: Text
    source: Text


class Ack(CommandAttributes, tag="fieldfare.ack"):
    data: AckBody


class NackCommand(CommandAttributes, tag="fieldfare.nack"):
    data: NackBody


class ExtendCommand(CommandAttributes, tag="fieldfare.extend"):
    data: ExtendBody


class TerminateCommand(CommandAttributes, tag="fieldfare.terminate"):
    data: TerminateBody


Saying = Ack | NackCommand | ExtendCommand | TerminateCommand

TYPES = "fieldfare.ack, fieldfare.nack, fieldfare.extend, fieldfare.terminate"


class ClientCommands:
    """Handler of the client commands on one WebSocket.

    Parameters
    ----------
    settling
        Carries out the commands.
    request
        The request that opened the WebSocket.
    bodies
        The limits on request bodies being received, which include commands.
    """

    def __init__(self, settling: Settling, request: HTTPConnection, bodies: Bodies) -> None:
        self._settling = settling
        self._request = request
        self._bodies = bodies

    async def answer(self, text: bytes) -> bytes:
        """Carry out a command, and return the event that reports success or the problem."""
        named: dict[str, Any] = {}
        try:
            with self._bodies.counted(len(text), self._request.path_params):
                said = await _parsed(text)
                named = {"said": said.id}
                return self.event("done", named | msgspec.structs.asdict(await self._do(said)))
        except HttpProblem as error:
            problem = error
        except (StorageError, OSError) as error:
            logger.error("storage failed: %s", error)
            problem = HttpProblem(
                503, "storage", "The service's storage failed: see the service's log, and try again later."
            )
        except WriterClosed:
            problem = HttpProblem(
                503,
                "stopping",
                "The gateway is stopping, and the command was not carried out: send it again.",
            )
        except Exception as error:
            logger.error("a command on a WebSocket failed", exc_info=error)
            problem = HttpProblem(500, "internal", "The gateway failed with an internal error: see its log.")
        return self.event("problem", named | problem.body())

    def event(self, name: str, data: Mapping[str, Any]) -> bytes:
        """Return an event of the type ``fieldfare.<name>`` for the client, as JSON."""
        return msgspec.json.encode(
            {
                "specversion": "1.0",
                "id": uuid.uuid4().hex,
                "source": self._request.url.path,
                "type": f"fieldfare.{name}",
                "data": data,
            }
        )

    async def _do(self, said: Saying) -> msgspec.Struct:
        settling, request = self._settling, self._request
        try:
            match said:
                case Ack():
                    return await settling.ack(request, said.data)
                case NackCommand():
                    return await settling.nack(request, said.data)
                case ExtendCommand():
                    return await settling.extend(request, said.data)
                case TerminateCommand():
                    return await settling.terminate(request, said.data)
        except HttpProblem as problem:
            if "pointer" in problem.place:
                problem.place["pointer"] = f"/data{problem.place['pointer']}"
            raise


async def _parsed(text: bytes) -> Saying:
    kind: Any = Saying  # a union is not a type to mypy
    try:
        if len(text) <= JSON_INLINE_BYTES:
            return parse_json(text, kind)  # type: ignore[no-any-return]
        return await asyncio.to_thread(parse_json, text, kind)
    except HttpProblem as problem:
        if problem.place.get("pointer") == "/type":
            problem.place["hint"] = f"The allowed types are {TYPES}."
        problem.detail = problem.detail.replace("The body", "The command")
        raise
