"""The HTTP API as values: an `ApiCall` is a request and the function that reads its answer.

Nothing here does I/O. The synchronous and the asyncio client differ only in how they send a request, so the
path, body and errors of each call are defined once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from email.utils import parsedate_to_datetime
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

import msgspec

from fieldfare.client.errors import (
    MOVED,
    UNREADABLE,
    ApiError,
    Refusal,
    SubscriptionMoved,
    UnexpectedAnswer,
    read_refusal,
)
from fieldfare.client.paths import path_segment, space_path
from fieldfare.client.records import (
    BulkStored,
    DeadMessage,
    FilterWarning,
    KeyInfo,
    NewKey,
    NewSubscription,
    PastInfo,
    PulledMessage,
    SubscriptionInfo,
)
from fieldfare.client.verdict import Verdict
from fieldfare.model import Backlog, DeliverySettings, Position, PushSettings, positions_of

Result = TypeVar("Result")

LINES_CONTENT = ("content-type", "application/x-ndjson")
ARROW_CONTENT = ("content-type", "application/vnd.apache.arrow.stream")
BULK_MAX = 10_000
"""Maximum subscriptions per bulk request; larger calls are split."""

POSITIONS_MAX = 10_000
"""Maximum positions per request; larger calls are split. The service accepts twice as many."""

RETRIED_MAX = 1_000
"""Maximum dead letters per retry request; larger calls are split."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response: status, headers (names in lower case) and the complete body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class ApiCall(Generic[Result]):
    """One request, and the function that converts a successful answer to its result.

    ``extra_wait_s``: seconds that the service may take in addition to the timeout (a pull that waits).
    """

    method: str
    path: str
    read: Callable[[Answer], Result]
    content: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()
    good_statuses: frozenset[int] = frozenset({200, 201, 204})
    extra_wait_s: float = 0.0

    def interpret(self, answer: Answer) -> Result:
        """Return the call's result; ApiError or UnexpectedAnswer if the answer is not a success."""
        if answer.status not in self.good_statuses:
            raise read_error(answer)
        try:
            return self.read(answer)
        except UNREADABLE as error:
            done = "" if self.method == "GET" else "; the request may have been carried out"
            raise UnexpectedAnswer(
                f"the answer to {self.method} {self.path} has an unexpected form"
                f" ({type(error).__name__}: {error}): {_beginning(answer.body)}{done}\n"
                "hint: check that the URL is that of a fieldfare service, of the same version as the client"
            ) from None


@dataclass(frozen=True, slots=True)
class PublishAnswer:
    """The outcome of a batch: a position for each event, None if it was refused.

    ``keeps_order``: the service has applied the header ``fieldfare-follows``; older services ignore it.
    """

    positions: list[Position | None]
    refused: dict[int, Refusal] = field(default_factory=dict)
    duplicate: bool = False
    keeps_order: bool = False

    @property
    def is_taken(self) -> bool:
        """Whether the log has at least one event of the batch."""
        return len(self.refused) < len(self.positions)


def read_error(answer: Answer) -> ApiError | UnexpectedAnswer:
    """Return the error for an answer; every refusal of the service is problem+json."""
    retry_after_s = _read_retry_after(answer.headers)
    request_id = answer.headers.get("x-request-id", "")
    try:
        problem = msgspec.json.decode(answer.body)
    except (ValueError, RecursionError):
        problem = None
    if isinstance(problem, dict):
        kind = SubscriptionMoved if problem.get("type") == MOVED else ApiError
        return kind(answer.status, problem, retry_after_s, request_id)
    if answer.status == 429 or answer.status >= 500:
        # An error page of a proxy: its status is clear, and the error may be temporary.
        return ApiError(answer.status, {"detail": _beginning(answer.body)}, retry_after_s, request_id)
    return UnexpectedAnswer(
        f"the answer (status {answer.status}) is not from fieldfare: {_beginning(answer.body)}\n"
        "hint: check the URL"
    )


def publish_lines(space: str, lines: Sequence[bytes], producer: str, sequence: int) -> ApiCall[PublishAnswer]:
    """Publish a batch, one event per line; a repeat with the same producer and sequence has no effect.

    The body is JSON lines and not a JSON array, so that an event with invalid JSON affects only its own line.
    """
    body = b"\n".join([*lines, b""])
    return _publish(space, LINES_CONTENT, body, len(lines), producer, sequence)


