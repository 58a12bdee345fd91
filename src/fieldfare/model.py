"""The words every part shares: an event, where it stands in the log, and a subscription."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NoReturn

Event = Mapping[str, Any]
"""One CloudEvent as its JSON object: context attributes at the top, the payload under ``data``."""

Path = tuple[str | int, ...]
"""The name of an attribute: the steps from the event's top, e.g. ``("data", "price")``.

A string step is a member of an object, an integer step an element of an array. What is computed from
attributes has a path, too: see ``derived_path``.
"""

DEFAULT_SPACE = "default"

_LATER = "#"
"""No space's name has this in it."""


def space_key(name: str, before: int) -> str:
    """What stands for a space in the log and the index: its name, unless there were others of it before."""
    return f"{name}{_LATER}{before}" if before else name


def space_name(key: str) -> str:
    """The name of the space that a key stands for."""
    return key.partition(_LATER)[0]


Offsets = tuple[int, ...]
"""An offset in each partition of the log, by the partition's number."""

OPEN_END = (1 << 63) - 1
"""The ``valid_to`` of a subscription version that nothing has replaced or removed yet."""


@dataclass(frozen=True, slots=True)
class Change:
    """One revision of the registry: a subscription's filter put (`filter` not None) or removed.

    It counts for events whose stamp is this revision or a later one. `compiled` is what a library made of the
    filter; without it the index has it compiled.
    """

    revision: int
    space: str
    number: int
    filter: str | None
    dialect: str | None = None
    compiled: bytes | None = None


_DIGITS_MAX = 18
"""What a database and an array can hold for sure."""

_SHOWN_MAX = 80


_DERIVED = -1
"""The first step of no attribute: an event is an object, and arrays have no such element."""


def derived_path(text: str) -> Path:
    """The name of what is computed from attributes, by the text of its expression.

    It stands where paths of attributes do: in normal forms, and in what an index compares.
    """
    return (_DERIVED, text)


def derived_text(path: Path) -> str | None:
    """The text that ``derived_path`` was given; None for the path of an attribute."""
    return str(path[1]) if path[0] == _DERIVED else None


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """Where one event stands in the log: partition, offset of its record, index in the record.

    Positions of one partition are totally ordered. As text: ``partition-offset-index``.
    """

    partition: int
    offset: int
    index: int

    def __str__(self) -> str:
        return f"{self.partition}-{self.offset}-{self.index}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Read the text form back; ValueError says what is wrong with it."""
        parts = text.split("-", 3)
        if len(parts) != 3 or not all(part.isascii() and part.isdigit() for part in parts):
            shown = text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."
            raise ValueError(f"a position is partition-offset-index, three whole numbers, not {shown!r}")
        if any(len(part) > _DIGITS_MAX for part in parts):
            raise ValueError(f"no number of a position has more than {_DIGITS_MAX} digits")
        return cls(*map(int, parts))


def positions_text(positions: Iterable[Position]) -> str:
    """One position for each partition of the log, as text: of a log with one, the position."""
    return ",".join(map(str, positions))


def positions_of(text: str) -> tuple[Position, ...]:
    """What `positions_text` wrote; ValueError if it is none."""
    return tuple(map(Position.parse, text.split(",")))


PushMode = Literal["structured", "binary", "batch"]


