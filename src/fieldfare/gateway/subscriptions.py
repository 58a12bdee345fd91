"""Subscriptions: checked and compiled here, written by the writer's thread of changes."""

from __future__ import annotations

import asyncio
import difflib
import re
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from functools import partial
from typing import Any

from fieldfare.delivery.keys import position_of
from fieldfare.gateway.admission.quotas import CHANGED, Quotas
from fieldfare.gateway.delivery_settings import BadSetting, changed_settings
from fieldfare.gateway.filter_texts import RefusedFilter, compile_in_space
from fieldfare.gateway.places import LogPlaces
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.subscription_store import (
    HELD,
    Checked,
    PutResult,
    Stored,
    make_up_id,
    pause,
    remove,
    remove_unused,
    store,
)
from fieldfare.gateway.turns import NOBODY, SharedRoom
from fieldfare.gateway.writer import Writer
from fieldfare.model import (
    DEFAULT_SPACE,
    DeliverySettings,
    Offsets,
    Subscription,
    space_name,
)
from fieldfare.storage.errors import SpaceExistsError, UnknownSpaceError
from fieldfare.storage.registry import Configure, Put, Registry, Remove, SpaceEncryption

REMOVED_AT_ONCE = 500
COMPILE_AT_ONCE = 50
HELD_AT_ONCE = 500
COMPILED_HERE_MAX = 600
"""Bytes of a request whose filter is compiled in less time than a thread takes to be asked and heard."""

COMPARED_MAX = 25_000
PAGE_BYTES = 4 << 20
PAGE_STEP = 200
HELD_MAX = 100_000
HELD_MAX_BYTES = 64 << 20
QUEUED_REQUESTS = 1_000
QUEUED_BYTES = 64 << 20
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@~-]{0,127}")
NAME_RULE = "1 to 128 of the letters a-z and A-Z, digits and _ . : @ ~ -, the first a letter, digit or _"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A subscription as a client asks for it, not checked yet; ``id`` None asks for a new one.

    Where ``delivery`` is None nothing is said of it, and where ``start`` is None it begins now.
    """

    id: Any
    filter: Any
    dialect: Any = "sql"
    delivery: Any = None
    start: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks to store; with ``replace`` an id that stands for another filter is no conflict."""

    wanted: Sequence[Wanted]
    replace: bool
    is_bulk: bool = False


