"""Storing of valid subscriptions in the registry, as far as the quotas of their space allow.

This runs on the writer's thread of changes only, so its counts are exact.
"""

from __future__ import annotations

import enum
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from fieldfare.filters.help.documents import WarningDocument
from fieldfare.gateway.admission.quotas import Quotas
from fieldfare.gateway.barriers import Barriers
from fieldfare.gateway.delivery.replays import ReplayDocument
from fieldfare.gateway.delivery_settings import BadSetting
from fieldfare.gateway.labels import changed_labels, checked_owner
from fieldfare.gateway.member_types import CursorText
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.push.gate import PushStateDocument
from fieldfare.model import (
    DeliverySettings,
    Offsets,
    Position,
    Subscription,
    SubscriptionBacklog,
    positions_text,
    space_name,
)
from fieldfare.storage.registry import (
    Configure,
    Conflict,
    Criteria,
    Put,
    Registry,
    Remove,
    SubscriptionStore,
)

PAGE_BYTES = 4 << 20
PAGE_STEP = 200

SEARCHED_MAX = 50_000
"""Maximum subscriptions that one search reads; then it returns what was found, and where to continue."""

FOUND_MAX = 200
"""Maximum subscriptions that one search returns; the search continues after them."""

_ANY = Criteria()

HELD = ("subscriptions", "filter_cost")
"""The quotas that limit a space's subscriptions."""


_EXISTS = "There is a subscription {!r} with another filter or other settings."
_EXISTS_HINT = "PUT replaces it, and so does `fieldfare subscriptions create --replace`."


class SubscriptionBody(msgspec.Struct, forbid_unknown_fields=True):
    """A subscription as a client requests it.

    One of a list may have members of any type: each is validated on its own.
    """

    filter: Annotated[
        str | dict[str, Any] | list[Any],
        "The filter's text. In a dialect that is JSON: the JSON value, or its text.",
    ]
    dialect: Annotated[str, "The language of the filter."] = "sql"
    id: Annotated[
        str | None,
        "Id of the subscription: 1 to 128 of the letters a-z and A-Z, digits and _ . : @ ~ -, the first"
        " a letter, digit or _. null: the service chooses one.",
    ] = None
    delivery: Annotated[
        dict[str, Any] | None,
        "Delivery settings; missing ones keep their values, or the defaults in a new subscription.",
    ] = None
    start: Annotated[
        str | None,
        "Where a new subscription begins: `earliest`, `latest`, a position, or a time of publishing."
        " Events in the log from there on are matched, too. Not allowed in a request for many. null: it"
        " begins now.",
    ] = None
    owner: Annotated[
        str | UnsetType | None,
        "The team or person that is responsible for the subscription. null: no owner. Without it, an"
        " existing subscription keeps its owner.",
    ] = UNSET
    labels: Annotated[
        dict[str, Any] | UnsetType | None,
        "Labels by key, for finding subscriptions: they replace all labels that it has. null: no labels."
        " Without them, an existing subscription keeps its labels.",
    ] = UNSET


class ChangesBody(msgspec.Struct, forbid_unknown_fields=True):
    """Changes of a subscription that leave its filter as it is."""

    delivery: dict[str, Any] | UnsetType = UNSET
    owner: Annotated[str | UnsetType | None, "The new owner; null removes it."] = UNSET
    labels: Annotated[
        dict[str, Any] | UnsetType | None,
        "Labels to add or change, by key; a value of null removes one. null removes all.",
    ] = UNSET


class Outcome(enum.Enum):
    """The effect of a put on a subscription."""

    CREATED = "created"
    REPLACED = "replaced"
    UNCHANGED = "unchanged"