def publish_stream(
    space: str, body: bytes, count: int, producer: str, sequence: int
) -> ApiCall[PublishAnswer]:
    """Publish the rows of an Arrow stream, ``count`` events.

    A repeat with the same producer and sequence has no effect.
    """
    return _publish(space, ARROW_CONTENT, body, count, producer, sequence)


def _publish(
    space: str, content_type: tuple[str, str], body: bytes, count: int, producer: str, sequence: int
) -> ApiCall[PublishAnswer]:
    return ApiCall(
        "POST",
        f"{space_path(space)}/events",
        lambda answer: _read_publish(answer, count),
        content=body,
        headers=(content_type, ("fieldfare-producer", producer), ("fieldfare-sequence", str(sequence))),
        # 400 and 413 are regular answers if they list refused events, which _read_publish checks.
        good_statuses=frozenset({200, 207, 400, 413}),
    )


def _read_publish(answer: Answer, count: int) -> PublishAnswer:
    problem = read_object(answer) if answer.status < 400 else _object_or_empty(answer)
    refused = {int(item["index"]): read_refusal(item) for item in problem.get("refused", ())}
    if answer.status >= 400:
        if not refused:
            raise read_error(answer)
        # All events were refused. The service cuts a long list short; the rest gets the answer's detail.
        detail = str(problem.get("detail") or "refused")
        return PublishAnswer([None] * count, {i: refused.get(i) or Refusal(i, detail) for i in range(count)})
    duplicate, keeps_order = bool(problem.get("duplicate")), "follows" in problem
    if answer.status == 200:
        if problem["count"] != count:
            raise ValueError(f"{problem['count']} events were accepted, {count} were sent")
        partition, offset = int(problem["partition"]), int(problem["offset"])
        return PublishAnswer(
            [Position(partition, offset, index) for index in range(count)], {}, duplicate, keeps_order
        )
    positions: list[Position | None] = [None] * count
    for item in problem["accepted"]:
        positions[item["index"]] = Position.parse(item["position"])
    unaccounted = sum(position is None for position in positions) - len(refused)
    if unaccounted:
        raise ValueError(f"{unaccounted} events are neither accepted nor refused")
    return PublishAnswer(positions, refused, duplicate, keeps_order)


def following(call: ApiCall[PublishAnswer], follows: int | None) -> ApiCall[PublishAnswer]:
    """Return the call with a header: append the batch only after the sequence ``follows`` (-1: as the first).

    None leaves the call as it is.
    """
    if follows is None:
        return call
    return replace(call, headers=(*call.headers, ("fieldfare-follows", str(follows))))


def create_space(name: str, encryption: Mapping[str, Any] | None = None) -> ApiCall[str]:
    """Create a space; ``encryption`` has the parameters of an encrypted one."""
    body: dict[str, Any] = {"name": name} | ({} if encryption is None else {"encryption": encryption})
    return ApiCall("POST", "/v1/spaces", lambda answer: name, *json_body(body))


def delete_space(name: str) -> ApiCall[None]:
    """Delete a space."""
    return ApiCall("DELETE", space_path(name), lambda answer: None)


def list_spaces() -> ApiCall[list[str]]:
    """List the names of all spaces."""
    return ApiCall("GET", "/v1/spaces", _read_spaces)


def read_quotas(space: str) -> ApiCall[dict[str, Any]]:
    """Read the quotas and the usage of a space."""
    return ApiCall("GET", f"{space_path(space)}/quotas", read_object)


def set_quotas(space: str, quotas: Mapping[str, float | None]) -> ApiCall[dict[str, Any]]:
    """Set all quotas of a space; ValueError for NaN and infinity, which JSON does not have."""
    for name, value in quotas.items():
        if value is not None and not math.isfinite(value):
            raise ValueError(f"the quota {name} must be a finite number, not {value}; 0 means no bound")
    return ApiCall("PUT", f"{space_path(space)}/quotas", read_object, *json_body(dict(quotas)))


def _read_spaces(answer: Answer) -> list[str]:
    value = msgspec.json.decode(answer.body)
    items = value["spaces"] if isinstance(value, dict) else value
    return [item["name"] if isinstance(item, dict) else str(item) for item in items]


def create_subscription(space: str, new: NewSubscription) -> ApiCall[SubscriptionInfo]:
    """Create a subscription; an id that exists is refused with status 409."""
    return ApiCall("POST", subscriptions_path(space), _read_subscription, *json_body(_describe_new(new)))


