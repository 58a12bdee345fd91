# Made from client/asynchronous/client.py by `make client`: change it there.
"""The client: connects to a service, publishes, manages subscriptions and receives messages."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from fieldfare.client import later, protocol
from fieldfare.client.batching import BatchPolicy, QueueSettings
from fieldfare.client.credentials import GiveKey
from fieldfare.client.encoding import Publishable, encode_event
from fieldfare.client.encrypting import NO_ENCRYPTION, Encryption, opened, plain_only
from fieldfare.client.endpoint import Certificate, Endpoint, choose_space
from fieldfare.client.errors import ApiError, ClientClosed, WrongContext
from fieldfare.client.forks import FORKS
from fieldfare.client.later import DelayedEvents, When
from fieldfare.client.listing import list_subscriptions
from fieldfare.client.outbox import OutboxSettings
from fieldfare.client.protocol import ApiCall, Result
from fieldfare.client.records import (
    DeadMessage,
    NewSubscription,
    PulledMessage,
    SubscriptionInfo,
)
from fieldfare.client.retry import RetrySettings
from fieldfare.client.synchronous.administration import Administration
from fieldfare.client.synchronous.concurrency import Future, Guard, Origin, open_early
from fieldfare.client.synchronous.connection import Connection
from fieldfare.client.synchronous.publisher import Publisher
from fieldfare.client.synchronous.subscriber import Subscriber
from fieldfare.client.transport import Compression
from fieldfare.client.verbs import (
    BulkTally,
    Subscribable,
    check_target,
    cut_bulk,
    log_warnings,
    read_subscribable,
)
from fieldfare.client.verdict import Verdict
from fieldfare.model import RECORD_EVENTS_MAX, Backlog, DeliverySettings, Position


class Client(Administration):
    """A connection to a fieldfare service.

    In an asyncio program, use it in one event loop at a time; otherwise it is safe to use from several
    threads. After a fork, and in a new event loop after the last one has ended, it starts over with new
    connections and a new publisher; publishers and subscribers made before raise WrongContext there.

    Parameters
    ----------
    url : str, optional
        The service's address; default: FIELDFARE_URL, else http://127.0.0.1:7737.
    space : str, optional
        The space of all calls; default: FIELDFARE_SPACE, else "default".
    timeout_s : float
        Maximum time to wait for the answer to a call, in seconds.
    key : str or callable, optional
        An API key or a token; default: FIELDFARE_API_KEY, else the content of the file
        FIELDFARE_API_KEY_FILE. A callable is called before each request and returns the valid key, in an
        asyncio program also as an awaitable: it keeps its token until shortly before expiry.
    ca_file : str or Path, optional
        Authorities (PEM) to trust in place of the system's; default: FIELDFARE_CA_FILE. For https.
    certificate : str, Path, or a pair of them, optional
        The client's certificate and its private key, in one file or two; default: FIELDFARE_CERTIFICATE.
    batch : "auto" or BatchPolicy
        How `publish` and `publish_many` batch: "auto" measures and adapts, `BatchSettings` fixes the limits,
        `AutoBatching` adapts within a bound on latency. `AutotunedBatching` and `WindowedBatching` poll.
    retry : RetrySettings, optional
        How they retry after temporary failures.
    queue : QueueSettings, optional
        How many events may wait in memory, and what `publish` does when the queue is full.
    compression : "zstd" or "gzip", optional
        Compress request bodies where that saves enough. "zstd", which is faster and compresses better, needs
        Python 3.14 or the extra ``zstd``.
    encryption : SpaceKey, optional
        The key of an encrypted space: encrypts events and filters, and decrypts messages.

    Examples
    --------
    >>> with Client() as client:  # doctest: +SKIP
    ...     client.create_subscription("data.price < 18.5", id="cheap")
    ...     client.publish_many([{"source": "/quotes", "type": "quote", "data": {"price": 17.25}}])
    ...     with client.subscribe("cheap") as messages:
    ...         for message in messages:
    ...             print(message.event["data"])
    ...             message.ack()
    """

    def __init__(
        self,
        url: str | None = None,
        space: str | None = None,
        timeout_s: float = 30.0,
        *,
        key: str | GiveKey | None = None,
        ca_file: str | Path | None = None,
        certificate: Certificate | None = None,
        batch: BatchPolicy | Literal["auto"] = "auto",
        retry: RetrySettings | None = None,
        queue: QueueSettings | None = None,
        compression: Compression | None = None,
        encryption: Encryption = NO_ENCRYPTION,
    ) -> None:
        endpoint = Endpoint.chosen(url, timeout_s, key, ca_file, certificate)
        self.url = endpoint.url
        self.space = choose_space(space)
        self._batch = batch
        self._retry = retry
        self._queue = queue
        self._crypt = encryption
        self._connection = Connection(endpoint, compression)
        self._origin = Origin()
        self._guard = Guard()
        self._own_publisher: Publisher | None = None
        self._publishers: weakref.WeakSet[Publisher] = weakref.WeakSet()
        self._subscribers: weakref.WeakSet[Subscriber] = weakref.WeakSet()
        self._closed = False

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, timeout_s: float | None = None) -> None:
        """Send all queued events, then close publishers, subscribers and connections. May be called twice.

        Events that are still queued after ``timeout_s`` seconds fail. Events in an outbox stay there.
        """
        self._settle()
        with self._guard:
            self._closed = True
            publishers, subscribers = list(self._publishers), list(self._subscribers)
        for subscriber in subscribers:
            subscriber.close()
        for publisher in publishers:
            publisher.close(timeout_s)
        self._connection.close()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all published events are acknowledged and all acks are durable."""
        self._settle()
        with self._guard:
            publishers, subscribers = list(self._publishers), list(self._subscribers)
        for publisher in publishers:
            publisher.flush(timeout_s)
        for subscriber in subscribers:
            subscriber.flush(timeout_s)

    # Publishing

    def publish(self, event: Publishable) -> Future[Position]:
        """Queue an event; the future resolves when it is durable. See `Publisher.publish`."""
        return self._default_publisher().publish(event)

    def publish_many(self, events: Iterable[Publishable]) -> list[Position]:
        """Publish events and wait until all are durable. See `Publisher.publish_many`."""
        return self._default_publisher().publish_many(events)

    def publish_table(self, events: Any, *, max_events: int = RECORD_EVENTS_MAX) -> list[Position]:
        """Publish an Arrow table and wait until all rows are durable. See `Publisher.publish_table`."""
        return self._default_publisher().publish_table(events, max_events=max_events)

    def publish_later(self, events: Iterable[Publishable], when: When) -> DelayedEvents:
        """Publish events at a later time; they are durable on return.

        At that time they are appended to the log and matched against the subscriptions that exist then. The
        call sends one request with at most 10,000 events and retries it after temporary failures; the
        service stores it once.

        Parameters
        ----------
        events
            As for `publish_many`.
        when : float, timedelta or datetime
            The delay in seconds or as a timedelta, from when the service receives the request; or a datetime
            with a time zone.

        Raises
        ------
        PublishError
            All events were refused; if only some were, ``refused`` of the result lists them.
        """
        self._check_open()
        lines = self._crypt.seal_lines([encode_event(event) for event in events])
        call = later.publish_later(self.space, lines, when, f"later-{uuid.uuid4().hex}")
        self._settle()
        return self._connection.perform_until(call, self._retry or RetrySettings())

    def delayed(self, page_size: int = 1000) -> Iterator[DelayedEvents]:
        """Iterate over the delayed events of the space, soonest first, reading a page at a time."""
        after: str | None = None
        while True:
            page, after = self._perform(later.list_delayed(self.space, after, page_size))
            for each in page:
                yield each
            if after is None:
                return

    @property
    def trouble(self) -> str | None:
        """The error of the last attempt of `publish_later`, while it repeats its request; else None."""
        return self._connection.trouble

    def cancel_delayed(self, id: str) -> None:
        """Cancel delayed events; ApiError (404) if they have been published already."""
        self._perform(later.cancel_delayed(self.space, id))

    def publisher(
        self,
        batch: BatchPolicy | Literal["auto"] = "auto",
        retry: RetrySettings | None = None,
        outbox: str | Path | OutboxSettings | None = None,
        queue: QueueSettings | None = None,
    ) -> Publisher:
        """Return a new publisher with its own queue, event order and producer id.

        Parameters
        ----------
        batch, retry, queue
            As for the client.
        outbox : str, Path or OutboxSettings, optional
            A file that keeps the events until the service has acknowledged them: they survive the end of the
            program, and the next publisher that opens the file sends them. ``retry.deadline_s`` does not
            apply then, and ``queue`` is not allowed.
        """
        self._settle()
        with self._guard:
            return self._make_publisher(batch, retry, outbox, queue)

    # Subscriptions

    def create_subscription(
        self,
        filter: str,
        id: str | None = None,
        dialect: str = "sql",
        delivery: DeliverySettings | None = None,
        start: str | Position | None = None,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> SubscriptionInfo:
        """Create a subscription; every event published from now on is matched against its filter.

        Without an id, one is generated. The result's ``warnings`` list probable mistakes in the filter, such
        as a name that no event has. ``delivery`` holds the delivery settings. With a ``start`` the
        subscription also gets matching events that are already in the log from there on: "earliest", a
        position, or an RFC 3339 time. Events before the start, and events that retention has removed, are
        not delivered. The result's ``start`` is the position where it begins. ``owner`` names
        a team or a person; by owner and ``labels``, such as {"team": "payments"}, it is found in lists.

        Raises
        ------
        ApiError
            The filter has an error (see `place` and `hint`), the start is not valid or lies in the future,
            or the id exists already (status 409).
        """
        new = self._crypt.seal_filter(
            NewSubscription(filter, id, dialect, delivery, start, owner=owner, labels=labels)
        )
        return self._crypt.open_filter(self._perform(protocol.create_subscription(self.space, new)))

    def create_subscriptions(self, items: Iterable[Subscribable], *, replace: bool = True) -> int:
        """Create many subscriptions, 10,000 per request; return how many are stored.

        Without ``replace``, one that exists with another filter or other settings is refused.

        Raises
        ------
        SubscriptionsRefused
            Some were refused; the others are stored.
        """
        tally = BulkTally()
        for piece in cut_bulk(self._crypt.seal_filters(map(read_subscribable, items))):
            tally.add(piece, self._perform(protocol.create_subscriptions(self.space, piece, replace)))
        return tally.result()

    def replace_subscription(
        self,
        id: str,
        filter: str,
        dialect: str = "sql",
        delivery: DeliverySettings | None = None,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> SubscriptionInfo:
        """Replace a subscription's filter from now on, or create the subscription if it does not exist.

        Without ``delivery``, ``owner`` or ``labels``, those that it has stay; ``labels`` replaces all labels.
        """
        new = self._crypt.seal_filter(
            NewSubscription(filter, id, dialect, delivery, owner=owner, labels=labels)
        )
        return self._crypt.open_filter(self._perform(protocol.put_subscription(self.space, id, new)))

    def configure_subscription(self, id: str, **settings: Any) -> SubscriptionInfo:
        """Change delivery settings of a subscription: the fields of `DeliverySettings`, as keyword arguments.

        Settings that are not named stay; None resets a setting to its default. ``owner`` and ``labels`` are
        changed in the same way: labels that are not named stay, and a label of None is removed.
        """
        call = protocol.configure(self.space, id, settings)
        return self._crypt.open_filter(self._perform(call))

    def delete_subscription(self, id: str) -> None:
        """Delete a subscription; ApiError (404) if it does not exist."""
        self._perform(protocol.delete_subscription(self.space, id))

    def get_subscription(self, id: str, *, sites_wait_s: float | None = None) -> SubscriptionInfo:
        """Return a subscription; ApiError (404) if it does not exist.

        With ``sites_wait_s`` the service waits until the subscription counts at all sites, at most for this
        time; ``sites`` of the result says where it does.
        """
        call = protocol.get_subscription(self.space, id, sites_wait_s)
        return self._crypt.open_filter(self._perform(call))

    def subscriptions(
        self,
        page_size: int = 1000,
        sort: str = "id",
        *,
        search: str | None = None,
        owner: str | None = None,
        labels: Mapping[str, str | None] | None = None,
    ) -> Iterator[SubscriptionInfo]:
        """Iterate over the subscriptions of the space, reading a page at a time.

        With ``sort="backlog"`` the greatest backlog comes first, and each has a `backlog`.

        Parameters
        ----------
        search
            Only those with this text in id, filter, owner or labels; not by backlog.
        owner
            Only those with this owner.
        labels
            Only those with all of these labels; a value of None stands for any.
        """
        after: str | None = None
        while True:
            page, after = self._perform(
                list_subscriptions(self.space, after, page_size, sort, search, owner, labels)
            )
            for subscription in page:
                yield self._crypt.open_filter(subscription)
            if after is None:
                return

    def explain_filter(self, filter: str, dialect: str = "sql", sample_events: int = 1000) -> dict[str, Any]:
        """Explain a filter, and measure its selectivity on the newest ``sample_events`` events of the space.

        ``text`` in the result is the explanation as text; docs/filter-help.md describes the other fields.
        `fieldfare.filters.Filter.explain` explains a filter without a service and without events.
        """
        plain_only(self._crypt, "the service cannot explain an encrypted filter: it has no key to read it")
        return self._perform(protocol.explain_filter(self.space, filter, dialect, sample_events))

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
    ) -> Subscriber:
        """Return a subscriber: an iterator over the messages of a subscription, as they arrive.

        Use it in a ``with`` statement, which sends the last acks.

        Parameters
        ----------
        id : str, optional
            The subscription. Reading starts after the messages that have been acked.
        filter : str, optional
            Ensure first that the subscription exists with this filter: create it, or replace its filter if
            that differs. Without an id, one is generated (`Subscriber.id`).
        window : int
            Maximum messages in flight (delivered and not acked).
        ack_deadline_s : float, optional
            Seconds after which a message without an ack is redelivered; default: the subscription's setting,
            else the service's (30 s).
        auto_ack : bool
            Ack each message when the loop asks for the next one.
        start : str or Position, optional
            With a filter: where the subscription begins if it is created, see `create_subscription`. A
            subscription that exists resumes at its cursor.
        """
        check_target(id, filter, start)
        self._settle()

        def ensure() -> str:
            if filter is not None:
                return self._ensure_subscription(id, filter, dialect, start)
            assert id is not None
            return id

        with self._guard:
            self._check_open()
            subscriber = Subscriber(
                self._connection,
                ensure,
                self.space,
                window,
                ack_deadline_s,
                auto_ack,
                self._crypt,
            )
            self._subscribers.add(subscriber)
        open_early(subscriber.open)
        return subscriber

    def pull(
        self, id: str, max_messages: int = 100, wait_s: float = 20.0, ack_deadline_s: float | None = None
    ) -> list[PulledMessage]:
        """Fetch at most ``max_messages`` messages, waiting up to ``wait_s`` seconds for the first.

        A message that is not acked (`ack`) within ``ack_deadline_s`` seconds is redelivered; default: the
        subscription's setting, else the service's.
        """
        call = protocol.pull(self.space, id, max_messages, wait_s, ack_deadline_s)
        return opened(self._crypt, self._perform(call))

    def ack(self, id: str, positions: Sequence[Position]) -> None:
        """Acknowledge pulled messages; durable on return."""
        for some in protocol.cut_positions(positions):
            self._perform(protocol.acknowledge(self.space, id, some))

    def ack_up_to(self, id: str, position: Position) -> None:
        """Acknowledge every message up to and including this position; durable on return."""
        self._perform(protocol.acknowledge_up_to(self.space, id, position))

    def nack(self, id: str, positions: Sequence[Position], delay_s: float | None = None) -> None:
        """Have pulled messages redelivered after ``delay_s`` seconds; default: the subscription's setting."""
        self._tell(id, positions, Verdict("nack", delay_s))

    def extend(self, id: str, positions: Sequence[Position], ack_deadline_s: float | None = None) -> None:
        """Extend the ack deadline of pulled messages, to ``ack_deadline_s`` (or as set) from now."""
        self._tell(id, positions, Verdict("extend", ack_deadline_s))

    def terminate(self, id: str, positions: Sequence[Position], reason: str = "") -> None:
        """Make pulled messages dead letters, with a reason: they are not redelivered."""
        self._tell(id, positions, Verdict("terminate", reason))

    def backlog(self, id: str) -> Backlog:
        """Count the messages that a subscription owes its readers; a large number is estimated."""
        return self._perform(protocol.get_backlog(self.space, id))

    def seek(self, id: str, to: str | Position) -> tuple[Position, ...]:
        """Move a subscription's cursor: to "earliest", "latest", a position, or an RFC 3339 time.

        Messages before it are settled; messages from there on are delivered, also those that were acked.
        Return the new cursor, a position for each partition.
        """
        return self._perform(protocol.seek(self.space, id, str(to)))

    def dead_letters(self, id: str, page_size: int = 100) -> Iterator[DeadMessage]:
        """Iterate over the dead letters of a subscription, ordered by position, reading a page at a time."""
        after: str | None = None
        while True:
            page, after = self._perform(protocol.list_dead_letters(self.space, id, after, page_size))
            for message in opened(self._crypt, page):
                yield message
            if after is None:
                return

    def retry_dead_letters(self, id: str, positions: Sequence[Position] | None = None) -> int:
        """Redeliver dead letters, all or those at ``positions``; return how many.

        Dead letters whose events retention has removed stay in the list.
        """
        if positions is not None:
            total = 0
            for some in protocol.cut_positions(positions, protocol.RETRIED_MAX):
                total += (self._retry_dead(id, some))[0]
            return total
        total, retried, left = 0, 1, 1
        while retried and left:
            retried, left = self._retry_dead(id, None)
            total += retried
        return total

    def clear_dead_letters(self, id: str) -> int:
        """Remove all dead letters of a subscription; return how many there were."""
        return self._perform(protocol.clear_dead_letters(self.space, id))

    def _retry_dead(self, id: str, positions: Sequence[Position] | None) -> tuple[int, int]:
        return self._perform(protocol.retry_dead_letters(self.space, id, positions))

    def _tell(self, id: str, positions: Sequence[Position], verdict: Verdict) -> None:
        for some in protocol.cut_positions(positions):
            self._perform(protocol.tell(self.space, id, some, verdict))

    def _ensure_subscription(
        self, id: str | None, filter: str, dialect: str, start: str | Position | None
    ) -> str:
        if id is not None:
            try:
                present = self.get_subscription(id)
            except ApiError as error:
                if error.status != 404:
                    raise
            else:
                if (present.filter, present.dialect) == (filter, dialect):
                    return id
                start = None
        if id is None or start is not None:
            stored = self.create_subscription(filter, id, dialect, start=start)
        else:
            stored = self.replace_subscription(id, filter, dialect)
        log_warnings(stored.warnings, stored.id)
        return stored.id

    def _default_publisher(self) -> Publisher:
        publisher = self._own_publisher
        if publisher is None or not self._origin.is_here():
            self._settle()
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
    ) -> Publisher:
        self._check_open()
        publisher = Publisher(self._connection, self.space, batch, retry, outbox, queue, self._crypt)
        self._publishers.add(publisher)
        return publisher

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("this client is closed")

    def _perform(self, call: ApiCall[Result]) -> Result:
        self._settle()
        return self._connection.perform(call)

    def _settle(self) -> None:
        """Start over with new connections and a new publisher in a forked process, or in a new event loop."""
        if self._origin.is_here() or self._closed:
            return
        with FORKS.starting_over:
            if self._origin.is_here():
                return  # Another thread has done it.
            if self._origin.is_in_use():
                raise WrongContext("this client is in use in another event loop: create one in this loop")
            self._connection = self._connection.again()
            self._guard = Guard()
            self._publishers, self._subscribers = weakref.WeakSet(), weakref.WeakSet()
            self._own_publisher = None
            self._origin = Origin()
