"""``fieldfare publish``: publish events from a file or standard input."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn

from fieldfare.cli.amounts import time_option
from fieldfare.cli.connection import connect
from fieldfare.cli.event_files import FILE_HELP, kind_of_events, open_lines, read_batches
from fieldfare.cli.output import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    JsonOption,
    SpaceOption,
    UrlOption,
    err,
    fail,
    out,
    print_json,
    report_error,
    say,
)
from fieldfare.client.batching import BatchSettings
from fieldfare.client.encoding import encode_event
from fieldfare.client.errors import FieldfareError, InvalidEvent, PublishError
from fieldfare.client.later import DelayedEvents
from fieldfare.client.retry import RetrySettings
from fieldfare.client.synchronous.client import Client
from fieldfare.client.synchronous.publisher import Publisher
from fieldfare.client.tables import as_data, as_table, with_end
from fieldfare.model import RECORD_EVENTS_MAX, Position
from fieldfare.runtimes.files.kinds import TABLES, FileError, FileKind
from fieldfare.runtimes.files.lines import LineReader

SHOWN_ERRORS_MAX = 20
LINES_BATCH_EVENTS = 1_000
TROUBLE_LOOK_S = 0.5
"""Seconds between looks at whether requests are being repeated."""
UNANSWERED_S = 1.0
"""Seconds after which a request with events for later is said to take long."""

DELAY_MAX_S = 10 * 365 * 86_400
"""Seconds that events may wait, or be of use, at most."""

CompressionOption = Annotated[
    str | None,
    typer.Option(
        "--compression",
        metavar="zstd|gzip",
        help="Compress requests; useful on a slow or metered network.",
    ),
]

BatchOption = Annotated[
    int | None,
    typer.Option(
        "--batch",
        min=1,
        max=RECORD_EVENTS_MAX,
        help="Maximum events per request; default: 1000, or 10,000 for a Parquet or Arrow file.",
    ),
]
LaterOption = Annotated[
    float | None,
    typer.Option(
        "--deliver-after",
        parser=time_option(max=DELAY_MAX_S),
        metavar="TIME",
        help="Delay before the events are published, such as 90 (seconds), 5min, 2h or 7d; not for tables.",
    ),
]
ExpiresOption = Annotated[
    float | None,
    typer.Option(
        "--expires-after",
        parser=time_option(max=DELAY_MAX_S),
        metavar="TIME",
        help="Time after publication at which events without an expirytime expire.",
    ),
]
RetryOption = Annotated[
    float,
    typer.Option(
        "--retry-for",
        parser=time_option(),
        metavar="TIME",
        help="Time to keep trying while the service is away or busy.",
    ),
]


class _Head(msgspec.Struct):
    """The attributes of a line that decide whether it is a complete CloudEvent."""

    specversion: str | None = None
    id: str | None = None
    source: str | None = None
    type: str | None = None
    expirytime: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_head_decoder = msgspec.json.Decoder(_Head)


@dataclass(frozen=True, slots=True)
class Completion:
    """Attributes added to lines without them: type and source (with --type), and an expiry time."""

    type: str | None
    source: str
    lasts_s: float | None

    def end(self) -> datetime | None:
        """Return the expiry time of an event that is published now; None without --expires-after."""
        return None if self.lasts_s is None else datetime.now(UTC) + timedelta(seconds=self.lasts_s)


class Tally:
    """Counts published and failed events; futures report from the publisher's thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.published = 0
        self.failed = 0
        self.fatal: FieldfareError | FileError | None = None

    def settle(self, line_number: int, future: Future[Position]) -> None:
        """Count one event whose future is done."""
        error = future.exception()
        with self._lock:
            if error is None:
                self.published += 1
                return
        if isinstance(error, PublishError):
            refusal = error.refused[0]
            self.refuse(line_number, refusal.detail + (f" (at {refusal.place})" if refusal.place else ""))
            return
        with self._lock:
            self.failed += 1
            if self.fatal is None and isinstance(error, FieldfareError):
                self.fatal = error

    def settle_batch(self, first_row: int, error: PublishError) -> None:
        """Count the rows of a batch, of which some are not in the log."""
        self.published += len(error.accepted)
        self.failed += len(error.unknown)
        for refusal in error.refused:
            reason = refusal.detail + (f" (at {refusal.place})" if refusal.place else "")
            self.refuse(first_row + refusal.index, reason, "row")
        if isinstance(error.__cause__, FieldfareError):
            self.fatal = error.__cause__

    def refuse(self, line_number: int, reason: str, what: str = "line") -> None:
        """Count and report an event that is not in the log."""
        with self._lock:
            self.failed += 1
            if self.failed > SHOWN_ERRORS_MAX:
                return
        report_error(f"{what} {line_number}: {reason}")


