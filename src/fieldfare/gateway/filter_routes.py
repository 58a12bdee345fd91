"""Help with filters over HTTP: check, explain, test, convert. Nothing here changes anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from fieldfare.filters import Filter, FilterError
from fieldfare.filters.expression import walk
from fieldfare.filters.help import check, convert, explain, trace
from fieldfare.filters.help.documents import check_document, explanation_document, trace_document
from fieldfare.gateway.problems import Problem
from fieldfare.gateway.record_lines import all_lines
from fieldfare.gateway.requests import read_json
from fieldfare.gateway.subscription_routes import json_response
from fieldfare.gateway.subscriptions import RefusedFilter, compile_checked, refuse_text
from fieldfare.storage.errors import TrimmedError
from fieldfare.storage.event_log import EventReader, Record, ends_of

if TYPE_CHECKING:
    from fieldfare.gateway.app import Gateway

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
Result = TypeVar("Result")


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


class FilterHelp:
    """A thread for what may take long: one request of this kind at a time, beside all others."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fieldfare-filter-help")

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """The result of a function, from the thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)


async def check_filter(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    body = await read_json(request, _check_body, gateway.settings.body_max_bytes)
    refused = refuse_text(body.filter, body.dialect, gateway.settings.filter_max_bytes)
    if refused is not None:
        raise _refusal(refused)
    return json_response(
        await gateway.filter_help.run(lambda: check_document(check(body.filter, body.dialect)))
    )


async def explain_filter(request: Request) -> Response:
    """Explain a filter, against a space's newest events, events sent along, or none."""
    gateway: Gateway = request.app.state.gateway
    body = await read_json(request, _explain_body, gateway.settings.body_max_bytes)
    _check_events(body.events)
    if body.space is not None:
        gateway.subscriptions.check_space(body.space)
        if body.events is not None:
            raise Problem(400, "bad-request", "Send events, or name a space, not both.", pointer="/events")
    if not 0 <= body.sample_events <= MAX_EVENTS:
        detail = f"sample_events must be from 0 to {MAX_EVENTS}."
        raise Problem(400, "bad-request", detail, pointer="/sample_events")
    return json_response(await gateway.filter_help.run(_explain, gateway, body))


async def test_filter(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    body = await read_json(request, _test_body, gateway.settings.body_max_bytes)
    _check_events(body.events)
    return json_response(await gateway.filter_help.run(_test, gateway, body))


async def convert_filter(request: Request) -> Response:
    gateway: Gateway = request.app.state.gateway
    body = await read_json(request, _convert_body, gateway.settings.body_max_bytes)
    if body.to != "sql":
        raise Problem(400, "bad-request", "Filters are converted to sql only.", pointer="/to")
    return json_response(await gateway.filter_help.run(_convert, gateway, body))


def _explain(gateway: Gateway, body: ExplainBody) -> Document:
    filter = _compiled(gateway, body)
    events = body.events
    if body.space is not None:
        events = newest_events(gateway.log, body.space, body.sample_events)
    return explanation_document(explain(filter, events))


def _test(gateway: Gateway, body: TestBody) -> Document:
    filter = _compiled(gateway, body)
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


def _convert(gateway: Gateway, body: ConvertBody) -> Document:
    filter = _compiled(gateway, body)
    try:
        return {"filter": convert(filter, body.to), "dialect": body.to}
    except FilterError as error:
        first = error.problems[0]
        raise Problem(400, "bad-filter", first.message, hint=first.hint or None, pointer="/filter") from None


def _compiled(gateway: Gateway, body: CheckBody) -> Filter:
    found = compile_checked(body.filter, body.dialect, gateway.settings.filter_max_bytes)
    if isinstance(found, RefusedFilter):
        raise _refusal(found)
    return found


def _refusal(refused: RefusedFilter) -> Problem:
    return Problem(400, "bad-filter", **refused.document(), title="The filter was refused")


def _check_events(events: list[dict[str, Any]] | None) -> None:
    if events is not None and len(events) > MAX_EVENTS:
        detail = f"The request has {len(events)} events; at most {MAX_EVENTS} are taken."
        raise Problem(413, "too-many-events", detail, max_events=MAX_EVENTS)


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
