"""Read request bodies within their limits, and decode them where a route takes JSON."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from fieldfare.encodings import ENCODINGS, GZIP, RATIO_MAX, BadPacking, DecompressedTooLarge, unpack
from fieldfare.gateway.admission.load import Load
from fieldfare.gateway.admission.request_guard import header
from fieldfare.gateway.fair_queue import NO_SPACE, SharedCapacity
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.text import count_bytes, line_and_column

DRAINED_MAX_BYTES = 64 << 20
"""Maximum bytes read and dropped of a body that is too large, so that the client can read the response; then
the connection is closed.
"""

JSON_INLINE_BYTES = 64 << 10
"""Maximum bytes parsed on the event loop; larger bodies go to a thread, so that other requests proceed."""

JSON_MAX_COMMAS = 200_000
"""Maximum commas in a body above `JSON_INLINE_BYTES`; more get a 413.

The parser works without a pause: this bounds its time.
"""

JOINED_INLINE_BYTES = 1 << 20
"""Maximum bytes joined on the event loop; larger bodies go to a thread: copying takes milliseconds."""

UNPACKED_INLINE_BYTES = 4 << 10
UNPACKED_INLINE_MAX_BYTES = 64 << 10
"""Maximum compressed bytes decompressed on the event loop, and maximum bytes of the result; larger bodies go
to a thread.
"""

_HELD = "fieldfare.body"
"""Scope key of a request's space and the body bytes counted for it."""
_NAMES = (b"content-type", b"content-encoding", b"content-length")
_PLAIN = (None, "identity")
_SAME = {"x-gzip": GZIP}
"""Older names of encodings (RFC 9110, 8.4.1.3)."""

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class _Head:
    """The headers that describe a body; `length` is 0 if it is not declared."""

    content_type: str | None
    encoding: str | None
    length: int


def _head_of(request: Request) -> _Head:
    content_type, encoding, length = (header(request, name) for name in _NAMES)
    is_number = length is not None and length.isascii() and length.isdigit()
    return _Head(content_type, encoding and encoding.lower(), int(str(length)[:20]) if is_number else 0)


class Bodies:
    """Reads bodies, and counts the memory of bodies whose requests are not answered yet.

    Parameters
    ----------
    body_max_bytes
        Maximum size of one body.
    most_bytes
        Maximum size of all bodies together: one is small, but ten thousand connections have one each. Each
        space has its share of it. Otherwise a client that trickles forty bodies would stop all publishers and
        readers of other spaces.
    load
        Creates the problem for a body without room.
    """

    def __init__(self, body_max_bytes: int, most_bytes: int, load: Load) -> None:
        self.body_max_bytes = body_max_bytes
        self._room = SharedCapacity(most_bytes)
        self._load = load

    @property
    def held_bytes(self) -> int:
        """Total size of the bodies whose requests are not answered yet."""
        return self._room.total

    def held_by(self, scope: Scope) -> int:
        """Return the received bytes of a request's body, plus its decompressed size if it was compressed."""
        size_bytes: int = scope.get(_HELD, (NO_SPACE, 0))[1]
        return size_bytes

    def release(self, scope: Scope) -> None:
        """Release the memory of a request that is answered or aborted."""
        space, size_bytes = scope.pop(_HELD, (NO_SPACE, 0))
        if size_bytes:
            self._room.give_back(space, size_bytes)

    async def read(self, request: Request, max_bytes: int | None = None, *, way_out: str = "") -> bytes:
        """Return the request's body, decompressed.

        ``way_out`` is a hint for clients whose body is too large. Raise Problem 413 if the body is larger
        than allowed, compressed or not, 415 for an unsupported ``Content-Encoding``, 400 if it does not have
        that encoding, and 429 if other bodies leave no room for it.
        """
        return await self._read(request, _head_of(request), max_bytes, way_out)

    async def _read(self, request: Request, head: _Head, max_bytes: int | None, way_out: str = "") -> bytes:
        max_bytes = min(self.body_max_bytes, max_bytes or self.body_max_bytes)
        encoding = head.encoding and _SAME.get(head.encoding, head.encoding)
        if encoding not in (*_PLAIN, *ENCODINGS):
            await drain(request, 0)
            raise _unknown_encoding(str(encoding))
        try:
            if head.length > max_bytes:
                await drain(request, 0)
                raise _too_large(head.length, max_bytes)
            body = await self._receive(request, max_bytes)
            if encoding in _PLAIN:
                return body
            return await self._unpacked(request, body, str(encoding), max_bytes)
        except HttpProblem as problem:
            if way_out and problem.status == 413:
                problem.place["hint"] = way_out
            raise

    async def _receive(self, request: Request, max_bytes: int) -> bytes:
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
        except DecompressedTooLarge as error:
            bounds = f"{RATIO_MAX} times its size, and at most {max_bytes} bytes"
            size = f"The body's {len(packed)} bytes decompress to more than {error.max_bytes}"
            detail = f"{size}: a body may decompress to at most {bounds}."
            raise HttpProblem(413, "body-too-large", detail, max_bytes=error.max_bytes) from None
        if not self._add(request.scope, len(body)):
            raise self._no_room()
        return body

    def _no_room(self) -> HttpProblem:
        return self._load.overloaded("bodies", "Too many bodies are being received at this moment.")

    async def read_json(self, request: Request, kind: type[S], max_bytes: int | None = None) -> S:
        """Return the body, decoded from JSON. Raise Problem 400 with the place of an error."""
        text = await self.read_json_text(request, max_bytes)
        if len(text) <= JSON_INLINE_BYTES:
            return parse_json(text, kind)
        return await asyncio.to_thread(parse_json, text, kind)

    async def read_json_text(self, request: Request, max_bytes: int | None = None) -> bytes:
        """Return the JSON text of a body, for `parse_json`; ``{}`` if it is empty."""
        head = _head_of(request)
        media = (head.content_type or "").partition(";")[0].strip().lower()
        if head.content_type is not None and media != "application/json" and not media.endswith("+json"):
            await drain(request, 0)
            raise _not_json(media or "an empty Content-Type")
        body = await self._read(request, head, max_bytes)
        if body and head.content_type is None:
            # Browsers send a body without a type for any web page, without a preflight request.
            raise _not_json("a body without Content-Type")
        return body or b"{}"

    @contextmanager
    def counted(self, size_bytes: int, path_params: Mapping[str, str]) -> Iterator[None]:
        """Count other received bytes while this is open. Raise Problem 429 as for bodies."""
        scope: Scope = {"path_params": path_params}
        if not self._add(scope, size_bytes):
            raise self._no_room()
        try:
            yield
        finally:
            self.release(scope)

    def _add(self, scope: Scope, size_bytes: int) -> bool:
        """Count a piece of a request's body; return False if there is no room for it."""
        held = scope.get(_HELD)
        # Routes have checked that the space exists before they read a body.
        space, before_bytes = (scope["path_params"].get("space", NO_SPACE), 0) if held is None else held
        if not self._room.fits(space, size_bytes):
            return False
        self._room.take(space, size_bytes)
        scope[_HELD] = space, before_bytes + size_bytes
        return True


