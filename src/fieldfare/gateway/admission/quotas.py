"""Quotas: how much each space may publish, store, subscribe to, hold open and receive.

Only the space that exceeds a quota is limited.

For a *rate*, each space has a token bucket, which fills at the quota's rate up to `BURST_S` seconds' worth. A
request is admitted while the bucket is not empty, and is charged for its actual amount, even if that exceeds
the level: the next requests wait until the debt is paid. So a request is refused without being parsed, large
batches are not split, and over time no more than the rate is admitted. Deliveries wait for their rate
(`gateway.delivery.rate_limiter`). Matching is charged once its time is known (`matching_time`).

For a *total*, each space has a count in memory: refusing a request needs no disk. Subscriptions are counted
where they change, on the one thread of changes, so their quotas are exact.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fieldfare.gateway.admission.change_rate_share import ChangeRateShare
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.token_bucket import TokenBucket
from fieldfare.model import space_name

BURST_S = 1.0
FREE_S = 1
"""Seconds until a retry where the wait is unknown and any moment may do."""
RETRY_MAX_S = 86_400.0
"""Maximum seconds until a retry that a client is told, however low a rate is: it may have changed by then."""

DEBT_MAX_S = 10.0
"""Maximum seconds for which events of other sites, which are not refused, make a space's publishers wait."""

HELD_MAX_S = 0.5
"""Maximum seconds that a refused client waits for its response, or until it may retry, if that is sooner. A
client that ignores the response and retries at once would be work for all.
"""
HELD_MAX = 500
"""Maximum clients delayed at a time; others are refused at once. Each holds a connection."""

MATCHING = "matching_ms_per_s"
PUBLISHED = ("events_per_s", "bytes_per_s", MATCHING)
CHANGED = ("changes_per_s",)
DELIVERED = "delivered_bytes_per_s"
RATES = (*PUBLISHED, *CHANGED, DELIVERED)
TOTALS = ("subscriptions", "filter_cost", "stored_event_bytes", "stored_match_bytes", "connections")
NAMES = (*RATES, *TOTALS)

_USED_UP = {
    "events_per_s": "has reached its maximum rate of published events",
    "bytes_per_s": "has reached its maximum rate of published bytes",
    MATCHING: "has reached its maximum processor time for matching its events",
    "changes_per_s": "has reached its maximum rate of subscription changes",
    DELIVERED: "has reached its maximum rate of delivered bytes",
    "subscriptions": "has reached its maximum number of subscriptions",
    "filter_cost": "would exceed the maximum total cost of its filters",
    "stored_event_bytes": "has reached its maximum size of stored events, until retention removes some",
    "stored_match_bytes": "has reached its maximum size of stored matches, until retention removes some",
    "connections": "has reached its maximum number of open streams, WebSockets and pulls",
}
_STATUS = dict.fromkeys(RATES, 429) | {
    "subscriptions": 409,
    "filter_cost": 409,
    "stored_event_bytes": 507,
    "stored_match_bytes": 507,
    "connections": 429,
}


