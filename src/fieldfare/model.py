"""The types that all parts share: positions in the log, subscriptions, their versions and cursors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal, NoReturn

import msgspec
from msgspec import Meta

Path = tuple[str | int, ...]
"""The name of an attribute: the steps from the event's top, e.g. ``("data", "price")``.

A string step is a member of an object, an integer step an element of an array. Derived columns, which are
computed from attributes, have paths too: see ``derived_path``.
"""

DEFAULT_SPACE = "default"

_LATER = "#"
"""Separates a space's name from its number in a key; no name contains it."""


def space_key(name: str, before: int) -> str:
    """Return the key of a space in the log and the index.

    It is the name; if ``before`` spaces of that name were deleted, the name, ``#`` and that number.
    """
    return f"{name}{_LATER}{before}" if before else name


def space_name(key: str) -> str:
    """Return the name of the space with this key."""
    return key.partition(_LATER)[0]


INTEREST = ">"
"""First character of the keys of interest indexes; no name of a space contains it."""


def interest_key(space: str) -> str:
    """Return the key of the index with other brokers' filters for the spaces of a key's name.

    It is searched for the records that `is_forwarded` names, and for no others.
    """
    return INTEREST + space_name(space)


TRANSIT = ">"
"""First character of the origins of records that came from one cluster of brokers and go on to others."""


def is_forwarded(origin: str | None) -> bool:
    """Whether records with this origin are matched for other brokers: those without one, and in transit."""
    return origin is None or origin.startswith(TRANSIT)


Offsets = tuple[int, ...]
"""An offset in each partition of the log, by the partition's number."""

OPEN_END = (1 << 63) - 1
"""The ``valid_to`` of a subscription version that is not replaced or removed."""

PARTITIONS_MAX = 127
OFFSET_MAX = (1 << 42) - 1
INDEX_MAX = (1 << 14) - 1
"""Maximum partitions of a log, and the largest offset in one and index in a record.

`delivery.keys` cannot encode any other position.
"""

RECORD_EVENTS_MAX = 10_000
"""Maximum events of a record, which is what one request publishes; larger ones are refused."""

COST_MAX = 1 << 30
"""Maximum cost of one filter, in predicates; a higher cost counts as this.

The costs of all subscriptions that can have a number (2**32) add up to less than 2**63.
"""


@dataclass(frozen=True, slots=True)
class Change:
    """One revision of the registry: a subscription's filter is stored, or removed (`filter` is None).

    A stored filter is a *version* of its subscription: it applies to events with stamps from `revision` to
    before `closed_by`, the revision that replaced or removed it, as far as is known. `compiled` is the filter
    as a library has compiled it; without it, the index has it compiled. `destination` is the number under
    which its matches are reported, for a broker's filter; without it, they are reported under `number`.
    """

    revision: int
    space: str
    number: int
    filter: str | None
    dialect: str | None = None
    compiled: bytes | None = None
    closed_by: int = OPEN_END
    destination: int | None = None


_DIGITS_MAX = 18
"""Maximum digits of a number in a position's text; more are an error, as they may not fit into 64 bits."""

_SHOWN_MAX = 80
_POSITION = re.compile("-".join([f"([0-9]{{1,{_DIGITS_MAX}}})"] * 3)).fullmatch


_DERIVED = -1
"""First step of the paths of derived columns. No attribute's path has it: an event is an object."""


def derived_path(text: str) -> Path:
    """Return the path of a derived column, from the text of its expression.

    It is used like paths of attributes, in normal forms and in indexes.
    """
    return (_DERIVED, text)


def derived_text(path: Path) -> str | None:
    """Return the text of a derived column's expression; None for the path of an attribute."""
    return str(path[1]) if path[0] == _DERIVED else None


def _why_no_position(text: str) -> str:
    parts = text.split("-", 3)
    if len(parts) == 3 and all(part.isascii() and part.isdigit() for part in parts):
        return f"no number of a position has more than {_DIGITS_MAX} digits"
    shown = text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."
    return f"a position is partition-offset-index, three whole numbers, not {shown!r}"


