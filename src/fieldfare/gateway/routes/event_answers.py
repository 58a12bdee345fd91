"""The responses to a request that publishes events, and the problems with what it says of its sequence."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from starlette.responses import Response

from fieldfare.gateway.in_order import RecordOutOfOrder
from fieldfare.gateway.member_types import PositionText
from fieldfare.gateway.problems import HttpProblem, RefusedDocument
from fieldfare.gateway.publishing.events import DecodedEvents
from fieldfare.gateway.routes.delayed import AcceptedDocument, kept_document
from fieldfare.gateway.routes.requests import json_response
from fieldfare.model import space_name
from fieldfare.storage.delayed import StoredDelayed
from fieldfare.storage.event_log import FIRST, Appended, NewRecord

REFUSED_SHOWN = 1_000


class AppendedDocument(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The record of a request's events."""

    partition: Annotated[int, "Partition of the log."]
    offset: Annotated[
        int | None,
        "Offset of the record in the partition: event i of the accepted ones is at the position"
        " partition-offset-i. null if the request was an empty batch, which appends nothing.",
    ]
    count: Annotated[int, "Number of events of the record."]
    stamp: Annotated[
        int | None,
        "Revision of the registry whose subscriptions the events are matched against; null for an empty"
        " batch.",
    ]
    duplicate: Annotated[
        bool,
        "Whether this repeats an earlier request: nothing was appended, and the response names the"
        " record of that request.",
    ]
    follows: Annotated[int | None, "The request's Fieldfare-Follows; missing if it had none."] = None


class AcceptedEventDocument(AcceptedDocument):
    position: PositionText


class _WithRefused(AppendedDocument, omit_defaults=True, kw_only=True):
    accepted: Annotated[list[AcceptedEventDocument], "The accepted events."]
    refused: Annotated[list[RefusedDocument], "The refused events."]


class PartlyAppendedDocument(_WithRefused, omit_defaults=True):
    """The record of a request's accepted events, and its refused events."""

    type: Annotated[str, "Kind of the response: `urn:fieldfare:problem:some-events-refused`."]
    title: Annotated[str, "Short description, the same for all responses of this kind."]
    status: Annotated[int, "HTTP status of the response."]
    detail: Annotated[str, "How many events were accepted and refused, as a sentence."]


def sequence_used(record: NewRecord) -> HttpProblem:
    """Return the problem of a sequence number that the producer has used for other events."""
    detail = (
        f"The producer {record.producer!r} has already used the sequence number {record.sequence} for other"
        f" events in the space {space_name(record.space)!r}. Nothing was appended. Use a new number for new"
        " events, and the same body for a repeat."
    )
    return HttpProblem(409, "sequence-used", detail)


def out_of_order(record: NewRecord, error: RecordOutOfOrder) -> HttpProblem:
    """Return the problem of a record that does not follow its producer's newest one."""
    assert record.sequence is not None
    newest = error.newest
    if newest > record.sequence:
        detail = (
            f"The producer {record.producer!r} has sent the sequence number {record.sequence} after {newest}"
            f" in the space {space_name(record.space)!r}. Nothing was appended. Use a number above {newest}."
        )
        return HttpProblem(409, "sequence-passed", detail, newest=newest)
    known = "no request of this producer is known" if newest == FIRST else f"the newest one is {newest}"
    later = ", which is delayed and cannot be followed" if error.is_behind_later else ""
    detail = (
        f"Request {record.sequence} of the producer {record.producer!r} must follow request"
        f" {record.follows}{later}, but {known} in the space {space_name(record.space)!r}. Nothing was"
        " appended. Send the missing requests first."
    )
    return HttpProblem(409, "out-of-order", detail, newest=newest)


def nothing_taken(decoded: DecodedEvents, *, is_numbered: bool) -> HttpProblem:
    """Return the problem of a request without an event that could be accepted."""
    refused = decoded.refused
    if not refused:
        detail = "The request contains no event."
        if is_numbered:  # a success would suggest that it is in the log and can be followed
            detail += " An empty request cannot have a Fieldfare-Sequence: do not send it."
        return HttpProblem(400, "no-events", detail)
    status = 413 if all(each.too_large for each in refused) else 400
    if len(refused) == 1:
        only = refused[0].document()
        place = msgspec.structs.asdict(only)
        detail = place.pop("detail")
        return HttpProblem(
            status, "bad-event", detail, title="The event was refused", **place, refused=[only]
        )
    return HttpProblem(
        status,
        "bad-events",
        f"All {len(refused)} events were refused; the first because {refused[0].detail}.",
        title="No event was accepted",
        refused=[each.document() for each in refused[:REFUSED_SHOWN]],
    )


def empty_batch_answer() -> Response:
    """Return the response to a batch without events, which appends nothing."""
    return json_response(AppendedDocument(partition=0, offset=None, count=0, stamp=None, duplicate=False))


def answer_to(decoded: DecodedEvents, place: Appended | StoredDelayed, follows: int | None) -> Response:
    """Return the response to a request whose events were appended, or are stored until their time."""
    if isinstance(place, StoredDelayed):
        kept = kept_document(place, decoded)
        return json_response(kept, 202)
    appended: dict[str, Any] = {
        "partition": place.partition,
        "offset": place.offset,
        "count": place.count,
        "stamp": place.stamp,
        "duplicate": place.duplicate,
        "follows": follows,  # tells pipelining clients that their order is kept
    }
    if not decoded.refused:
        return json_response(AppendedDocument(**appended))
    document = PartlyAppendedDocument(
        "urn:fieldfare:problem:some-events-refused",
        "Some events were refused",
        207,
        f"{decoded.count} events were accepted, {len(decoded.refused)} refused.",
        **appended,
        accepted=[
            AcceptedEventDocument(index, f"{place.partition}-{place.offset}-{place_in_record}")
            for place_in_record, index in enumerate(decoded.accepted)
        ],
        refused=[each.document() for each in decoded.refused],
    )
    return json_response(document, 207)