@dataclass(slots=True)
class PutRequest:
    """A request to store subscriptions, and its result.

    Attributes
    ----------
    bodies
        The requested subscriptions.
    replace
        Whether existing subscriptions are replaced; otherwise an existing id is a conflict.
    is_bulk
        Whether the request is a list, whose items are refused one by one.
    puts
        The valid subscriptions, by index in `bodies`; emptied by `store`.
    stored
        The subscriptions after the request, and its effect on each.
    refused
        The index of each refused item of a list, and the reason as JSON.
    problem
        The problem of a request that is no list.
    """

    bodies: Sequence[SubscriptionBody]
    replace: bool
    is_bulk: bool = False
    puts: dict[int, Put] = field(default_factory=dict)
    stored: list[tuple[Subscription, Outcome]] = field(default_factory=list)
    refused: list[tuple[int, msgspec.Raw]] = field(default_factory=list)
    problem: HttpProblem | None = None

    def refuse(self, index: int, id: Any, document: Mapping[str, Any], problem: HttpProblem) -> None:
        """Refuse a subscription: with its document if it is one of many, else with a problem."""
        if self.is_bulk:
            raw = msgspec.Raw(msgspec.json.encode({"index": index, "id": id, **document}))
            self.refused.append((index, raw))
        else:
            self.problem = problem

    def refuse_moving(self, barriers: Barriers) -> bool:
        """Refuse the subscriptions that are moving or have moved; return whether any is left."""
        for index, put in list(self.puts.items()):
            if (barrier := barriers.get((put.space, put.id))) is not None:
                problem = barrier.problem()
                self.refuse(index, put.id, {"detail": problem.detail}, problem)
                del self.puts[index]
        return bool(self.puts)

    def refuse_for(self, quotas: Quotas, space: str, quota: str, index: int, id: Any) -> None:
        """Refuse a subscription because its space has reached a quota."""
        document = {"detail": quotas.detail(space, quota), **quotas.figures(space, quota)}
        self.refuse(index, id, document, quotas.problem(space, quota))


def page(
    registry: Registry, space: str, after: str | None, limit: int, criteria: Criteria
) -> tuple[list[Subscription], str | None]:
    """Return at most ``limit`` subscriptions, fewer if filters are long; and the last id if more follow.

    ``space`` is a key from `check_space`. With criteria, it returns at most `FOUND_MAX` of the next
    `SEARCHED_MAX` subscriptions. It reads the registry: call it on a thread.
    """
    if criteria != _ANY:
        some, last = registry.search(space, after, criteria, SEARCHED_MAX, min(limit, FOUND_MAX))
        return list(some), last
    found: list[Subscription] = []
    size_bytes = 0
    while size_bytes < PAGE_BYTES:
        some = registry.list(space, after, min(PAGE_STEP, limit + 1 - len(found)))
        found += some
        if not some or len(found) > limit:
            break
        after = some[-1].id
        size_bytes += sum(each.text_chars for each in some)
    else:
        return found, found[-1].id
    return found[:limit], found[limit - 1].id if len(found) > limit else None


def make_up_id() -> str:
    """Return a random id for a subscription that came without one."""
    return f"sub-{secrets.token_hex(16)}"


def store(
    registry: SubscriptionStore, quotas: Quotas, space: str, request: PutRequest, ends: Offsets
) -> list[tuple[Subscription, Outcome]]:
    """Create new subscriptions; then, if the request replaces, change existing ones that differ.

    A generated id that already exists is replaced by another: its owner's subscription must not change.
    """
    now_ms = time.time_ns() // 1_000_000
    _refuse_over_quota(registry, quotas, space, request)
    puts = request.puts
    is_named = [request.bodies[index].id is not None for index in puts]
    request.puts, request.bodies = {}, ()  # freed here on the thread, as that takes long
    used = quotas.used(space)
    answers = registry.apply(list(puts.values()), ends, now_ms)
    stored: list[tuple[Subscription, Outcome]] = []
    changes: dict[int, Put | Configure] = {}
    for (index, put), answer, has_name in zip(puts.items(), answers, is_named, strict=True):
        while isinstance(answer, Conflict) and not has_name:
            put = replace_fields(put, id=make_up_id())
            answer = registry.apply([put], ends, now_ms)[0]
        if isinstance(answer, Conflict):
            held, put = answer.existing, _with_kept_secrets(put, answer.existing)
            if not _differs(held, put):
                stored.append((held, Outcome.UNCHANGED))
            elif request.replace:
                changes[len(stored)] = _replacing(held, put)
                stored.append((held, Outcome.REPLACED))
            else:
                detail = _EXISTS.format(put.id)
                problem = HttpProblem(409, "subscription-exists", detail, hint=_EXISTS_HINT)
                request.refuse(index, put.id, {"detail": detail, "hint": _EXISTS_HINT}, problem)
        else:
            assert isinstance(answer, Subscription)
            stored.append((answer, Outcome.CREATED))
            used.subscriptions += 1
            used.filter_cost += answer.cost
    if changes:
        replaced = registry.apply(list(changes.values()), ends, now_ms)
        for place, answer in zip(changes, replaced, strict=True):
            assert isinstance(answer, Subscription)
            used.filter_cost += answer.cost - stored[place][0].cost
            stored[place] = answer, Outcome.REPLACED
    return stored