class Position(msgspec.Struct, frozen=True, order=True, gc=False):
    """The place of an event in the log: partition, offset of its record, index in the record.

    Positions of one partition are totally ordered. As text: ``partition-offset-index``.
    """

    partition: int
    offset: int
    index: int

    def __str__(self) -> str:
        return f"{self.partition}-{self.offset}-{self.index}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Parse the text form; ValueError says what is wrong with it."""
        found = _POSITION(text)
        if found is None:
            raise ValueError(_why_no_position(text))
        partition, offset, index = found.groups()
        return cls(int(partition), int(offset), int(index))


def positions_text(positions: Iterable[Position]) -> str:
    """Return positions, one for each partition of the log, as text, joined by commas."""
    return ",".join(map(str, positions))


def positions_of(text: str) -> tuple[Position, ...]:
    """Parse the text of `positions_text`; ValueError if it is not valid."""
    return tuple(map(Position.parse, text.split(",")))


DEADLINE_MAX_S = 86_400.0
UNUSED_MIN_S = 60.0
UNUSED_MAX_S = AGE_MAX_S = 10 * 365 * 86_400.0
ATTEMPTS_MAX = 1_000
DELAYS_MAX = 20
IN_FLIGHT_MAX = 20_000
IN_FLIGHT_MAX_BYTES = 1 << 40
PUSHED_MAX = 1_000
"""Largest allowed `PushSettings.batch_max`, in events per request."""

PUSHES_MAX = 64
"""Largest allowed `PushSettings.requests_max`, in requests in flight per subscription."""

PushMode = Literal["structured", "binary", "batch"]
_Delay = Annotated[float, Meta(ge=0, le=DEADLINE_MAX_S)]