def publish(
    file: Annotated[str, typer.Argument(metavar="FILE", help=FILE_HELP)] = "-",
    type: Annotated[
        str | None,
        typer.Option(
            "--type", "-t", help="Wrap lines that are not CloudEvents as the data of events with this type."
        ),
    ] = None,
    source: Annotated[
        str, typer.Option("--source", "-s", help="The source of events wrapped with --type.")
    ] = "fieldfare-publish",
    batch_events: BatchOption = None,
    retry_s: RetryOption = 30.0,
    deliver_after_s: LaterOption = None,
    expires_after_s: ExpiresOption = None,
    compression: CompressionOption = None,
    url: UrlOption = None,
    space: SpaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish events, and report how many are durable.

    Without --type every line must be a CloudEvent (source and type are required; id, time and specversion are
    filled in). With --type a line without specversion becomes the data of an event. In a Parquet or Arrow
    file each row is an event, and columns are attributes; it is sent as Arrow, without conversion to JSON.
    A refused line is reported and the others are published; the exit status is then 1.

    Examples:
    ```
    fieldfare publish events.jsonl
    fieldfare publish flights.parquet --type flight --source /flights
    tail -f quotes.log | fieldfare publish - --type quote --source /quotes
    ```
    """
    kind = kind_of_events(file)
    if deliver_after_s is not None and kind in TABLES:
        fail("--deliver-after is not available for tables: publish the events as JSON lines", EXIT_USAGE)
    lines, total_bytes = (None, None) if kind in TABLES else open_lines(file)
    settings = BatchSettings(max_events=batch_events or LINES_BATCH_EVENTS)
    lasts_s = None if expires_after_s is None else (deliver_after_s or 0.0) + expires_after_s
    complete = Completion(type, source, lasts_s)
    tally = Tally()
    started_s = time.monotonic()
    interrupted = False
    retry = RetrySettings(deadline_s=retry_s)
    with connect(url, space, settings, retry, compression) as client:
        client.spaces()  # A service that is not there should be noticed at once, not after the retries.
        publisher, later = client.publisher(settings, retry), _LaterRequests(client)
        try:
            with (
                _progress(total_bytes, tally) as advance,
                _reporting_waits(lambda: publisher.stats().trouble or later.trouble(), retry_s),
            ):
                with _up_to_damage(tally):
                    if lines is None:
                        _publish_table(publisher, file, kind, batch_events, complete, tally, advance)
                    elif deliver_after_s is not None:
                        prepared = _prepared(lines, complete, tally)
                        _publish_later(later, prepared, deliver_after_s, settings, tally, advance)
                    else:
                        _publish_lines(publisher, lines, complete, tally, advance)
                publisher.close()
        except KeyboardInterrupt:
            interrupted = True
            publisher.close(timeout_s=2.0)
    _report(tally, time.monotonic() - started_s, as_json)
    if interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if tally.failed or tally.fatal is not None:
        raise typer.Exit(EXIT_FAILED)


@contextmanager
def _up_to_damage(tally: Tally) -> Iterator[None]:
    """Note a FileError as fatal, so that the events read before it are still published and reported."""
    try:
        yield
    except FileError as error:
        tally.fatal = error


@contextmanager
def _reporting_waits(get_trouble: Callable[[], str | None], retry_s: float) -> Iterator[None]:
    """Say once what is waited for, if a request has to be repeated or is not answered."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(TROUBLE_LOOK_S):
            trouble = get_trouble()
            if trouble:
                what = trouble.split("\n")[0]
                say(f"waiting for the service, for up to {retry_s:g} s (--retry-for): {what}")
                return

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()


def _publish_lines(
    publisher: Publisher, lines: LineReader, complete: Completion, tally: Tally, advance: Any
) -> None:
    for number, event in _prepared(lines, complete, tally):
        publisher.publish(event).add_done_callback(partial(tally.settle, number))
        advance(len(event))


def _prepared(lines: LineReader, complete: Completion, tally: Tally) -> Iterator[tuple[int, bytes]]:
    """Yield events with their line numbers, until a fatal error."""
    for number, line in lines:
        if tally.fatal is not None:
            return
        try:
            yield number, _prepare(line, complete)
        except (InvalidEvent, ValueError, RecursionError) as error:
            tally.refuse(number, _describe_bad_line(error, complete.type))


class _LaterRequests:
    """The requests of ``--deliver-after``, one after the other, and what is wrong with the one under way."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._begun_s: float | None = None

    def publish(self, events: list[bytes], deliver_after_s: float) -> DelayedEvents:
        """Have the service keep events; `trouble` speaks of it meanwhile."""
        self._begun_s = time.monotonic()
        try:
            return self._client.publish_later(events, deliver_after_s)
        finally:
            self._begun_s = None

    def trouble(self) -> str | None:
        """Why the request under way takes long; None if it does not, or there is none."""
        begun_s = self._begun_s
        if begun_s is None or time.monotonic() - begun_s < UNANSWERED_S:
            return None
        return self._client.trouble or f"it has not answered for {UNANSWERED_S:g} s"


def _publish_later(
    later: _LaterRequests,
    events: Iterator[tuple[int, bytes]],
    deliver_after_s: float,
    settings: BatchSettings,
    tally: Tally,
    advance: Any,
) -> None:
    while some := list(islice(events, settings.max_events)):
        try:
            kept = later.publish([event for _, event in some], deliver_after_s)
            refused = kept.refused
            tally.published += kept.count
        except PublishError as error:
            refused = error.refused
        except FieldfareError as error:
            tally.fatal = error
            tally.failed += len(some)
            return
        for refusal in refused:
            place = f" (at {refusal.place})" if refusal.place else ""
            tally.refuse(some[refusal.index][0], refusal.detail + place)
        advance(sum(len(event) for _, event in some))


def _publish_table(
    publisher: Publisher,
    file: str,
    kind: FileKind,
    batch_events: int | None,
    complete: Completion,
    tally: Tally,
    advance: Any,
) -> None:
    first = 1
    max_events = batch_events or RECORD_EVENTS_MAX
    for batch in read_batches(file, kind, "publish", max_events):
        table = as_table(batch)
        if complete.type is not None and "specversion" not in table.column_names:
            table = as_data(table, complete.type, complete.source)
        table = with_end(table, complete.end())
        try:
            publisher.publish_table(table, max_events=max_events)
            tally.published += batch.num_rows
        except PublishError as error:
            tally.settle_batch(first, error)
        except FieldfareError as error:
            hint = "\nhint: --type NAME publishes the rows as the data of events"
            is_plain = isinstance(error, InvalidEvent) and complete.type is None
            tally.fatal = InvalidEvent(str(error) + hint) if is_plain else error
            tally.failed += batch.num_rows
        if tally.fatal is not None:
            return
        first += batch.num_rows
        advance(batch.nbytes)


def _prepare(line: bytes, complete: Completion) -> bytes:
    """Return the event to send for a line."""
    head = _read_head(line)
    end = complete.end()
    if head is not None and head.specversion and head.id and head.source and head.type:
        event = encode_event(line)
        if end is None or head.expirytime is not msgspec.UNSET:
            return event
        return event.rstrip()[:-1] + b',"expirytime":' + msgspec.json.encode(end) + b"}"
    attributes = {} if end is None else {"expirytime": end}
    if complete.type is None or (head is not None and head.specversion):
        value = msgspec.json.decode(line)
        if not isinstance(value, dict):
            raise InvalidEvent("a CloudEvent is a JSON object")
        return encode_event(attributes | value)
    data = msgspec.Raw(line.strip())
    msgspec.json.decode(line)  # Sent unchanged, so check that it is JSON.
    return encode_event({"type": complete.type, "source": complete.source, "data": data, **attributes})


def _read_head(line: bytes) -> _Head | None:
    try:
        return _head_decoder.decode(line)
    except msgspec.ValidationError:
        return None  # JSON, but not an event: an array, a number, or an object whose `type` is not a string.


def _describe_bad_line(error: Exception, type: str | None) -> str:
    if isinstance(error, InvalidEvent):
        if type is None and "needs" in str(error):
            return f"{error}\nhint: --type NAME publishes plain JSON as the data of events"
        return str(error)
    return f"not JSON: {error}"


@contextmanager
def _progress(total_bytes: int | None, tally: Tally) -> Iterator[Any]:
    """Show a progress bar on a terminal; yield a function to call with each line's size in bytes."""
    console: Console = err()
    if not console.is_terminal:
        yield lambda size_bytes: None
        return
    columns: list[ProgressColumn] = [TextColumn("publishing"), TextColumn("{task.fields[rate]}")]
    if total_bytes:
        columns[1:1] = [BarColumn(), TaskProgressColumn()]
    started_s = time.monotonic()
    with Progress(*columns, console=console, transient=True, refresh_per_second=8) as progress:
        task = progress.add_task("", total=total_bytes, rate="")
        shown_s, read_bytes = started_s, 0

        def advance(size_bytes: int) -> None:
            nonlocal shown_s, read_bytes
            read_bytes += size_bytes
            now_s = time.monotonic()
            if now_s - shown_s < 0.1:
                return
            shown_s = now_s
            rate = tally.published / (now_s - started_s)
            text = f"{tally.published:,} events, {rate:,.0f} events/s"
            progress.update(task, completed=read_bytes, rate=text)

        yield advance


def _report(tally: Tally, took_s: float, as_json: bool) -> None:
    if tally.fatal is not None:
        report_error(str(tally.fatal))
    elif tally.failed > SHOWN_ERRORS_MAX:
        report_error(f"and {tally.failed - SHOWN_ERRORS_MAX:,} more")
    _summarise(tally, took_s, as_json)


def _summarise(tally: Tally, took_s: float, as_json: bool) -> None:
    rate = tally.published / took_s if took_s > 0 else 0.0
    if as_json:
        print_json(
            {
                "published": tally.published,
                "failed": tally.failed,
                "seconds": round(took_s, 3),
                "events_per_s": round(rate),
            }
        )
        return
    failed = f", {tally.failed:,} failed" if tally.failed else ""
    events = "event" if tally.published == 1 else "events"
    out().print(f"published {tally.published:,} {events} in {took_s:.2f} s ({rate:,.0f} events/s){failed}")
