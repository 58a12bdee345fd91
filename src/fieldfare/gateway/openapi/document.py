"""The OpenAPI description of the HTTP interface, made from the routes and their handlers."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, get_type_hints

from starlette.routing import Route

from fieldfare import __version__
from fieldfare.gateway.openapi.from_types import resolve_types
from fieldfare.gateway.openapi.schemas import SCHEMAS
from fieldfare.gateway.openapi.words import OPERATIONS, Json, parameter, string
from fieldfare.gateway.routes.table import routes_of

_IN_PATHS = {
    "space": "Name of the space.",
    "id": "Id of the subscription.",
    "broker": "Name of the neighbor that sends.",
    "key": "Id of the API key, as in the list of keys; not the secret key itself.",
    "delayed": "Id of the delayed events: `id` in the response that accepted them, and in the list.",
    "position": "Position of the quarantined record, as in the list.",
}


def _paths() -> Json:
    """Return the operations of the routes by path and method, without routes whose handler has none."""
    # A class in the place of an object: a route's endpoint is then the function that is described.
    handlers: Any = {name: kind for name, kind in get_type_hints(routes_of).items() if name != "return"}
    paths: Json = {}
    for route in routes_of(**handlers):
        if route.endpoint in OPERATIONS:
            names = re.findall(r"\{(\w+)\}", route.path)
            in_path = [parameter(name, string(), _IN_PATHS[name], "path") for name in names]
            item = paths.setdefault(route.path, {"parameters": in_path} if names else {})
            methods = (route.methods or set()) - {"HEAD"} if isinstance(route, Route) else {"GET"}
            item |= {method.lower(): OPERATIONS[route.endpoint] for method in methods}
    return paths


@cache
def api_document() -> Json:
    """Return the description. The first call makes it, which takes a tenth of a gateway's start."""
    return resolve_types(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "fieldfare",
                "version": __version__,
                "description": "Content-based publish/subscribe: publish CloudEvents, subscribe with filters"
                " over any of their attributes. All errors are application/problem+json (RFC 9457).",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "paths": _paths(),
            "components": {
                "schemas": SCHEMAS,
                "securitySchemes": {
                    "key": {
                        "type": "http",
                        "scheme": "bearer",
                        "description": "An API key, or a signed token (JWT) of an issuer that the service"
                        " trusts.",
                    }
                },
            },
            "security": [{"key": []}, {}],
        }
    )
