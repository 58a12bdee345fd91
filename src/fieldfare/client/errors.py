"""The client's exceptions, a class for each kind of failure.

Their messages are for people: what happened, where, and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fieldfare.model import Position

UNREADABLE = (
    *(LookupError, AttributeError, TypeError, ValueError, ArithmeticError, RecursionError),
    msgspec.DecodeError,
)
"""Errors of reading a document that has not the form that its reader knows."""


class FieldfareError(Exception):
    """The base class of this package's exceptions."""


class InvalidEvent(FieldfareError, ValueError):
    """An event that cannot be sent as it is; nothing has been sent."""


class InvalidName(FieldfareError, ValueError):
    """A name or an id that nothing of a service can have; nothing has been sent."""


class EncryptionError(FieldfareError, ValueError):
    """Something cannot be encrypted (nothing was sent), or cannot be decrypted."""


class ClientClosed(FieldfareError):
    """The client, publisher or subscriber was closed before this call."""


class WrongContext(FieldfareError):
    """A client, publisher or subscriber was used outside the process or event loop that it belongs to."""


class ConnectionFailed(FieldfareError):
    """The service was not reached, or the connection failed or timed out before the answer arrived.

    Attributes
    ----------
    url : str
        The address that was tried.
    """

    def __init__(self, message: str, url: str) -> None:
        super().__init__(message)
        self.url = url


class ServiceNotTrusted(ConnectionFailed):
    """The service's TLS certificate could not be verified; nothing was sent."""


class UnexpectedAnswer(FieldfareError):
    """An answer that is not fieldfare's: from another server or an intermediary."""


class DeliveryTimeout(FieldfareError):
    """A publish that was retried until its deadline and not acknowledged.

    Whether its events are in the log is unknown: an attempt may have succeeded although its answer was lost.
    ``__cause__`` is the last attempt's error.
    """


class FlushTimeout(FieldfareError):
    """A flush that timed out; its events or acks are still being sent in the background."""


class OutboxError(FieldfareError):
    """An outbox that cannot be opened, read or written; ``path`` is its file."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(f"the outbox {path} {message}")
        self.path = path


class OutboxInUse(OutboxError):
    """An outbox that another publisher, in this program or another, has open."""


class OutboxFull(OutboxError):
    """An outbox without room for more events, where waiting is not possible or would not help."""


class QueueFull(FieldfareError):
    """The publisher's queue in memory is full: the event was not queued and will not be sent."""


class KeptInOutbox(FieldfareError):
    """The publisher was closed before the service acknowledged the event, which stays in the outbox and is
    sent when a publisher opens that again."""


class ApiError(FieldfareError):
    """The service refused a request.

    Attributes
    ----------
    status : int
        The HTTP status.
    title, detail : str
        The kind of error, and what is wrong in this case.
    hint : str or None
        What to do about it, if the service knows.
    place : str or None
        Where in the request the error is: index of the item, line and column, or a JSON pointer.
    problem : Mapping[str, Any]
        The complete problem+json object.
    retry_after_s : float or None
        Seconds after which the service asks for a retry (status 429 and 503).
    request_id : str
        The request's id in the service's log; empty if the answer has none.
    """

    def __init__(
        self,
        status: int,
        problem: Mapping[str, Any],
        retry_after_s: float | None = None,
        request_id: str = "",
    ) -> None:
        self.status = status
        self.request_id = request_id
        self.problem = problem
        self.retry_after_s = retry_after_s
        self.title = str(problem.get("title") or f"HTTP status {status}")
        self.detail = str(problem.get("detail") or "")
        self.hint = _text_or_none(problem.get("hint"))
        self.place = describe_place(problem)
        super().__init__(self._message())

    def _message(self) -> str:
        message = self.title
        if self.place and not self.detail.endswith(f", at {self.place}."):
            message += f" (at {self.place})"
        if self.detail and self.detail != self.title:
            message += f": {self.detail}"
        if self.status >= 500 and self.request_id:
            message += f" (request {self.request_id})"
        if self.hint:
            message += f"\nhint: {self.hint}"
        return message


MOVED = "urn:fieldfare:problem:moved"


