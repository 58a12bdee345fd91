"""Help with filters over HTTP: check, explain, test, convert. These routes change no state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.filters import Filter, FilterError
from fieldfare.filters.evaluator import event_getter
from fieldfare.filters.expression import walk
from fieldfare.filters.help import check, convert, explain, trace
from fieldfare.filters.help.documents import (
    CheckDocument,
    ExplanationDocument,
    TestedDocument,
    check_document,
    explanation_document,
    trace_document,
)
from fieldfare.gateway.admission.bodies import Bodies, parse_json
from fieldfare.gateway.admission.callers import Caller, Right, caller_of
from fieldfare.gateway.event_samples import SampleSize, newest_events
from fieldfare.gateway.fair_limiter import FairExecutor, ThreadsClosed
from fieldfare.gateway.filter_texts import RefusedFilter, compile_checked, refuse_text
from fieldfare.gateway.filter_warnings import AttributeDocument, FilterWarnings
from fieldfare.gateway.openapi.from_types import described
from fieldfare.gateway.openapi.schemas import DIALECT, FILTER
from fieldfare.gateway.openapi.words import Json, answer, json_body, operation
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.routes.requests import json_response, unless_gone
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.storage.event_log import EventReader

EVENTS_MAX = 1_000
"""Maximum events of one request, and of a sample; a request with more is refused."""

TRACED_PARTS_MAX = 50_000
"""Maximum filter parts traced for a request's events; for further events only the match is reported."""

TRACED_STEPS_MAX = 100_000
"""Maximum steps (`filters.work`) of an event that is traced part by part; for one with more, only the match
is reported."""

STEPS_MAX = 20_000_000
"""Maximum steps of all events of one request together, about ten seconds. A test with more is refused; a
space's sample is cut off before it."""

Body = TypeVar("Body")


class CheckBody(msgspec.Struct, forbid_unknown_fields=True):
    """A filter to check."""

    filter: Any
    dialect: str = "sql"


class ExplainBody(CheckBody, forbid_unknown_fields=True):
    """A filter to explain."""

    space: Annotated[
        str | None,
        "Name of a space whose newest events are the sample; null: no sample, unless there are `events`.",
    ] = None
    sample_events: Annotated[int, "Maximum number of the space's events in the sample."] = EVENTS_MAX
    events: Annotated[list[dict[str, Any]] | None, "Events that are the sample, in place of a space's."] = (
        None
    )


class TestBody(CheckBody, forbid_unknown_fields=True, kw_only=True):
    """A filter and events to test it against."""

    events: Annotated[list[dict[str, Any]], "The events; attributes that CloudEvents require may be missing."]


class ConvertBody(CheckBody, forbid_unknown_fields=True):
    """A filter to convert."""

    to: Annotated[str, "The target dialect."] = "sql"


class AttributesDocument(msgspec.Struct):
    attributes: Annotated[list[AttributeDocument], "The attributes."]
    events: Annotated[int, "Number of events that were looked at."]


class TestDocument(msgspec.Struct):
    matched: Annotated[int, "Number of events that match."]
    results: Annotated[list[TestedDocument], "Result of each event, in the order of the request."]


class ConvertedDocument(msgspec.Struct):
    filter: Annotated[str, "Text of the converted filter."]
    dialect: Annotated[str, "Dialect of the converted filter: sql."]


def _takes(kind: type, example: Json, **members: Json) -> Json:
    """Describe a body with a filter."""
    request = described(kind, filter=FILTER, dialect=DIALECT, **members)
    return json_body(request, {"filter": "data.symbol = 'YHOO' AND data.price < 18.5", **example})


class Stopped(Exception):
    """The client has disconnected, or the gateway stops: no response is needed."""


class WantedEvents(list[dict[str, Any]]):
    """A list of events whose iteration raises Stopped once the client no longer waits for the response."""

    def __init__(self, events: list[dict[str, Any]], check: Callable[[], None]) -> None:
        super().__init__(events)
        self._check = check

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for event in super().__iter__():
            self._check()
            yield event


