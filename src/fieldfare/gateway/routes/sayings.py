"""What a reader says on a WebSocket, and what is said to it: CloudEvents, both ways.

A message is the event as it was published, with its position and attempt as extension attributes. What a
reader says is an event of one of the types below, whose data is the body that the route of the same name
takes; each is answered by an event that names it.
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
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.routes.settling import AckBody, ExtendBody, NackBody, Settling, TerminateBody
from fieldfare.gateway.writer import WriterClosed
from fieldfare.storage.errors import StorageError

logger = logging.getLogger("fieldfare.gateway")

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class Said(msgspec.Struct, tag_field="type"):
    """The context attributes that count; others may be there."""

    specversion: Literal["1.0"]
    id: Text
    source: Text


class AckSaid(Said, tag="fieldfare.ack"):
    data: AckBody


class NackSaid(Said, tag="fieldfare.nack"):
    data: NackBody


class ExtendSaid(Said, tag="fieldfare.extend"):
    data: ExtendBody


class TerminateSaid(Said, tag="fieldfare.terminate"):
    data: TerminateBody


Saying = AckSaid | NackSaid | ExtendSaid | TerminateSaid

_said: msgspec.json.Decoder[Saying] = msgspec.json.Decoder(Saying)

TYPES = "fieldfare.ack, fieldfare.nack, fieldfare.extend, fieldfare.terminate"


class Sayings:
    """The conversation on one socket.

    Parameters
    ----------
    settling
        Does what is said.
    request
        The one that opened the socket.
    bodies
        What is being said counts as those that are being received.
    """

    def __init__(self, settling: Settling, request: HTTPConnection, bodies: Bodies) -> None:
        self._settling = settling
        self._request = request
        self._bodies = bodies

    async def answer(self, text: bytes) -> bytes:
        """Do what a reader says, and what to tell it when that is done, or cannot be."""
        named: dict[str, Any] = {}
        try:
            with self._bodies.held(len(text), self._request.path_params):
                said = await _parsed(text)
                named = {"said": said.id}
                return self.event("done", named | await self._do(said))
        except HttpProblem as error:
            problem = error
        except (StorageError, OSError) as error:
            logger.error("storage failed: %s", error)
            problem = HttpProblem(503, "storage", "The service's storage cannot be used at the moment.")
        except WriterClosed:
            problem = HttpProblem(503, "stopping", "The gateway is stopping; nothing of this was done.")
        except Exception as error:
            logger.error("what was said on a socket failed", exc_info=error)
            problem = HttpProblem(500, "internal", "The gateway failed at this; its log says more.")
        return self.event("problem", named | problem.body())

    def event(self, name: str, data: Mapping[str, Any]) -> bytes:
        """Something that is said to the reader."""
        return msgspec.json.encode(
            {
                "specversion": "1.0",
                "id": uuid.uuid4().hex,
                "source": self._request.url.path,
                "type": f"fieldfare.{name}",
                "data": data,
            }
        )

    async def _do(self, said: Saying) -> dict[str, Any]:
        settling, request = self._settling, self._request
        try:
            match said:
                case AckSaid():
                    return await settling.ack(request, said.data)
                case NackSaid():
                    return await settling.nack(request, said.data)
                case ExtendSaid():
                    return await settling.extend(request, said.data)
                case TerminateSaid():
                    return await settling.terminate(request, said.data)
        except HttpProblem as problem:
            if "pointer" in problem.place:
                problem.place["pointer"] = f"/data{problem.place['pointer']}"
            raise


async def _parsed(text: bytes) -> Saying:
    try:
        if len(text) <= JSON_INLINE_BYTES:
            return parse_json(text, _said)
        return await asyncio.to_thread(parse_json, text, _said)
    except HttpProblem as problem:
        if problem.place.get("pointer") == "/type":
            problem.place["hint"] = f"The types that are understood: {TYPES}."
        problem.detail = problem.detail.replace("The body", "What was said")
        raise
