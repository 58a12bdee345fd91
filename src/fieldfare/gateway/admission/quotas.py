"""How much each space may publish, keep, subscribe to, hold open and read: one that floods pays for it alone.

Of what comes at a *rate* each space has buckets. A bucket fills at the quota's rate, up to a second's worth.
A request is let in while there is something in it, and takes out what it turns out to hold, also more than
there is: then the next ones wait until that is paid. So nothing of a request need be looked at to refuse it,
large batches are not cut, and over time no more than the rate gets in. What is delivered waits for its rate
(`gateway.delivery.rations`).

Of what a space *has* there are counts, all in memory: nothing is asked of a disk to refuse a request. What is
subscribed to is counted where it is changed, on the one thread of changes, so its quotas are exact.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fieldfare.gateway.admission.shares import ChangeShares
from fieldfare.gateway.problems import HttpProblem
from fieldfare.model import space_name

BURST_S = 1.0
FREE_S = 1
"""When to come again where any moment may do."""
RETRY_MAX_S = 86_400.0
"""Nobody is told to wait for longer, however small a rate is: it may be another by then."""

HELD_MAX_S = 0.5
"""So long who is refused waits for his answer, if not until he may go on: who minds no answer, and asks again
at once, is work for all."""
HELD_MAX = 500
"""So many wait so at a time; each has a connection."""

PUBLISHED = ("events_per_s", "bytes_per_s")
CHANGED = ("changes_per_s",)
DELIVERED = "delivered_bytes_per_s"
RATES = (*PUBLISHED, *CHANGED, DELIVERED)
TOTALS = ("subscriptions", "filter_cost", "stored_event_bytes", "stored_match_bytes", "connections")
NAMES = (*RATES, *TOTALS)

_USED_UP = {
    "events_per_s": "has used up what it may publish",
    "bytes_per_s": "has used up what it may publish",
    "changes_per_s": "has changed as many subscriptions as it may",
    DELIVERED: "was sent as many bytes of messages as it may be",
    "subscriptions": "may have no more subscriptions",
    "filter_cost": "may have no filters that cost more than they do together",
    "stored_event_bytes": "may keep no more bytes of events until retention removes some",
    "stored_match_bytes": "may have no more bytes of matches until retention removes some",
    "connections": "may have no more streams, WebSockets and pulls open at a time",
}
_STATUS = dict.fromkeys(RATES, 429) | {
    "subscriptions": 409,
    "filter_cost": 409,
    "stored_event_bytes": 507,
    "stored_match_bytes": 507,
    "connections": 429,
}


@dataclass(slots=True)
class Bucket:
    """One quota of one space; the time is in seconds of a clock that never goes back.

    Attributes
    ----------
    rate : float
        What comes in a second.
    level : float
        What is there as of ``at_s``; less than nothing is a debt.
    """

    rate: float
    level: float
    at_s: float

    def wait_s(self, now_s: float) -> float:
        """How long until something is in it; 0 when something is."""
        self._fill(now_s)
        return 0.0 if self.level > 0 else (1.0 - self.level) / self.rate

    def take(self, amount: float, now_s: float) -> None:
        """Take out, into debt if need be."""
        self._fill(now_s)
        self.level -= amount

    def _fill(self, now_s: float) -> None:
        self.level = min(self.level + (now_s - self.at_s) * self.rate, self.rate * BURST_S)
        self.at_s = now_s


@dataclass(slots=True)
class Used:
    """What a space has.

    Attributes
    ----------
    subscriptions, filter_cost, connections
        As their quotas count them.
    counted_bytes, later_bytes, waiting_bytes
        Of the events that it keeps: what the log has counted, what came since, and what is being appended.
    stored_match_bytes
        Of its matches, as the match logs have counted them.
    """

    subscriptions: int = 0
    filter_cost: int = 0
    connections: int = 0
    counted_bytes: int = 0
    later_bytes: int = 0
    waiting_bytes: int = 0
    stored_match_bytes: int = 0

    @property
    def stored_event_bytes(self) -> int:
        return self.counted_bytes + self.later_bytes + self.waiting_bytes


@dataclass(slots=True)
class Appending:
    """Whether events that were let in are in the log now."""

    is_kept: bool = True


@dataclass(slots=True)
class Quotas:
    """What the spaces may, and what they have.

    Parameters
    ----------
    defaults : mapping of str to float
        What a space may where nothing is set for it, by the quota's name; 0 is no bound.

    Attributes
    ----------
    shares : ChangeShares
        What part of the time its changes may take, whatever its quotas.
    """

    defaults: Mapping[str, float]
    shares: ChangeShares = field(default_factory=ChangeShares, init=False)
    _set: dict[str, Mapping[str, float]] = field(default_factory=dict, init=False)
    _bounds: dict[str, Mapping[str, float]] = field(default_factory=dict, init=False)
    """Of each space asked for, only the quotas that bound something: of most spaces none does."""
    _buckets: dict[str, dict[str, Bucket]] = field(default_factory=dict, init=False)
    _used: dict[str, Used] = field(default_factory=dict, init=False)
    _held: int = field(default=0, init=False)
    _on_change: list[Callable[[str], None]] = field(default_factory=list, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def configure(self, space: str, quotas: Mapping[str, float]) -> None:
        """What is set for a space is this now; a debt of before stays."""
        self._set[space] = dict(quotas)
        self._bounds[space] = self._bounds_of(space)
        for name, bucket in list(self._buckets.get(space, {}).items()):
            rate = self.limit(space, name)
            if rate is None:
                del self._buckets[space][name]
            else:
                bucket.rate = rate
        self._changed(space)

    def call_on_change(self, changed: Callable[[str], None]) -> None:
        """From now on say whose quotas are others now: what waits for them need not wait any longer."""
        self._on_change.append(changed)

    def _changed(self, space: str) -> None:
        for changed in self._on_change:
            changed(space)

    def forget(self, space: str) -> None:
        """A space was deleted; what is open there still ends."""
        self._set.pop(space, None)
        self._bounds.pop(space, None)
        self._buckets.pop(space, None)
        self._used.pop(space, None)
        self.shares.forget(space)
        self._changed(space)

    def limit(self, space: str, name: str) -> float | None:
        """A quota of a space; None where there is no bound."""
        bounds = self._bounds.get(space)
        if bounds is None:
            # Several threads may be here: what is set meanwhile stays.
            bounds = self._bounds.setdefault(space, self._bounds_of(space))
        return bounds.get(name)

    def _bounds_of(self, space: str) -> Mapping[str, float]:
        known = {**self.defaults, **self._set.get(space, {})}
        return {name: value for name, value in known.items() if value}

    def is_set(self, space: str) -> Mapping[str, float]:
        """What is set for a space, beside the defaults."""
        return self._set.get(space, {})

    def used(self, space: str) -> Used:
        """What a space has."""
        found = self._used.get(space)
        if found is None:
            # Several threads may be here for one space.
            found = self._used.setdefault(space, Used())
        return found

    # What comes at a rate

    def check(self, space: str, now_s: float, names: Iterable[str] = PUBLISHED) -> None:
        """Problem 429, which names the quota, while a space has used one up; the space exists."""
        for name in names:
            wait_s = self.wait_s(space, name, now_s)
            if wait_s > 0:
                raise self.problem(space, name, wait_s=wait_s)

    def wait_s(self, space: str, name: str, now_s: float) -> float:
        """How long until a space may have more of what comes at a rate; 0 when it may now."""
        bucket = self._bucket(space, name, now_s)
        return 0.0 if bucket is None else bucket.wait_s(now_s)

    def spend(self, space: str, now_s: float, **spent: int) -> None:
        """Take out what a request that was let in holds, by quota."""
        for name, amount in spent.items():
            bucket = self._bucket(space, name, now_s)
            if bucket is not None:
                bucket.take(amount, now_s)

    def give_back(self, space: str, now_s: float, **spent: int) -> None:
        """Put back what a request took out of which nothing came: it will be sent again, and pays then."""
        self.spend(space, now_s, **{name: -amount for name, amount in spent.items()})

    async def hold(self, refused: HttpProblem) -> None:
        """Let who is refused for a rate wait a little for that answer."""
        if refused.place.get("quota") in RATES and self._held < HELD_MAX:
            self._held += 1
            try:
                await asyncio.sleep(min(HELD_MAX_S, float(refused.headers["Retry-After"])))
            finally:
                self._held -= 1

    def _bucket(self, space: str, name: str, now_s: float) -> Bucket | None:
        rate = self.limit(space, name)
        if rate is None:
            return None
        found = self._buckets.setdefault(space, {}).get(name)
        if found is None:
            found = self._buckets[space][name] = Bucket(rate, rate * BURST_S, now_s)
        return found

    # What a space has

    def is_full(self, space: str, name: str) -> bool:
        """Whether a space has all that it may have of something."""
        limit = self.limit(space, name)
        return limit is not None and getattr(self.used(space), name) >= limit

    def check_room(self, space: str, name: str, more: int = 1) -> None:
        """Problem when so much more would be too much; the space exists."""
        if more > 0 and not self.fits(space, name, more):
            raise self.problem(space, name)

    def fits(self, space: str, name: str, more: int) -> bool:
        """Whether a space may have so much more of something; less it always may."""
        limit = self.limit(space, name)
        return limit is None or more <= 0 or getattr(self.used(space), name) + more <= limit

    def problem(self, space: str, name: str, *, wait_s: float = FREE_S) -> HttpProblem:
        """What who meets a quota is told: which, how much it is, how much of it his own space uses."""
        status = _STATUS[name]
        headers = {"Retry-After": str(math.ceil(min(wait_s, RETRY_MAX_S)))} if status == 429 else None
        return HttpProblem(
            status, f"quota-{name.replace('_', '-')}", f"{self.detail(space, name)}.", headers=headers,
            **self.figures(space, name),
        )  # fmt: skip

    def detail(self, space: str, name: str) -> str:
        """The same in words."""
        limit = self.limit(space, name)
        # Another thread may have lifted it since it was met.
        found = f"is {limit:.15g}" if limit is not None else "was lifted just now: ask again"
        return f"The space {space_name(space)!r} {_USED_UP[name]}: {name} {found}"

    def figures(self, space: str, name: str) -> dict[str, Any]:
        """And in figures."""
        used = {} if name in RATES else {"used": getattr(self.used(space), name)}
        return {"quota": name, "limit": self.limit(space, name), **used}

    @contextmanager
    def connected(self, space: str) -> Iterator[None]:
        """While this is open a stream, WebSocket or pull is; Problem when there are as many as may be."""
        self.check_room(space, "connections")
        used = self.used(space)
        used.connections += 1
        try:
            yield
        finally:
            used.connections -= 1

    @contextmanager
    def storing(self, space: str, size_bytes: int) -> Iterator[Appending]:
        """While events are appended they count; afterwards, unless what this gives says that they do not.

        Problem when they are more than the space may keep.
        """
        self.check_room(space, "stored_event_bytes", size_bytes)
        used, stored = self.used(space), Appending()
        used.waiting_bytes += size_bytes
        try:
            yield stored
        except BaseException:
            stored.is_kept = False
            raise
        finally:
            used.waiting_bytes -= size_bytes
            if stored.is_kept:
                with self._lock:
                    used.later_bytes += size_bytes

    def count_stored(self, sizes: Callable[[], Mapping[str, int]]) -> None:
        """Take over what the log counts of the events that it keeps: retention removes some.

        What is appended meanwhile may count twice until the next time; it counts at least once.
        """
        with self._lock:
            # A copy: who comes first in a space is added by another thread, without the lock.
            before = {space: used.later_bytes for space, used in list(self._used.items())}
        counted = sizes()
        with self._lock:
            for space in counted.keys() | before.keys():
                used = self.used(space)
                used.counted_bytes = counted.get(space, 0)
                used.later_bytes -= before.get(space, 0)

    def count_matches(self, sizes: Mapping[str, int]) -> None:
        """Take over how many bytes of matches each space has."""
        for space in sizes.keys() | set(self._used):
            self.used(space).stored_match_bytes = sizes.get(space, 0)
