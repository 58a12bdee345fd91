"""Names in the paths of requests."""

from __future__ import annotations

from urllib.parse import quote

from fieldfare.client.errors import InvalidName


def path_segment(name: str) -> str:
    """Return the name of something of the service as a segment of a path.

    Raises
    ------
    InvalidName
        The name is ``.`` or ``..``. Both are resolved on the way, escaped or not: what is meant for the
        subscription ``..`` would be done to its space.
    """
    if name in (".", ".."):
        raise InvalidName(f"{name!r} is no name or id: they begin with a letter, a digit or _")
    return quote(name, safe="")


def space_path(space: str) -> str:
    """Return the path of a space."""
    return f"/v1/spaces/{path_segment(space)}"
