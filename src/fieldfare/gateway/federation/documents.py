"""The documents of the routes about links, brokers and moves, for operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

ADVERTISED_MAX_BYTES = 64 << 10
"""Maximum bytes of a broker's advertisements in the answer about brokers; further ones are only counted."""


class LinkDocument(Struct):
    peer: Annotated[str, "The neighbour's name."]
    url: Annotated[str, "The URL of the neighbour."]
    cluster: Annotated[str | None, "The cluster of the link, if it has one."]
    is_up: Annotated[bool, "Whether the last requests were answered."]
    trouble: Annotated[str | None, "Why the last request failed."]
    outbox_entries: Annotated[int, "Entries that the neighbour has not acknowledged."]
    outbox_bytes: Annotated[int, "Bytes of these entries."]
    unacknowledged: Annotated[int, "Those of the entries that were sent."]
    received_to: Annotated[int, "The number of the last entry received from the neighbour."]
    sent_requests: Annotated[int, "Requests answered since the gateway's start."]
    sent_entries: Annotated[int, "Entries acknowledged since the gateway's start."]
    sent_bytes: Annotated[int, "Bytes of these requests, compressed."]
    withheld_events: Annotated[int, "Events of these entries that the link's filter has kept back."]


class BrokerDocument(Struct, omit_defaults=True):
    """A broker; of itself and of a relay, a broker shows only some members."""

    name: Annotated[str, "Name of the broker."]
    links: Annotated[list[str], "Its neighbours whose links are up."]
    is_removed: Annotated[bool, "Whether it was removed permanently."]
    is_leaving: Annotated[bool, "Whether it is leaving the sites."]
    is_relay: Annotated[bool, "Whether it only passes entries on."]
    next_hop: Annotated[str | None, "The neighbour on the shortest path to it."]
    cluster: Annotated[str | UnsetType | None, "The cluster shared with it, if it has one."] = UNSET
    advertised: Annotated[
        dict[str, str] | None, "What it publishes: a filter by space; other spaces publish everything."
    ] = None
    advertised_left_out: Annotated[
        int,
        "Number of further spaces with a filter, which are left out because the filters shown have 64 KiB"
        " together; `space` shows that of one space.",
    ] = 0
    held_back_filters: Annotated[
        int | UnsetType | None,
        "Number of filters of this broker that can match nothing that it advertises, and are therefore not"
        " sent to it, when last counted; null: not counted yet.",
    ] = UNSET
    filters: Annotated[int | None, "Number of its subscribers' filters that are known here."] = None
    destination: Annotated[int | UnsetType | None, "The number of its matches."] = UNSET
    events_sent: Annotated[
        int | None, "Number of entries with events of this broker that are addressed to it."
    ] = None
    events_received: Annotated[
        int | None, "Number of its entries with events that are in the log here, without a gap."
    ] = None
    told_revision: Annotated[int | None, "Revision up to which changes of filters were sent to it."] = None
    counts_through: Annotated[
        int | None,
        "Subscriptions of this broker up to this revision are in effect for all its later events.",
    ] = None
    missing_entries: Annotated[
        int | None, "Number of its entries with events that have not arrived, although later ones have."
    ] = None
    waits_for_filters: Annotated[
        bool | None, "Whether a change of its filters waits here for an earlier change."
    ] = None
    sent_twice: Annotated[
        int | None, "Number of entries that it has sent twice; the repeats were not appended."
    ] = None


def shown_advertisements(texts: Mapping[str, str], space: str | None) -> tuple[dict[str, str], int]:
    """Return the advertisements to show, and the number of those that are left out.

    Parameters
    ----------
    texts
        The filters of a broker's advertisements by space, in the order in which they are shown.
    space
        The one space to show; None: as many as `ADVERTISED_MAX_BYTES` allows.
    """
    if space is not None:
        return {name: text for name, text in texts.items() if name == space}, 0
    shown: dict[str, str] = {}
    room_bytes = ADVERTISED_MAX_BYTES
    for name, text in texts.items():
        room_bytes -= len(name.encode()) + len(text.encode())
        if room_bytes < 0:
            break
        shown[name] = text
    return shown, len(texts) - len(shown)


