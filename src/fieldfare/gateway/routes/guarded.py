"""Routes with a required right, which is checked before anything else of the request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from fieldfare.gateway.admission.callers import ANONYMOUS, Right, in_scope, unauthorised

REFUSED = {"type": "websocket.disconnect", "code": 1008}
"""Message that ends a WebSocket when its key is revoked: RFC 6455's code for a policy violation."""


class OpenRoute(Route):
    """A route without access control: its responses contain no client's data."""


class KeyRoute(Route):
    """A route for every holder of a valid key, whatever its rights; the response depends on the key."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = in_scope(scope)
        if caller is ANONYMOUS:
            raise unauthorised("This needs an API key.")
        await super().handle(scope, caller.while_valid(receive) if caller.id else receive, send)


class GuardedRoute(Route):
    """A route that requires a right: in the space that its path names, or in the service.

    Parameters
    ----------
    needs : Right
        The required right.
    lasting : bool
        Whether the response is a stream that must end when the key is revoked.
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
        params = scope["path_params"]
        caller.check(self.needs, params.get("space"), params.get("id"))
        if caller.id:
            receive = caller.until_ended(receive) if self.lasting else caller.while_valid(receive)
        await super().handle(scope, receive, send)


class GuardedSocket(WebSocketRoute):
    """A WebSocket route that requires a right, as `GuardedRoute` does; it ends when the key is revoked."""

    def __init__(self, path: str, endpoint: Callable[..., Any], needs: Right) -> None:
        super().__init__(path, endpoint)
        self.needs = needs

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = in_scope(scope)
        params = scope["path_params"]
        caller.check(self.needs, params.get("space"), params.get("id"))
        if caller.id:
            receive = caller.until_ended(receive, REFUSED)
        await super().handle(scope, receive, send)