async def _unpack(packed: bytes, encoding: str, max_bytes: int) -> bytes:
    if len(packed) <= UNPACKED_INLINE_BYTES:
        try:
            return unpack(packed, encoding, min(max_bytes, UNPACKED_INLINE_MAX_BYTES))
        except DecompressedTooLarge:
            pass
    return await asyncio.to_thread(unpack, packed, encoding, max_bytes)


def _joined(chunks: list[bytes]) -> bytes:
    body = b"".join(chunks)
    chunks.clear()
    return body


async def drain(request: Request, size_bytes: int) -> int:
    """Read and drop the rest of a body, within bounds; return its size as far as it is known."""
    is_asked = request.headers.get("expect", "").lower() == "100-continue"
    if size_bytes == 0 and is_asked and request.scope["http_version"] != "1.0":
        return 0  # the client waits for 100 Continue and does not send the body without it
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
        f"The body has at least {size_bytes} bytes; the maximum is {max_bytes} bytes: split the request.",
        headers={"Connection": "close"} if size_bytes > DRAINED_MAX_BYTES else None,
        max_bytes=max_bytes,
    )


def _unknown_encoding(encoding: str) -> HttpProblem:
    taken = ", ".join(ENCODINGS)
    detail = f"The Content-Encoding {encoding[:40]!r} is not supported: send one of {taken}, or none."
    return HttpProblem(415, "content-encoding", detail, headers={"Accept-Encoding": taken})


def _not_json(what: str) -> HttpProblem:
    detail = f"The Content-Type {what[:80]} is not supported: send application/json."
    return HttpProblem(415, "content-type", detail, accepted=["application/json"])


@cache
def _decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def parse_json(body: bytes, kind: type[S]) -> S:
    """Decode JSON into a typed value. Raise Problem 400 with the place of an error, 413 if it has too many
    commas.

    Call it on a thread if the body is large.
    """
    if len(body) > JSON_INLINE_BYTES and count_bytes(body, b",") > JSON_MAX_COMMAS:
        detail = f"The body has more than {JSON_MAX_COMMAS} commas, the maximum: split the request."
        raise HttpProblem(413, "body-too-large", detail, max_commas=JSON_MAX_COMMAS)
    decoder: msgspec.json.Decoder[S] = _decoder_of(kind)  # type: ignore[arg-type]  # types are hashable
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        said, _, path = str(error).partition(" - at `$")
        path = path.rstrip("`").replace("[...]", "")  # a member of a mapping: its name is not known
        pointer = re.sub(r"\.|\[(\d+)\]", lambda part: "/" + (part[1] or ""), path)
        detail = f"{said.replace('`', '')}, at {pointer}." if pointer else f"{said.replace('`', '')}."
        raise HttpProblem(400, "bad-request", detail, pointer=pointer or None) from None
    except UnicodeDecodeError:
        raise HttpProblem(400, "bad-json", "The body is not valid UTF-8: encode it as UTF-8.") from None
    except msgspec.DecodeError as error:
        found = re.search(r"\(byte (\d+)\)", str(error))
        at = int(found[1]) if found else len(body)
        line, column = line_and_column(body, at)
        detail = f"The body is not valid JSON: {error}."
        raise HttpProblem(400, "bad-json", detail, byte=at, line=line, column=column) from None
    except RecursionError:
        raise HttpProblem(400, "bad-json", "The body's JSON nests too deeply.") from None