@dataclass(frozen=True, slots=True)
class FilterRoutes:
    """Routes that help with filters; the work runs on threads, and stops when its client disconnects."""

    subscriptions: Subscriptions
    log: EventReader
    warnings: FilterWarnings
    bodies: Bodies
    threads: FairExecutor
    filter_max_bytes: int

    @operation(
        answer(
            "The attributes, sorted by name.",
            AttributesDocument,
            {"attributes": [{"name": "data.price", "type": "number", "events": 98}], "events": 100},
        ),
        "404",
    )
    async def list_attributes(self, request: Request) -> Response:
        """List the attributes of a space's newest events.

        The names that filters of the space can use, from at most 100 events, read at most every ten seconds.
        Attributes in arrays are not listed, nor are those of an encrypted space.
        """
        key = self.subscriptions.check_space(request.path_params["space"])
        if self.subscriptions.encryption(key) is not None:
            return json_response(AttributesDocument([], 0))
        found, events = await self.threads.run(_owner(request), self.warnings.attributes, key)
        return json_response(AttributesDocument(found, events))

    @operation(
        answer("All errors of the filter, and warnings. A filter with errors also gets 200.", CheckDocument),
        "400",
        takes=_takes(CheckBody, {}),
    )
    async def check_filter(self, request: Request) -> Response:
        """Check a filter for errors."""
        return await self._answer(request, CheckBody, lambda body, check: self._check(body))

    @operation(
        answer("The explanation; with events or a space, also how many events match.", ExplanationDocument),
        "400 404",
        takes=_takes(
            ExplainBody,
            {"space": "default"},
            sample_events={"minimum": 0, "maximum": EVENTS_MAX},
            events={"maxItems": EVENTS_MAX},
        ),
    )
    async def explain_filter(self, request: Request) -> Response:
        """Explain what a filter matches and how the index searches for it."""
        caller = caller_of(request)

        def explained(body: ExplainBody, check: Callable[[], None]) -> ExplanationDocument:
            return self._explain(body, caller, check)

        return await self._answer(request, ExplainBody, explained)

    @operation(
        answer(
            "The result for each event. Once a request has taken much work, the results of its further events"
            " have only `matches`.",
            TestDocument,
        ),
        "400",
        takes=_takes(
            TestBody,
            {"events": [{"type": "trade", "data": {"symbol": "YHOO", "price": 20}}]},
            events={"maxItems": EVENTS_MAX},
        ),
    )
    async def test_filter(self, request: Request) -> Response:
        """Test a filter against events."""
        return await self._answer(request, TestBody, self._test)

    @operation(
        answer("The converted filter, which matches exactly the same events.", ConvertedDocument),
        "400",
        takes=_takes(ConvertBody, {"dialect": "sql"}, to={"enum": ["sql"]}),
    )
    async def convert_filter(self, request: Request) -> Response:
        """Convert a filter from another dialect to sql."""
        return await self._answer(request, ConvertBody, lambda body, check: self._convert(body))

    async def _answer(
        self,
        request: Request,
        kind: type[Body],
        work: Callable[[Body, Callable[[], None]], msgspec.Struct],
    ) -> Response:
        """Respond with the document made from a body. All runs on a thread, even freeing large objects."""
        text = await self.bodies.read_json_text(request)
        gone = threading.Event()

        def check_wanted() -> None:
            if gone.is_set() or self.threads.closed:
                raise Stopped

        def answer() -> Response | None:
            try:
                check_wanted()
                return json_response(work(parse_json(text, kind), check_wanted))
            except HttpProblem as problem:
                return problem.response()
            except Stopped:
                return None

        answered = await unless_gone(request, self.threads.run(_owner(request), answer), gone.set)
        if answered is None:
            raise ThreadsClosed
        return answered

    def _check(self, body: CheckBody) -> CheckDocument:
        refused = refuse_text(body.filter, body.dialect, self.filter_max_bytes)
        if refused is not None:
            raise _refusal(refused)
        return check_document(check(body.filter, body.dialect))

    def _explain(self, body: ExplainBody, caller: Caller, check: Callable[[], None]) -> ExplanationDocument:
        _check_events(body.events)
        space = None
        if body.space is not None:
            caller.check(Right.SUBSCRIBE, body.space)
            space = self.subscriptions.check_space(body.space)
            if body.events is not None:
                detail = "Send either events or a space, not both."
                raise HttpProblem(400, "bad-request", detail, pointer="/events")
        if not 0 <= body.sample_events <= EVENTS_MAX:
            detail = f"sample_events must be from 0 to {EVENTS_MAX}."
            raise HttpProblem(400, "bad-request", detail, pointer="/sample_events")
        filter = self._compiled(body)
        events = body.events
        if space is not None:
            events = newest_events(self.log, space, SampleSize(body.sample_events))
            events = events[: len(_counted(filter, WantedEvents(events, check)))]
        elif events is not None:
            _check_steps(filter, WantedEvents(events, check))
        return explanation_document(explain(filter, None if events is None else WantedEvents(events, check)))

    def _test(self, body: TestBody, check: Callable[[], None]) -> TestDocument:
        _check_events(body.events)
        filter = self._compiled(body)
        parts = sum(1 for _ in walk(filter.expression))
        traced = 0
        results: list[TestedDocument] = []
        events = WantedEvents(body.events, check)
        for event, steps in zip(events, _check_steps(filter, events), strict=True):
            if traced < TRACED_PARTS_MAX and steps <= TRACED_STEPS_MAX:
                results.append(trace_document(trace(filter, event)))
                traced += parts
            else:
                results.append(TestedDocument(filter.matches(event)))
        return TestDocument(sum(result.matches for result in results), results)

    def _convert(self, body: ConvertBody) -> ConvertedDocument:
        if body.to != "sql":
            raise HttpProblem(400, "bad-request", "The target dialect must be sql.", pointer="/to")
        filter = self._compiled(body)
        try:
            return ConvertedDocument(convert(filter, body.to), body.to)
        except FilterError as error:
            first = error.problems[0]
            hint = first.hint or None
            raise HttpProblem(400, "bad-filter", first.message, hint=hint, pointer="/filter") from None

    def _compiled(self, body: CheckBody) -> Filter:
        found = compile_checked(body.filter, body.dialect, self.filter_max_bytes)
        if isinstance(found, RefusedFilter):
            raise _refusal(found)
        return found


