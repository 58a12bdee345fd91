"""Spaces and subscriptions: validated and compiled here, stored by the writer's thread of changes."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace as replace_fields
from functools import partial
from typing import Any, TypeGuard

from fieldfare.delivery.keys import position_of
from fieldfare.gateway.admission.quotas import CHANGED, Quotas
from fieldfare.gateway.barriers import Barriers
from fieldfare.gateway.change_gate import ChangeGate
from fieldfare.gateway.delivery_settings import BadSetting, changed_settings
from fieldfare.gateway.fair_limiter import FairExecutor
from fieldfare.gateway.fair_queue import NO_SPACE, SharedCapacity
from fieldfare.gateway.filter_texts import RefusedFilter, compile_in_space
from fieldfare.gateway.names import NAME, NAME_RULE
from fieldfare.gateway.places import LogPlaces
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.subscription_store import (
    HELD,
    ChangesBody,
    Outcome,
    PutRequest,
    SubscriptionBody,
    asked_settings,
    configure,
    make_up_id,
    page,
    pause,
    remove,
    remove_unused,
    store,
)
from fieldfare.gateway.text import nearest
from fieldfare.gateway.writer import Writer
from fieldfare.model import DEFAULT_SPACE, INTEREST, DeliverySettings, Offsets, Subscription, space_name
from fieldfare.storage.errors import SpaceExistsError, UnknownSpaceError
from fieldfare.storage.registry import Criteria, Put, Registry, Remove, SpaceEncryption

REMOVED_BATCH_SIZE = 500
COMPILE_STEP_S = 0.02
"""Seconds that a request compiles filters before requests of other spaces have their turn."""
HELD_BATCH_SIZE = 500
COMPILED_HERE_MAX = 600
"""Bytes from which a request's filters are compiled on a thread; below, that would cost more than it
saves."""

HELD_MAX = 100_000
HELD_MAX_BYTES = 64 << 20
QUEUED_REQUESTS, QUEUED_BYTES = 1_000, 64 << 20


async def _awaited(work: Awaitable[PutRequest]) -> PutRequest:
    return await work


class Subscriptions:
    """Spaces and subscriptions, for the HTTP API.

    Parameters
    ----------
    registry, writer
        Reads go to the registry directly, writes through the writer.
    places
        Finds the positions where subscriptions begin.
    quotas
        The spaces' limits and usage.
    filter_max_bytes
        Maximum bytes of a filter; a longer one is refused.
    pasts_max
        Maximum unfinished replays of a space; a further subscription with a start gets 429.
    overloaded
        Returns the problem that asks a client to retry later, from a word and a sentence.
    refuse_address
        Returns why messages cannot be sent to an address, or None as far as that is known.
    """

    def __init__(
        self,
        registry: Registry,
        writer: Writer,
        places: LogPlaces,
        quotas: Quotas,
        *,
        filter_max_bytes: int,
        pasts_max: int,
        overloaded: Callable[[str, str], HttpProblem],
        refuse_address: Callable[[str], str | None],
    ) -> None:
        self._registry = registry
        self._writer = writer
        self._places = places
        self._quotas = quotas
        self._filter_max_bytes = filter_max_bytes
        self._replays_max = pasts_max
        stored = registry.stored_spaces()
        self._spaces = {space.name: space.key for space in stored}
        self._encrypted = {space.key: space.encryption for space in stored if space.encryption}
        # This process is the registry's only writer, so cached reads stay valid until it writes.
        self._held: OrderedDict[tuple[str, str], Subscription] = OrderedDict()
        self._held_bytes = 0
        self._changes = 0
        self.barriers = Barriers()
        self.gate = ChangeGate()
        self._overloaded = overloaded
        self._refuse_address = refuse_address
        self._waiting_requests = SharedCapacity(QUEUED_REQUESTS)
        self._waiting_bytes = SharedCapacity(QUEUED_BYTES)
        self._compiler = FairExecutor(2, 1, "fieldfare-compile")
        # Without the filters of other brokers, which are no subscriptions here.
        held = {key: has for key, has in registry.held().items() if not key.startswith(INTEREST)}
        for space, has in held.items():
            used = quotas.used(space)
            used.subscriptions, used.filter_cost = has.subscriptions, has.filter_cost
        self.count = sum(has.subscriptions for has in held.values())

    def stop(self) -> None:
        """Compile nothing more, without waiting for running work: the gateway is stopping."""
        self._compiler.stop()

    def close(self) -> None:
        self._compiler.close()

    def spaces(self) -> list[str]:
        return sorted(self._spaces)

    def check_space(self, name: str) -> str:
        """Return the key of a space, its name in storage; raise Problem 404 for an unknown space."""
        key = self._spaces.get(name)
        if key is None:
            near = nearest(name, self._spaces)
            hint = (
                f"Did you mean {near}?"
                if near
                else "`fieldfare spaces create NAME` creates one, and so does POST /v1/spaces."
            )
            raise HttpProblem(404, "unknown-space", f"There is no space {name[:128]!r}.", hint=hint)
        return key

    async def check_change(self, name: str) -> None:
        """Raise Problem 404 for an unknown space, 429 if it is over its rate of changes."""
        try:
            self._quotas.check(self.check_space(name), time.monotonic(), CHANGED)
        except HttpProblem as refused:
            await self._quotas.delay_refusal(refused)
            raise

    def has_space(self, name: str) -> bool:
        """Whether there is a space of that name."""
        return name in self._spaces

    def is_there(self, key: str) -> bool:
        """Whether a space has not been deleted."""
        return self._spaces.get(space_name(key)) == key

    def encryption(self, key: str) -> SpaceEncryption | None:
        """Return the encryption of a space; None if it is not encrypted."""
        return self._encrypted.get(key)

    async def create_space(self, name: str, encryption: SpaceEncryption | None = None) -> None:
        """Create a space; raise Problem 409 if it exists."""
        if not NAME.fullmatch(name):
            raise HttpProblem(400, "bad-name", f"A space's name is {NAME_RULE}.", pointer="/name")

        def create(ends: Offsets) -> str:
            return self._registry.create_space(name, encryption)

        try:
            async with self._queued(0):
                key = await self._writer.change(create)
        except SpaceExistsError:
            raise HttpProblem(409, "space-exists", f"There is a space {name!r} already.") from None
        if encryption is not None:
            self._encrypted[key] = encryption
        self._spaces = {**self._spaces, name: key}  # a copy: a thread may be iterating

    async def delete_space(self, name: str) -> str:
        """Delete a space; return its key, for `remove_some` to remove its subscriptions."""

        def delete(ends: Offsets) -> str:
            return self._registry.delete_space(name, _now_ms())

        if self.barriers.holds_space(self.check_space(name)):
            detail = f"Subscriptions of the space {name!r} are moving between brokers: try again later."
            raise HttpProblem(409, "moving", detail)
        if name == DEFAULT_SPACE:
            detail = f"The space {name!r} cannot be deleted: delete its subscriptions instead."
            raise HttpProblem(409, "default-space", detail)
        try:
            async with self._queued(0):
                key = await self._writer.change(delete)
        except UnknownSpaceError:  # another request was faster
            raise _no_space(name) from None
        self._spaces = {each: of for each, of in self._spaces.items() if of != key}
        self._quotas.forget(key)
        return key

    async def remove_some(self, key: str) -> list[int]:
        """Remove some subscriptions of a deleted space; return their numbers, none when all are removed."""

        def remove_some(ends: Offsets) -> list[Subscription]:
            some = self._registry.list(key, None, REMOVED_BATCH_SIZE)
            if some:
                self._registry.apply([Remove(key, each.id) for each in some], ends, _now_ms())
            else:
                self._registry.finish_space(key)
            return some

        removed = await self._writer.change(remove_some, key)
        if not removed:
            self._quotas.forget(key)  # open streams may have used it until now
        self.count -= len(removed)
        for each in removed:
            self.invalidate(key, each.id)
        return [each.number for each in removed]

    async def set_quotas(self, name: str, quotas: Mapping[str, float]) -> None:
        """Replace all quotas set for a space; raise Problem 404 for an unknown space."""
        key = self.check_space(name)

        def change(ends: Offsets) -> None:
            self._registry.set_quotas(key, quotas)

        try:
            async with self._queued(0):
                await self._writer.change(change, key)
        except UnknownSpaceError:  # it was deleted meanwhile
            raise _no_space(name) from None
        if self.is_there(key):
            self._quotas.configure(key, quotas)

    async def get(self, space: str, id: str, *, for_letters: bool = False) -> Subscription:
        """Return a subscription; raise Problem 404, with the most similar id, if there is none.

        The result is current on return: a read during which something changed is repeated.
        """
        while (found := self._held.get((key := self._usable(space, id, for_letters), id))) is None:
            changes = self._changes
            found = await asyncio.to_thread(self._registry.get, key, id)
            if changes != self._changes:
                continue
            if found is None:
                raise await self._unknown(key, id)
            self._cache(found)
        return found

    def _usable(self, space: str, id: str, for_letters: bool) -> str:
        """Return the key of a space; raise a problem if a subscription of it must not be used here."""
        key = self.check_space(space)
        self.barriers.check_use(key, id, for_letters=for_letters)
        return key

    async def standing(self, subscription: Subscription) -> Subscription | None:
        """Return a subscription's current state; None if it or its space was removed, even if recreated."""
        try:
            found = await self.get(space_name(subscription.space), subscription.id)
        except HttpProblem:
            return None
        return found if found.number == subscription.number else None

    async def pushed(self) -> AsyncIterator[Subscription]:
        """Yield the subscriptions with a push address, each in its current state."""
        after = ("", "")
        while True:
            changes = self._changes
            page = await asyncio.to_thread(self._registry.pushed, after)
            for each in page:
                barrier = self.barriers.get((each.space, each.id))
                if changes == self._changes and self.is_there(each.space) and barrier is None:
                    self._cache(each)  # the caller soon asks for its state
                    yield each
                    continue
                now = await self.standing(each)
                if now is not None:
                    yield now
            if not page:
                return
            after = (page[-1].space, page[-1].id)

    def is_newest(self, subscription: Subscription) -> bool:
        """Whether this is a subscription's cached current state, which no later change has replaced."""
        return self._held.get((subscription.space, subscription.id)) is subscription

    def page(
        self, space: str, after: str | None, limit: int, criteria: Criteria
    ) -> tuple[list[Subscription], str | None]:
        """Return a page of a space's subscriptions, as `subscription_store.page` does, on a thread."""
        return page(self._registry, space, after, limit, criteria)

    async def put(
        self,
        space: str,
        size_bytes: int,
        read: Callable[[], PutRequest],
        unless_gone: Callable[[Awaitable[PutRequest]], Awaitable[PutRequest]] = _awaited,
    ) -> PutRequest:
        """Store the requested subscriptions, each validated separately.

        Parameters
        ----------
        space, size_bytes
            The space's name, and the size of the request.
        read
            Returns the request, or raises a problem. For a large request it runs on a thread, as does all
            work with its subscriptions, since even freeing those takes long.
        unless_gone
            Awaits long work; raises if the client disconnects. Nothing is stored then.
        """
        key = self.check_space(space)
        self.gate.check()
        async with self._queued(size_bytes, key):
            full = next((name for name in HELD if self._quotas.is_full(key, name)), None)
            steps = self._judge(key, read, full)
            if size_bytes < COMPILED_HERE_MAX and full is None:
                request = next(filter(None, steps))
            else:
                request = await unless_gone(self._compile(key, steps))
            self._spend(key, max(1, len(request.puts) + len(request.refused)))
            if request.puts:
                work = partial(self._store, key, request)
                try:
                    request.stored = await self._writer.change(work, key)
                except UnknownSpaceError:  # it was deleted meanwhile
                    raise _no_space(space) from None
                created = sum(outcome is Outcome.CREATED for _, outcome in request.stored)
                await self.absorb([subscription for subscription, _ in request.stored], created)
            if request.problem is not None:
                raise request.problem
        return request

    async def _compile(self, space: str, steps: Generator[PutRequest | None]) -> PutRequest:
        """Run the steps on a thread, each in its space's turn, so that other requests are served between."""
        while (request := await self._compiler.run(space, _step, steps)) is None:
            pass
        return request

    def _store(self, space: str, request: PutRequest, ends: Offsets) -> list[tuple[Subscription, Outcome]]:
        """Store the valid subscriptions, with the requested start; runs on the thread of changes."""
        if not request.refuse_moving(self.barriers):
            return []
        body = request.bodies[0]
        if body.start is None or request.is_bulk:
            return store(self._registry, self._quotas, space, request, ends)
        put = request.puts[0]
        if (existing := self._registry.get(put.space, put.id)) is None or body.id is None:
            self._quotas.check_room(put.space, "stored_match_bytes")
            # Even a start of "latest" is resolved to positions, so that a repeated request cannot move it.
            keys = self._places.keys(body.start, "start", no_future=True)
            if self._registry.count_open_replays(put.space) >= self._replays_max:
                detail = (
                    f"The space has {self._replays_max} subscriptions whose replay is unfinished, the"
                    " maximum: try again later."
                )
                raise self._overloaded("pasts", detail)
            request.puts[0] = replace_fields(put, start=tuple(map(position_of, keys)))
        elif (existing.filter, existing.dialect) != (put.filter, put.dialect):
            detail = (
                f"The subscription {put.id!r} exists with another filter, and start is only for new ones:"
                " delete it first, or send the filter without start."
            )
            raise HttpProblem(409, "subscription-exists", detail, pointer="/start")
        return store(self._registry, self._quotas, space, request, ends)

    def release(self, subscription: Subscription) -> None:
        """Drop one of many that were stored from the cache: most of them have no reader soon."""
        if subscription.delivery.push is None:
            self._drop_cached(subscription.space, subscription.id)

    async def absorb(self, changed: Sequence[Subscription], created: int = 0) -> None:
        """Take over subscriptions that were changed in the registry, some of them created."""
        self._changes += 1
        self.count += created
        changes = self._changes
        for at, each in enumerate(changed):
            if at % HELD_BATCH_SIZE == HELD_BATCH_SIZE - 1:
                await asyncio.sleep(0)
            if changes == self._changes:
                self._cache(each)
            else:  # a later change may be of this one: it will be read again
                self._drop_cached(each.space, each.id)

    def _judge(
        self, space: str, read: Callable[[], PutRequest], full: str | None
    ) -> Generator[PutRequest | None]:
        """Validate and compile the requested subscriptions, in steps; yield the request after the last.

        If a quota is ``full``, consider only existing ids: a cheaper replacement may still fit.
        """
        try:
            request = read()
        except HttpProblem as problem:
            yield PutRequest((), replace=False, problem=problem.with_traceback(None))
            return
        seen: set[str] = set()
        standing: Container[str] = ()
        if full is not None:
            ids = (body.id for body in request.bodies)
            standing = self._registry.costs(space, [id for id in ids if _is_name(id)])
        begun_s = time.monotonic()
        for index, body in enumerate(request.bodies):
            if time.monotonic() - begun_s > COMPILE_STEP_S:
                yield None
                begun_s = time.monotonic()
            if full is not None and not (isinstance(body.id, str) and body.id in standing):
                request.refuse_for(self._quotas, space, full, index, body.id)
                continue
            found = self._check(space, body)
            if request.is_bulk and body.start is not None:
                found = RefusedFilter(
                    "only a subscription that is sent alone may begin in the past", "/start"
                )
            if isinstance(found, Put) and body.id is not None and found.id in seen:
                found = RefusedFilter(f"the id {found.id!r} is in this request twice", "/id")
            if isinstance(found, Put):
                seen.add(found.id)
                request.puts[index] = found
            else:
                title = "The subscription was refused"
                document = found.document()
                request.refuse(
                    index, body.id, document, HttpProblem(400, "bad-filter", **document, title=title)
                )
        if not request.puts:
            request.bodies = ()  # freed here on the thread, as that takes long
        yield request

    async def remove(self, space: str, id: str) -> Subscription:
        """Remove a subscription; raise Problem 404 if there is none."""
        key = self.check_space(space)
        self._spend(key, 1)
        async with self._queued(0, key):
            work = partial(remove, self._registry, self._quotas, self.barriers, key, id)
            removed = await self._writer.change(work, key)
        self.invalidate(key, id)
        if removed is None:
            raise await self._unknown(key, id)
        self.count -= 1
        return removed

    async def remove_unused(self, subscription: Subscription) -> Subscription | None:
        """Remove an unused subscription and return it; None if it was changed or removed meanwhile."""
        work = partial(remove_unused, self._registry, self._quotas, self.barriers, subscription)
        removed = await self._writer.change(work, subscription.space)
        if removed is not None:
            self.invalidate(subscription.space, subscription.id)
            self.count -= 1
        return removed

    async def configure(self, space: str, id: str, body: ChangesBody) -> Subscription:
        """Change settings, owner or labels of a subscription; raise Problem 404 if there is none."""
        key = self.check_space(space)
        self._spend(key, 1)
        work = partial(configure, self._registry, self.barriers, body, self.changed, key, id)
        try:
            async with self._queued(0, key):
                configured = await self._writer.change(work, key)
        except BadSetting as bad:
            raise HttpProblem(400, "bad-setting", f"{bad}.", pointer=bad.pointer) from None
        if configured is None:
            raise await self._unknown(key, id)
        await self.absorb([configured])
        return configured

    async def pause(self, subscription: Subscription, because: str) -> Subscription | None:
        """Pause the pushes of a subscription; None if it is removed, paused, or has another address now."""
        paused = await self._writer.change(
            lambda ends: pause(self._registry, subscription, because, ends), subscription.space
        )
        if paused is not None:
            await self.absorb([paused])
        return paused

    def changed(self, settings: DeliverySettings, changes: Any) -> DeliverySettings:
        """Return settings with some changed; raise BadSetting for the first invalid one."""
        changed = changed_settings(settings, changes)
        if changed.push is not None and changed.push != settings.push:
            refusal = self._refuse_address(changed.push.url)
            if refusal is not None:
                raise BadSetting("/push/url", refusal)
        return changed

    async def probe(self) -> None:
        """Wait until the registry was found to be writable; raise the error if it is not."""
        await self._writer.change(lambda ends: self._registry.apply([], ends, 0))

    @asynccontextmanager
    async def _queued(self, size_bytes: int, space: str = NO_SPACE) -> AsyncIterator[None]:
        """Wait for a request's turn and hold it; raise Problem 429 if too many of its space are waiting.

        Requests wait for the compiler and the registry's disk, with their filters in memory. The queue is
        bounded, to limit both the waiting time and the memory.
        """
        shares = ((self._waiting_requests, 1), (self._waiting_bytes, size_bytes))
        if self._waiting_requests.total and not all(each.fits(space, amount) for each, amount in shares):
            # No number in the message: it would tell one space about the others.
            detail = "Too many changes of subscriptions are waiting: try again later."
            raise self._overloaded("changes", detail)
        for each, amount in shares:
            each.take(space, amount)
        try:
            async with self._quotas.shares.turn(space):
                yield
        finally:
            for each, amount in shares:
                each.give_back(space, amount)

    def _spend(self, key: str, changes: int) -> None:
        self._quotas.spend(key, time.monotonic(), changes_per_s=changes)

    def _check(self, space: str, body: SubscriptionBody) -> Put | RefusedFilter:
        id, text, dialect = body.id, body.filter, body.dialect
        if id is None:
            id = make_up_id()
        if not _is_name(id):
            return RefusedFilter(f"a subscription's id is {NAME_RULE}", "/id")
        said = self._encrypted.get(space)
        found = compile_in_space(text, dialect, self._filter_max_bytes, said.dimensions if said else None)
        if isinstance(found, RefusedFilter):
            return found
        try:
            settings = asked_settings(body, self.changed)
        except BadSetting as bad:
            return RefusedFilter(str(bad), bad.pointer)
        return Put(
            space=space,
            id=id,
            filter=found.text,
            dialect=dialect,
            compiled=found.compiled,
            if_absent=True,
            cost=found.cost,
            **settings,
        )

    def _cache(self, subscription: Subscription) -> None:
        self._drop_cached(subscription.space, subscription.id)
        self._held[(subscription.space, subscription.id)] = subscription
        self._held_bytes += subscription.text_chars
        while len(self._held) > HELD_MAX or self._held_bytes > HELD_MAX_BYTES:
            _, oldest = self._held.popitem(last=False)
            self._held_bytes -= oldest.text_chars

    def invalidate(self, space: str, id: str) -> None:
        """Read a subscription again before its next use: it was changed or removed in the registry."""
        self._changes += 1
        self._drop_cached(space, id)

    def _drop_cached(self, space: str, id: str) -> None:
        held = self._held.pop((space, id), None)
        if held is not None:
            self._held_bytes -= held.text_chars

    async def _unknown(self, space: str, id: str) -> HttpProblem:
        near = await asyncio.to_thread(self._near, space, id[:128])
        hint = f"Did you mean {near}?" if near else None
        detail = f"There is no subscription {id[:128]!r} in the space {space_name(space)!r}."
        return HttpProblem(404, "unknown-subscription", detail, hint=hint)

    def _near(self, space: str, id: str) -> str | None:
        return nearest(id, [each.id for each in self._registry.list(space, id[: len(id) // 2], 100)])


def _is_name(id: Any) -> TypeGuard[str]:
    return isinstance(id, str) and NAME.fullmatch(id) is not None


def _step(steps: Generator[PutRequest | None]) -> PutRequest | None:
    """Run one step; after the last one, free what the steps hold on this thread."""
    request = next(steps)
    if request is not None:
        steps.close()
    return request


def _no_space(name: str) -> HttpProblem:
    """Return the problem for a space that was deleted meanwhile."""
    return HttpProblem(404, "unknown-space", f"There is no space {name[:128]!r}.")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