def _differs(held: Subscription, put: Put) -> bool:
    """Whether a put would change a subscription; what it does not name stays."""
    differs = (held.filter, held.dialect) != (put.filter, put.dialect)
    differs |= put.delivery not in (None, held.delivery)
    return differs or put.owner not in (None, held.owner) or put.labels not in (None, held.labels)


def remove(
    registry: SubscriptionStore, quotas: Quotas, barriers: Barriers, space: str, id: str, ends: Offsets
) -> Subscription | None:
    """Remove a subscription and return it; None if there is none. Raise a problem if it is moving."""
    barriers.check_change(space, id)
    return _removed(registry, quotas, space, id, ends)


def _removed(
    registry: SubscriptionStore, quotas: Quotas, space: str, id: str, ends: Offsets
) -> Subscription | None:
    removed = registry.apply([Remove(space, id)], ends, time.time_ns() // 1_000_000)[0]
    if removed is None:
        return None
    assert isinstance(removed, Subscription)
    used = quotas.used(space)
    used.subscriptions -= 1
    used.filter_cost -= removed.cost
    return removed


def remove_unused(
    registry: SubscriptionStore,
    quotas: Quotas,
    barriers: Barriers,
    subscription: Subscription,
    ends: Offsets,
) -> Subscription | None:
    """Remove an unused subscription and return it; None if it was changed or removed meanwhile.

    One that is leaving for another broker goes on there once it is removed here.
    """
    barrier = barriers.get((subscription.space, subscription.id))
    if barrier is not None and barrier.is_closed:
        return None
    existing = registry.get(subscription.space, subscription.id)
    if existing is None or _changeable(existing) != _changeable(subscription):
        return None
    return _removed(registry, quotas, subscription.space, subscription.id, ends)


def _changeable(subscription: Subscription) -> tuple[Any, ...]:
    return subscription.revision, subscription.delivery, subscription.owner, subscription.labels


def asked_settings(
    body: SubscriptionBody | ChangesBody,
    changed: Callable[[DeliverySettings, Any], DeliverySettings],
    existing: Subscription | None = None,
) -> dict[str, Any]:
    """Return the arguments of a change for what a body says of `delivery`, `owner` and `labels`.

    Changes apply to the settings of ``existing``, else to the defaults. BadSetting names the first wrong one,
    with its pointer in the body.
    """
    found: dict[str, Any] = {}
    if body.delivery is not None and body.delivery is not UNSET:
        before = DeliverySettings() if existing is None else existing.delivery
        try:
            found["delivery"] = changed(before, body.delivery)
        except BadSetting as bad:
            raise BadSetting(f"/delivery{bad.pointer}", str(bad)) from None
    if body.owner is not UNSET:
        found["owner"] = checked_owner(body.owner)
    if body.labels is not UNSET:
        found["labels"] = changed_labels(() if existing is None else existing.labels, body.labels)
    return found


def configure(
    registry: SubscriptionStore,
    barriers: Barriers,
    body: ChangesBody,
    changed: Callable[[DeliverySettings, Any], DeliverySettings],
    space: str,
    id: str,
    ends: Offsets,
) -> Subscription | None:
    """Change what a body names and return the subscription; None if there is none."""
    barriers.check_use(space, id)
    existing = registry.get(space, id)
    if existing is None:
        return None
    change = Configure(space, id, **asked_settings(body, changed, existing))
    configured = registry.apply([change], ends, time.time_ns() // 1_000_000)[0]
    assert isinstance(configured, Subscription)
    return configured


def pause(
    registry: SubscriptionStore, subscription: Subscription, because: str, ends: Offsets
) -> Subscription | None:
    """Pause the pushes of a subscription; None if it is removed, paused, or has another address now."""
    existing = registry.get(subscription.space, subscription.id)
    if existing is None or existing.number != subscription.number or existing.delivery.paused:
        return None
    push, asked = existing.delivery.push, subscription.delivery.push
    if push is None or asked is None or push.url != asked.url:
        return None
    delivery = replace_fields(existing.delivery, paused=True, paused_because=because)
    change = Configure(existing.space, existing.id, delivery)
    paused = registry.apply([change], ends, time.time_ns() // 1_000_000)[0]
    assert isinstance(paused, Subscription)
    return paused


def _refuse_over_quota(registry: SubscriptionStore, quotas: Quotas, space: str, request: PutRequest) -> None:
    """Refuse subscriptions over the quotas, keeping the first that fit; cheaper replacements always fit."""
    puts = request.puts
    most = {"subscriptions": len(puts), "filter_cost": sum(put.cost for put in puts.values())}
    if all(quotas.fits(space, name, most[name]) for name in HELD):  # even if none of them replaces another
        return
    standing = registry.costs(space, [put.id for put in puts.values()])
    taken: dict[int, Put] = {}
    more = dict.fromkeys(HELD, 0)
    for index, put in puts.items():
        cost = standing.get(put.id)
        if cost is None:
            wants = {"subscriptions": 1, "filter_cost": put.cost}
        else:
            wants = {"subscriptions": 0, "filter_cost": put.cost - cost if request.replace else 0}
        full = [
            name
            for name in HELD
            if wants[name] > 0 and not quotas.fits(space, name, more[name] + wants[name])
        ]
        if full:
            request.refuse_for(quotas, space, full[0], index, put.id)
            continue
        taken[index] = put
        for name in HELD:
            more[name] += wants[name]
    request.puts = taken


def _replacing(held: Subscription, put: Put) -> Put | Configure:
    """Return the change from a subscription to the requested one; the same filter needs no revision."""
    if (held.filter, held.dialect) == (put.filter, put.dialect):
        return Configure(put.space, put.id, put.delivery, put.owner, put.labels)
    return replace_fields(put, if_absent=False)


def _with_kept_secrets(put: Put, held: Subscription) -> Put:
    """Keep a push address's secrets that a put omits, as clients cannot read them to resend them."""
    if put.delivery is None or put.delivery.push is None:
        return put
    push = put.delivery.push.merged_with(held.delivery.push)
    return replace_fields(put, delivery=replace_fields(put.delivery, push=push))


class SubscriptionDocument(msgspec.Struct, omit_defaults=True):
    """A subscription as shown to clients."""

    id: Annotated[str, "Id of the subscription."]
    space: Annotated[str, "Name of its space."]
    filter: Annotated[str, "Text of the filter."]
    dialect: Annotated[str, "Language of the filter."]
    revision: Annotated[
        int,
        "Revision of the registry that stored this filter. It applies to events with this stamp or a"
        " higher one.",
    ]
    valid_from: Annotated[
        CursorText,
        "Place in the log from which on this filter applies: one position for each partition, separated"
        " by commas.",
    ]
    owner: Annotated[str | None, "The team or person that is responsible; missing without an owner."] = None
    labels: Annotated[dict[str, str] | None, "The labels, by key; missing if there are none."] = None
    delivery: Annotated[
        Any,
        msgspec.Meta(extra_json_schema={"$ref": "#/components/schemas/DeliveryShown"}),
        "The delivery settings that differ from their defaults; missing if none does.",
    ] = None
    start: Annotated[
        CursorText | None,
        "Place in the log where the subscription began; missing if it was created without `start`.",
    ] = None
    paused_because: Annotated[
        str | None, "Why the service has paused the subscription; missing if it has not."
    ] = None
    sites: Annotated[
        dict[str, bool] | None,
        "By name of each other site whether the subscription counts for all events that it publishes"
        " from now on; missing without other sites, and in lists.",
    ] = None
    warnings: Annotated[
        list[WarningDocument] | None,
        "What is probably not intended in the filter; only in responses to requests that store it.",
    ] = None
    given_up_events: Annotated[
        int | None,
        "Number of events since the gateway's start that were not matched, because evaluating the filter"
        " for them takes too much work; only when one subscription is read, and if not 0.",
    ] = None
    unused_s: Annotated[
        float | None,
        "Seconds since the last use; only when one subscription with `expires_unused_s` is read.",
    ] = None
    past: Annotated[
        ReplayDocument | None,
        "Progress in matching the events from before the subscription's creation; only when one"
        " subscription with a `start` is read.",
    ] = None
    push: Annotated[
        PushStateDocument | None, "State of the push; only when one subscription with a push URL is read."
    ] = None
    backlog: Annotated[
        SubscriptionBacklog | None, "Backlog of the subscription; only in lists that are sorted by backlog."
    ] = None


def subscription_document(subscription: Subscription) -> SubscriptionDocument:
    """Return a subscription's document for clients, with the delivery settings that were set."""
    return SubscriptionDocument(
        id=subscription.id,
        space=space_name(subscription.space),
        filter=subscription.filter,
        dialect=subscription.dialect,
        revision=subscription.revision,
        valid_from=positions_text(
            Position(partition, offset, 0) for partition, offset in enumerate(subscription.valid_from)
        ),
        owner=subscription.owner or None,
        labels=dict(subscription.labels) or None,
        delivery=subscription.delivery.to_public() or None,
        start=None if subscription.start is None else positions_text(subscription.start),
        paused_because=subscription.delivery.paused_because or None,
    )