@dataclass(frozen=True, slots=True)
class PushSettings:
    """A subscription's webhook: the address that its messages are sent to by HTTP, and how.

    Attributes
    ----------
    url
        The https URL that messages are sent to; http only for addresses that the service's operator allows.
    mode
        The content mode of CloudEvents' HTTP binding: "structured" (an event as a JSON document), "binary"
        (an event's data as the body, its attributes as headers), or "batch" (several events as a JSON array).
    batch_max
        Maximum events per request, in batch mode.
    requests_max
        Maximum requests in flight. Higher is faster; with 1, messages are sent in order, except for retries.
    secrets
        The secrets that each request is signed with: `whsec_` and base64; two while one replaces the other.
    authorization
        The value of the header Authorization of each request.

    ``secrets`` and ``authorization`` are never shown; None means not set, or not changed.
    """

    url: str
    mode: PushMode = "structured"
    batch_max: Annotated[int, Meta(ge=1, le=PUSHED_MAX)] = 100
    requests_max: Annotated[int, Meta(ge=1, le=PUSHES_MAX)] = 1
    secrets: tuple[str, ...] | None = field(default=None, repr=False)
    authorization: str | None = field(default=None, repr=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a push address may have secrets, and is not pickled")

    def to_wire(self) -> dict[str, Any]:
        """Return the settings as a client sends them to the service, secrets included."""
        given = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in given if value is not None}

    def merged_with(self, before: PushSettings | None) -> PushSettings:
        """Return these settings; secrets that are not set come from the ones before, for the same URL."""
        if before is None or before.url != self.url:
            return self
        secrets = before.secrets if self.secrets is None else self.secrets
        authorization = before.authorization if self.authorization is None else self.authorization
        return replace(self, secrets=secrets, authorization=authorization)

    def to_public(self) -> dict[str, Any]:
        """Return the settings without secrets: only how many there are."""
        shown: dict[str, Any] = {"url": self.url, "mode": self.mode}
        if self.mode == "batch":
            shown["batch_max"] = self.batch_max
        if self.authorization:
            shown["authorized"] = True
        return shown | {"requests_max": self.requests_max, "signed": len(self.secrets or ())}


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """A subscription's delivery settings; changing them needs no revision of the registry.

    The bounds in its types apply to settings from clients and in a registry.

    Attributes
    ----------
    ack_deadline_s
        Seconds until a message without an ack is redelivered, if its reader sets no deadline. Higher: fewer
        redeliveries to slow handlers. Lower: messages of a failed handler are redelivered sooner. None: the
        service's default.
    max_attempts
        Maximum delivery attempts of a message, which then becomes a dead letter. Higher: messages survive
        longer outages. Lower: a message that no reader can handle is set aside sooner. None: no maximum.
    retry_delays_s
        Seconds before a failed message is redelivered: after the first attempt, the second, and so on; the
        last value applies to all later attempts. Empty: at once.
    max_in_flight
        Maximum messages in flight, for all readers together. Higher: faster. Lower: less load behind the
        readers, and fewer attempts lost with readers that fail. None: only windows limit them.
    max_in_flight_bytes
        Maximum bytes of events in flight, for all readers together; a larger event is delivered alone.
        Lower: readers need less memory. None: only the windows of streams and pulls limit them.
    dead_letter
        Whether dead letters are kept in a list; otherwise they are dropped.
    paused
        Whether delivery is paused: matches are kept, and delivered once it is resumed.
    order_by
        An attribute of events. Events with the same value of it are delivered one at a time: the next one
        after the previous one is settled. None: failed messages are redelivered after younger ones.
    push
        The webhook that messages are sent to. None: readers fetch them.
    max_age_s
        Seconds after its append for which an event is delivered. Higher: readers that were offline miss less.
        Lower: they have less to catch up on. None: as long as the log keeps it.
    expires_unused_s
        Seconds of the service's running time without use (reading, settling, changing) after which the
        subscription is removed. None: never.
    pinned
        Whether the subscription stays at this broker when load is balanced, or the broker drained.
    paused_because
        Why the service itself has paused the subscription; only the service sets it.
    """

    ack_deadline_s: Annotated[float, Meta(gt=0, le=DEADLINE_MAX_S)] | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=ATTEMPTS_MAX)] | None = None
    retry_delays_s: Annotated[tuple[_Delay, ...], Meta(max_length=DELAYS_MAX)] = ()
    max_in_flight: Annotated[int, Meta(ge=1, le=IN_FLIGHT_MAX)] | None = None
    max_in_flight_bytes: Annotated[int, Meta(ge=1, le=IN_FLIGHT_MAX_BYTES)] | None = None
    dead_letter: bool = True
    paused: bool = False
    order_by: str | None = None
    push: PushSettings | None = None
    max_age_s: Annotated[float, Meta(gt=0, le=AGE_MAX_S)] | None = None
    expires_unused_s: Annotated[float, Meta(ge=UNUSED_MIN_S, le=UNUSED_MAX_S)] | None = None
    pinned: bool = False
    paused_because: str | None = None

    def changed(self) -> dict[str, Any]:
        """Return the settings that differ from their defaults."""
        given = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        return {name: value for name, (value, default) in given.items() if value != default}

    def to_wire(self) -> dict[str, Any]:
        """Return the changed settings as a client sends them to the service, secrets included."""
        said = self.changed()
        said.pop("paused_because", None)
        return said | ({"push": self.push.to_wire()} if self.push is not None else {})

    def to_public(self) -> dict[str, Any]:
        """Return the changed settings without secrets and without `paused_because`."""
        shown = self.changed()
        shown.pop("paused_because", None)
        return shown | ({"push": self.push.to_public()} if self.push is not None else {})

    def retry_delay_s(self, attempt: int) -> float:
        """Return the seconds that a message waits after failed attempt number ``attempt`` (from 1)."""
        delays = self.retry_delays_s
        return delays[min(attempt, len(delays)) - 1] if delays else 0.0


Labels = tuple[tuple[str, str], ...]
"""The labels of a subscription: pairs of key and value, sorted by key."""

LABELS_MAX = 32
"""Maximum labels of a subscription; more are refused."""

LABEL_KEY_MAX = 63
"""Maximum characters of a label's key."""

LABEL_VALUE_MAX = OWNER_MAX = 255
"""Maximum characters of a label's value, and of an owner."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription's current version: its filter and settings.

    ``number`` is the service's internal integer id, the same for all versions; ``revision`` is the registry
    revision that wrote this version. It matches no record before ``valid_from``, except in the replay of a
    subscription that was created with a ``start`` (a position in each partition): its first version also
    matches what the log held from there on. ``cost`` is the filter's cost, which its space's quotas count.
    ``owner`` (empty: none) and ``labels`` describe it for people; they need no revision of the registry.
    """

    id: str
    space: str
    filter: str
    dialect: str
    number: int
    revision: int
    valid_from: Offsets
    delivery: DeliverySettings = DeliverySettings()
    start: tuple[Position, ...] | None = None
    cost: int = 1
    owner: str = ""
    labels: Labels = ()

    @property
    def text_chars(self) -> int:
        """The characters of its filter, owner and labels, by which lists and caches are bounded."""
        return len(self.filter) + len(self.owner) + sum(len(key) + len(value) for key, value in self.labels)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter: a message's number of attempts, and why and when (ms since 1970) it was given up."""

    position: Position
    attempts: int
    reason: str
    dead_ms: int = 0


