"""One request to a subscriber's URL, the handshake before it, and the meaning of the response.

The HTTP library follows no redirects, reads no proxy from the environment, keeps no cookies and decompresses
nothing. No more of a response is read than is looked at.
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

from fieldfare.gateway.push.addresses import (
    ASKED_PLACES_MAX,
    Asking,
    Asks,
    CallRules,
    CheckedBackend,
    NotAllowed,
    Resolve,
    Target,
    asking,
)
from fieldfare.gateway.push.messages import Headers

CONNECT_S = 5.0
ANSWER_MAX_BYTES = 64 << 10
"""Maximum bytes read of a response, for the result of a batch and so that the connection can be reused."""

DRAIN_S = 1.0
RETRY_AFTER_MAX_S = 3600.0
IDLE_S = 2.0
"""Seconds that an idle connection is kept: many servers close it soon after and lose the next request."""

PER_MINUTE_MAX = 1_000_000


class Meaning(enum.Enum):
    """The meaning of a request's outcome for its messages."""

    ACCEPTED = "accepted"
    FAILED = "failed"
    """The messages were refused, or their fate is unknown."""
    BUSY = "busy"
    """The receiver wants to be called later, and has not looked at the messages."""
    UNREACHABLE = "unreachable"
    """No receiver has seen the messages."""
    GONE = "gone"
    """The receiver wants no more messages."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a request: its meaning, a description for users, and the seconds to wait before the next
    one.

    ``failed`` are the positions of those messages of a batch that the receiver wants again.
    ``concerns_server`` is false if there was a response with a status: it tells about the URL, while no
    connection or no response tells about its server.
    """

    meaning: Meaning
    said: str
    wait_s: float = 0.0
    failed: frozenset[str] = frozenset()
    concerns_server: bool = True


@dataclass(frozen=True, slots=True)
class Permission:
    """Permission to call a server, with the minimum seconds between the starts of two requests."""

    spacing_s: float


class _PartialFailure(msgspec.Struct):
    failed_positions: list[str] = []


_partly = msgspec.json.Decoder(_PartialFailure)


class Sender:
    """Sends requests to subscribers' URLs.

    Parameters
    ----------
    rules, resolve
        The call rules, and the name resolver.
    origin
        The origin in whose name the service requests permission.
    per_minute
        Requests per minute for which permission is requested at each server; 0 for no limit.
    connections_max
        Maximum connections per scheme, to all servers together.
    tls
        TLS context with the trusted certificates.
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
        self._asks = Asks()
        self._agreed: set[str] = set()
        """Servers that have given permission once."""
        # Fewer addresses may be called without TLS, so the connections of the two kinds are kept apart.
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

    async def ask_permission(self, target: Target, timeout_s: float) -> Permission | Outcome:
        """Ask a server for permission to send messages to a URL."""
        headers = [self._origin]
        if self._per_minute:
            headers.append((b"webhook-request-rate", b"%d" % self._per_minute))
        mine = None if target.authority in self._agreed else Asking(self._asks)
        before = asking.set(mine)
        try:
            if mine is not None:
                mine.check(target.authority)
            found = await self._request(b"OPTIONS", target, headers, None, timeout_s)
        except NotAllowed as error:
            found = Outcome(Meaning.UNREACHABLE, str(error))
        finally:
            asking.reset(before)
        if isinstance(found, Outcome):
            return replace(found, meaning=Meaning.UNREACHABLE)  # it carried no messages, whatever its outcome
        status, answered, _ = found
        if status in (429, 503):
            return _meaning(status, answered, b"")
        allowed = answered.get(b"webhook-allowed-origin", b"").decode("latin-1").strip()
        if allowed not in ("*", self._origin_name):
            said = (
                f"it did not give permission: it answered {status} to OPTIONS without the header"
                f" WebHook-Allowed-Origin: {self._origin_name}"
            )
            return Outcome(Meaning.UNREACHABLE, said, concerns_server=False)
        if mine is not None:
            mine.agreed()
            if len(self._agreed) < ASKED_PLACES_MAX:
                self._agreed.add(target.authority)
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
        """Send messages; for a batch at the positions ``batch``, the response may want some again."""
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
        # A request without Accept-Encoding may be answered in any encoding.
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
                    limit.reschedule(None)  # the status is there and decides: `_read` has its own time limit
                return response.status, answered, await _read(response, is_needed=is_needed)
        except NotAllowed as error:
            return Outcome(Meaning.UNREACHABLE, str(error))
        except (TimeoutError, httpcore.TimeoutException) as error:
            if is_sent:
                return Outcome(Meaning.FAILED, f"it did not answer within {timeout_s:g} s")
            said = f"no connection was made within {waits['connect']:g} s"
            if isinstance(error, httpcore.PoolTimeout):
                said = "too many requests to push addresses are open"
            return Outcome(Meaning.UNREACHABLE, said)
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
            if is_sent:
                return Outcome(Meaning.FAILED, "the connection broke, or the response was not valid HTTP")
            return Outcome(Meaning.UNREACHABLE, _no_connection(error))


async def _read(response: httpcore.Response, *, is_needed: bool) -> bytes:
    """Return the response's body or its first part; an unneeded body is not waited for long."""
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
    """Return why there was no connection: what is wrong with a certificate, but no names or addresses."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not valid: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return "the TLS handshake failed"
        cause = cause.__cause__ or cause.__context__
    return "no connection could be made"


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
            return Outcome(Meaning.FAILED, f"{said}, but {error}", concerns_server=False)
        return Outcome(Meaning.ACCEPTED, said, failed=failed, concerns_server=False)
    if status == 410:
        return Outcome(Meaning.GONE, said, concerns_server=False)
    if status in (429, 503):
        wait_s = _retry_after_s(headers.get(b"retry-after", b""))
        return Outcome(Meaning.BUSY, said, wait_s, concerns_server=False)
    if 300 <= status < 400:
        said += ", and redirects are not followed"
    return Outcome(Meaning.FAILED, said, concerns_server=False)


def _failed_of(headers: dict[bytes, bytes], body: bytes, batch: Collection[str]) -> frozenset[str]:
    """Return the positions that a receiver wants again. Raise ValueError if they cannot be read."""
    if _is_json(headers) and body and headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise ValueError("its body is compressed, which the request did not allow")
    if _is_json(headers) and len(body) > ANSWER_MAX_BYTES:
        raise ValueError(f"its body is longer than {ANSWER_MAX_BYTES >> 10} KiB")
    if b'"failed_positions"' not in body:
        return frozenset()
    try:
        failed = frozenset(_partly.decode(body).failed_positions)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("failed_positions in its body is not a list of strings") from None
    if not failed.issubset(batch):
        raise ValueError("its failed_positions name positions that are not in the batch")
    return failed


def _retry_after_s(value: bytes) -> float:
    """Return the seconds that a receiver wants to be left alone, at most `RETRY_AFTER_MAX_S`; default 0."""
    text = value.decode("latin-1").strip()
    if text.isascii() and text.isdigit():
        wait_s = float(text)
    else:
        try:
            wait_s = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return min(max(wait_s, 0.0), RETRY_AFTER_MAX_S)