class RelayDocument(Struct):
    broker: Annotated[str, "The name of this broker."]
    routing: Annotated[str, "The routing protocol: ddbr, fbr or merc."]
    state: Annotated[str, "Whether it leaves the sites: staying, closing, withdrawn or left; or relay."]
    clusters: Annotated[list[str], "The clusters of this broker; none with the protocol ddbr."]
    links: Annotated[list[LinkDocument], "The links to neighbours."]
    brokers: Annotated[list[BrokerDocument], "All brokers that this one knows, itself included."]
    without_path: Annotated[int, "Number of entries whose destinations cannot be reached at present."]


class BrokersDocument(RelayDocument):
    """The state of a broker."""

    kept_entries: Annotated[int, "Number of its entries that their destinations have not confirmed."]
    kept_bytes: Annotated[int, "Bytes of these entries."]
    not_kept_entries: Annotated[
        int, "Number of entries without a copy since the gateway's start, because the copies take 1 GiB."
    ]
    inbox_bytes: Annotated[int, "Bytes of received entries that are not processed yet."]
    dropped_events: Annotated[
        int, "Events of others that were not valid, were kept back by a filter, or had no space here."
    ]
    refused_filters: Annotated[int, "Filters of others that were refused."]
    failed_moves: Annotated[int, "Messages about moves that could not be processed, and are tried again."]
    forwarded_to: Annotated[list[int], "The offsets up to which records are forwarded, by partition."]
    moves: Annotated[dict[str, int], "Number of subscriptions that are moving or have moved, by state."]


class SubscriptionMoveDocument(Struct, omit_defaults=True):
    """The progress of a subscription's move."""

    state: Annotated[
        str,
        "At the old broker: `offered`, `cancelled`, `ending`, `ended`, `moved`. At the new one: `arriving`,"
        " `accepted`, `counting`, `ready`. `refused`: the subscription has not moved.",
    ]
    broker: Annotated[str | None, "The other broker."] = None
    reason: Annotated[str | None, "Why the last move was refused or cancelled."] = None


class DepartureDocument(Struct):
    """Whether a broker leaves, and what it waits for."""

    broker: Annotated[str, "The name of this broker."]
    state: Annotated[
        str,
        "`staying`; `closing`: it accepts no new events and filters; `withdrawn`: other brokers are told that"
        " it has no filters; `left`: all others refuse it.",
    ]
    waits_for: Annotated[
        dict[str, int],
        "Number of things that must be done at this broker first, by kind; only numbers above 0.",
    ]
    sites: Annotated[list[str], "The brokers that have not received or confirmed everything yet."]
    untold: Annotated[list[str], "The neighbours that were not told yet that it has left."]


class AdvertisementDocument(Struct):
    """The events that are published in a space at this site."""

    space: Annotated[str, "Name of the space."]
    filter: Annotated[
        str | None, "A filter that matches all events published here; null: any event may be published."
    ]
    dialect: Annotated[str, "The filter's dialect."]
    is_pending: Annotated[
        bool, "Whether events that an earlier advertisement did not allow are still refused."
    ]
    sites: Annotated[
        dict[str, bool],
        "For each other broker, whether it has sent the filters that this advertisement needs.",
    ]


