"""What must be in the match log, from the history of the subscriptions and the filters' evaluator alone."""

from __future__ import annotations

import heapq
import json
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from service_support import until

from fieldfare.filters import compile_filter
from fieldfare.gateway.delivery.record_lines import all_lines
from fieldfare.model import OPEN_END, Change
from fieldfare.storage import MatchBlock, open_event_log, open_registry
from fieldfare.storage.event_log import Record
from fieldfare.storage.files.match_log import FileMatchLog
from fieldfare.storage.folder import DataFolder

WATCH_EVERY_S = 0.05


class RegistryWatcher:
    """Follows a service's registry and keeps every change: the service itself forgets what is past."""

    def __init__(self, folder: DataFolder) -> None:
        self._registry = open_registry(folder.registry_url)
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._changes: list[Change] = []
        self._thread.start()

    def changes(self) -> list[Change]:
        """All changes, once nobody makes any more."""
        self._stopping.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
        self._read_on()
        self._registry.close()
        return self._changes

    def _follow(self) -> None:
        try:
            while not self._stopping.wait(WATCH_EVERY_S):
                self._read_on()
        except Exception as error:
            self._error = error

    def _read_on(self) -> None:
        after = self._changes[-1].revision if self._changes else 0
        self._changes += self._registry.changes(after, self._registry.revision())


@dataclass(slots=True)
class Version:
    """A subscription's filter, and the stamps for which it counts."""

    space: str
    number: int
    text: str
    revision: int
    closed_by: int = OPEN_END


def versions_of(changes: Iterable[Change]) -> list[Version]:
    """The versions that a history of changes makes."""
    versions: list[Version] = []
    standing: dict[int, Version] = {}
    for change in changes:
        if change.number in standing:
            standing.pop(change.number).closed_by = change.revision
        if change.filter is not None:
            version = Version(change.space, change.number, change.filter, change.revision)
            versions.append(version)
            standing[change.number] = version
    return versions


def wait_matched(folder: DataFolder, deadline_s: float = 120.0) -> int:
    """Wait until everything in the log is matched; gives the log's end."""
    log, matches = open_event_log(folder.log_url), FileMatchLog(folder.matches)
    until(lambda: matches.end(0) >= log.end(), deadline_s, "(all events are matched)")
    return log.end()


def logged(folder: DataFolder) -> Iterator[tuple[Record, list[dict[str, Any]]]]:
    """The log's records, and their events."""
    log = open_event_log(folder.log_url)
    for record in log.read(0, log.end()):
        yield record, [json.loads(line) for line in all_lines(record.payload)]


class MatchReader:
    """The matches of record after record, by event."""

    def __init__(self, folder: DataFolder) -> None:
        self._matches = FileMatchLog(folder.matches)
        self._block: MatchBlock | None = None
        self._lists: list[list[int]] = []

    def of(self, offset: int) -> list[list[int]]:
        if self._block is None or not self._block.start <= offset < self._block.end:
            self._block = self._matches.block_at(offset)
            assert self._block is not None, f"record {offset} was not matched"
            indptr, numbers = self._block.by_event()
            self._lists = [numbers[first:last].tolist() for first, last in pairwise(indptr)]
        first = int(self._block.counts[: offset - self._block.start].sum())
        return self._lists[first : first + int(self._block.counts[offset - self._block.start])]


@dataclass
class Comparison:
    """What was compared; ``differences`` names the places where the match log is not what it must be."""

    records: int = 0
    events: int = 0
    matches: int = 0
    differences: list[str] | None = None


def compare(folder: DataFolder, versions: Iterable[Version]) -> Comparison:
    """Compare every event's matches with what the evaluator says of the versions that counted for it.

    One gateway wrote the log, so stamps never fall.
    """
    waiting = sorted(versions, key=lambda version: version.revision, reverse=True)
    filters = {version.text: compile_filter(version.text) for version in waiting}
    standing: dict[str, dict[int, Version]] = {}
    endings: list[tuple[int, int, Version]] = []
    reader, result = MatchReader(folder), Comparison(differences=[])
    stamp = 0
    for record, events in logged(folder):
        assert record.stamp >= stamp, record.offset
        stamp = record.stamp
        while waiting and waiting[-1].revision <= stamp:
            version = waiting.pop()
            standing.setdefault(version.space, {})[id(version)] = version
            heapq.heappush(endings, (version.closed_by, id(version), version))
        while endings and endings[0][0] <= stamp:
            ended = heapq.heappop(endings)[2]
            del standing[ended.space][id(ended)]
        found = reader.of(record.offset)
        here = standing.get(record.space, {}).values()
        expected = [sorted(v.number for v in here if filters[v.text].matches(event)) for event in events]
        result.records += 1
        result.events += len(events)
        result.matches += sum(map(len, expected))
        if found != expected and result.differences is not None:
            result.differences.append(f"record {record.offset}: found {found}, expected {expected}")
    return result
