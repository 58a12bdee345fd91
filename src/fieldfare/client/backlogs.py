"""The calls about the backlogs of many subscriptions, as requests and answers."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from fieldfare.client.paths import space_path
from fieldfare.client.protocol import Answer, ApiCall, read_object
from fieldfare.model import SpaceBacklog


def get_space_backlog(space: str) -> ApiCall[SpaceBacklog]:
    """Read the sums of all backlogs of a space."""
    return ApiCall("GET", f"{space_path(space)}/backlog", _read_space)


def get_backlogs(limit: int) -> ApiCall[dict[str, Any]]:
    """Read the spaces and the subscriptions with the greatest backlogs, and the sums of all spaces."""
    return ApiCall("GET", f"/v1/backlogs?limit={limit}", read_object)


def _read_space(answer: Answer) -> SpaceBacklog:
    value = read_object(answer)
    return SpaceBacklog(**{each.name: value[each.name] for each in fields(SpaceBacklog)})