class LoadDocument(Struct):
    """The load of a broker."""

    name: Annotated[str, "The broker."]
    state: Annotated[str, "`OK`, `BUSY`, `N/A` (overloaded), `STABILIZING`; `unknown`: no recent news."]
    is_automatic: Annotated[bool, "Whether it balances load automatically with other such brokers."]
    input: Annotated[float, "Events per second x mean matching time, as a share of what its cores can do."]
    output: Annotated[
        float, "Bytes of its subscriptions' matches per second, as a share of its output bandwidth."
    ]
    delay_ms: Annotated[float, "Mean matching time of an event, in milliseconds."]
    cpu: Annotated[float, "Load average of its machine per core."]
    memory: Annotated[float, "Share of its machine's memory that is not available."]
    queue_s: Annotated[float, "Age of the oldest event that is not matched yet, in seconds."]
    subscriptions: Annotated[int, "Number of its subscriptions."]
    events_per_s: Annotated[float, "Events that it matches per second."]
    deliveries_per_s: Annotated[float, "Matches of its subscriptions per second."]
    age_s: Annotated[float, "Seconds since its last news."]
    counts: Annotated[
        bool,
        "Whether plans include it: it is reachable, has sent news recently, has free capacity, and its"
        " figures do not contradict its claims.",
    ]


class LoadsDocument(Struct):
    """The loads of brokers; each metric is the mean weighted by capacity."""

    input: Annotated[float, "Input utilisation: as in `brokers`."]
    output: Annotated[float, "Output utilisation: as in `brokers`."]
    delay_ms: Annotated[float, "Mean matching time of an event, in milliseconds."]


class BalancingMoveDocument(Struct, omit_defaults=True):
    space: Annotated[str, "Its space."]
    id: Annotated[str, "The subscription."]
    to: Annotated[str, "The broker."]
    detail: Annotated[str | None, "Why it cannot move."] = None


class ActionDocument(Struct, omit_defaults=True, kw_only=True):
    """A broker and a metric, and what moving changes."""

    to: Annotated[str, "The broker that takes load."]
    metric: Annotated[str, "The metric that differs."]
    overloaded: Annotated[str | None, "The metric in which this broker is overloaded, if it is."]
    difference: Annotated[float, "The difference between both brokers."]
    is_better: Annotated[bool, "Whether moves of subscriptions can reduce it."]
    here: Annotated[LoadsDocument | None, "The estimated load of this broker after the moves."] = None
    there: Annotated[LoadsDocument | None, "The estimated load of the other broker after the moves."] = None
    waits_s: Annotated[float, "Seconds that the difference must still last before the broker acts."]


class AutomaticDocument(Struct):
    """Whether a broker balances load automatically, and its last decision."""

    is_automatic: Annotated[bool, "Whether it balances load automatically."]
    state: Annotated[str, "The state of this broker."]
    last: Annotated[dict[str, Any] | None, "Its last decision, and the decision's age; null: none yet."]


class AdviceDocument(Struct):
    """The loads of brokers, and what this broker would do about its own."""

    broker: Annotated[str, "The name of this broker."]
    automatic: Annotated[
        AutomaticDocument,
        "Whether this broker balances load automatically, its state, and its last decision.",
    ]
    brokers: Annotated[list[LoadDocument], "The loads of all brokers that have sent news."]
    target: Annotated[
        LoadsDocument,
        "The target for each broker that plans include: the mean of `input`, `output` and `delay_ms`,"
        " weighted by capacity.",
    ]
    pinned: Annotated[int, "Number of pinned subscriptions, which never move."]
    resting: Annotated[
        int, "Number of subscriptions that stay for now: they have just arrived, or could not move."
    ]
    actions: Annotated[
        list[ActionDocument],
        "The reasons to move subscriptions, with the estimated loads of both brokers after the moves.",
    ]
    moves: Annotated[list[BalancingMoveDocument], "The subscriptions that would move."]


class BalancingDocument(Struct):
    begun: Annotated[list[BalancingMoveDocument], "The subscriptions that move now."]
    refused: Annotated[list[BalancingMoveDocument], "The subscriptions that cannot move, with a `detail`."]
    left: Annotated[int, "Number of subscriptions that another request would move."]
    moving: Annotated[dict[str, int], "Number of moves in each state."]
