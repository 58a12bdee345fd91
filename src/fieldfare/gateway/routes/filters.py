"""Help with filters over HTTP: check, explain, test, convert. Nothing here changes anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.filters import Filter, FilterError
from fieldfare.filters.expression import walk
from fieldfare.filters.help import check, convert, explain, trace
from fieldfare.filters.help.documents import check_document, explanation_document, trace_document
from fieldfare.gateway.admission.bodies import Bodies, parse_json
from fieldfare.gateway.admission.callers import Caller, Right, caller_of
from fieldfare.gateway.delivery.record_lines import all_lines
from fieldfare.gateway.filter_texts import RefusedFilter, compile_checked, refuse_text
from fieldfare.gateway.problems import HttpProblem
from fieldfare.gateway.routes.requests import json_response
from fieldfare.gateway.subscriptions import Subscriptions
from fieldfare.storage.errors import TrimmedError
from fieldfare.storage.event_log import EventReader, Record, ends_of

MAX_EVENTS = 1_000
"""Events of one request, and of a sample."""

MAX_SAMPLE_BYTES = 4 << 20
"""A sample ends before it would be larger than this, but has one event."""

MAX_READ_BYTES = 32 << 20
MAX_READ_RECORDS = 1_000
"""A space whose newest events lie behind this much of others' has a smaller sample."""

MAX_TRACED_PARTS = 50_000
"""Parts of filters that are looked at one by one for a request's events; then matches are only counted."""

Document = dict[str, Any]


Body = TypeVar("Body")


class CheckBody(msgspec.Struct, forbid_unknown_fields=True):
    filter: Any
    dialect: str = "sql"


class ExplainBody(CheckBody, forbid_unknown_fields=True):
    space: str | None = None
    sample_events: int = MAX_EVENTS
    events: list[dict[str, Any]] | None = None


class TestBody(CheckBody, forbid_unknown_fields=True, kw_only=True):
    events: list[dict[str, Any]]


class ConvertBody(CheckBody, forbid_unknown_fields=True):
    to: str = "sql"


_check_body = msgspec.json.Decoder(CheckBody)
_explain_body = msgspec.json.Decoder(ExplainBody)
_test_body = msgspec.json.Decoder(TestBody)
_convert_body = msgspec.json.Decoder(ConvertBody)


class FilterRoutes:
    """Help with filters. It has a thread for what may take long: one request at a time, beside all others.

    Parameters
    ----------
    subscriptions
        Says which spaces there are.
    log
        Where a sample of a space's events is read.
    bodies
        Reads requests.
    filter_max_bytes
        The longest filter.
    """

    def __init__(
        self, subscriptions: Subscriptions, log: EventReader, bodies: Bodies, filter_max_bytes: int
    ) -> None:
        self._subscriptions = subscriptions
        self._log = log
        self._bodies = bodies
        self._filter_max_bytes = filter_max_bytes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fieldfare-filter-help")

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)

    async def check_filter(self, request: Request) -> Response:
        return await self._answer(request, _check_body, self._check)

    async def explain_filter(self, request: Request) -> Response:
        """Explain a filter, against a space's newest events, events sent along, or none."""
        caller = caller_of(request)
        return await self._answer(request, _explain_body, lambda body: self._explain(body, caller))

    async def test_filter(self, request: Request) -> Response:
        return await self._answer(request, _test_body, self._test)

    async def convert_filter(self, request: Request) -> Response:
        return await self._answer(request, _convert_body, self._convert)

    async def _answer(
        self, request: Request, decoder: msgspec.json.Decoder[Body], work: Callable[[Body], Document]
    ) -> Response:
        """The document that is made of a body. All is done on the thread: even to free what is large."""
        text = await self._bodies.read_json_text(request)

        def answer() -> Response:
            try:
                return json_response(work(parse_json(text, decoder)))
            except HttpProblem as problem:
                return problem.response()

        return await asyncio.get_running_loop().run_in_executor(self._thread, answer)

    def _check(self, body: CheckBody) -> Document:
        refused = refuse_text(body.filter, body.dialect, self._filter_max_bytes)
        if refused is not None:
            raise _refusal(refused)
        return check_document(check(body.filter, body.dialect))

    def _explain(self, body: ExplainBody, caller: Caller) -> Document:
        _check_events(body.events)
        space = None
        if body.space is not None:
            caller.check(Right.SUBSCRIBE, body.space)
            space = self._subscriptions.check_space(body.space)
            if body.events is not None:
                detail = "Send events, or name a space, not both."
                raise HttpProblem(400, "bad-request", detail, pointer="/events")
        if not 0 <= body.sample_events <= MAX_EVENTS:
            detail = f"sample_events must be from 0 to {MAX_EVENTS}."
            raise HttpProblem(400, "bad-request", detail, pointer="/sample_events")
        filter = self._compiled(body)
        events = body.events
        if space is not None:
            events = newest_events(self._log, space, body.sample_events)
        return explanation_document(explain(filter, events))

    def _test(self, body: TestBody) -> Document:
        _check_events(body.events)
        filter = self._compiled(body)
        parts = sum(1 for _ in walk(filter.expression))
        traced = 0
        results: list[Document] = []
        for event in body.events:
            if traced < MAX_TRACED_PARTS:
                results.append(trace_document(trace(filter, event)))
                traced += parts
            else:
                results.append({"matches": filter.matches(event)})
        return {"matched": sum(result["matches"] for result in results), "results": results}

    def _convert(self, body: ConvertBody) -> Document:
        if body.to != "sql":
            raise HttpProblem(400, "bad-request", "Filters are converted to sql only.", pointer="/to")
        filter = self._compiled(body)
        try:
            return {"filter": convert(filter, body.to), "dialect": body.to}
        except FilterError as error:
            first = error.problems[0]
            hint = first.hint or None
            raise HttpProblem(400, "bad-filter", first.message, hint=hint, pointer="/filter") from None

    def _compiled(self, body: CheckBody) -> Filter:
        found = compile_checked(body.filter, body.dialect, self._filter_max_bytes)
        if isinstance(found, RefusedFilter):
            raise _refusal(found)
        return found


def _refusal(refused: RefusedFilter) -> HttpProblem:
    return HttpProblem(400, "bad-filter", **refused.document(), title="The filter was refused")


def _check_events(events: list[dict[str, Any]] | None) -> None:
    if events is not None and len(events) > MAX_EVENTS:
        detail = f"The request has {len(events)} events; at most {MAX_EVENTS} are taken."
        raise HttpProblem(413, "too-many-events", detail, max_events=MAX_EVENTS)


def newest_events(log: EventReader, space: str, count: int) -> list[dict[str, Any]]:
    """Up to ``count`` of a space's newest events, newest first, as far as reading them is cheap."""
    events: list[dict[str, Any]] = []
    sample_bytes = read_bytes = 0
    for record in _newest_records(log):
        read_bytes += len(record.payload)
        for line in reversed(all_lines(record.payload)) if record.space == space else ():
            sample_bytes += len(line)
            if len(events) >= count or (events and sample_bytes > MAX_SAMPLE_BYTES):
                return events
            events.append(json.loads(line))
        if len(events) >= count or read_bytes > MAX_READ_BYTES:
            break
    return events


def _newest_records(log: EventReader) -> Iterator[Record]:
    """The newest records of all partitions in turn, each partition's newest first."""
    ends = ends_of(log)
    for back in range(1, MAX_READ_RECORDS + 1):
        for partition, end in zip(log.partitions, ends, strict=True):
            with suppress(TrimmedError):
                if back <= end:
                    yield from partition.read(end - back, end - back + 1)