@dataclass(slots=True)
class Used:
    """Current usage of a space.

    Attributes
    ----------
    subscriptions, filter_cost, connections
        As counted by their quotas.
    counted_bytes, later_bytes, waiting_bytes
        Bytes of stored events: counted by the log, appended since that count, and being appended.
    stored_match_bytes
        Bytes of matches, as counted by the match logs.
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
    """Whether admitted events were appended to the log."""

    is_kept: bool = True


@dataclass(slots=True)
class Quotas:
    """Quotas and usage of all spaces.

    Parameters
    ----------
    defaults : mapping of str to float
        Quotas, by name, of spaces without settings of their own; 0 for no limit.

    Attributes
    ----------
    shares : ChangeRateShare
        Limits the time that a space's changes take, independently of its quotas.
    """

    defaults: Mapping[str, float]
    shares: ChangeRateShare = field(default_factory=ChangeRateShare, init=False)
    _set: dict[str, Mapping[str, float]] = field(default_factory=dict, init=False)
    _bounds: dict[str, Mapping[str, float]] = field(default_factory=dict, init=False)
    """For each space used so far, only its quotas that are limits: most spaces have none."""
    _buckets: dict[str, dict[str, TokenBucket]] = field(default_factory=dict, init=False)
    _used: dict[str, Used] = field(default_factory=dict, init=False)
    _held: int = field(default=0, init=False)
    _on_change: list[Callable[[str], None]] = field(default_factory=list, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def configure(self, space: str, quotas: Mapping[str, float]) -> None:
        """Set a space's quotas; an existing debt stays."""
        self._set[space] = dict(quotas)
        self._bounds[space] = self._bounds_of(space)
        for name, bucket in list(self._buckets.get(space, {}).items()):
            rate = self.limit(space, name)
            if rate is None:
                del self._buckets[space][name]
            else:
                bucket.rate, bucket.most = rate, rate * BURST_S
        self._changed(space)

    def call_on_change(self, changed: Callable[[str], None]) -> None:
        """Call ``changed`` with each space whose quotas change from now on: its waiters may proceed."""
        self._on_change.append(changed)

    def _changed(self, space: str) -> None:
        for changed in self._on_change:
            changed(space)

    def forget(self, space: str) -> None:
        """Forget a deleted space; its open connections still end."""
        self._set.pop(space, None)
        self._bounds.pop(space, None)
        self._buckets.pop(space, None)
        self._used.pop(space, None)
        self.shares.forget(space)
        self._changed(space)

    def limit(self, space: str, name: str) -> float | None:
        """Return a quota of a space; None if it is unlimited."""
        bounds = self._bounds.get(space)
        if bounds is None:
            # Several threads may run this: `setdefault` keeps a value set meanwhile.
            bounds = self._bounds.setdefault(space, self._bounds_of(space))
        return bounds.get(name)

    def _bounds_of(self, space: str) -> Mapping[str, float]:
        known = {**self.defaults, **self._set.get(space, {})}
        return {name: value for name, value in known.items() if value}

    def is_set(self, space: str) -> Mapping[str, float]:
        """Return the quotas set for a space, without the defaults."""
        return self._set.get(space, {})

    def used(self, space: str) -> Used:
        """Return the usage of a space."""
        found = self._used.get(space)
        if found is None:
            # Several threads may run this for one space.
            found = self._used.setdefault(space, Used())
        return found

    # Rates

    def check(self, space: str, now_s: float, names: Iterable[str] = PUBLISHED) -> None:
        """Raise Problem 429, with the quota's name, if an existing space has used up one of these rates."""
        for name in names:
            wait_s = self.wait_s(space, name, now_s)
            if wait_s > 0:
                raise self.problem(space, name, wait_s=wait_s)

    def wait_s(self, space: str, name: str, now_s: float) -> float:
        """Return the seconds until a space may use more of a rate; 0 if it may now."""
        bucket = self._bucket(space, name, now_s)
        return 0.0 if bucket is None else bucket.wait_s(now_s)

    def spend(self, space: str, now_s: float, **spent: float) -> None:
        """Charge the actual amounts of an admitted request, by quota."""
        for name, amount in spent.items():
            bucket = self._bucket(space, name, now_s)
            if bucket is not None:
                bucket.take(amount, now_s)

    def charge(self, space: str, now_s: float, **spent: float) -> None:
        """Charge amounts that cannot be refused, by quota, up to a debt of `DEBT_MAX_S`."""
        for name, amount in spent.items():
            bucket = self._bucket(space, name, now_s)
            if bucket is not None:
                bucket.fill(now_s)
                bucket.level = max(bucket.level - amount, min(bucket.level, -bucket.rate * DEBT_MAX_S))

    def reserve(self, space: str, name: str, amount: float, now_s: float) -> None:
        """Take out an expected amount until the actual one is known; a negative amount ends that."""
        bucket = self._bucket(space, name, now_s)
        if bucket is not None:
            bucket.take(amount, now_s)
            bucket.reserved = max(0.0, bucket.reserved + amount)

    def give_back(self, space: str, now_s: float, **spent: float) -> None:
        """Refund a request that had no effect: it will be sent again and charged then."""
        self.spend(space, now_s, **{name: -amount for name, amount in spent.items()})

    async def delay_refusal(self, refused: HttpProblem) -> None:
        """Delay the response to a request that was refused for a rate, see `HELD_MAX_S`."""
        if refused.place.get("quota") in RATES and self._held < HELD_MAX:
            self._held += 1
            try:
                await asyncio.sleep(min(HELD_MAX_S, float(refused.headers["Retry-After"])))
            finally:
                self._held -= 1

    def _bucket(self, space: str, name: str, now_s: float) -> TokenBucket | None:
        rate = self.limit(space, name)
        if rate is None:
            return None
        found = self._buckets.setdefault(space, {}).get(name)
        if found is None:
            found = self._buckets[space][name] = TokenBucket(rate, rate * BURST_S, rate * BURST_S, now_s)
        return found

    # Totals

    def is_full(self, space: str, name: str) -> bool:
        """Return whether a space has reached a quota."""
        limit = self.limit(space, name)
        return limit is not None and getattr(self.used(space), name) >= limit

    def check_room(self, space: str, name: str, more: int = 1) -> None:
        """Raise Problem if ``more`` would exceed a quota. The space must exist."""
        if more > 0 and not self.fits(space, name, more):
            raise self.problem(space, name)

    def fits(self, space: str, name: str, more: int) -> bool:
        """Return whether a space may have ``more`` of a total; a decrease always fits."""
        limit = self.limit(space, name)
        return limit is None or more <= 0 or getattr(self.used(space), name) + more <= limit

    def problem(self, space: str, name: str, *, wait_s: float = FREE_S) -> HttpProblem:
        """Create the problem for an exceeded quota, with its name, its limit and the space's usage."""
        status = _STATUS[name]
        headers = {"Retry-After": str(math.ceil(min(wait_s, RETRY_MAX_S)))} if status == 429 else None
        return HttpProblem(
            status, f"quota-{name.replace('_', '-')}", f"{self.detail(space, name)}.", headers=headers,
            **self.figures(space, name),
        )  # fmt: skip

    def detail(self, space: str, name: str) -> str:
        """Return the description of an exceeded quota."""
        limit = self.limit(space, name)
        # Another thread may have removed the limit meanwhile.
        found = f"is {limit:.15g}" if limit is not None else "was removed a moment ago: try again"
        return f"The space {space_name(space)!r} {_USED_UP[name]}: {name} {found}"

    def figures(self, space: str, name: str) -> dict[str, Any]:
        """Return the figures of an exceeded quota."""
        used = {} if name in RATES else {"used": getattr(self.used(space), name)}
        return {"quota": name, "limit": self.limit(space, name), **used}

    @contextmanager
    def connected(self, space: str) -> Iterator[None]:
        """Count a stream, WebSocket or pull while this is open.

        Raise Problem if the space has reached its limit.
        """
        self.check_room(space, "connections")
        used = self.used(space)
        used.connections += 1
        try:
            yield
        finally:
            used.connections -= 1

    @contextmanager
    def storing(self, space: str, size_bytes: int) -> Iterator[Appending]:
        """Count events while they are appended, and afterwards, unless the yielded `is_kept` is false.

        Raise Problem if they would exceed the space's quota.
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
        """Replace the counts of stored events with those of the log: retention removes some.

        Events appended meanwhile may count twice until the next call; they count at least once.
        """
        with self._lock:
            # A copy: another thread adds new spaces without the lock.
            before = {space: used.later_bytes for space, used in list(self._used.items())}
        counted = sizes()
        with self._lock:
            for space in counted.keys() | before.keys():
                used = self.used(space)
                used.counted_bytes = counted.get(space, 0)
                used.later_bytes -= before.get(space, 0)

    def count_matches(self, sizes: Mapping[str, int]) -> None:
        """Replace the counts of stored match bytes."""
        for space in sizes.keys() | set(self._used):
            self.used(space).stored_match_bytes = sizes.get(space, 0)