def create_subscriptions(
    space: str, items: Sequence[NewSubscription], replace: bool = True
) -> ApiCall[BulkStored]:
    """Create at most `BULK_MAX` subscriptions in one transaction, or replace existing ones."""
    listed = [_describe_new(item) for item in items]
    body = {"subscriptions": listed} if replace else {"subscriptions": listed, "replace": False}
    good = frozenset({200, 201, 207})
    return ApiCall("POST", subscriptions_path(space), _read_bulk, *json_body(body), good_statuses=good)


def _read_bulk(answer: Answer) -> BulkStored:
    value = read_object(answer)
    # A bulk call may be a repeat, so subscriptions that existed already count as stored.
    stored = int(value["created"]) + int(value.get("replaced", 0)) + int(value.get("unchanged", 0))
    refused = tuple(read_refusal(item) for item in value.get("refused", ()))
    return BulkStored(stored, refused, _read_warnings(value))


def put_subscription(space: str, id: str, new: NewSubscription) -> ApiCall[SubscriptionInfo]:
    """Create or replace the subscription with this id."""
    body = _describe_new(new)
    return ApiCall("PUT", subscription_path(space, id), _read_subscription, *json_body(body))


def get_subscription(space: str, id: str, sites_wait_s: float | None = None) -> ApiCall[SubscriptionInfo]:
    """Read one subscription, once it counts at all sites or ``sites_wait_s`` seconds are over."""
    query = "" if sites_wait_s is None else f"?sites_wait_s={sites_wait_s:.3f}"
    path = subscription_path(space, id) + query
    return ApiCall("GET", path, _read_subscription, extra_wait_s=sites_wait_s or 0.0)


def delete_subscription(space: str, id: str) -> ApiCall[None]:
    """Delete a subscription."""
    return ApiCall("DELETE", subscription_path(space, id), lambda answer: None)


def pull(
    space: str, id: str, max_messages: int, wait_s: float, ack_deadline_s: float | None
) -> ApiCall[list[PulledMessage]]:
    """Fetch at most ``max_messages`` messages; the service waits up to ``wait_s`` seconds for the first."""
    body = {"max": max_messages, "wait_s": wait_s}
    if ack_deadline_s is not None:
        body["ack_deadline_s"] = ack_deadline_s
    return ApiCall(
        "POST", f"{subscription_path(space, id)}/pull", _read_pull, *json_body(body), extra_wait_s=wait_s
    )


class _PulledItem(msgspec.Struct):
    position: str
    event: msgspec.Raw
    attempt: int = 1


class _PullBody(msgspec.Struct):
    messages: list[_PulledItem]


_pull_decoder = msgspec.json.Decoder(_PullBody)


def _read_pull(answer: Answer) -> list[PulledMessage]:
    items = _pull_decoder.decode(answer.body).messages
    return [PulledMessage(Position.parse(item.position), bytes(item.event), item.attempt) for item in items]


def cut_positions(positions: Sequence[Position], most: int = POSITIONS_MAX) -> Iterator[Sequence[Position]]:
    """Split positions into pieces of at most ``most``, one per request; no positions give one empty piece."""
    yield positions[:most]
    for start in range(most, len(positions), most):
        yield positions[start : start + most]


def acknowledge(space: str, id: str, positions: Sequence[Position]) -> ApiCall[None]:
    """Acknowledge messages; durable when answered."""
    body = {"positions": [str(position) for position in positions]}
    return ApiCall("POST", f"{subscription_path(space, id)}/ack", lambda answer: None, *json_body(body))


def acknowledge_up_to(space: str, id: str, position: Position) -> ApiCall[None]:
    """Acknowledge every message up to and including this position; durable when answered."""
    return ApiCall(
        "POST",
        f"{subscription_path(space, id)}/ack",
        lambda answer: None,
        *json_body({"up_to": str(position)}),
    )


_SETTINGS = {"nack": "delay_s", "extend": "ack_deadline_s", "terminate": "reason"}


def tell(space: str, id: str, positions: Sequence[Position], verdict: Verdict) -> ApiCall[None]:
    """Nack, extend or terminate messages."""
    body: dict[str, Any] = {"positions": [str(position) for position in positions]}
    if verdict.value is not None:
        body[_SETTINGS[verdict.verb]] = verdict.value
    return ApiCall(
        "POST", f"{subscription_path(space, id)}/{verdict.verb}", lambda answer: None, *json_body(body)
    )