@dataclass(frozen=True, slots=True)
class PushSettings:
    """Where a subscription's messages are sent by HTTP, and how.

    Attributes
    ----------
    url
        The address.
    mode
        How the HTTP binding of CloudEvents writes them: an event as a JSON document, an event's data as body
        and its attributes as headers, or several events as a JSON array.
    batch_max
        Events of one request, where there may be several.
    requests_max
        Requests under way at a time. Up: faster. Down to one: in order, but for what failed.
    secrets
        What requests are signed with, each of them: two while one takes the other's place.
    authorization
        What receivers that ask for it are sent as the header of that name.

    The last two are shown to nobody; they are None where nothing was said of them.
    """

    url: str
    mode: PushMode = "structured"
    batch_max: int = 100
    requests_max: int = 1
    secrets: tuple[str, ...] | None = field(default=None, repr=False)
    authorization: str | None = field(default=None, repr=False)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a push address may have secrets, and is not pickled")

    def said(self) -> dict[str, Any]:
        """What is said of it, with what is secret: for the service that is told it, and nobody else."""
        given = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: value for name, value in given if value is not None}

    def kept(self, before: PushSettings | None) -> PushSettings:
        """These settings after those before: what is secret stays for the same address if nothing is said."""
        if before is None or before.url != self.url:
            return self
        secrets = before.secrets if self.secrets is None else self.secrets
        authorization = before.authorization if self.authorization is None else self.authorization
        return replace(self, secrets=secrets, authorization=authorization)

    def shown(self) -> dict[str, Any]:
        """What may be told of it: of the secrets how many there are."""
        shown: dict[str, Any] = {"url": self.url, "mode": self.mode}
        if self.mode == "batch":
            shown["batch_max"] = self.batch_max
        if self.authorization:
            shown["authorized"] = True
        return shown | {"requests_max": self.requests_max, "signed": len(self.secrets or ())}


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """How a subscription's messages are given; to change it takes no revision.

    Attributes
    ----------
    ack_deadline_s
        Seconds until a message that was not acked comes again, where its reader names none. Up: slow handlers
        see fewer repeats. Down: a dead handler's messages move on sooner. None: as the service is set.
    max_attempts
        How often a message is given before it is given up. Up: longer troubles are survived. Down: a message
        that nobody can handle is out of the way sooner. None: for ever.
    retry_delays_s
        Seconds before a message that failed comes again: the first time, the second, and so on; the last one
        counts for all later times. None at all: at once.
    max_in_flight
        Messages that all readers together may hold unacked. Up: faster. Down: gentler to what is behind the
        readers, and fewer attempts are used up by readers that die. None: as many as windows allow.
    max_in_flight_bytes
        Bytes of messages that all readers together may hold unacked, about; a message that is larger is given
        alone. Down: readers need less memory. None: as many as windows allow.
    dead_letter
        Whether what is given up is kept in a list. Else nothing is left of it.
    paused
        Whether nothing is given for the time being.
    order_by
        An attribute of events. Of those that have the same value there, one is given at a time: the next when
        the one before it is settled. None: messages that fail come later than younger ones.
    push
        Where messages are sent by HTTP. None: they are fetched.
    max_age_s
        Seconds after which an event is of no use to this subscription: one that was appended longer ago is
        not given any more. Up: less is lost to who was away. Down: who was away has less to catch up with.
        None: as long as the log keeps it.
    expires_unused_s
        Seconds of the service's running time after which the subscription is removed if nobody has used it
        meanwhile: read, settled or changed. None: it stays.
    paused_because
        Why the service itself has paused it; nobody else sets it.
    """

    ack_deadline_s: float | None = None
    max_attempts: int | None = None
    retry_delays_s: tuple[float, ...] = ()
    max_in_flight: int | None = None
    max_in_flight_bytes: int | None = None
    dead_letter: bool = True
    paused: bool = False
    order_by: str | None = None
    push: PushSettings | None = None
    max_age_s: float | None = None
    expires_unused_s: float | None = None
    paused_because: str | None = None

    def changed(self) -> dict[str, Any]:
        """Those that are not what they are by themselves."""
        given = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        return {name: value for name, (value, default) in given.items() if value != default}

    def said(self) -> dict[str, Any]:
        """The same as a client tells them to the service."""
        said = self.changed()
        said.pop("paused_because", None)
        return said | ({"push": self.push.said()} if self.push is not None else {})

    def shown(self) -> dict[str, Any]:
        """The same as they may be told: nothing secret, and only what can be set."""
        shown = self.changed()
        shown.pop("paused_because", None)
        return shown | ({"push": self.push.shown()} if self.push is not None else {})

    def retry_delay_s(self, attempt: int) -> float:
        """How long a message waits after this attempt, from 1, has failed."""
        delays = self.retry_delays_s
        return delays[min(attempt, len(delays)) - 1] if delays else 0.0


@dataclass(frozen=True, slots=True)
class Subscription:
    """One standing filter as it stands now.

    ``number`` is the service's own small integer for it, the same for all its versions; ``revision``
    is the registry revision that wrote this version. No record before ``valid_from`` meets it, but that what
    came before the first version meets that one from ``start`` on, where it was created with one: a position
    in each partition. ``cost`` is what the filter costs, for the quotas of its space.
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


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was given up: after how many attempts, why, and when (milliseconds since 1970)."""

    position: Position
    attempts: int
    reason: str
    dead_ms: int = 0


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a subscription has been acknowledged: one place for each partition of the log.

    All its matches before its partition's place in ``positions`` are; of those at or after it, the ones that
    lie in a run of ``acked``, each given by its first and its last position. Both in order; of a partition
    without a place nothing was read.

    Attributes
    ----------
    given
        By partition: what lies before and is not acked was given once, unless ``attempts`` says how often.
    attempts
        Of messages that were not given just once, how often they were.
    retried
        Messages that were given up, and are to be given all the same.
    letters, settled
        Only where a cursor is saved, in the same transaction: messages that were given up since, and those
        of all given up that nothing is to be kept of any more.
    """

    positions: tuple[Position, ...]
    acked: tuple[tuple[Position, Position], ...] = ()
    given: tuple[Position, ...] = ()
    attempts: tuple[tuple[Position, int], ...] = ()
    retried: tuple[Position, ...] = ()
    letters: tuple[DeadLetter, ...] = ()
    settled: tuple[Position, ...] = ()
