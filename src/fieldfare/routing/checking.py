"""Checks of what neighbours send: a neighbour is no more trusted than a client.

A message that a broker of this version cannot have sent is refused before it changes anything.
"""

from __future__ import annotations

from collections.abc import Iterable

from fieldfare.routing.messages import BROKERS_MAX, LINKS_MAX, NAME_LENGTH_MAX, REVISION_MAX, LinkRow
from fieldfare.routing.overlay import Overlay


class RefusedError(ValueError):
    """A message or command is not valid here; the text says why."""


def check_name(name: object, what: str) -> None:
    """Raise `RefusedError` for what is not the name of a broker, cluster, subscription or advertisement."""
    if not isinstance(name, str) or len(name) > NAME_LENGTH_MAX:
        raise RefusedError(f"{what} is not a text of at most {NAME_LENGTH_MAX} characters: {name!r:.80}.")


def check_number(number: object, what: str, low: int = 0) -> None:
    """Raise `RefusedError` for what is not a revision, offset or link number."""
    if not isinstance(number, int) or isinstance(number, bool) or not low <= number <= REVISION_MAX:
        raise RefusedError(f"{what} is not an integer from {low} to {REVISION_MAX}: {number!r:.80}.")


def check_names(names: object, what: str, count_max: int) -> None:
    """Raise `RefusedError` for what is not a list of different names."""
    if not isinstance(names, tuple) or len(names) > count_max:
        raise RefusedError(f"{what} is not a list of at most {count_max} names.")
    for name in names:
        check_name(name, what)
    if len(set(names)) != len(names):
        raise RefusedError(f"{what} has a name twice.")


def check_rows(rows: Iterable[LinkRow], overlay: Overlay, identity: str) -> set[str]:
    """Raise `RefusedError` for rows that no broker can have written; return names that two brokers have.

    ``identity`` is that of the broker to which the overlay belongs.
    """
    clash = set()
    names = set(overlay.rows)
    for row in rows:
        check_name(row.name, "A row's broker")
        check_name(row.identity, "A row's identity")
        check_number(row.version, "A row's version")
        check_names(tuple(peer for peer, _ in row.links), "A row's list of links", LINKS_MAX)
        if any(peer == row.name for peer, _ in row.links):
            raise RefusedError(f"The row of {row.name!r} has a link to itself.")
        if not all(isinstance(latency, int | float) and 0 <= latency < 1e9 for _, latency in row.links):
            raise RefusedError(f"The row of {row.name!r} has a latency that is not from 0 to 1e9 ms.")
        known = identity if row.name == overlay.me else None
        if known is None and row.name in overlay.rows:
            known = overlay.rows[row.name].identity
        if known is not None and known != row.identity:
            clash.add(row.name)
        names.add(row.name)
        if len(names) > BROKERS_MAX:
            raise RefusedError(f"The cluster would have more than {BROKERS_MAX} brokers.")
    return clash
