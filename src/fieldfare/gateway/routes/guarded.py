"""Routes that say which right they need: it is looked at before anything of the request is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from fieldfare.gateway.admission.callers import NOBODY, Right, in_scope, unauthorised

REFUSED = {"type": "websocket.disconnect", "code": 1008}
"""What a socket hears when its key is revoked: RFC 6455's code for a violated policy."""


class OpenRoute(Route):
    """A route for everybody: it tells nothing of anybody's."""


class KeyRoute(Route):
    """A route for who has a key, whatever that may; what it tells depends on it."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = in_scope(scope)
        if caller is NOBODY:
            raise unauthorised("This needs an API key.")
        await super().handle(scope, caller.while_valid(receive) if caller.id else receive, send)


class GuardedRoute(Route):
    """A route for who has a right: in the space that its path names, or in the service.

    Parameters
    ----------
    needs : Right
    lasting : bool
        It is answered for as long as somebody reads: that ends when the key is revoked.
    """

    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        methods: list[str],
        needs: Right,
        *,
        lasting: bool = False,
    ) -> None:
        super().__init__(path, endpoint, methods=methods)
        self.needs = needs
        self.lasting = lasting

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = in_scope(scope)
        caller.check(self.needs, scope["path_params"].get("space"))
        if caller.id:
            receive = caller.until_ended(receive) if self.lasting else caller.while_valid(receive)
        await super().handle(scope, receive, send)


class GuardedSocket(WebSocketRoute):
    """A `GuardedRoute` on which both sides go on speaking; it ends when the key is revoked."""

    def __init__(self, path: str, endpoint: Callable[..., Any], needs: Right) -> None:
        super().__init__(path, endpoint)
        self.needs = needs

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = in_scope(scope)
        caller.check(self.needs, scope["path_params"].get("space"))
        if caller.id:
            receive = caller.until_ended(receive, REFUSED)
        await super().handle(scope, receive, send)