def configure(space: str, id: str, settings: Mapping[str, Any]) -> ApiCall[SubscriptionInfo]:
    """Change delivery settings, ``owner`` and ``labels`` of a subscription."""
    delivery = {name: value for name, value in settings.items() if name not in _TAGS}
    body = {name: settings[name] for name in _TAGS if name in settings}
    push = delivery.get("push")
    if isinstance(push, PushSettings):
        delivery["push"] = push.to_wire()
    if delivery or not body:
        body["delivery"] = delivery
    return ApiCall("PATCH", subscription_path(space, id), _read_subscription, *json_body(body))


_TAGS = ("owner", "labels")


def get_backlog(space: str, id: str) -> ApiCall[Backlog]:
    """Count the messages that a subscription owes its readers."""
    return ApiCall("GET", f"{subscription_path(space, id)}/backlog", _read_backlog)


def _read_backlog(answer: Answer) -> Backlog:
    value = read_object(answer)
    known = {each.name: value[each.name] for each in fields(Backlog)}
    return Backlog(**known | {"cursor": positions_of(value["cursor"])})


def seek(space: str, id: str, to: str) -> ApiCall[tuple[Position, ...]]:
    """Move a subscription's cursor; the result is the new cursor."""
    return ApiCall(
        "POST",
        f"{subscription_path(space, id)}/seek",
        lambda answer: positions_of(read_object(answer)["cursor"]),
        *json_body({"to": to}),
    )


def list_dead_letters(
    space: str, id: str, after: str | None, limit: int
) -> ApiCall[tuple[list[DeadMessage], str | None]]:
    """Read a page of dead letters, and the ``after`` of the next page (None: no more)."""
    query = {"limit": str(limit)} | ({"after": after} if after is not None else {})
    return ApiCall("GET", f"{_dead_letters_path(space, id)}?{urlencode(query)}", _read_dead_letters)


class _DeadItem(msgspec.Struct):
    position: str
    attempts: int
    reason: str
    dead_ms: int
    event: msgspec.Raw


class _DeadPage(msgspec.Struct):
    dead_letters: list[_DeadItem]
    next: str | None


_dead_decoder = msgspec.json.Decoder(_DeadPage)


def _read_dead_letters(answer: Answer) -> tuple[list[DeadMessage], str | None]:
    page = _dead_decoder.decode(answer.body)
    found = [
        DeadMessage(
            Position.parse(item.position),
            None if bytes(item.event) == b"null" else bytes(item.event),
            item.attempts,
            item.reason,
            item.dead_ms,
        )
        for item in page.dead_letters
    ]
    return found, page.next


def retry_dead_letters(space: str, id: str, positions: Sequence[Position] | None) -> ApiCall[tuple[int, int]]:
    """Redeliver dead letters; the result is how many are, and how many are left."""
    body = {} if positions is None else {"positions": [str(position) for position in positions]}
    return ApiCall("POST", f"{_dead_letters_path(space, id)}/retry", _read_retried, *json_body(body))


def _read_retried(answer: Answer) -> tuple[int, int]:
    value = read_object(answer)
    return int(value["retried"]), int(value["left"])


def clear_dead_letters(space: str, id: str) -> ApiCall[int]:
    """Remove all dead letters of a subscription; the result is how many there were."""
    return ApiCall(
        "DELETE", _dead_letters_path(space, id), lambda answer: int(read_object(answer)["removed"])
    )


def _dead_letters_path(space: str, id: str) -> str:
    return f"{subscription_path(space, id)}/dead-letters"


def stream_path(space: str, id: str, window: int, ack_deadline_s: float | None) -> str:
    """Return the path and query of a subscription's stream of server-sent events."""
    query = {"window": str(window)}
    if ack_deadline_s is not None:
        query["ack_deadline_s"] = f"{ack_deadline_s:g}"
    return f"{subscription_path(space, id)}/stream?{urlencode(query)}"


def explain_filter(space: str, filter: str, dialect: str, sample_events: int) -> ApiCall[dict[str, Any]]:
    """Explain a filter against the newest events of a space."""
    body = {"filter": filter, "dialect": dialect, "space": space, "sample_events": sample_events}
    return ApiCall("POST", "/v1/filters:explain", read_object, *json_body(body))


def brokers() -> ApiCall[dict[str, Any]]:
    """Return the state of the service's links to other brokers."""
    return ApiCall("GET", "/v1/brokers", read_object)


def remove_broker(name: str) -> ApiCall[None]:
    """Remove a broker that is gone for good."""
    return ApiCall("DELETE", f"/v1/brokers/{path_segment(name)}", lambda answer: None)


def list_quarantine() -> ApiCall[list[dict[str, Any]]]:
    """List the quarantined records: those that could not be matched."""
    return ApiCall("GET", "/v1/quarantine", lambda answer: list(read_object(answer)["quarantine"]))


