"""One request to a subscriber's address, the handshake before it, and what the answer means.

The library below follows no redirect, reads no proxy from the environment, keeps no cookies and unpacks
nothing; of an answer no more is read than is looked at.
"""

from __future__ import annotations

import asyncio
import enum
import ssl
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Any

import httpcore
import msgspec

from fieldfare.gateway.push.addresses import CallRules, CheckedBackend, NotAllowed, Resolve, Target
from fieldfare.gateway.push.messages import Headers

CONNECT_S = 5.0
ANSWER_MAX_BYTES = 64 << 10
"""So much of an answer is read, for what it says of a batch and so that its connection can be used again."""

DRAIN_S = 1.0
RETRY_AFTER_MAX_S = 3600.0
IDLE_S = 2.0
"""So long a connection is kept: many servers close it soon after, and what is sent then is lost."""

PER_MINUTE_MAX = 1_000_000


class Meaning(enum.Enum):
    """What came of a request."""

    ACCEPTED = "accepted"
    FAILED = "failed"
    """The messages were refused, or it is not known what became of them."""
    BUSY = "busy"
    """The receiver wants to be asked later, and has not looked at the messages."""
    UNREACHABLE = "unreachable"
    """No receiver has seen the messages."""
    GONE = "gone"
    """The receiver wants no messages any more."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a request, for a person, and for how long the receiver wants to be left alone.

    ``failed`` are the positions of those messages of a batch that the receiver wants again.
    """

    meaning: Meaning
    said: str
    wait_s: float = 0.0
    failed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Permission:
    """An address may be called, so much time between the starts of two requests."""

    spacing_s: float


class _Partly(msgspec.Struct):
    failed_positions: list[str] = []


_partly = msgspec.json.Decoder(_Partly)


class Sender:
    """Sends requests.

    Parameters
    ----------
    rules, resolve
        What may be called, and what names lead to.
    origin
        As whom the service asks for permission.
    per_minute
        How many requests a minute it asks each address to take; 0 for as many as there are.
    connections_max
        Connections, to all addresses together.
    tls
        Says whose certificates are trusted.
    """

    def __init__(
        self,
        rules: CallRules,
        resolve: Resolve,
        *,
        origin: str,
        per_minute: int,
        connections_max: int,
        tls: ssl.SSLContext,
    ) -> None:
        self._origin = (b"webhook-request-origin", origin.encode())
        self._origin_name = origin
        self._per_minute = per_minute
        # Without TLS less may be called, so connections of the two kinds are kept apart.
        self._pools = {
            scheme: httpcore.AsyncConnectionPool(
                ssl_context=tls,
                max_connections=connections_max,
                max_keepalive_connections=connections_max,
                keepalive_expiry=IDLE_S,
                network_backend=CheckedBackend(rules, resolve, is_tls=scheme == "https"),
            )
            for scheme in ("https", "http")
        }

    async def close(self) -> None:
        for pool in self._pools.values():
            await pool.aclose()

    async def ask(self, target: Target, timeout_s: float) -> Permission | Outcome:
        """Ask an address whether it wants to be sent messages."""
        headers = [self._origin]
        if self._per_minute:
            headers.append((b"webhook-request-rate", b"%d" % self._per_minute))
        found = await self._request(b"OPTIONS", target, headers, None, timeout_s)
        if isinstance(found, Outcome):
            return replace(found, meaning=Meaning.UNREACHABLE)  # no message was in it, whatever became of it
        status, answered, _ = found
        if status in (429, 503):
            return _meaning(status, answered, b"")
        allowed = answered.get(b"webhook-allowed-origin", b"").decode("latin-1").strip()
        if allowed not in ("*", self._origin_name):
            said = (
                f"it did not allow messages: to OPTIONS it must answer with WebHook-Allowed-Origin:"
                f" {self._origin_name}; it answered {status}"
            )
            return Outcome(Meaning.UNREACHABLE, said)
        rate = answered.get(b"webhook-allowed-rate", b"*").strip()
        per_minute = int(rate) if rate.isdigit() and len(rate) < 7 else PER_MINUTE_MAX
        asked = self._per_minute or PER_MINUTE_MAX
        most = min(max(per_minute, 1), asked)
        return Permission(60.0 / most if most < PER_MINUTE_MAX else 0.0)

    async def post(
        self,
        target: Target,
        headers: Headers,
        body: bytes,
        timeout_s: float,
        batch: Collection[str] | None = None,
    ) -> Outcome:
        """Send messages; of a batch, of those at these positions, the answer may want some again."""
        found = await self._request(
            b"POST", target, [*headers, self._origin], body, timeout_s, is_told=batch is not None
        )
        return found if isinstance(found, Outcome) else _meaning(*found, batch)

    async def _request(
        self,
        method: bytes,
        target: Target,
        headers: Headers,
        body: bytes | None,
        timeout_s: float,
        *,
        is_told: bool = False,
    ) -> Outcome | tuple[int, dict[bytes, bytes], bytes]:
        waits = {
            "connect": min(CONNECT_S, timeout_s),
            "read": timeout_s,
            "write": timeout_s,
            "pool": timeout_s,
        }
        pool = self._pools[target.scheme]
        host = (b"host", target.authority.encode())
        # Who says nothing of encodings may be answered in any.
        ours = (b"user-agent", b"fieldfare"), (b"accept", b"*/*"), (b"accept-encoding", b"identity")
        headers = [host, *ours, *headers]
        is_sent = False

        async def trace(step: str, info: dict[str, Any]) -> None:
            nonlocal is_sent
            is_sent |= step == "http11.send_request_headers.started"

        try:
            async with (
                asyncio.timeout(timeout_s) as limit,
                pool.stream(
                    method,
                    target.url(),
                    headers=headers,
                    content=body,
                    extensions={"timeout": waits, "trace": trace},
                ) as response,
            ):
                answered = {name.lower(): value for name, value in response.headers}
                is_needed = is_told and _is_json(answered)
                if not is_needed:
                    limit.reschedule(None)  # the status is there, and counts: `_read` takes its own time
                return response.status, answered, await _read(response, is_needed=is_needed)
        except NotAllowed as error:
            return Outcome(Meaning.UNREACHABLE, str(error))
        except (TimeoutError, httpcore.TimeoutException) as error:
            if is_sent:
                return Outcome(Meaning.FAILED, f"it did not answer within {timeout_s:g} s")
            is_pool = isinstance(error, httpcore.PoolTimeout)
            said = "too many requests are under way" if is_pool else "there was no connection in time"
            return Outcome(Meaning.UNREACHABLE, said)
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
            if is_sent:
                return Outcome(Meaning.FAILED, "the connection broke, or what came was no HTTP")
            return Outcome(Meaning.UNREACHABLE, _no_connection(error))