class SubscriptionMoved(ApiError):
    """The subscription is at another broker now; subscribers go there by themselves.

    Attributes
    ----------
    id, broker, url : str
        The subscription, and the name and address of the service where it is read.
    token : str
        A key for this one subscription there.
    """

    def __init__(
        self,
        status: int,
        problem: Mapping[str, Any],
        retry_after_s: float | None = None,
        request_id: str = "",
    ) -> None:
        super().__init__(status, problem, retry_after_s, request_id)
        self.id, self.broker, self.url, self.token = (
            str(problem.get(name, "")) for name in ("id", "broker", "url", "token")
        )


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refused item of a batch (an event or a subscription), with the reason."""

    index: int
    detail: str
    place: str | None = None
    hint: str | None = None
    id: str | None = None

    def __str__(self) -> str:
        name = f" ({self.id})" if self.id else ""
        place = f" at {self.place}" if self.place else ""
        hint = f" (hint: {self.hint})" if self.hint else ""
        return f"item {self.index}{name}{place}: {self.detail}{hint}"


class PublishError(FieldfareError):
    """Some events of a publish call are not in the log; every event is in one of the three lists.

    Attributes
    ----------
    accepted : tuple of (int, Position)
        Index in the call and position of each durable event.
    refused : tuple of Refusal
        The events that the service refused, ordered by their index in the call.
    unknown : tuple of int
        Indexes of the events whose requests failed (see ``__cause__``); they may or may not be in the log.
    """

    def __init__(
        self,
        accepted: Sequence[tuple[int, Position]],
        refused: Sequence[Refusal],
        unknown: Sequence[int] = (),
    ) -> None:
        self.accepted = tuple(accepted)
        self.refused = tuple(refused)
        self.unknown = tuple(unknown)
        super().__init__(self._message())

    def _message(self) -> str:
        if len(self.refused) == 1 and not self.accepted and not self.unknown:
            only = self.refused[0]
            place = f" at {only.place}" if only.place else ""
            hint = f"\nhint: {only.hint}" if only.hint else ""
            return f"the service refused the event{place}: {only.detail}{hint}"
        total = len(self.accepted) + len(self.refused) + len(self.unknown)
        parts = []
        if self.refused:
            more = f"; and {len(self.refused) - 3:,} more" if len(self.refused) > 3 else ""
            shown = "; ".join(map(str, self.refused[:3])) + more
            parts.append(f"{len(self.refused):,} of {total:,} events were refused: {shown}")
        if self.unknown:
            parts.append(f"{len(self.unknown):,} of {total:,} events were not acknowledged")
        return "; ".join(parts)


class SubscriptionDeleted(FieldfareError):
    """The subscription was deleted while a subscriber was reading it."""


class SubscriptionsRefused(FieldfareError):
    """Some subscriptions of a bulk call were refused; the others are stored.

    Attributes
    ----------
    stored : int
        Number of subscriptions stored.
    refused : tuple of Refusal
        The others, ordered by their index in the call.
    """

    def __init__(self, stored: int, refused: Sequence[Refusal]) -> None:
        self.stored = stored
        self.refused = tuple(refused)
        more = f"; and {len(self.refused) - 3:,} more" if len(self.refused) > 3 else ""
        shown = "; ".join(map(str, self.refused[:3])) + more
        super().__init__(
            f"{len(self.refused):,} of {stored + len(self.refused):,} subscriptions were refused: {shown}"
        )


def describe_place(problem: Mapping[str, Any]) -> str | None:
    """Return the place that a problem names, such as ``item 3, line 1, column 14``; None without one."""
    parts = []
    if isinstance(problem.get("index"), int):
        parts.append(f"item {problem['index']}")
    line, column = problem.get("line"), problem.get("column")
    if isinstance(line, int) and isinstance(column, int):
        parts.append(f"line {line}, column {column}")
    elif isinstance(column, int):
        parts.append(f"column {column}")
    pointer = _text_or_none(problem.get("pointer"))
    if pointer:
        parts.append(pointer)
    return ", ".join(parts) or None


def read_refusal(item: Mapping[str, Any], index: int | None = None) -> Refusal:
    """Return the `Refusal` for an entry of the service's ``refused`` list."""
    place = describe_place({key: value for key, value in item.items() if key != "index"})
    return Refusal(
        index=int(item["index"]) if index is None else index,
        detail=str(item.get("detail") or "refused"),
        place=place,
        hint=_text_or_none(item.get("hint")),
        id=_text_or_none(item.get("id")),
    )


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