def retry_quarantined(position: str) -> ApiCall[dict[str, Any]]:
    """Publish the events of a quarantined record again."""
    return ApiCall("POST", f"/v1/quarantine/{path_segment(position)}/retry", read_object)


def create_key(rights: Sequence[str], space: str | None, note: str) -> ApiCall[NewKey]:
    """Create an API key."""
    body = {"rights": list(rights), "space": space, "note": note}
    return ApiCall("POST", "/v1/keys", _read_new_key, *json_body(body))


def list_keys() -> ApiCall[list[KeyInfo]]:
    """List the API keys that the caller's key may manage."""
    return ApiCall("GET", "/v1/keys", lambda answer: list(map(_make_key, read_object(answer)["keys"])))


def revoke_key(id: str) -> ApiCall[None]:
    """Revoke an API key."""
    return ApiCall("DELETE", f"/v1/keys/{path_segment(id)}", lambda answer: None)


def _read_new_key(answer: Answer) -> NewKey:
    value = read_object(answer)
    return NewKey(_make_key(value), value["key"])


def _make_key(value: Mapping[str, Any]) -> KeyInfo:
    names = ("id", "space", "rights", "note", "created_ms", "created_by")
    found = {name: value[name] for name in names}
    return KeyInfo(**found | {"rights": tuple(found["rights"])})


def subscriptions_path(space: str) -> str:
    """Return the path of a space's subscriptions."""
    return f"{space_path(space)}/subscriptions"


def subscription_path(space: str, id: str) -> str:
    return f"{subscriptions_path(space)}/{path_segment(id)}"


def json_body(value: object) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    """Return the content and headers of a request with a JSON body."""
    return msgspec.json.encode(value), (("content-type", "application/json"),)


def _describe_new(new: NewSubscription) -> dict[str, Any]:
    body: dict[str, Any] = {"filter": new.filter, "dialect": new.dialect}
    if new.delivery is not None:
        given = new.delivery
        body["delivery"] = given.to_wire() if isinstance(given, DeliverySettings) else dict(given)
    if new.start is not None:
        body["start"] = str(new.start)
    if new.owner is not None:
        body["owner"] = new.owner
    if new.labels is not None:
        body["labels"] = dict(new.labels)
    return body if new.id is None else {"id": new.id, **body}


def _read_subscription(answer: Answer) -> SubscriptionInfo:
    return make_subscription(read_object(answer))


def make_subscription(value: Mapping[str, Any]) -> SubscriptionInfo:
    """Return a subscription from the document of an answer."""
    return SubscriptionInfo(
        id=value["id"],
        space=value["space"],
        filter=value["filter"],
        dialect=value["dialect"],
        revision=value["revision"],
        valid_from=positions_of(value["valid_from"]),
        delivery=msgspec.convert(value.get("delivery", {}), DeliverySettings),
        start=positions_of(value["start"]) if "start" in value else None,
        past=_make_past(value["past"]) if "past" in value else None,
        document=value,
        warnings=_read_warnings(value),
        owner=value.get("owner"),
        labels=value.get("labels", {}),
    )


def _read_warnings(value: Mapping[str, Any]) -> tuple[FilterWarning, ...]:
    return tuple(
        FilterWarning(item["detail"], item.get("hint"), item.get("id")) for item in value.get("warnings", ())
    )


def _make_past(value: Mapping[str, Any]) -> PastInfo:
    return PastInfo(
        kept_from=positions_of(value["kept_from"]),
        matched_to=positions_of(value["matched_to"]),
        to=positions_of(value["to"]),
        is_matched=value["is_matched"],
    )


def read_object(answer: Answer) -> dict[str, Any]:
    value = msgspec.json.decode(answer.body)
    if not isinstance(value, dict):
        raise TypeError("not a JSON object")
    return value


def _object_or_empty(answer: Answer) -> dict[str, Any]:
    try:
        return read_object(answer)
    except (TypeError, msgspec.DecodeError):
        return {}


def _read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Return Retry-After in seconds; a date is compared with the answer's Date, not with the local clock."""
    text = headers.get("retry-after")
    if text is None:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        moment = parsedate_to_datetime(text)
        return max(0.0, (moment - parsedate_to_datetime(headers["date"])).total_seconds())
    except (KeyError, TypeError, ValueError):
        return None


def _beginning(body: bytes) -> str:
    text = body[:200].decode("utf-8", "replace").strip()
    return repr(text + ("..." if len(body) > 200 else "")) if text else "an empty body"
