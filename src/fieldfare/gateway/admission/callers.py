"""Callers and their rights: those of API keys and tokens.

A key has rights in one space or in the service, a token possibly in several spaces; otherwise a token is
treated as a key. A space without rights does not exist for a key: it gets the same response for another's
space as for an unknown one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from enum import StrEnum

from starlette.requests import Request
from starlette.types import Message, Receive, Scope

from fieldfare.gateway.problems import HttpProblem

CALLER = "fieldfare.caller"
"""Scope key of the request's caller."""

_GONE: Message = {"type": "http.disconnect"}


class Right(StrEnum):
    """A right of a key; the first three apply in a space, the others in the service."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    MANAGE = "manage"
    WATCH = "watch"
    ADMIN = "admin"
    BROKER = "broker"


OF_SPACES = frozenset((Right.PUBLISH, Right.SUBSCRIBE, Right.MANAGE))


class Caller:
    """The caller of a request: a valid key, an anonymous caller, or any caller if the service requires no
    keys.

    Parameters
    ----------
    id : str
        The key's id; for a token its subject and issuer, ``SUBJECT@ISSUER``.
    grants : mapping of str or None to iterable of Right
        Rights by space; those in the service under None.
    only : str, optional
        The id of the only subscription to which the rights apply.
    """

    __slots__ = ("_ended", "_watchers", "grants", "id", "is_admin", "only")

    def __init__(
        self, id: str, grants: Mapping[str | None, Iterable[Right]], only: str | None = None
    ) -> None:
        self.id = id
        self.only = only
        self.grants = {space: frozenset(rights) for space, rights in grants.items()}
        self.is_admin = Right.ADMIN in self.grants.get(None, ())
        self._ended = False
        self._watchers: set[asyncio.Future[None]] = set()

    def may(self, right: Right, space: str | None = None) -> bool:
        """Return whether the caller has a right in a space, or in the service (None)."""
        return self.is_admin or right in self.grants.get(space, ())

    def may_know(self, space: str) -> bool:
        """Return whether the caller may learn that a space exists."""
        return self.is_admin or space in self.grants

    def check(self, right: Right, space: str | None = None, id: str | None = None) -> None:
        """Raise Problem if a right is missing, in a space and for the subscription with an id.

        401 without a key, 404 without any rights in the space, otherwise 403.
        """
        if self.may(right, space):
            if self.only not in (None, id):
                detail = f"This key is for the subscription {self.only!r} only."
                raise HttpProblem(403, "forbidden", detail)
            return
        if self is ANONYMOUS:
            raise unauthorised("This needs an API key.")
        if space is not None and not self.may_know(space):
            detail = f"The space {space[:128]!r} does not exist, or this key has no rights in it."
            raise HttpProblem(404, "unknown-space", detail)
        if space is None and right in OF_SPACES:
            right = Right.ADMIN
        raise self._forbidden(right, self.grants.get(space))

    def check_anywhere(self, right: Right) -> None:
        """Raise Problem 403 if the caller has a right neither in the service nor in any space."""
        if not self.is_admin and not any(right in rights for rights in self.grants.values()):
            raise self._forbidden(right, None)

    def _forbidden(self, right: Right, rights: Iterable[Right] | None) -> HttpProblem:
        if rights is None:
            rights = set().union(*self.grants.values())
        has = ", ".join(sorted(rights)) or "none"
        detail = f"This request needs the right to {right}; this key has: {has}."
        return HttpProblem(403, "forbidden", detail)

    def end(self) -> None:
        """End the caller's open requests: its key was revoked or has expired."""
        self._ended = True
        self.grants, self.is_admin = {}, False
        for watcher in self._watchers:
            if not watcher.done():
                watcher.set_result(None)

    @property
    def has_ended(self) -> bool:
        """Whether the key was revoked or has expired since this caller was found."""
        return self._ended

    def while_valid(self, receive: Receive) -> Receive:
        """Wrap ``receive`` to report a disconnect once the key is revoked.

        Otherwise a body that is sent slowly could complete a request a minute after its key was revoked.
        """

        async def received() -> Message:
            message = await receive()
            return _GONE if self._ended else message

        return received

    def until_ended(self, receive: Receive, gone: Message = _GONE) -> Receive:
        """Wrap ``receive`` to report a disconnect as soon as the key is revoked: for long responses."""

        async def received() -> Message:
            if self._ended:
                return gone
            ended = asyncio.get_running_loop().create_future()
            self._watchers.add(ended)
            message = asyncio.ensure_future(receive())
            try:
                await asyncio.wait((message, ended), return_when=asyncio.FIRST_COMPLETED)
                return message.result() if message.done() and not self._ended else gone
            finally:
                self._watchers.discard(ended)
                ended.cancel()
                message.cancel()

        return received


ANY_CALLER = Caller("", {None: (Right.ADMIN,)})
"""Caller of any request to a service without keys; it has all rights."""

ANONYMOUS = Caller("", {})
"""Caller of a request without a key to a service with keys; it has no rights."""


def caller_of(request: Request) -> Caller:
    """Return the caller of a request."""
    return in_scope(request.scope)


def in_scope(scope: Scope) -> Caller:
    caller: Caller = scope[CALLER]
    return caller


def unauthorised(detail: str, *, error: str | None = None) -> HttpProblem:
    """Create a Problem 401 with a hint how to authenticate; ``error`` is RFC 6750's error code."""
    hint = (
        "Send it as `Authorization: Bearer KEY`; the client and the command line take it from"
        " FIELDFARE_API_KEY or FIELDFARE_API_KEY_FILE."
    )
    way_in = 'Bearer realm="fieldfare"' + (f', error="{error}"' if error else "")
    return HttpProblem(
        401, "unauthorised", detail, headers={"WWW-Authenticate": way_in}, hint=None if error else hint
    )


def invalid_key() -> HttpProblem:
    """Create a Problem 401 that does not tell an unknown key from a revoked one."""
    return unauthorised("This API key is not valid.")


class UnknownSigner(HttpProblem):
    """The key that signed a token is not known, perhaps not yet: look up the keys and try again."""