@dataclass(frozen=True, slots=True)
class Cursor:
    """The messages of a subscription that are acknowledged.

    In each partition of the log, all matches before the position in ``positions`` are; from there on, those
    within a range in ``acked`` (first and last position). Both are in order. From a partition without a
    position nothing has been read.

    Attributes
    ----------
    given
        A position per partition: messages before it without an ack were delivered once, unless ``attempts``
        has another number.
    attempts
        Messages with another number of delivery attempts than one, and that number.
    retried
        Dead letters that are to be redelivered.
    letters, settled
        Only in a cursor that is being saved, in the same transaction: new dead letters, and dead letters to
        remove from the list.
    """

    positions: tuple[Position, ...]
    acked: tuple[tuple[Position, Position], ...] = ()
    given: tuple[Position, ...] = ()
    attempts: tuple[tuple[Position, int], ...] = ()
    retried: tuple[Position, ...] = ()
    letters: tuple[DeadLetter, ...] = ()
    settled: tuple[Position, ...] = ()


@dataclass(frozen=True, slots=True)
class Backlog:
    """The messages that a subscription owes its readers.

    Attributes
    ----------
    pending
        Messages that matched and are not acked: in flight, waiting for redelivery, or not delivered yet.
        Events that are not matched yet are missing.
    is_exact
        Whether `pending` was counted; a large one is estimated.
    in_flight
        Number of messages that readers have not acknowledged.
    redeliveries
        Number of messages that wait to be redelivered.
    dead_letters
        Number of dead letters.
    readers
        Number of open streams, and of pulls under way.
    cursor
        A position for each partition: everything before it is settled.
    oldest_s
        Seconds since the oldest pending event was published; None if there is none.
    """

    pending: int
    is_exact: bool
    in_flight: int
    redeliveries: int
    dead_letters: int
    readers: int
    cursor: tuple[Position, ...]
    oldest_s: float | None


@dataclass(frozen=True, slots=True)
class SubscriptionBacklog:
    """The backlog of one subscription in a list that is sorted by backlog.

    Attributes
    ----------
    pending
        Number of messages that matched and are not acknowledged.
    is_exact
        Whether `pending` was counted; otherwise it is an estimate, after a seek or soon after a start.
    in_flight
        Number of messages that readers have not acknowledged.
    dead_letters
        Number of dead letters.
    readers
        Number of open streams, and of pulls under way.
    oldest_s
        Seconds since the oldest pending event was published, or one soon before it; None if there is none.
    """

    pending: int
    is_exact: bool
    in_flight: int
    dead_letters: int
    readers: int
    oldest_s: float | None


@dataclass(frozen=True, slots=True)
class SpaceBacklog:
    """The backlogs of all subscriptions of a space together.

    Attributes
    ----------
    space
        Name of the space.
    subscriptions
        Number of subscriptions.
    behind
        Number of subscriptions with pending messages.
    pending
        Number of messages that matched and are not acknowledged.
    is_exact
        Whether all of `pending` was counted; otherwise it is an estimate, after a seek or soon after a start.
    in_flight
        Number of messages that readers have not acknowledged.
    dead_letters
        Number of dead letters; some may be settled already.
    oldest_s
        Seconds since the oldest pending event was published, or one soon before it; None if there is none.
    stored_event_bytes
        Bytes of the events in the log.
    stored_match_bytes
        Bytes of the matches on disk.
    """

    space: str
    subscriptions: int = 0
    behind: int = 0
    pending: int = 0
    is_exact: bool = True
    in_flight: int = 0
    dead_letters: int = 0
    oldest_s: float | None = None
    stored_event_bytes: int = 0
    stored_match_bytes: int = 0
