"""What a program holds: the client, with all its verbs."""

from __future__ import annotations

import random
import time
import uuid
import weakref
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from fieldfare.client import later, protocol
from fieldfare.client.asynchronous.concurrency import (
    AsyncFlag,
    AsyncFuture,
    AsyncGuard,
    off_the_loop,
    open_early,
)
from fieldfare.client.asynchronous.publisher import AsyncPublisher
from fieldfare.client.asynchronous.subscriber import AsyncSubscriber
from fieldfare.client.batching import MAX_RECORD_EVENTS, BatchPolicy, QueueSettings
from fieldfare.client.credentials import AsyncGiveKey, choose_key
from fieldfare.client.encoding import Publishable, encode_event
from fieldfare.client.encrypting import PLAINLY, Encryption, opened, plain_only
from fieldfare.client.errors import ApiError, ClientClosed, ConnectionFailed, SubscriptionsRefused
from fieldfare.client.later import DelayedEvents, When
from fieldfare.client.outbox import OutboxSettings
from fieldfare.client.protocol import ApiCall, Result
from fieldfare.client.records import (
    DeadMessage,
    KeyInfo,
    NewKey,
    NewSubscription,
    PulledMessage,
    SubscriptionInfo,
)
from fieldfare.client.retry import Backoff, RetrySettings
from fieldfare.client.transport import (
    HTTP_ERRORS,
    PACKED_FROM_BYTES,
    Certificate,
    Compression,
    choose_packing,
    choose_space,
    choose_tls,
    choose_url,
    make_async_http,
    make_request,
    raise_translated,
    read_answer,
)
from fieldfare.client.verbs import BulkTally, Subscribable, check_target, cut_bulk, read_subscribable
from fieldfare.client.verdict import Verdict
from fieldfare.model import DeliverySettings, Position


