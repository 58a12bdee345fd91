"""The calls about moves between brokers, one that leaves, and advertisements, as requests and answers."""

from __future__ import annotations

from typing import Any

from fieldfare.client.paths import space_path
from fieldfare.client.protocol import ApiCall, json_body, read_object, subscription_path


def move_subscription(space: str, id: str, to: str) -> ApiCall[dict[str, Any]]:
    """Begin to move a subscription to another broker."""
    return _begin(f"{subscription_path(space, id)}/move", {"to": to})


def get_balance(drain: bool) -> ApiCall[dict[str, Any]]:
    """Return the loads of all brokers, and what this one would do."""
    return ApiCall("GET", f"/v1/balance?drain={'true' if drain else 'false'}", read_object)


def balance(drain: bool) -> ApiCall[dict[str, Any]]:
    """Begin to balance a broker's load, or to drain it."""
    return _begin("/v1/balance", {"drain": drain})


def get_move(space: str, id: str) -> ApiCall[dict[str, Any]]:
    """Return how far the move of a subscription is."""
    return ApiCall("GET", f"{subscription_path(space, id)}/move", read_object)


def leave(force: bool) -> ApiCall[dict[str, Any]]:
    """Begin to leave the sites."""
    return _begin("/v1/leave", {"force": force})


def get_leave() -> ApiCall[dict[str, Any]]:
    """Return whether the broker is leaving, and what it waits for."""
    return ApiCall("GET", "/v1/leave", read_object)


def stay() -> ApiCall[dict[str, Any]]:
    """Cancel leaving."""
    return ApiCall("DELETE", "/v1/leave", read_object)


def get_advertisement(space: str) -> ApiCall[dict[str, Any]]:
    """Return the advertisement of a space at this site."""
    return ApiCall("GET", _advertisement_path(space), read_object)


def set_advertisement(space: str, filter: object, dialect: str) -> ApiCall[dict[str, Any]]:
    """State the advertisement of a space at this site."""
    body = {"filter": filter, "dialect": dialect}
    return ApiCall("PUT", _advertisement_path(space), read_object, *json_body(body))


def _advertisement_path(space: str) -> str:
    return f"{space_path(space)}/advertisement"


def _begin(path: str, body: dict[str, Any]) -> ApiCall[dict[str, Any]]:
    return ApiCall("POST", path, read_object, *json_body(body), good_statuses=frozenset({202}))
