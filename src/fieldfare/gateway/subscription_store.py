"""Subscriptions that were found good into the registry, as far as the quotas of their space allow.

This is done on the writer's thread of changes, and nowhere else: what is counted here is what stands.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from typing import Any

import msgspec

from fieldfare.gateway.admission.quotas import Quotas
from fieldfare.gateway.problems import HttpProblem
from fieldfare.model import Offsets, Position, Subscription, positions_text, space_name
from fieldfare.storage.registry import Configure, Conflict, Put, Registry, Remove

HELD = ("subscriptions", "filter_cost")
"""The quotas of what a space subscribes to."""


@dataclass(frozen=True, slots=True)
class Checked:
    """A subscription that may be stored: which of a request's, and whether the client chose its id.

    ``start`` says in words where it is to begin, if not now.
    """

    put: Put
    is_named: bool
    index: int = 0
    start: str | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A subscription after a put, and whether the put made or changed it, or found another filter."""

    subscription: Subscription
    created: bool
    replaced: bool
    differs: bool = False


@dataclass(slots=True)
class PutResult:
    """What becomes of a request; of many subscriptions it tells those that are refused, of one why."""

    good: list[Checked] = field(default_factory=list)
    refused: list[tuple[int, msgspec.Raw]] = field(default_factory=list)
    problem: HttpProblem | None = None
    stored: list[Stored] = field(default_factory=list)
    is_bulk: bool = False
    replace: bool = False

    def refuse(self, index: int, id: Any, document: Mapping[str, Any], problem: HttpProblem) -> None:
        """One of many is not taken, as its document says; of one that is the whole answer."""
        if self.is_bulk:
            raw = msgspec.Raw(msgspec.json.encode({"index": index, "id": id, **document}))
            self.refused.append((index, raw))
        else:
            self.problem = problem

    def refuse_for(self, quotas: Quotas, space: str, quota: str, index: int, id: Any) -> None:
        """One is not taken because its space has as much as it may."""
        document = {"detail": quotas.detail(space, quota), **quotas.figures(space, quota)}
        self.refuse(index, id, document, quotas.problem(space, quota))


def make_up_id() -> str:
    """An id for a subscription that came without one."""
    return f"sub-{secrets.token_hex(16)}"


def store(registry: Registry, quotas: Quotas, space: str, result: PutResult, ends: Offsets) -> list[Stored]:
    """Create what is new; then, where asked, replace what exists with another filter.

    An id that was made up is never one that exists: whoever that belongs to asked for nothing.
    """
    now_ms = time.time_ns() // 1_000_000
    _leave_out_what_is_too_much(registry, quotas, space, result)
    puts = [each.put for each in result.good]
    is_named = [each.is_named for each in result.good]
    result.good.clear()  # to free all this takes long, so it is freed here, on the thread
    used = quotas.used(space)
    answers = registry.apply(puts, ends, now_ms)
    stored: list[Stored] = []
    others: list[int] = []
    for index, answer in enumerate(answers):
        while isinstance(answer, Conflict) and not is_named[index]:
            puts[index] = replace_fields(puts[index], id=make_up_id())
            answer = registry.apply([puts[index]], ends, now_ms)[0]
        if isinstance(answer, Conflict):
            held = answer.existing
            put = puts[index] = _keeping_secrets(puts[index], held)
            differs = (held.filter, held.dialect) != (put.filter, put.dialect)
            differs |= put.delivery not in (None, held.delivery)
            stored.append(Stored(held, created=False, replaced=False, differs=differs))
            if differs:
                others.append(index)
        else:
            assert isinstance(answer, Subscription)
            stored.append(Stored(answer, created=True, replaced=False))
            used.subscriptions += 1
            used.filter_cost += answer.cost
    if result.replace and others:
        changes = [_replacing(stored[index].subscription, puts[index]) for index in others]
        for index, answer in zip(others, registry.apply(changes, ends, now_ms), strict=True):
            assert isinstance(answer, Subscription)
            used.filter_cost += answer.cost - stored[index].subscription.cost
            stored[index] = Stored(answer, created=False, replaced=True)
    return stored


