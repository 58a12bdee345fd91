"""Who asks, and what they may: the rights of API keys and tokens.

A key has rights in one space, or in the service, a token perhaps in several; for all that is asked here a
token is a key. What a key has no rights in does not exist for it: it gets the same answer for another's
space as for one that there is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
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
        The key's; of a token whose it is, and by whom: ``SUBJECT@ISSUER``.
    grants : mapping of str or None to iterable of Right
        Its rights by space; by None those of the service.
    """

    __slots__ = ("_ended", "_watchers", "grants", "id", "is_admin")

    def __init__(self, id: str, grants: Mapping[str | None, Iterable[Right]]) -> None:
        self.id = id
        self.grants = {space: frozenset(rights) for space, rights in grants.items()}
        self.is_admin = Right.ADMIN in self.grants.get(None, ())
        self._ended = False
        self._watchers: set[asyncio.Future[None]] = set()

    def may(self, right: Right, space: str | None = None) -> bool:
        """Whether it has a right: in a space, or in the service."""
        return self.is_admin or right in self.grants.get(space, ())

    def knows(self, space: str) -> bool:
        """Whether it may hear that there is such a space."""
        return self.is_admin or space in self.grants

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
        raise self._forbidden(right, self.grants.get(space))

    def check_anywhere(self, right: Right) -> None:
        """Problem when it has a right neither in the service nor in any space."""
        if not self.is_admin and not any(right in rights for rights in self.grants.values()):
            raise self._forbidden(right, None)

    def _forbidden(self, right: Right, rights: Iterable[Right] | None) -> HttpProblem:
        if rights is None:
            rights = set().union(*self.grants.values())
        has = ", ".join(sorted(rights)) or "none"
        detail = f"This needs a key with the right to {right}; the rights of this one: {has}."
        return HttpProblem(403, "forbidden", detail)

    def end(self) -> None:
        """The key is revoked, or has expired: what is open for it ends."""
        self._ended = True
        self.grants, self.is_admin = {}, False
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


EVERYBODY = Caller("", {None: (Right.ADMIN,)})
"""Who asks a service that has no keys."""

NOBODY = Caller("", {})
"""Who asks without a key a service that has some."""


def caller_of(request: Request) -> Caller:
    """Who asks."""
    return in_scope(request.scope)


def in_scope(scope: Scope) -> Caller:
    caller: Caller = scope[CALLER]
    return caller


def unauthorised(detail: str, *, error: str | None = None) -> HttpProblem:
    """Problem 401, with the way in; ``error`` is RFC 6750's word for what is wrong with what was sent."""
    hint = (
        "Send it as `Authorization: Bearer KEY`; the client and the command line take it from"
        " FIELDFARE_API_KEY or FIELDFARE_API_KEY_FILE."
    )
    way_in = 'Bearer realm="fieldfare"' + (f', error="{error}"' if error else "")
    return HttpProblem(
        401, "unauthorised", detail, headers={"WWW-Authenticate": way_in}, hint=None if error else hint
    )


def invalid_key() -> HttpProblem:
    """The same for a key that never was and for one that was revoked."""
    return unauthorised("This API key is not valid.")


class UnknownSigner(HttpProblem):
    """The key that a token is signed with is not known, perhaps not yet: one may look, and ask again."""
