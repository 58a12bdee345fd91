"""Bodies of requests: read within their bounds, and, where a route takes JSON, into what it takes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from fieldfare.encodings import ENCODINGS, RATIO_MAX, BadPacking, TooMuchPacked, unpack
from fieldfare.gateway.admission.door import header
from fieldfare.gateway.admission.load import Load
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.text import count_bytes, line_and_column
from fieldfare.gateway.turns import NOBODY, SharedRoom

DRAINED_MAX_BYTES = 64 << 20
"""Of a body that is too large so much is read and dropped, so that the client gets to read the answer."""

JSON_INLINE_BYTES = 64 << 10
"""Larger bodies are parsed on a thread, so that other requests go on."""

JSON_MAX_COMMAS = 200_000
"""The parser works on a body without a pause: this bounds how long."""

JOINED_INLINE_BYTES = 1 << 20
"""To copy a larger body takes milliseconds."""

UNPACKED_INLINE_BYTES = 4 << 10
UNPACKED_INLINE_MAX_BYTES = 64 << 10
"""Packed bodies up to the first are unpacked at once, if no more than the second comes out."""

_HELD = "fieldfare.body"
"""Whose room a request's body takes, and how much of it."""
_PLAIN = (None, "identity")

S = TypeVar("S")


class Bodies:
    """Reads bodies, and knows what memory those take whose requests are not answered yet.

    Parameters
    ----------
    body_max_bytes
        How large one may be.
    most_bytes
        How large all together: one is small, but ten thousand connections have one each. Of it each space has
        its share, or who trickles forty bodies would stop all publishers and readers of the others.
    load
        Makes the problem when there is no room.
    """

    def __init__(self, body_max_bytes: int, most_bytes: int, load: Load) -> None:
        self.body_max_bytes = body_max_bytes
        self._room = SharedRoom(most_bytes)
        self._load = load

    @property
    def held_bytes(self) -> int:
        """How large the bodies are whose requests are not answered yet."""
        return self._room.total

    def held_by(self, scope: Scope) -> int:
        """How many bytes of a request's body have come and, if it was packed so, come out."""
        size_bytes: int = scope.get(_HELD, (NOBODY, 0))[1]
        return size_bytes

    def release(self, scope: Scope) -> None:
        """The request is answered, or given up."""
        space, size_bytes = scope.pop(_HELD, (NOBODY, 0))
        if size_bytes:
            self._room.give_back(space, size_bytes)

    async def read(self, request: Request, max_bytes: int | None = None, *, way_out: str = "") -> bytes:
        """The request's body, unpacked; Problem 413 when it is larger than it may be, packed or not.

        Problem 415 for a ``Content-Encoding`` that is not taken, 400 when it is not packed so, 429 when
        others' bodies leave no room for it. ``way_out`` is what a client may do whose body is too large.
        """
        max_bytes = min(self.body_max_bytes, max_bytes or self.body_max_bytes)
        encoding = header(request, b"content-encoding")
        if encoding is not None:
            encoding = encoding.lower()
            if encoding not in (*_PLAIN, *ENCODINGS):
                await drain(request, 0)
                raise _unknown_encoding(encoding)
        try:
            body = await self._receive(request, max_bytes)
            if encoding in _PLAIN:
                return body
            return await self._unpacked(request, body, str(encoding), max_bytes)
        except HttpProblem as problem:
            if way_out and problem.status == 413:
                problem.place["hint"] = way_out
            raise

    async def _receive(self, request: Request, max_bytes: int) -> bytes:
        declared = header(request, b"content-length") or ""
        if declared.isascii() and declared.isdigit() and int(declared[:20]) > max_bytes:
            await drain(request, 0)
            raise _too_large(int(declared[:20]), max_bytes)
        chunks: list[bytes] = []
        size_bytes = 0
        more = True
        while more:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            more = message.get("more_body", False)
            chunk = message.get("body", b"")
            chunks.append(chunk)
            size_bytes += len(chunk)
            if size_bytes > max_bytes:
                chunks.clear()
                size_bytes = await drain(request, size_bytes) if more else size_bytes
                raise _too_large(size_bytes, max_bytes)
            if not self._add(request.scope, len(chunk)):
                chunks.clear()
                if more:
                    await drain(request, size_bytes)
                raise self._no_room()
        if size_bytes <= JOINED_INLINE_BYTES:
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        return await asyncio.to_thread(_joined, chunks)

    async def _unpacked(self, request: Request, packed: bytes, encoding: str, max_bytes: int) -> bytes:
        try:
            body = await _unpack(packed, encoding, max_bytes)
        except BadPacking as error:
            detail = f"{str(error)[:1].upper()}{str(error)[1:]}."
            raise HttpProblem(400, "bad-encoding", detail, unpacked_bytes=error.size_bytes) from None
        except TooMuchPacked as error:
            why = f"each byte to {RATIO_MAX} at most, and all to {max_bytes}"
            detail = f"The body's {len(packed)} bytes unpack to more than {error.max_bytes}: they may {why}."
            raise HttpProblem(413, "body-too-large", detail, max_bytes=error.max_bytes) from None
        if not self._add(request.scope, len(body)):
            raise self._no_room()
        return body

    def _no_room(self) -> HttpProblem:
        return self._load.overloaded("bodies", "Too many bodies are being received at this moment.")

    async def read_json(
        self, request: Request, decoder: msgspec.json.Decoder[S], max_bytes: int | None = None
    ) -> S:
        """The body as the JSON that a route takes, a small thing; Problem 400 names the place."""
        text = await self.read_json_text(request, max_bytes)
        if len(text) <= JSON_INLINE_BYTES:
            return parse_json(text, decoder)
        return await asyncio.to_thread(parse_json, text, decoder)

    async def read_json_text(self, request: Request, max_bytes: int | None = None) -> bytes:
        """The body that is to be JSON, for `parse_json`; an empty one is ``{}``."""
        content_type = header(request, b"content-type")
        media = (content_type or "").partition(";")[0].strip().lower()
        if content_type is not None and media != "application/json" and not media.endswith("+json"):
            await drain(request, 0)
            raise _not_json(media or "an empty Content-Type")
        body = await self.read(request, max_bytes)
        if body and content_type is None:
            # Any web page may have a browser send a body without one, and nobody is asked first.
            raise _not_json("a body without Content-Type")
        return body or b"{}"

    @contextmanager
    def held(self, size_bytes: int, path_params: Mapping[str, str]) -> Iterator[None]:
        """Count what came otherwise, for as long as this is open; Problem 429 as with bodies."""
        scope: Scope = {"path_params": path_params}
        if not self._add(scope, size_bytes):
            raise self._no_room()
        try:
            yield
        finally:
            self.release(scope)

    def _add(self, scope: Scope, size_bytes: int) -> bool:
        """Count a piece of a request's body; False when there is no room for it."""
        held = scope.get(_HELD)
        # Routes have looked whether there is such a space before they read a body.
        space, before_bytes = (scope["path_params"].get("space", NOBODY), 0) if held is None else held
        if not self._room.fits(space, size_bytes):
            return False
        self._room.take(space, size_bytes)
        scope[_HELD] = space, before_bytes + size_bytes
        return True


