"""The neighbours of a broker, as settings name them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@~-]{0,127}")


def urls_of_peers(peers: Sequence[str]) -> dict[str, str]:
    """Return the URLs of neighbours, given as ``NAME=URL``, by name. Raise ValueError if one is not valid."""
    found: dict[str, str] = {}
    for peer in peers:
        name, _, url = peer.partition("=")
        parts = urlsplit(url)
        is_plain = not (parts.query or parts.fragment or parts.username)
        is_url = parts.scheme in ("http", "https") and parts.hostname and is_plain
        if not (_NAME.fullmatch(name) and is_url):
            raise ValueError(f"{peer!r} is no neighbour such as berlin=https://berlin.example.com:7737")
        if name in found:
            raise ValueError(f"the neighbour {name!r} is named twice")
        found[name] = url.rstrip("/")
    return found


BATCH_MAX_BYTES = 3 << 20
"""Maximum bytes of a batch of entries, unless one event is larger: see `federation.wire`."""


def check_broker(name: str | None, peers: Sequence[str], body_max_bytes: int, event_max_bytes: int) -> None:
    """Raise ValueError if a broker of this name cannot have these neighbours and limits."""
    needed = max(BATCH_MAX_BYTES, event_max_bytes + (1 << 20))
    if name is not None and body_max_bytes < needed:
        raise ValueError(
            f"a broker takes batches of {needed} bytes: set FIELDFARE_BODY_MAX_BYTES to that, or more"
        )
    if peers and name is None:
        raise ValueError("--peer needs --broker, the name of this service among its neighbours")
    if name in urls_of_peers(peers):
        raise ValueError(f"the broker {name!r} cannot be a neighbour of itself")
