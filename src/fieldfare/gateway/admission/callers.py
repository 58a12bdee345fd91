"""Who asks, and what they may: the rights of API keys.

A key has rights in one space, or in the service. What a key has no rights in does not exist for it: it gets
the same answer for another's space as for one that there is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from enum import StrEnum

from starlette.requests import Request
from starlette.types import Message, Receive, Scope

from fieldfare.gateway.problems import HttpProblem

CALLER = "fieldfare.caller"
"""Where routes find who asks."""

_GONE: Message = {"type": "http.disconnect"}


class Right(StrEnum):
    """What a key may do; the first three in its space, the others in the service."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    MANAGE = "manage"
    WATCH = "watch"
    ADMIN = "admin"


OF_SPACES = frozenset((Right.PUBLISH, Right.SUBSCRIBE, Right.MANAGE))


class Caller:
    """Who asks: a key that was found good, nobody, or everybody where no keys are asked for.

    Parameters
    ----------
    id : str
        The key's.
    space : str or None
        Where its rights hold; None for the service.
    rights : iterable of Right
    """

    __slots__ = ("_ended", "_watchers", "id", "is_admin", "rights", "space")

    def __init__(self, id: str, space: str | None, rights: Iterable[Right]) -> None:
        self.id = id
        self.space = space
        self.rights = frozenset(rights)
        self.is_admin = Right.ADMIN in self.rights
        self._ended = False
        self._watchers: set[asyncio.Future[None]] = set()

    def may(self, right: Right, space: str | None = None) -> bool:
        """Whether it has a right: in a space, or in the service."""
        return self.is_admin or (right in self.rights and space == self.space)

    def knows(self, space: str) -> bool:
        """Whether it may hear that there is such a space."""
        return self.is_admin or space == self.space

    def check(self, right: Right, space: str | None = None) -> None:
        """Problem when it lacks a right: 401 for nobody, 404 in a space that is not its own, 403 else."""
        if self.may(right, space):
            return
        if self is NOBODY:
            raise unauthorised("This needs an API key.")
        if space is not None and not self.knows(space):
            detail = f"There is no space {space[:128]!r} that this key has rights in."
            raise HttpProblem(404, "unknown-space", detail)
        if space is None and right in OF_SPACES:
            right = Right.ADMIN
        has = ", ".join(sorted(self.rights)) or "none"
        detail = f"This needs a key with the right to {right}; the rights of this one: {has}."
        raise HttpProblem(403, "forbidden", detail)

    def end(self) -> None:
        """The key is revoked: what is open for it ends."""
        self._ended = True
        self.rights, self.is_admin = frozenset(), False
        for watcher in self._watchers:
            if not watcher.done():
                watcher.set_result(None)

    @property
    def has_ended(self) -> bool:
        """Whether the key was revoked since this was found."""
        return self._ended

    def while_valid(self, receive: Receive) -> Receive:
        """What a request receives: that the client has gone, when the key was revoked before its body came.

        Or a body that is sent slowly would let somebody in a minute after the key was taken from him.
        """

        async def received() -> Message:
            message = await receive()
            return _GONE if self._ended else message

        return received

    def until_ended(self, receive: Receive, gone: Message = _GONE) -> Receive:
        """The same, at once when the key is revoked: for what is answered for long."""

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


EVERYBODY = Caller("", None, (Right.ADMIN,))
"""Who asks a service that has no keys."""

NOBODY = Caller("", None, ())
"""Who asks without a key a service that has some."""


def caller_of(request: Request) -> Caller:
    """Who asks."""
    return in_scope(request.scope)


def in_scope(scope: Scope) -> Caller:
    caller: Caller = scope[CALLER]
    return caller


def unauthorised(detail: str) -> HttpProblem:
    """Problem 401, with the way in."""
    return HttpProblem(
        401,
        "unauthorised",
        detail,
        headers={"WWW-Authenticate": 'Bearer realm="fieldfare"'},
        hint="Send it as `Authorization: Bearer KEY`; the client and the command line take it from"
        " FIELDFARE_API_KEY or FIELDFARE_API_KEY_FILE.",
    )


def invalid_key() -> HttpProblem:
    """The same for a key that never was and for one that was revoked."""
    return unauthorised("This API key is not valid.")