async def _read(response: httpcore.Response, *, is_needed: bool) -> bytes:
    """The answer's body, or its first part; one that says nothing to us is not waited for long."""
    body = bytearray()
    try:
        async with asyncio.timeout(None if is_needed else DRAIN_S):
            async for piece in response.aiter_stream():
                body += piece
                if len(body) > ANSWER_MAX_BYTES:
                    break
    except (TimeoutError, httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError):
        if is_needed:
            raise
    return bytes(body)


def _no_connection(error: BaseException) -> str:
    """Why there was no connection: of names and addresses nothing, of certificates what is wrong."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not good: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return "TLS with it failed"
        cause = cause.__cause__ or cause.__context__
    return "it could not be connected to"


def _is_json(headers: dict[bytes, bytes]) -> bool:
    return b"json" in headers.get(b"content-type", b"").lower()


def _meaning(
    status: int, headers: dict[bytes, bytes], body: bytes, batch: Collection[str] | None = None
) -> Outcome:
    said = f"it answered {status}"
    if 200 <= status < 300:
        try:
            failed = frozenset() if batch is None else _failed_of(headers, body, batch)
        except ValueError as error:
            return Outcome(Meaning.FAILED, f"{said}, but {error}")
        return Outcome(Meaning.ACCEPTED, said, failed=failed)
    if status == 410:
        return Outcome(Meaning.GONE, said)
    if status in (429, 503):
        return Outcome(Meaning.BUSY, said, wait_s=_retry_after_s(headers.get(b"retry-after", b"")))
    if 300 <= status < 400:
        said += ", and no redirect is followed"
    return Outcome(Meaning.FAILED, said)


def _failed_of(headers: dict[bytes, bytes], body: bytes, batch: Collection[str]) -> frozenset[str]:
    """Which messages of a batch a receiver wants again; ValueError if one cannot see which."""
    if _is_json(headers) and body and headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise ValueError("its body is packed, though it was not asked for that")
    if _is_json(headers) and len(body) > ANSWER_MAX_BYTES:
        raise ValueError("its body is too long to be read")
    if b'"failed_positions"' not in body:
        return frozenset()
    try:
        failed = frozenset(_partly.decode(body).failed_positions)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("its failed_positions cannot be read") from None
    if not failed.issubset(batch):
        raise ValueError("its failed_positions name what is not in the batch")
    return failed


def _retry_after_s(value: bytes) -> float:
    """For how long a receiver wants to be left alone; 0 where it does not say."""
    text = value.decode("latin-1").strip()
    if text.isascii() and text.isdigit():
        wait_s = float(text)
    else:
        try:
            wait_s = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return min(max(wait_s, 0.0), RETRY_AFTER_MAX_S)
