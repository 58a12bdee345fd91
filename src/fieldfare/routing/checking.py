"""Checks of what neighbours send: a neighbour is no more trusted than a client.

A message that a broker of this version cannot have sent is refused before it changes anything.
"""

from __future__ import annotations

from collections.abc import Iterable

from fieldfare.routing.destinations import BITMAP_BYTES_MAX, HEAD_BYTES
from fieldfare.routing.matching import RefusedError
from fieldfare.routing.messages import (
    BROKERS_MAX,
    CLUSTERS_MAX,
    LINKS_MAX,
    NAME_LENGTH_MAX,
    ORIGINS_MAX,
    REVISION_MAX,
    Accepted,
    Advertise,
    Forward,
    LinkRow,
    Publication,
    Settle,
    Settled,
    Subscribe,
    Unadvertise,
    Unsubscribe,
)
from fieldfare.routing.overlay import Overlay
from fieldfare.routing.state import State


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


def check_bitmap(forward: Forward) -> None:
    """Raise `RefusedError` for a `Forward` with a bitmap that is too long, or with names beside it."""
    bitmap = forward.bitmap
    if not isinstance(bitmap, bytes) or not HEAD_BYTES <= len(bitmap) <= BITMAP_BYTES_MAX:
        raise RefusedError(f"The bitmap is not {HEAD_BYTES} to {BITMAP_BYTES_MAX} bytes.")
    check_number(forward.session, "The link's session", 1)
    check_number(forward.number, "The entry's number", 1)
    check_name(forward.routed.group, "The cluster")
    if forward.routed.destinations:
        raise RefusedError("The destination list has names and a bitmap.")


def check_forward(forward: Forward, me: str) -> None:
    """Raise `RefusedError` for a `Forward` that no broker can have sent."""
    routed = forward.routed
    check_number(forward.session, "The link's session", 1)
    check_number(forward.number, "The entry's number", 1)
    check_name(routed.group, "The cluster")
    check_name(routed.source, "The routing source")
    check_number(routed.stamp, "The source's revision")
    check_names(routed.destinations, "The destination list", BROKERS_MAX)
    if not routed.destinations:
        raise RefusedError("The destination list is empty.")
    if routed.source == me and me in routed.destinations:
        raise RefusedError(f"A message of {me!r} comes back to it.")
    _check_content(routed.content)


def _check_content(content: object) -> None:
    if isinstance(content, Publication):
        origin = content.origin
        check_name(origin.broker, "The origin's broker")
        check_number(origin.partition, "The origin's partition")
        check_number(origin.offset, "The origin's offset")
        check_number(origin.stamp, "The origin's stamp")
    elif isinstance(content, Advertise | Unadvertise):
        check_name(content.origin, "The advertisement's origin")
        if content.id is not None or isinstance(content, Advertise):
            check_name(content.id, "The advertisement")
        check_number(content.revision, "The advertisement's revision")
        check_names(content.path, "The path of clusters", CLUSTERS_MAX)
        if isinstance(content, Unadvertise) and not isinstance(content.is_removed, bool):
            raise RefusedError(f"is_removed is not true or false: {content.is_removed!r:.80}.")
    elif isinstance(content, Subscribe | Unsubscribe):
        check_name(content.subscriber, "The subscriber's broker")
        check_name(content.id, "The subscription")
        check_number(content.version, "The subscription's version", 1)
        check_names(content.origins, "The list of origins", ORIGINS_MAX)
        if isinstance(content, Subscribe) and not isinstance(content.is_stored, bool):
            raise RefusedError(f"is_stored is not true or false: {content.is_stored!r:.80}.")
    elif isinstance(content, Accepted):
        for name in (content.subscriber, content.id, content.origin):
            check_name(name, "A name in an answer")
        for number in (content.version, content.revision, content.after_stamp, content.after_count):
            check_number(number, "A number in an answer")
    elif isinstance(content, Settle | Settled):
        check_number(content.session, "The link's session", 1)
        check_number(content.watermark if isinstance(content, Settled) else 0, "The link's watermark")
    else:
        raise RefusedError(f"{type(content).__name__} is not routed between brokers.")


def check_rows(rows: Iterable[LinkRow], overlay: Overlay, state: State) -> set[str]:
    """Raise `RefusedError` for rows that no broker can have written; return names that two brokers have."""
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
        known = state.identity if row.name == state.name else None
        if known is None and row.name in overlay.rows:
            known = overlay.rows[row.name].identity
        if known is not None and known != row.identity:
            clash.add(row.name)
        names.add(row.name)
        if len(names) > BROKERS_MAX:
            raise RefusedError(f"The cluster would have more than {BROKERS_MAX} brokers.")
    return clash