def remove(registry: Registry, quotas: Quotas, space: str, id: str, ends: Offsets) -> Subscription | None:
    """Remove a subscription; None when there is none."""
    removed = registry.apply([Remove(space, id)], ends, time.time_ns() // 1_000_000)[0]
    if removed is None:
        return None
    assert isinstance(removed, Subscription)
    used = quotas.used(space)
    used.subscriptions -= 1
    used.filter_cost -= removed.cost
    return removed


def remove_unused(
    registry: Registry, quotas: Quotas, subscription: Subscription, ends: Offsets
) -> Subscription | None:
    """Remove a subscription that nobody uses; None when it was changed or removed meanwhile."""
    existing = registry.get(subscription.space, subscription.id)
    if existing is None or (existing.revision, existing.delivery) != (
        subscription.revision,
        subscription.delivery,
    ):
        return None
    return remove(registry, quotas, subscription.space, subscription.id, ends)


def pause(registry: Registry, subscription: Subscription, because: str, ends: Offsets) -> Subscription | None:
    """Pause what is sent to a subscription's address; None when it is not sent there any more."""
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


def _leave_out_what_is_too_much(registry: Registry, quotas: Quotas, space: str, result: PutResult) -> None:
    """Of many the first that fit are taken; what makes a space's filters cheaper always fits."""
    most = {"subscriptions": len(result.good), "filter_cost": sum(each.put.cost for each in result.good)}
    if all(quotas.fits(space, name, most[name]) for name in HELD):  # even if none of them replaces another
        return
    standing = registry.costs(space, [each.put.id for each in result.good])
    taken: list[Checked] = []
    more = dict.fromkeys(HELD, 0)
    for each in result.good:
        cost = standing.get(each.put.id)
        if cost is None:
            wants = {"subscriptions": 1, "filter_cost": each.put.cost}
        else:
            wants = {"subscriptions": 0, "filter_cost": each.put.cost - cost if result.replace else 0}
        full = [
            name
            for name in HELD
            if wants[name] > 0 and not quotas.fits(space, name, more[name] + wants[name])
        ]
        if full:
            result.refuse_for(quotas, space, full[0], each.index, each.put.id)
            continue
        taken.append(each)
        for name in HELD:
            more[name] += wants[name]
    result.good[:] = taken


def _replacing(held: Subscription, put: Put) -> Put | Configure:
    """What makes of a subscription that stands what is asked for; the same filter takes no revision."""
    if put.delivery is not None and (held.filter, held.dialect) == (put.filter, put.dialect):
        return Configure(put.space, put.id, put.delivery)
    return replace_fields(put, if_absent=False)


def _keeping_secrets(put: Put, held: Subscription) -> Put:
    """What is secret of an address stays where nothing is said of it: nobody can read it to send it again."""
    if put.delivery is None or put.delivery.push is None:
        return put
    push = put.delivery.push.kept(held.delivery.push)
    return replace_fields(put, delivery=replace_fields(put.delivery, push=push))


def subscription_document(subscription: Subscription) -> Mapping[str, Any]:
    """A subscription as clients see it; of its delivery, what was set."""
    delivery, because = subscription.delivery.shown(), subscription.delivery.paused_because
    return {
        "id": subscription.id,
        "space": space_name(subscription.space),
        "filter": subscription.filter,
        "dialect": subscription.dialect,
        "revision": subscription.revision,
        "valid_from": positions_text(
            Position(partition, offset, 0) for partition, offset in enumerate(subscription.valid_from)
        ),
        **({"delivery": delivery} if delivery else {}),
        **({"start": positions_text(subscription.start)} if subscription.start is not None else {}),
        **({"paused_because": because} if because else {}),
    }