async def _unpack(packed: bytes, encoding: str, max_bytes: int) -> bytes:
    if len(packed) <= UNPACKED_INLINE_BYTES:
        try:
            return unpack(packed, encoding, min(max_bytes, UNPACKED_INLINE_MAX_BYTES))
        except TooMuchPacked:
            pass
    return await asyncio.to_thread(unpack, packed, encoding, max_bytes)


def _joined(chunks: list[bytes]) -> bytes:
    body = b"".join(chunks)
    chunks.clear()
    return body


async def drain(request: Request, size_bytes: int) -> int:
    """Read the rest of a body and drop it, within bounds; returns its size as far as it is known."""
    if size_bytes == 0 and request.headers.get("expect", "").lower() == "100-continue":
        return 0  # it is not sent before it is asked for, and it is not wanted
    while size_bytes <= DRAINED_MAX_BYTES:
        message = await request.receive()
        if message["type"] != "http.request":
            break
        size_bytes += len(message.get("body", b""))
        if not message.get("more_body", False):
            break
    return size_bytes


def _too_large(size_bytes: int, max_bytes: int) -> HttpProblem:
    return HttpProblem(
        413,
        "body-too-large",
        f"The body has {size_bytes} bytes or more; at most {max_bytes} are taken in one request.",
        headers={"Connection": "close"} if size_bytes > DRAINED_MAX_BYTES else None,
        max_bytes=max_bytes,
    )


def _unknown_encoding(encoding: str) -> HttpProblem:
    taken = ", ".join(ENCODINGS)
    detail = f"Bodies are taken as they are, or packed once as one of {taken}; not as {encoding[:40]}."
    return HttpProblem(415, "content-encoding", detail, headers={"Accept-Encoding": taken})


def _not_json(what: str) -> HttpProblem:
    detail = f"This takes application/json, not {what[:80]}."
    return HttpProblem(415, "content-type", detail, accepted=["application/json"])


def parse_json(body: bytes, decoder: msgspec.json.Decoder[S]) -> S:
    """JSON into a typed value; Problem 400 names the place. What is large is parsed on a thread."""
    if len(body) > JSON_INLINE_BYTES and count_bytes(body, b",") > JSON_MAX_COMMAS:
        detail = f"The body has more than {JSON_MAX_COMMAS} commas; send less at once."
        raise HttpProblem(413, "body-too-large", detail, max_commas=JSON_MAX_COMMAS)
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        said, _, path = str(error).partition(" - at `$")
        path = path.rstrip("`").replace("[...]", "")  # a member of any name: it is not said which
        pointer = re.sub(r"\.|\[(\d+)\]", lambda part: "/" + (part[1] or ""), path)
        detail = f"{said.replace('`', '')}, at {pointer}." if pointer else f"{said.replace('`', '')}."
        raise HttpProblem(400, "bad-request", detail, pointer=pointer or None) from None
    except UnicodeDecodeError:
        raise HttpProblem(400, "bad-json", "The body is not valid UTF-8.") from None
    except msgspec.DecodeError as error:
        found = re.search(r"\(byte (\d+)\)", str(error))
        at = int(found[1]) if found else len(body)
        line, column = line_and_column(body, at)
        detail = f"The body is not valid JSON: {error}."
        raise HttpProblem(400, "bad-json", detail, byte=at, line=line, column=column) from None
    except RecursionError:
        raise HttpProblem(400, "bad-json", "The body's JSON nests too deeply.") from None
