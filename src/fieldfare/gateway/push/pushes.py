"""The subscriptions whose messages are sent to an address: each has a session of the delivery's machine.

    a match ──▶ the address admits ──▶ a place is free ──▶ taken ──▶ sent ─┬▶ acked       it was accepted
                                                                          ├▶ nacked      refused, or unknown
                                                                          └▶ given back  nobody has seen it

What is nacked counts as an attempt, and comes again as the subscription's settings say; what is given back
does not, and waits until the address is well again. Leases, attempts and dead letters are the machine's.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from fieldfare.delivery.delivery import Delivery, Session, TooManyEarlyAcks
from fieldfare.delivery.keys import INDEX_BITS, position_of
from fieldfare.gateway.delivery.loading import LOADED_AT_ONCE
from fieldfare.gateway.delivery.pump import Pump
from fieldfare.gateway.delivery.records import PARTS, write_event
from fieldfare.gateway.metrics import Metrics
from fieldfare.gateway.push.addresses import caller
from fieldfare.gateway.push.gate import Gate
from fieldfare.gateway.push.messages import Outgoing, id_of, request_of
from fieldfare.gateway.push.sender import Meaning, Outcome, Sender
from fieldfare.gateway.push.signing import signature
from fieldfare.gateway.slots import Slots
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.model import PushSettings, Subscription
from fieldfare.storage.errors import StorageError

logger = logging.getLogger("fieldfare.gateway.push")

DELAY_FIRST_S = 1.0
DELAY_MAX_S = 300.0
"""How long what failed waits where the settings do not say: up to twice as long each time, by chance."""

WINDOW = 1 << 20
"""No bound: as many messages are out as requests are under way."""

LEASE_BEYOND_S = 60.0
FOUND_AT_ONCE = 50
RETRY_S = 1.0
CLOSING_S = 2.0
"""When the gateway stops, requests under way have so long to be answered; others are sent again."""


@dataclass(frozen=True, slots=True)
class Means:
    """What all pushes share: see `Pushes`."""

    pump: Pump
    subscriptions: Subscriptions
    sender: Sender
    slots: Slots
    metrics: Metrics
    rng: random.Random
    loading: asyncio.Semaphore
    ack_deadline_s: float
    timeout_s: float
    handshake: bool


class Push:
    """One subscription's messages on their way to its address, until `close`.

    Parameters
    ----------
    means
        What all share.
    subscription
        Whose; another one with the same address may take its place.
    gate
        The address.
    """

    def __init__(self, means: Means, subscription: Subscription, gate: Gate) -> None:
        self._means = means
        self.subscription = subscription
        self.gate = gate
        self.session: Session | None = None
        self.delivery: Delivery | None = None
        self.has_accepted = False
        """Whether the receiver has accepted something since this was last set back."""
        self.under_way: set[asyncio.Task[None]] = set()
        self.task = asyncio.get_running_loop().create_task(self._run_on())

    @property
    def settings(self) -> PushSettings:
        """As they are now."""
        assert self.subscription.delivery.push is not None
        return self.subscription.delivery.push

    def close(self) -> None:
        """Send nothing more; what is under way is still settled when it is answered."""
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
        pump = self._means.pump
        delivery = await self._load()
        if delivery is None:
            return
        self.delivery = delivery
        session = self.session = pump.open_stream(delivery, WINDOW)
        space, is_turn = self.subscription.space, False
        never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            with pump.waiter(delivery, session, never) as waiter:
                while not (pump.closing or delivery.deleted):
                    if len(self.under_way) >= self.settings.requests_max:
                        await asyncio.wait(self.under_way, return_when=asyncio.FIRST_COMPLETED)
                    elif delivery.has_message(session) and (is_turn or not pump.turns.is_held(space)):
                        is_turn = False
                        await pump.find_names(delivery, session)
                        await self._begin(delivery, session)
                    else:
                        is_turn = await waiter.woken()
        finally:
            pump.close_stream(delivery, session)

    async def _load(self) -> Delivery | None:
        means = self._means
        async with means.loading:
            while True:
                subscription = await means.subscriptions.standing(self.subscription)
                if subscription is None:
                    return None  # it was deleted before it began
                delivery = means.pump.delivery_of(subscription)
                if delivery is not None:
                    return delivery
                await means.pump.load(subscription)

    async def _begin(self, delivery: Delivery, session: Session) -> None:
        """Take messages and have them sent, when the address may be called and a place is free."""
        means, space, who = self._means, self.subscription.space, object()
        await self.gate.admitted(who)
        try:
            await means.slots.acquire(space)
        except BaseException:
            self.gate.ended(who, None)
            raise
        # From here to the task nothing is awaited: nothing ends this between.
        keys = [] if means.pump.rations.is_out(space) else self._take(delivery, session)
        if not keys:
            means.slots.release(space)
            self.gate.ended(who, None)
            await asyncio.sleep(0)  # whatever keeps them back is not waited for in a circle
            return
        means.pump.rations.begin(space)
        means.pump.wake(delivery)
        sending = self._send(who, delivery, session, keys)
        task = asyncio.get_running_loop().create_task(sending)
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)

    def _take(self, delivery: Delivery, session: Session) -> list[int]:
        """What one request shall carry. What has failed in a batch comes alone: it may be what was wrong."""
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
            with means.pump.pulled(delivery):  # nobody shall read it anew while this has something to settle
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
                means.pump.wake(delivery)
        finally:
            means.slots.release(subscription.space)
            self.gate.ended(who, answer)
        if answer is not None:
            means.metrics.push.requests.labels(answer.meaning.value).inc()
            if answer.meaning is Meaning.GONE:
                await self._pause(subscription, answer)

    async def _compose(self, delivery: Delivery, session: Session, keys: list[int]) -> list[Outgoing]:
        """The events of some messages; those that are too many for one request are given back."""
        parts: list[bytes] = []
        written: list[int] = []

        def write(parts: list[bytes], place: int, index: int, attempt: int, line: bytes) -> None:
            write_event(parts, place, index, attempt, line)
            written.append(place << INDEX_BITS | index)

        pump = self._means.pump
        try:
            done = await pump.compose(delivery, keys, write, parts)
        finally:
            pump.rations.end(self.subscription.space)
        events = (b"".join(parts[at : at + PARTS]) for at in range(0, len(parts), PARTS))
        messages = list(map(Outgoing, written, events))
        delivery.give_back(session, keys[done:])
        return messages

    async def _call(self, delivery: Delivery, messages: Sequence[Outgoing]) -> Outcome:
        """Send one request, after the handshake where there was none yet."""
        means, settings, subscription = self._means, self.settings, self.subscription
        timeout_s = self._timeout_s(delivery)
        if means.handshake:
            refused = await self.gate.permission(means.sender, timeout_s)
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
        means.metrics.given(len(messages))
        places = {str(position_of(each.key)) for each in messages} if settings.mode == "batch" else None
        return await means.sender.post(self.gate.target, headers, body, timeout_s, places)

    def _settle(self, answer: Outcome, delivery: Delivery, session: Session, keys: Sequence[int]) -> None:
        if answer.meaning is Meaning.ACCEPTED:
            self.has_accepted = True
            failed = [key for key in keys if answer.failed and str(position_of(key)) in answer.failed]
            try:
                self._means.metrics.acked.inc(delivery.ack([key for key in keys if key not in set(failed)]))
            except TooManyEarlyAcks:
                pass  # of those that come again, and have been given to somebody else since
            self._nack(delivery, failed)
            self._means.pump.save_soon(delivery)
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
        because = f"the receiver wants no messages any more: {answer.said} at {now}"
        try:
            paused = await self._means.subscriptions.pause(subscription, because)
        except (StorageError, OSError) as error:
            logger.error("subscription %d could not be paused: %s", subscription.number, error)
            return  # its address counts as broken: it will be asked again, and say the same
        if paused is not None:
            self._means.pump.configure(paused)


class Pushes:
    """All of them; they begin and end by themselves as settings change.

    Parameters
    ----------
    pump, subscriptions, metrics
        Bring messages, know settings, count.
    sender
        Sends requests; closed with this. None: this service sends nothing.
    requests_max
        Requests under way.
    ack_deadline_s, timeout_s
        How long a receiver may take, where the subscription does not say; and at most.
    handshake
        Whether addresses are asked for permission first.
    """

    def __init__(
        self,
        pump: Pump,
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
        self._means = Means(
            pump,
            subscriptions,
            sender,
            Slots(requests_max, max(1, requests_max // 4)),
            metrics,
            random.Random(),
            asyncio.Semaphore(2 * LOADED_AT_ONCE),
            ack_deadline_s,
            timeout_s,
            handshake,
        )
        self._pushes: dict[int, Push] = {}
        self._gates: dict[tuple[str, str], Gate] = {}
        self._broken: set[Gate] = set()
        self._ended: set[Push] = set()
        """Closed, with requests under way."""
        self._finding: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, on the running event loop."""
        if self._is_on:
            self._means.pump.call_on_change(self.changed)
            self._finding = asyncio.get_running_loop().create_task(self._find())

    async def close(self) -> None:
        """Send nothing more."""
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
        """A subscription has these settings now, or is removed (None)."""
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
        key = (subscription.space, push.url)
        gate = self._gates.get(key)
        if gate is None:
            gate = self._gates[key] = Gate(push.url, self._means.rng, self._broken)
        gate.users += 1
        self._pushes[number] = Push(self._means, subscription, gate)

    def _end(self, push: Push) -> None:
        del self._pushes[push.subscription.number]
        push.close()
        push.gate.users -= 1
        if not push.gate.users:
            del self._gates[push.subscription.space, push.settings.url]
            self._broken.discard(push.gate)
        self._ended = {each for each in self._ended if each.under_way}
        if push.under_way:
            self._ended.add(push)

    async def _find(self) -> None:
        """Begin with those whose settings say so: a gateway that starts knows none."""
        while True:
            try:
                count = 0
                async for subscription in self._means.subscriptions.pushed():
                    self.changed(subscription.number, subscription)
                    count += 1
                    if count % FOUND_AT_ONCE == 0:
                        await asyncio.sleep(0)
                return
            except (StorageError, OSError) as error:
                logger.error("the subscriptions to be pushed cannot be read: %s", error)
                await asyncio.sleep(RETRY_S)

    def document(self, subscription: Subscription) -> dict[str, object] | None:
        """How it stands with what is sent for a subscription; None where nothing is to be."""
        if subscription.delivery.push is None:
            return None
        push = self._pushes.get(subscription.number)
        if push is None:
            return {"state": "paused" if subscription.delivery.paused else "off"}
        return push.gate.document() | {"requests": len(push.under_way)}

    def session(self, number: int) -> Session | None:
        """With what the messages of a subscription are taken to be sent."""
        push = self._pushes.get(number)
        return None if push is None else push.session

    def is_used(self, number: int) -> bool:
        """Whether a receiver has accepted something since this was last asked, or there is nothing for it.

        Nor is it the receiver's doing if nothing is sent yet, or at all, by this service.
        """
        push = self._pushes.get(number)
        if push is None or push.delivery is None:
            return True
        has_accepted, push.has_accepted = push.has_accepted, False
        return has_accepted or (push.delivery.is_idle and push.delivery.wants_feed)

    def observe(self) -> None:
        """Take in the figures that change all the time."""
        metrics = self._means.metrics.push
        metrics.subscriptions.set(len(self._pushes))
        metrics.under_way.set(self._means.slots.taken)
        metrics.broken.set(len(self._broken))
