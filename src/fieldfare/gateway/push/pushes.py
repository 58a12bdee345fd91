"""Subscriptions whose messages are pushed to a URL: each has a delivery session.

    a match ──▶ the gate admits ──▶ a slot is free ──▶ taken ──▶ sent ─┬▶ acked       accepted
                                                                       ├▶ nacked      refused, or unknown
                                                                       └▶ given back  no receiver has seen it

A nacked message counts as an attempt and is redelivered as the subscription's settings say. One that is given
back does not count, and waits until the server works again. Leases, attempts and dead letters are those of
the delivery.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass
from datetime import UTC, datetime

from fieldfare.delivery.delivery import Delivery, Session, TooManyEarlyAcks
from fieldfare.delivery.keys import INDEX_BITS, position_of
from fieldfare.gateway.delivery.loading import LOADED_BATCH_SIZE
from fieldfare.gateway.delivery.records import PARTS, write_event
from fieldfare.gateway.delivery.service import DeliveryService
from fieldfare.gateway.fair_limiter import FairLimiter
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.push.addresses import Target, caller
from fieldfare.gateway.push.gate import Gate, PushStateDocument, Server
from fieldfare.gateway.push.messages import Outgoing, id_of, request_of
from fieldfare.gateway.push.sender import Meaning, Outcome, Sender
from fieldfare.gateway.push.signing import signature
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.model import PushSettings, Subscription
from fieldfare.storage.errors import StorageError

logger = logging.getLogger("fieldfare.gateway.push")

DELAY_FIRST_S = 1.0
DELAY_MAX_S = 300.0
"""Bounds of the retry backoff, in seconds, if the settings have no retry delays: the bound doubles with each
attempt, and the delay is random below it.
"""

WINDOW = 1 << 20
"""In effect unlimited: the number of messages in flight is bounded by the requests under way."""

LEASE_BEYOND_S = 60.0
FOUND_BATCH_SIZE = 50
RETRY_S = 1.0
CLOSING_S = 2.0
"""Seconds that requests under way have to complete when the gateway stops; others are sent again later."""


@dataclass(frozen=True, slots=True)
class PushContext:
    """Dependencies and settings shared by all pushes, see `Pushes`."""

    deliveries: DeliveryService
    subscriptions: Subscriptions
    sender: Sender
    slots: FairLimiter
    metrics: Metrics
    rng: random.Random
    loading: asyncio.Semaphore
    ack_deadline_s: float
    timeout_s: float
    handshake: bool


class Push:
    """The push of one subscription's messages to its URL, until `close`.

    Parameters
    ----------
    means
        What all pushes share.
    subscription
        The subscription; `Pushes.changed` replaces it if the new one has the same URL.
    target
        The parsed URL.
    gate
        The gate through which the requests pass.
    """

    def __init__(self, means: PushContext, subscription: Subscription, target: Target, gate: Gate) -> None:
        self._means = means
        self.subscription = subscription
        self.target = target
        self.gate = gate
        self.said: str | None = None
        """Result of the last request."""
        self.session: Session | None = None
        self.delivery: Delivery | None = None
        self.has_accepted = False
        """Whether the receiver has accepted anything since `Pushes.is_used` last reset this."""
        self.under_way: set[asyncio.Task[None]] = set()
        # Of its own context: it outlives the request that began it, whose id is in the log's lines.
        self.task = asyncio.get_running_loop().create_task(self._run_on(), context=Context())

    @property
    def settings(self) -> PushSettings:
        """The current push settings."""
        assert self.subscription.delivery.push is not None
        return self.subscription.delivery.push

    def close(self) -> None:
        """Send nothing more; requests under way are still settled when they are answered."""
        self.task.cancel()

    async def _run_on(self) -> None:
        while True:
            try:
                await self._run()
                return
            except Exception as error:
                if not isinstance(error, StorageError | OSError):
                    logger.exception("pushing of subscription %d failed", self.subscription.number)
                await asyncio.sleep(RETRY_S)

    async def _run(self) -> None:
        deliveries = self._means.deliveries
        delivery = await self._load()
        if delivery is None:
            return
        self.delivery = delivery
        session = self.session = deliveries.open_stream(delivery, WINDOW)
        space, is_turn = self.subscription.space, False
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            with deliveries.waiter(delivery, session, never) as waiter:
                while not (deliveries.closing or delivery.deleted):
                    if len(self.under_way) >= self.settings.requests_max:
                        await asyncio.wait(self.under_way, return_when=asyncio.FIRST_COMPLETED)
                    elif delivery.has_message(session) and (is_turn or not deliveries.turns.is_held(space)):
                        is_turn = False
                        await deliveries.find_names(delivery, session)
                        await self._send_next(delivery, session)
                    else:
                        is_turn = await waiter.woken()
        finally:
            deliveries.close_stream(delivery, session)

    async def _load(self) -> Delivery | None:
        means = self._means
        async with means.loading:
            while True:
                subscription = await means.subscriptions.standing(self.subscription)
                if subscription is None:
                    return None  # it was deleted before the push began
                delivery = means.deliveries.delivery_of(subscription)
                if delivery is not None:
                    return delivery
                await means.deliveries.load(subscription)

    async def _send_next(self, delivery: Delivery, session: Session) -> None:
        """Take messages and send them, once the server admits a request and a slot is free."""
        means, space, who = self._means, self.subscription.space, object()
        await self.gate.admitted(who)
        try:
            await means.slots.acquire(space)
        except BaseException:
            self.gate.ended(who, None)
            raise
        # Nothing is awaited from here to the task, so nothing can interrupt this.
        keys = [] if means.deliveries.rate_limiter.is_out(space) else self._lease_request(delivery, session)
        if not keys:
            means.slots.release(space)
            self.gate.ended(who, None)
            await asyncio.sleep(0)  # let others run: the caller tries again at once
            return
        means.deliveries.rate_limiter.reserve(space)
        means.deliveries.wake(delivery)
        sending = self._send(who, delivery, session, keys)
        task = asyncio.get_running_loop().create_task(sending)
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)

    def _lease_request(self, delivery: Delivery, session: Session) -> list[int]:
        """Take the messages of one request. One that failed in a batch is sent alone: it may be the cause."""
        now_s, lease_s = time.monotonic(), 2 * self._timeout_s(delivery) + LEASE_BEYOND_S
        keys = delivery.take(session, 1, now_s, lease_s)
        if keys and self.settings.mode == "batch" and delivery.tries.count_of(keys[0]) == 1:
            keys += delivery.take(session, self.settings.batch_max - 1, now_s, lease_s)
        return keys

    def _timeout_s(self, delivery: Delivery) -> float:
        asked_s = delivery.settings.ack_deadline_s or self._means.ack_deadline_s
        return min(asked_s, self._means.timeout_s)

    async def _send(self, who: object, delivery: Delivery, session: Session, keys: list[int]) -> None:
        means, subscription = self._means, self.subscription
        caller.set(subscription.space)  # of this task, and so of this request alone
        answer: Outcome | None = None
        try:
            with means.deliveries.pulled(delivery):  # keep it loaded until its messages are settled
                round = delivery.round
                try:
                    messages = await self._compose(delivery, session, keys)
                    if messages:
                        answer = await self._call(delivery, messages)
                        keys = [each.key for each in messages]
                except (StorageError, OSError) as error:
                    logger.error("subscription %d: an event cannot be read: %s", subscription.number, error)
                    self._nack(delivery, keys)
                if answer is not None and delivery.round == round:
                    self._settle(answer, delivery, session, keys)
                means.deliveries.wake(delivery)
        finally:
            means.slots.release(subscription.space)
            self.gate.ended(who, answer)
        if answer is not None:
            self.said = answer.said
            means.metrics.push.requests.labels(answer.meaning.value).inc()
            if answer.meaning is Meaning.GONE:
                await self._pause(subscription, answer)

    async def _compose(self, delivery: Delivery, session: Session, keys: list[int]) -> list[Outgoing]:
        """Compose the events of some messages; those that are too many for one request are given back."""
        parts: list[bytes] = []
        written: list[int] = []

        def write(parts: list[bytes], place: int, index: int, attempt: int, line: bytes) -> None:
            write_event(parts, place, index, attempt, line)
            written.append(place << INDEX_BITS | index)

        deliveries = self._means.deliveries
        try:
            done = await deliveries.compose(delivery, keys, write, parts)
        finally:
            deliveries.rate_limiter.free(self.subscription.space)
        events = (b"".join(parts[at : at + PARTS]) for at in range(0, len(parts), PARTS))
        messages = list(map(Outgoing, written, events))
        delivery.give_back(session, keys[done:])
        return messages

    async def _call(self, delivery: Delivery, messages: Sequence[Outgoing]) -> Outcome:
        """Send one request, after the handshake if there is no permission yet."""
        means, settings, subscription = self._means, self.settings, self.subscription
        timeout_s = self._timeout_s(delivery)
        if means.handshake:
            refused = await self.gate.server.permission(means.sender, self.target, timeout_s)
            if refused is not None:
                return refused
        headers, body = request_of(settings.mode, messages)
        id, time_s = id_of(subscription.number, messages), int(time.time())
        headers += [
            (b"fieldfare-subscription", subscription.id.encode()),
            (b"webhook-id", id.encode()),
            (b"webhook-timestamp", b"%d" % time_s),
        ]
        if settings.secrets:
            headers.append((b"webhook-signature", signature(settings.secrets, id, time_s, body).encode()))
        if settings.authorization:
            headers.append((b"authorization", settings.authorization.encode()))
        means.metrics.count_delivered(len(messages))
        places = {str(position_of(each.key)) for each in messages} if settings.mode == "batch" else None
        answer = await means.sender.post(self.target, headers, body, timeout_s, places)
        means.deliveries.tracer.sent([each.key for each in messages], delivery.number)
        return answer

    def _settle(self, answer: Outcome, delivery: Delivery, session: Session, keys: Sequence[int]) -> None:
        if answer.meaning is Meaning.ACCEPTED:
            self.has_accepted = True
            failed = [key for key in keys if answer.failed and str(position_of(key)) in answer.failed]
            accepted = [key for key in keys if key not in set(failed)]
            began_ms = self._means.deliveries.tracer.ack_begins()
            try:
                self._means.metrics.acked.inc(delivery.ack(accepted))
                self._means.deliveries.tracer.acked(accepted, delivery.number, began_ms)
            except TooManyEarlyAcks:
                pass  # for messages that are redelivered and have been delivered to another session since
            self._nack(delivery, failed)
            self._means.deliveries.save_soon(delivery)
        elif answer.meaning is Meaning.FAILED:
            self._nack(delivery, keys)
        else:
            delivery.give_back(session, keys)

    def _nack(self, delivery: Delivery, keys: Sequence[int]) -> None:
        now_s = time.monotonic()
        if delivery.settings.retry_delays_s:
            delivery.nack(keys, now_s)
            return
        for key in keys:
            attempts = delivery.tries.count_of(key)
            longest_s = min(DELAY_MAX_S, DELAY_FIRST_S * 2.0 ** min(attempts - 1, 30))
            delivery.nack((key,), now_s, self._means.rng.uniform(0, longest_s))

    async def _pause(self, subscription: Subscription, answer: Outcome) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        because = f"the receiver refused all further messages: {answer.said} at {now}"
        try:
            paused = await self._means.subscriptions.pause(subscription, because)
        except (StorageError, OSError) as error:
            logger.error("subscription %d could not be paused: %s", subscription.number, error)
            return  # the receiver will be called again, and answer the same
        if paused is not None:
            self._means.deliveries.configure(paused)


class Pushes:
    """All pushes; they start and stop as settings change.

    Parameters
    ----------
    deliveries, subscriptions, metrics
        The delivery service, the subscriptions with their settings, and the metrics.
    sender
        Sends requests; closed with this.
    requests_max
        Maximum requests under way, of all pushes together; 0 turns pushes off.
    ack_deadline_s, timeout_s
        Seconds that a receiver has to answer: the default if the subscription does not say, and the maximum.
    handshake
        Whether to request permission from servers first.
    """

    def __init__(
        self,
        deliveries: DeliveryService,
        subscriptions: Subscriptions,
        metrics: Metrics,
        sender: Sender,
        *,
        requests_max: int,
        ack_deadline_s: float,
        timeout_s: float,
        handshake: bool,
    ) -> None:
        self._is_on = requests_max > 0
        self._means = PushContext(
            deliveries,
            subscriptions,
            sender,
            FairLimiter(requests_max, max(1, requests_max // 4)),
            metrics,
            random.Random(),
            asyncio.Semaphore(2 * LOADED_BATCH_SIZE),
            ack_deadline_s,
            timeout_s,
            handshake,
        )
        self._pushes: dict[int, Push] = {}
        self._servers: dict[tuple[str, str, str], Server] = {}
        """Servers by space, scheme and authority."""
        self._ended: set[Push] = set()
        """Closed pushes with requests still under way."""
        self._finding: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start, on the running event loop."""
        if self._is_on:
            self._means.deliveries.call_on_change(self.changed)
            self._finding = asyncio.get_running_loop().create_task(self._find())

    async def close(self) -> None:
        """Stop sending, and wait `CLOSING_S` for the requests under way."""
        tasks = [push.task for push in self._pushes.values()]
        if self._finding is not None:
            tasks.append(self._finding)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        pushes = (*self._pushes.values(), *self._ended)
        under_way = [task for push in pushes for task in push.under_way]
        if under_way:
            await asyncio.wait(under_way, timeout=CLOSING_S)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await self._means.sender.close()

    def changed(self, number: int, subscription: Subscription | None) -> None:
        """Apply a subscription's new settings, or its removal (None)."""
        push = None if subscription is None or subscription.delivery.paused else subscription.delivery.push
        held = self._pushes.get(number)
        if subscription is None or push is None:
            if held is not None:
                self._end(held)
            return
        if held is not None:
            if held.settings.url == push.url:
                held.subscription = subscription
                return
            self._end(held)
        target = Target.parse(push.url)
        key = (subscription.space, target.scheme, target.authority)
        server = self._servers.get(key)
        if server is None:
            server = self._servers[key] = Server(self._means.rng)
        server.users += 1
        gate = Gate(self._means.rng, server)
        self._pushes[number] = Push(self._means, subscription, target, gate)

    def _end(self, push: Push) -> None:
        del self._pushes[push.subscription.number]
        push.close()
        server = push.gate.server
        server.users -= 1
        if not server.users:
            del self._servers[push.subscription.space, push.target.scheme, push.target.authority]
        self._ended = {each for each in self._ended if each.under_way}
        if push.under_way:
            self._ended.add(push)

    async def _find(self) -> None:
        """Start the pushes of all subscriptions that have a push URL: a new gateway knows none."""
        while True:
            try:
                count = 0
                async for subscription in self._means.subscriptions.pushed():
                    try:
                        self.changed(subscription.number, subscription)
                    except ValueError as error:
                        number = subscription.number
                        logger.error(
                            "messages of subscription %d are not sent, since its push address is invalid: %s",
                            number,
                            error,
                        )
                    count += 1
                    if count % FOUND_BATCH_SIZE == 0:
                        await asyncio.sleep(0)
                return
            except (StorageError, OSError) as error:
                logger.error(
                    "the subscriptions with a push address cannot be read; the gateway tries again: %s", error
                )
                await asyncio.sleep(RETRY_S)

    def document(self, subscription: Subscription) -> PushStateDocument | None:
        """Return the state of a subscription's push, or None if it has no push URL."""
        if subscription.delivery.push is None:
            return None
        push = self._pushes.get(subscription.number)
        if push is None:
            return PushStateDocument("paused" if subscription.delivery.paused else "off")
        document = push.gate.document()
        document.last = document.last if push.said is None else push.said
        document.requests = len(push.under_way)
        return document

    def session(self, number: int) -> Session | None:
        """Return the session of a subscription's push, if there is one."""
        push = self._pushes.get(number)
        return None if push is None else push.session

    def is_used(self, number: int) -> bool:
        """Return whether a receiver has accepted anything since the last call, or has nothing to receive.

        Also true if this service has not started to push yet, or does not push: that is not the receiver's
        doing.
        """
        push = self._pushes.get(number)
        if push is None or push.delivery is None:
            return True
        has_accepted, push.has_accepted = push.has_accepted, False
        return has_accepted or (push.delivery.is_idle and push.delivery.wants_feed)

    def observe(self) -> None:
        """Update the gauges."""
        metrics = self._means.metrics.push
        metrics.subscriptions.set(len(self._pushes))
        metrics.under_way.set(self._means.slots.taken)
        gates = (push.gate for push in self._pushes.values())
        metrics.broken.set(sum(each.is_broken for each in (*self._servers.values(), *gates)))