class Subscriptions:
    """Spaces and subscriptions, as HTTP sees them.

    Parameters
    ----------
    registry, writer
        Reads go to the registry directly, writes through the writer.
    places
        Find the places that subscriptions begin at.
    quotas
        Say how much a space may have, and are told what it has.
    filter_max_bytes
        The longest filter.
    pasts_max
        Subscriptions of a space that began in the past and are not matched up to now.
    overloaded
        Makes the problem that asks a client to come back later, from a word and a sentence.
    refuse_address
        Says why messages cannot be sent to an address, if one can tell.
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
        self._pasts_max = pasts_max
        stored = registry.stored_spaces()
        self._spaces = {space.name: space.key for space in stored}
        self._encrypted = {space.key: space.encryption for space in stored if space.encryption}
        # This process is the registry's only writer, so what it has read stays true until it writes.
        self._held: OrderedDict[tuple[str, str], Subscription] = OrderedDict()
        self._held_bytes = 0
        self._changes = 0
        self._overloaded = overloaded
        self._refuse_address = refuse_address
        self._waiting_requests = SharedRoom(QUEUED_REQUESTS)
        self._waiting_bytes = SharedRoom(QUEUED_BYTES)
        self._compiler = ThreadPoolExecutor(1, thread_name_prefix="fieldfare-compile")
        held = registry.held()
        for space, has in held.items():
            used = quotas.used(space)
            used.subscriptions, used.filter_cost = has.subscriptions, has.filter_cost
        self.count = sum(has.subscriptions for has in held.values())

    def close(self) -> None:
        self._compiler.shutdown()

    def spaces(self) -> list[str]:
        return sorted(self._spaces)

    def check_space(self, name: str) -> str:
        """What stands for a space in all that is kept; Problem 404 when there is no such space."""
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
        """Problem 404 when there is no such space, 429 when it has made as many changes as it may."""
        try:
            self._quotas.check(self.check_space(name), time.monotonic(), CHANGED)
        except HttpProblem as refused:
            await self._quotas.hold(refused)
            raise

    def has_space(self, name: str) -> bool:
        """Whether there is a space of that name."""
        return name in self._spaces

    def is_there(self, key: str) -> bool:
        """Whether a space has not been deleted."""
        return self._spaces.get(space_name(key)) == key

    def encryption(self, key: str) -> SpaceEncryption | None:
        """What is said of a space if it is encrypted."""
        return self._encrypted.get(key)

    async def create_space(self, name: str, encryption: SpaceEncryption | None = None) -> None:
        """Create a space; Problem 409 when it exists."""
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
        self._spaces = {**self._spaces, name: key}  # anew: a thread may be going through the old one

    async def delete_space(self, name: str) -> str:
        """Have a space be gone; what stands for what is left of it, which `remove_some` removes."""

        def delete(ends: Offsets) -> str:
            return self._registry.delete_space(name, _now_ms())

        self.check_space(name)
        if name == DEFAULT_SPACE:
            detail = f"The space {name!r} is always there; its subscriptions can be deleted."
            raise HttpProblem(409, "default-space", detail)
        try:
            async with self._queued(0):
                key = await self._writer.change(delete)
        except UnknownSpaceError:  # somebody else was quicker
            raise _no_space(name) from None
        self._spaces = {each: of for each, of in self._spaces.items() if of != key}
        self._quotas.forget(key)
        return key

    async def remove_some(self, key: str) -> list[int]:
        """Remove some of what is left of a space that is gone: their numbers, none when all is done."""

        def remove_some(ends: Offsets) -> list[Subscription]:
            some = self._registry.list(key, None, REMOVED_AT_ONCE)
            if some:
                self._registry.apply([Remove(key, each.id) for each in some], ends, _now_ms())
            else:
                self._registry.finish_space(key)
            return some

        removed = await self._writer.change(remove_some, key)
        if not removed:
            self._quotas.forget(key)  # what was open was still asked for
        self.count -= len(removed)
        for each in removed:
            self._let_go(key, each.id)
        return [each.number for each in removed]

    async def set_quotas(self, name: str, quotas: Mapping[str, float]) -> None:
        """Have these be all that is set of a space's quotas; Problem 404 when there is no such space."""
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

    async def get(self, space: str, id: str) -> Subscription:
        """The subscription; Problem 404, with the nearest id there is, when there is none.

        As it stands on return, and nothing is awaited between: a read that was overtaken by changes is made
        again.
        """
        while (found := self._held.get((key := self.check_space(space), id))) is None:
            changes = self._changes
            found = await asyncio.to_thread(self._registry.get, key, id)
            if changes != self._changes:
                continue
            if found is None:
                raise await self._unknown(key, id)
            self._hold(found)
        return found

    async def standing(self, subscription: Subscription) -> Subscription | None:
        """The same subscription as it stands; None when it is removed, or its space, whoever has its name."""
        try:
            found = await self.get(space_name(subscription.space), subscription.id)
        except HttpProblem:
            return None
        return found if found.number == subscription.number else None

    async def pushed(self) -> AsyncIterator[Subscription]:
        """Those that have a push address; each as it stands when it is given."""
        after = ("", "")
        while True:
            changes = self._changes
            page = await asyncio.to_thread(self._registry.pushed, after)
            for each in page:
                if changes == self._changes and self.is_there(each.space):
                    self._hold(each)  # whoever begins with it asks at once how it stands
                    yield each
                    continue
                now = await self.standing(each)
                if now is not None:
                    yield now
            if not page:
                return
            after = (page[-1].space, page[-1].id)

    def is_newest(self, subscription: Subscription) -> bool:
        """Whether this is how a subscription stands, as far as is known: nothing has overtaken it."""
        return self._held.get((subscription.space, subscription.id)) is subscription

    def page(self, space: str, after: str | None, limit: int) -> tuple[list[Subscription], str | None]:
        """Up to ``limit`` subscriptions, fewer if their filters are long; the last id if there are more.

        ``space`` is what `check_space` gave. It is read here: not to be called on the event loop.
        """
        found: list[Subscription] = []
        size_bytes = 0
        while size_bytes < PAGE_BYTES:
            some = self._registry.list(space, after, min(PAGE_STEP, limit + 1 - len(found)))
            found += some
            if not some or len(found) > limit:
                break
            after = some[-1].id
            size_bytes += sum(len(each.filter) for each in some)
        else:
            return found, found[-1].id
        return found[:limit], found[limit - 1].id if len(found) > limit else None

    async def put(self, space: str, size_bytes: int, read: Callable[[], Asked]) -> PutResult:
        """Store what is asked for, each judged for itself.

        Parameters
        ----------
        space, size_bytes
            Where, and how large the request is.
        read
            Gives what is asked for, or raises a Problem. Of a large request this is done on a thread, and
            so is everything that is made of it: even to free it takes long.
        """
        key = self.check_space(space)
        async with self._queued(size_bytes, key):
            result = PutResult()
            full = next((name for name in HELD if self._quotas.is_full(key, name)), None)
            steps = self._judge(key, read, result, full)
            if size_bytes < COMPILED_HERE_MAX and full is None:
                for _ in steps:
                    pass
            else:
                loop = asyncio.get_running_loop()
                while await loop.run_in_executor(self._compiler, next, steps, True) is None:
                    pass  # so that requests beside this one are served
            self._spend(key, max(1, len(result.good) + len(result.refused)))
            if result.problem is not None:
                raise result.problem
            if result.good:
                work = partial(self._store, key, result)
                try:
                    result.stored = await self._writer.change(work, key)
                except UnknownSpaceError:  # it was deleted meanwhile
                    raise _no_space(space) from None
                await self._take_in(result.stored)
            if result.problem is not None:
                raise result.problem
        return result

    def _store(self, space: str, result: PutResult, ends: Offsets) -> list[Stored]:
        """On the thread of changes: store what was found good, and let it begin where it is asked to."""
        first = result.good[0]
        if first.start is None or result.is_bulk:
            return store(self._registry, self._quotas, space, result, ends)
        put = first.put
        if (existing := self._registry.get(put.space, put.id)) is None or not first.is_named:
            self._quotas.check_room(put.space, "stored_match_bytes")
            # Also what begins now is read to its end, for it must not begin anew when it is asked for again.
            keys = self._places.keys(first.start, "start", no_future=True)
            if self._registry.count_open_pasts(put.space) >= self._pasts_max:
                detail = (
                    f"The space has {self._pasts_max} subscriptions that began in the past and are not"
                    " matched up to now; try again later."
                )
                raise self._overloaded("pasts", detail)
            result.good[0] = replace_fields(
                first, put=replace_fields(put, start=tuple(map(position_of, keys)))
            )
        elif (existing.filter, existing.dialect) != (put.filter, put.dialect):
            detail = (
                f"There is a subscription {put.id!r} with another filter, and start is of new ones only;"
                " delete it first, or replace its filter without start."
            )
            raise HttpProblem(409, "subscription-exists", detail, pointer="/start")
        return store(self._registry, self._quotas, space, result, ends)

    async def _take_in(self, stored: Sequence[Stored]) -> None:
        self._changes += 1
        changes = self._changes
        for at, each in enumerate(stored):
            if at % HELD_AT_ONCE == HELD_AT_ONCE - 1:
                await asyncio.sleep(0)
            self.count += each.created
            if changes == self._changes:
                self._hold(each.subscription)
            else:  # overtaken by a change that may be of this one: it is read again
                self._let_go_of(each.subscription.space, each.subscription.id)

    def _judge(
        self, space: str, read: Callable[[], Asked], result: PutResult, full: str | None
    ) -> Iterator[None]:
        """Check and compile what is asked for; some at a time.

        Where a quota is ``full`` only what stands is looked at: it may be replaced by something smaller.
        """
        try:
            asked = read()
        except HttpProblem as problem:
            result.problem = problem.with_traceback(None)
            return
        result.is_bulk, result.replace = asked.is_bulk, asked.replace
        seen: set[str] = set()
        standing: Container[str] = ()
        if full is not None:
            named = [each.id for each in asked.wanted if isinstance(each.id, str) and NAME.fullmatch(each.id)]
            standing = self._registry.costs(space, named)
        for index, wanted in enumerate(asked.wanted):
            if index and index % COMPILE_AT_ONCE == 0:
                yield
            if full is not None and not (isinstance(wanted.id, str) and wanted.id in standing):
                result.refuse_for(self._quotas, space, full, index, wanted.id)
                continue
            found = self._check(space, wanted, index)
            if asked.is_bulk and wanted.start is not None:
                found = RefusedFilter(
                    "only a subscription that is sent alone may begin in the past", "/start"
                )
            if isinstance(found, Checked) and found.is_named and found.put.id in seen:
                found = RefusedFilter(f"the id {found.put.id!r} is in this request twice", "/id")
            if isinstance(found, Checked):
                seen.add(found.put.id)
                result.good.append(found)
            else:
                title = "The subscription was refused"
                document = found.document()
                result.refuse(
                    index, wanted.id, document, HttpProblem(400, "bad-filter", **document, title=title)
                )

    async def remove(self, space: str, id: str) -> Subscription:
        """Remove a subscription; Problem 404 when there is none."""
        key = self.check_space(space)
        self._spend(key, 1)
        async with self._queued(0, key):
            work = partial(remove, self._registry, self._quotas, key, id)
            removed = await self._writer.change(work, key)
        self._let_go(key, id)
        if removed is None:
            raise await self._unknown(key, id)
        self.count -= 1
        return removed

    async def remove_unused(self, subscription: Subscription) -> Subscription | None:
        """Remove a subscription that nobody uses; None when it was changed or removed meanwhile."""
        work = partial(remove_unused, self._registry, self._quotas, subscription)
        removed = await self._writer.change(work, subscription.space)
        if removed is not None:
            self._let_go(subscription.space, subscription.id)
            self.count -= 1
        return removed

    async def configure(self, space: str, id: str, changes: Any) -> Subscription:
        """Change some settings of a subscription's delivery; Problem 404 when there is none."""
        key = self.check_space(space)
        self._spend(key, 1)

        def configure(ends: Offsets) -> Any:
            existing = self._registry.get(key, id)
            if existing is None:
                return None
            delivery = self._changed(existing.delivery, changes)
            return self._registry.apply([Configure(key, id, delivery)], ends, _now_ms())[0]

        try:
            async with self._queued(0, key):
                configured = await self._writer.change(configure, key)
        except BadSetting as bad:
            raise HttpProblem(400, "bad-setting", f"{bad}.", pointer=f"/delivery{bad.pointer}") from None
        if configured is None:
            raise await self._unknown(key, id)
        assert isinstance(configured, Subscription)
        await self._take_in([Stored(configured, created=False, replaced=False)])
        return configured

    async def pause(self, subscription: Subscription, because: str) -> Subscription | None:
        """Pause what is sent to the address of a subscription; None when that is not so any more."""
        paused = await self._writer.change(
            lambda ends: pause(self._registry, subscription, because, ends), subscription.space
        )
        if paused is not None:
            await self._take_in([Stored(paused, created=False, replaced=False)])
        return paused

    def _changed(self, settings: DeliverySettings, changes: Any) -> DeliverySettings:
        """Settings with some of them changed; BadSetting names the first that is not taken."""
        changed = changed_settings(settings, changes)
        if changed.push is not None and changed.push != settings.push:
            refusal = self._refuse_address(changed.push.url)
            if refusal is not None:
                raise BadSetting("/push/url", refusal)
        return changed

    async def probe(self) -> None:
        """Return when the registry can be written."""
        await self._writer.change(lambda ends: self._registry.apply([], ends, 0))

    @asynccontextmanager
    async def _queued(self, size_bytes: int, space: str = NOBODY) -> AsyncIterator[None]:
        """While this is open a request has its turn; Problem 429 when too many of its space wait for one.

        Each waits for the compiler and for the registry's disk, and keeps its filters meanwhile. A queue that
        is as long as somebody likes would keep everybody waiting, and memory too.
        """
        shares = ((self._waiting_requests, 1), (self._waiting_bytes, size_bytes))
        if self._waiting_requests.total and not all(each.fits(space, amount) for each, amount in shares):
            # How many would tell one space of the others.
            detail = "Too many changes of subscriptions wait to be made; try again later."
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

    def _check(self, space: str, wanted: Wanted, index: int) -> Checked | RefusedFilter:
        id, text, dialect = wanted.id, wanted.filter, wanted.dialect
        if id is None:
            id = make_up_id()
        if not isinstance(id, str) or not NAME.fullmatch(id):
            return RefusedFilter(f"a subscription's id is {NAME_RULE}", "/id")
        said = self._encrypted.get(space)
        found = compile_in_space(text, dialect, self._filter_max_bytes, said.dimensions if said else None)
        if isinstance(found, RefusedFilter):
            return found
        delivery = None
        if wanted.delivery is not None:
            try:
                delivery = self._changed(DeliverySettings(), wanted.delivery)
            except BadSetting as bad:
                return RefusedFilter(str(bad), f"/delivery{bad.pointer}")
        put = Put(
            *(space, id, found.text, dialect, found.compiled),
            if_absent=True,
            delivery=delivery,
            cost=found.cost,
        )
        return Checked(put, wanted.id is not None, index, wanted.start)

    def _hold(self, subscription: Subscription) -> None:
        self._let_go_of(subscription.space, subscription.id)
        self._held[(subscription.space, subscription.id)] = subscription
        self._held_bytes += len(subscription.filter)
        while len(self._held) > HELD_MAX or self._held_bytes > HELD_MAX_BYTES:
            _, oldest = self._held.popitem(last=False)
            self._held_bytes -= len(oldest.filter)

    def _let_go(self, space: str, id: str) -> None:
        self._changes += 1
        self._let_go_of(space, id)

    def _let_go_of(self, space: str, id: str) -> None:
        held = self._held.pop((space, id), None)
        if held is not None:
            self._held_bytes -= len(held.filter)

    async def _unknown(self, space: str, id: str) -> HttpProblem:
        near = await asyncio.to_thread(self._near, space, id[:128])
        hint = f"Did you mean {near}?" if near else None
        detail = f"There is no subscription {id[:128]!r} in the space {space_name(space)!r}."
        return HttpProblem(404, "unknown-subscription", detail, hint=hint)

    def _near(self, space: str, id: str) -> str | None:
        return nearest(id, [each.id for each in self._registry.list(space, id[: len(id) // 2], 100)])


def nearest(name: str, others: Iterable[str]) -> str | None:
    """The most similar of some names, if it is similar, and as far as one may look.

    To compare two names takes time by the product of their lengths, and to ask for what is not there is free.
    """
    compared: list[str] = []
    left = COMPARED_MAX
    for other in others:
        left -= len(name) * len(other)
        if left < 0:
            break
        compared.append(other)
    near = difflib.get_close_matches(name, compared, n=1, cutoff=0.7)
    return near[0] if near else None


def _no_space(name: str) -> HttpProblem:
    """What is said of a space that is not there any more."""
    return HttpProblem(404, "unknown-space", f"There is no space {name[:128]!r}.")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