def _owner(request: Request) -> str:
    """Return the owner for fair queueing: the space of the request's key if it has just one, else the key."""
    caller = caller_of(request)
    spaces = [space for space in caller.grants if space is not None]
    return spaces[0] if len(spaces) == 1 else f" {caller.id}"


def _counted(filter: Filter, events: WantedEvents) -> list[int]:
    """Return the steps of each of the first events that take at most `STEPS_MAX` together."""
    if filter.work is None:
        return [0] * len(events)
    found: list[int] = []
    left = STEPS_MAX
    for event in events:
        steps = filter.work.steps(lambda path, event=event: event_getter(path)(event))  # type: ignore[misc]
        left -= steps
        if left < 0:
            break
        found.append(steps)
    return found


def _check_steps(filter: Filter, events: WantedEvents) -> list[int]:
    """Return the steps of each event; raise Problem 413 if they exceed `STEPS_MAX` together."""
    found = _counted(filter, events)
    if len(found) < len(events):
        detail = (
            f"The filter takes more than {STEPS_MAX:,} steps for all events, the maximum of a request: send"
            f" only the first {len(found)} events, or smaller arrays."
        )
        raise HttpProblem(413, "too-much-work", detail, max_events=len(found))
    return found


def _refusal(refused: RefusedFilter) -> HttpProblem:
    return HttpProblem(400, "bad-filter", **refused.document(), title="The filter was refused")


def _check_events(events: list[dict[str, Any]] | None) -> None:
    if events is not None and len(events) > EVENTS_MAX:
        detail = f"The request has {len(events)} events; the maximum is {EVENTS_MAX}."
        raise HttpProblem(413, "too-many-events", detail, max_events=EVENTS_MAX)