class AsyncClient:
    """A connection to a fieldfare service.

    In an asyncio program it belongs to one event loop; else it is safe to use from several threads.

    Parameters
    ----------
    url : str, optional
        Where the service is; else FIELDFARE_URL, else http://127.0.0.1:7737.
    space : str, optional
        Whose events and subscriptions; else FIELDFARE_SPACE, else "default".
    timeout_s : float
        How long the service may take to answer a call.
    key : str or callable, optional
        An API key or a token, for a service that asks for one; else FIELDFARE_API_KEY, else what is in the
        file that FIELDFARE_API_KEY_FILE names. A callable is called before each request and gives what is
        valid then: it fetches a new token when the one that it has is about to expire. In an asyncio program
        it may give an awaitable.
    ca_file : str or Path, optional
        Certificates of authorities (PEM) by which the service is known, in place of those that the system
        knows; else FIELDFARE_CA_FILE. For https.
    certificate : str, Path, or a pair of them, optional
        A file with the client's certificate and its key, or two, for a service that asks for one; else
        FIELDFARE_CERTIFICATE.
    batch : "auto" or BatchPolicy
        How `publish` and `publish_many` batch: "auto" measures and adapts, `BatchSettings` fixes it,
        `AutoBatching` adapts within a bound on latency.
    retry : RetrySettings, optional
        How they repeat what failed in passing.
    queue : QueueSettings, optional
        How much may wait in memory to be sent, and what `publish` does when that is full.
    compression : "zstd" or "gzip", optional
        Pack the bodies of requests where that pays: over a slow or a paid-for network. "zstd" is quicker and
        packs better; it needs Python 3.14 or the extra ``zstd``.
    encryption : SpaceKey, optional
        The key of an encrypted space: events and filters leave only encrypted, messages come decrypted.

    Examples
    --------
    >>> async with AsyncClient() as client:  # doctest: +SKIP
    ...     await client.create_subscription("data.price < 18.5", id="cheap")
    ...     await client.publish_many([{"source": "/quotes", "type": "quote", "data": {"price": 17.25}}])
    ...     async with client.subscribe("cheap") as messages:
    ...         async for message in messages:
    ...             print(message.event["data"])
    ...             message.ack()
    """

    def __init__(
        self,
        url: str | None = None,
        space: str | None = None,
        timeout_s: float = 30.0,
        *,
        key: str | AsyncGiveKey | None = None,
        ca_file: str | Path | None = None,
        certificate: Certificate | None = None,
        batch: BatchPolicy | Literal["auto"] = "auto",
        retry: RetrySettings | None = None,
        queue: QueueSettings | None = None,
        compression: Compression | None = None,
        encryption: Encryption = PLAINLY,
    ) -> None:
        self.url = choose_url(url)
        self.space = choose_space(space)
        self._timeout_s = timeout_s
        self._batch = batch
        self._retry = retry
        self._queue = queue
        self._packed = choose_packing(compression)
        self._crypt = encryption
        tls = choose_tls(self.url, ca_file, certificate)
        self._http = make_async_http(self.url, timeout_s, choose_key(key, self.url), tls)
        self._guard = AsyncGuard()
        self._own_publisher: AsyncPublisher | None = None
        self._publishers: weakref.WeakSet[AsyncPublisher] = weakref.WeakSet()
        self._subscribers: weakref.WeakSet[AsyncSubscriber] = weakref.WeakSet()
        self._closed = False

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, timeout_s: float | None = None) -> None:
        """Send what is queued, close publishers and subscribers, then the connections. May be called twice.

        After ``timeout_s`` the events that are still queued fail instead. What is in an outbox stays there.
        """
        with self._guard:
            self._closed = True
            publishers, subscribers = list(self._publishers), list(self._subscribers)
        for subscriber in subscribers:
            await subscriber.close()
        for publisher in publishers:
            await publisher.close(timeout_s)
        await self._http.aclose()

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all that was published is acknowledged and all acks are durable."""
        with self._guard:
            publishers, subscribers = list(self._publishers), list(self._subscribers)
        for publisher in publishers:
            await publisher.flush(timeout_s)
        for subscriber in subscribers:
            await subscriber.flush(timeout_s)

    # Publishing

    def publish(self, event: Publishable) -> AsyncFuture[Position]:
        """Queue an event; the future resolves when it is durable. See `AsyncPublisher.publish`."""
        return self._default_publisher().publish(event)

    async def publish_many(self, events: Iterable[Publishable]) -> list[Position]:
        """Publish events and wait until all are durable. See `AsyncPublisher.publish_many`."""
        return await self._default_publisher().publish_many(events)

    async def publish_table(self, events: Any, *, max_events: int = MAX_RECORD_EVENTS) -> list[Position]:
        """Publish an Arrow table and wait until all rows are durable. See `AsyncPublisher.publish_table`."""
        return await self._default_publisher().publish_table(events, max_events=max_events)

    async def publish_later(self, events: Iterable[Publishable], when: When) -> DelayedEvents:
        """Have events appended when their time has come, and not before; they are durable on return.

        They are matched as of then, against the subscriptions that there are. One request with at most
        10,000 events, repeated while it fails in passing, as `AsyncPublisher` does: it is kept once.

        Parameters
        ----------
        events
            As `publish_many` takes them.
        when : float, timedelta or datetime
            Seconds from when the service has them, or the moment; a datetime needs a time zone.

        Raises
        ------
        PublishError
            All were refused; where only some are, the result says which.
        """
        self._check_open()
        lines = self._crypt.seal_lines([encode_event(event) for event in events])
        call = later.publish_later(self.space, lines, when, f"later-{uuid.uuid4().hex}")
        backoff = Backoff(self._retry or RetrySettings(), time.monotonic(), random.Random())
        while True:
            try:
                return await self._perform(call)
            except (ApiError, ConnectionFailed) as error:
                wait_s = backoff.next_wait_s(error, time.monotonic())
                if wait_s is None:
                    raise
            await AsyncFlag().wait(wait_s)

    async def delayed(self, page_size: int = 1000) -> AsyncIterator[DelayedEvents]:
        """What waits for its time, soonest first, read a page at a time."""
        after: str | None = None
        while True:
            page, after = await self._perform(later.list_delayed(self.space, after, page_size))
            for each in page:
                yield each
            if after is None:
                return

    async def cancel_delayed(self, id: str) -> None:
        """Have events not come that wait for their time; ApiError (404) where that has come."""
        await self._perform(later.cancel_delayed(self.space, id))

    def publisher(
        self,
        batch: BatchPolicy | Literal["auto"] = "auto",
        retry: RetrySettings | None = None,
        outbox: str | Path | OutboxSettings | None = None,
        queue: QueueSettings | None = None,
    ) -> AsyncPublisher:
        """A publisher with a queue, an order and a producer id of its own.

        Parameters
        ----------
        batch, retry, queue
            As for the client.
        outbox : str, Path or OutboxSettings, optional
            A file that keeps the events until the service has them: they survive the end of the program, and
            are sent by the next publisher that opens the file. ``retry.deadline_s`` does not count then, and
            there is no ``queue``.
        """
        with self._guard:
            return self._make_publisher(batch, retry, outbox, queue)

    # Subscriptions

    async def create_subscription(
        self,
        filter: str,
        id: str | None = None,
        dialect: str = "sql",
        delivery: DeliverySettings | None = None,
        start: str | Position | None = None,
    ) -> SubscriptionInfo:
        """Store a filter; every event published from now on meets it. Without an id, one is generated.

        ``delivery`` says how its messages are given. With a ``start`` it meets also what the log holds from
        there on: "earliest", a position, or a time as RFC 3339 writes it; what was published before the
        start comes not, and what retention has taken cannot. The answer's ``start`` says where that is.

        Raises
        ------
        ApiError
            The filter has an error (`place` and `hint` say where and what), the start is no place or lies
            ahead, or the id exists (status 409).
        """
        new = self._crypt.seal_filter(NewSubscription(filter, id, dialect, delivery, start))
        return self._crypt.open_filter(await self._perform(protocol.create_subscription(self.space, new)))

    async def create_subscriptions(self, items: Iterable[Subscribable]) -> int:
        """Store many filters, 10,000 a request; gives how many.

        Raises
        ------
        SubscriptionsRefused
            Some were refused; the others are stored.
        """
        tally = BulkTally()
        for piece in cut_bulk(self._crypt.seal_filters(map(read_subscribable, items))):
            try:
                tally.stored(piece, await self._perform(protocol.create_subscriptions(self.space, piece)))
            except SubscriptionsRefused as error:
                tally.partly_stored(piece, error)
        return tally.result()

    async def replace_subscription(
        self, id: str, filter: str, dialect: str = "sql", delivery: DeliverySettings | None = None
    ) -> SubscriptionInfo:
        """Give a subscription this filter from now on; creates it where there is none.

        Without ``delivery`` its messages are given as before.
        """
        new = self._crypt.seal_filter(NewSubscription(filter, id, dialect, delivery))
        return self._crypt.open_filter(await self._perform(protocol.put_subscription(self.space, id, new)))

    async def configure_subscription(self, id: str, **settings: Any) -> SubscriptionInfo:
        """Change how a subscription's messages are given: the fields of `DeliverySettings`, by name.

        What is not named stays; None makes a setting what it is by itself.
        """
        call = protocol.configure(self.space, id, settings)
        return self._crypt.open_filter(await self._perform(call))

    async def delete_subscription(self, id: str) -> None:
        """Remove a subscription; ApiError (404) where there is none."""
        await self._perform(protocol.delete_subscription(self.space, id))

    async def get_subscription(self, id: str) -> SubscriptionInfo:
        """A subscription as it stands; ApiError (404) where there is none."""
        return self._crypt.open_filter(await self._perform(protocol.get_subscription(self.space, id)))

    async def subscriptions(self, page_size: int = 1000) -> AsyncIterator[SubscriptionInfo]:
        """All subscriptions of the space in the order of their ids, read a page at a time."""
        after: str | None = None
        while True:
            page, after = await self._perform(protocol.list_subscriptions(self.space, after, page_size))
            for subscription in page:
                yield self._crypt.open_filter(subscription)
            if after is None:
                return

    async def explain_filter(
        self, filter: str, dialect: str = "sql", sample_events: int = 1000
    ) -> dict[str, Any]:
        """What a filter means, and how selective it is for the newest events of the space.

        ``text`` in the answer is all of it for people; docs/service.md shows the rest. Without the
        space's events `fieldfare.filters.Filter.explain` says the same, and needs no service.
        """
        plain_only(self._crypt, "the service cannot explain what it may not read")
        return await self._perform(protocol.explain_filter(self.space, filter, dialect, sample_events))

    # Receiving

    def subscribe(
        self,
        id: str | None = None,
        filter: str | None = None,
        *,
        dialect: str = "sql",
        window: int = 1000,
        ack_deadline_s: float | None = None,
        auto_ack: bool = False,
        start: str | Position | None = None,
    ) -> AsyncSubscriber:
        """Follow a subscription live: an iterator of messages.

        Best used in an ``async with`` statement, which sends the last acks.

        Parameters
        ----------
        id : str, optional
            The subscription. Reading starts behind what has been acked.
        filter : str, optional
            Makes sure first that the subscription exists with this filter: it is created, or replaced when it
            has another filter. Without an id, one is generated (`AsyncSubscriber.id`).
        window : int
            How many messages may be under way without ack.
        ack_deadline_s : float, optional
            A message that is not acked for so long comes again; by default as the subscription, or the
            service, is set (30 s).
        auto_ack : bool
            Ack each message when the loop asks for the next one.
        start : str or Position, optional
            With a filter: where the subscription begins if it is created, see `create_subscription`; one that
            exists goes on where it stands.
        """
        check_target(id, filter, start)

        async def ensure() -> str:
            if filter is not None:
                return await self._ensure_subscription(id, filter, dialect, start)
            assert id is not None
            return id

        with self._guard:
            self._check_open()
            subscriber = AsyncSubscriber(
                self._http,
                self._perform,
                ensure,
                self.url,
                self.space,
                window,
                ack_deadline_s,
                auto_ack,
                self._timeout_s,
                self._crypt,
            )
            self._subscribers.add(subscriber)
        open_early(subscriber.open)
        return subscriber

    async def pull(
        self, id: str, max_messages: int = 100, wait_s: float = 20.0, ack_deadline_s: float | None = None
    ) -> list[PulledMessage]:
        """Take up to so many messages, waiting up to ``wait_s`` for the first.

        What is not acked (`ack`) within ``ack_deadline_s`` comes again; by default as the subscription, or
        the service, is set.
        """
        call = protocol.pull(self.space, id, max_messages, wait_s, ack_deadline_s)
        return opened(self._crypt, await self._perform(call))

    async def ack(self, id: str, positions: Sequence[Position]) -> None:
        """Mark pulled messages as done; durable on return."""
        for some in protocol.cut_positions(positions):
            await self._perform(protocol.acknowledge(self.space, id, some))

    async def ack_up_to(self, id: str, position: Position) -> None:
        """Mark every message up to and with this position as done; durable on return."""
        await self._perform(protocol.acknowledge_up_to(self.space, id, position))

    async def nack(self, id: str, positions: Sequence[Position], delay_s: float | None = None) -> None:
        """Ask for pulled messages again; by default when the subscription's settings say."""
        await self._tell(id, positions, Verdict("nack", delay_s))

    async def extend(
        self, id: str, positions: Sequence[Position], ack_deadline_s: float | None = None
    ) -> None:
        """Have pulled messages for so long from now on."""
        await self._tell(id, positions, Verdict("extend", ack_deadline_s))

    async def terminate(self, id: str, positions: Sequence[Position], reason: str = "") -> None:
        """Give pulled messages up: nobody is given them again, and they are dead letters."""
        await self._tell(id, positions, Verdict("terminate", reason))

    async def seek(self, id: str, to: str | Position) -> tuple[Position, ...]:
        """Go on from another place: "earliest", "latest", a position, or a time as RFC 3339 writes it.

        What lies before it is settled; what matched from there on comes, also what was acked.
        """
        return await self._perform(protocol.seek(self.space, id, str(to)))

    async def dead_letters(self, id: str, page_size: int = 100) -> AsyncIterator[DeadMessage]:
        """The messages of a subscription that were given up, by position, read a page at a time."""
        after: str | None = None
        while True:
            page, after = await self._perform(protocol.list_dead_letters(self.space, id, after, page_size))
            for message in opened(self._crypt, page):
                yield message
            if after is None:
                return

    async def retry_dead_letters(self, id: str, positions: Sequence[Position] | None = None) -> int:
        """Give messages all the same that were given up, all or these; how many.

        Those whose events retention has taken stay in the list.
        """
        if positions is not None:
            total = 0
            for some in protocol.cut_positions(positions, protocol.RETRIED_MAX):
                total += (await self._retry_dead(id, some))[0]
            return total
        total, retried, left = 0, 1, 1
        while retried and left:
            retried, left = await self._retry_dead(id, None)
            total += retried
        return total

    async def clear_dead_letters(self, id: str) -> int:
        """Forget the messages that were given up; how many those were."""
        return await self._perform(protocol.clear_dead_letters(self.space, id))

    async def _retry_dead(self, id: str, positions: Sequence[Position] | None) -> tuple[int, int]:
        return await self._perform(protocol.retry_dead_letters(self.space, id, positions))

    async def _tell(self, id: str, positions: Sequence[Position], verdict: Verdict) -> None:
        for some in protocol.cut_positions(positions):
            await self._perform(protocol.tell(self.space, id, some, verdict))

    # The service

    async def create_space(self, name: str, *, encrypted: Encryption = PLAINLY) -> None:
        """Make a new space; with a key one that takes only what is encrypted with it."""
        await self._perform(protocol.create_space(name, encrypted.declaration()))

    async def delete_space(self, name: str) -> None:
        """Delete a space for good: its subscriptions, what was given up of them, its keys and its quotas."""
        await self._perform(protocol.delete_space(name))

    async def spaces(self) -> list[str]:
        """The names of all spaces."""
        return await self._perform(protocol.list_spaces())

    async def quotas(self, space: str | None = None) -> dict[str, Any]:
        """What a space, by default the client's, may have (``limits``), and what it has (``used``)."""
        return await self._perform(protocol.read_quotas(space or self.space))

    async def set_quotas(self, space: str, quotas: Mapping[str, float | None]) -> dict[str, Any]:
        """Set all quotas of a space, for which an admin's key is needed; what holds then.

        One that is None or not named is what all spaces have by themselves, and 0 is no bound.
        """
        return await self._perform(protocol.set_quotas(space, quotas))

    async def stats(self) -> dict[str, Any]:
        """The service's live figures: log, lag, rates, latency."""
        return await self._perform(protocol.stats())

    async def quarantine(self) -> list[dict[str, Any]]:
        """The records that were set aside because matching them failed, oldest first, and why."""
        return await self._perform(protocol.list_quarantine())

    async def retry_quarantined(self, position: str) -> dict[str, Any]:
        """Publish the events of such a record again; gives their new place. Repeating it is harmless."""
        return await self._perform(protocol.retry_quarantined(position))

    # Keys

    async def create_key(self, rights: Sequence[str], *, space: str | None = None, note: str = "") -> NewKey:
        """Make an API key. What it is, its ``key``, is told here and never again.

        Parameters
        ----------
        rights : sequence of str
            publish, subscribe, manage: in a space; watch, admin: of the service.
        space : str, optional
            Where they hold; needed for the first three.
        note : str
            What it is for.
        """
        return await self._perform(protocol.create_key(rights, space, note))

    async def api_keys(self) -> list[KeyInfo]:
        """The API keys that this client's key looks after."""
        return await self._perform(protocol.list_keys())

    async def revoke_key(self, id: str) -> None:
        """Have a key let nobody in any more, and end what is open for it; ApiError (404) for none."""
        await self._perform(protocol.revoke_key(id))

    async def _ensure_subscription(
        self, id: str | None, filter: str, dialect: str, start: str | Position | None
    ) -> str:
        if id is None:
            created = await self.create_subscription(filter, None, dialect, start=start)
            return created.id
        try:
            present = await self.get_subscription(id)
        except ApiError as error:
            if error.status != 404:
                raise
            if start is not None:
                await self.create_subscription(filter, id, dialect, start=start)
                return id
        else:
            if (present.filter, present.dialect) == (filter, dialect):
                return id
        replaced = await self.replace_subscription(id, filter, dialect)
        return replaced.id

    def _default_publisher(self) -> AsyncPublisher:
        publisher = self._own_publisher
        if publisher is None:
            with self._guard:
                publisher = self._own_publisher
                if publisher is None:
                    publisher = self._own_publisher = self._make_publisher(
                        self._batch, self._retry, None, self._queue
                    )
        return publisher

    def _make_publisher(
        self,
        batch: BatchPolicy | Literal["auto"],
        retry: RetrySettings | None,
        outbox: str | Path | OutboxSettings | None,
        queue: QueueSettings | None,
    ) -> AsyncPublisher:
        self._check_open()
        publisher = AsyncPublisher(
            self._perform, self.url, self.space, batch, retry, outbox, queue, self._crypt
        )
        self._publishers.add(publisher)
        return publisher

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("this client is closed")

    async def _perform(self, call: ApiCall[Result]) -> Result:
        packed = self._packed
        if packed is not None and len(call.content or b"") >= PACKED_FROM_BYTES:
            plain = call
            call = await off_the_loop(lambda: packed(plain))
        try:
            response = await self._http.send(make_request(self._http, call, self._timeout_s))
        except HTTP_ERRORS as error:
            raise_translated(error, self.url)
        return read_answer(call, response)
