"""Checks of what neighbours send to the matching layer: a neighbour is no more trusted than a client."""

from __future__ import annotations

from fieldfare.routing.checking import RefusedError, check_name, check_names, check_number
from fieldfare.routing.messages import BROKERS_MAX
from fieldfare_lab.routing.destinations import BITMAP_BYTES_MAX, HEAD_BYTES
from fieldfare_lab.routing.messages import (
    CLUSTERS_MAX,
    ORIGINS_MAX,
    Accepted,
    Advertise,
    Forward,
    Publication,
    Settle,
    Settled,
    Subscribe,
    Unadvertise,
    Unsubscribe,
)


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
