"""The indexer at work: it follows the registry, and tells how far it has come.

    a change is committed ─▶ seen within 2 ms ─▶ delta, then manifest ─▶ batches may be matched with it

Whoever wants a manifest that covers a stamp waits until there is one, and says so in ``run/wanted``: there is
one for each batch that waits, and besides as many as take a quarter of the indexer's time. Old manifests go
after a while. A task that was planned with one of those takes the newest instead, and finds the same, for
that too has every version that counts for records which may still be matched.

Every second it writes ``run/indexer.json``::

    {"pid": 4711, "state": "running", "time_ms": 1763718000000, "revision": 9, "snapshot_revision": 7,
     "manifest": 12, "error": null}

`state` is starting, running, recovering, failed or stopped, and `error` says why it is recovering or failed.
Revisions of the registry up to `revision` are covered by the manifest. No change up to `snapshot_revision`
is asked for again, not even after a crash.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from typing import Any

from fieldfare.filters import compile_filter
from fieldfare.matching.files import IndexFileError
from fieldfare.matching.part import build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END
from fieldfare.planning.cuts import CutSettings, Searching
from fieldfare.runtimes.indexer.index_writer import CHANGES_AT_ONCE, IndexWriter
from fieldfare.runtimes.process.heartbeat import FULL, Heartbeat, read_beat
from fieldfare.runtimes.process.wanted import wanted
from fieldfare.storage import (
    EventReader,
    MatchLog,
    open_event_log,
    open_index_store,
    open_match_log,
    open_registry,
)
from fieldfare.storage.errors import DiskFullError, FormatError, StorageError
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.sqlite.watch import SqliteWatch

LOOK_S = 0.002
"""How often it looks whether the registry has changed, which takes some microseconds."""
PACE_S = 0.2
REST = 3
"""So many times as long as a manifest took none is written that no batch waits for, but no longer than
``PACE_S``: they cost syncs of the disk, for which publishers wait too, and time that batches would have used.
Where few subscribe there is one before it is waited for."""
KEPT_S = 10.0
"""So long a manifest stays when there is a newer one: far longer than a batch needs to open it."""
TEND_S = 1.0
CUT_KEPT_S = 120.0
"""So long at most manifests stay that cut a space otherwise, until a batch was matched by the new one: a task
goes on only with slices of the cut by which its events were sent."""
STOP_LOOK_S = 0.1
PAUSE_S = 0.5
PAUSE_MAX_S = 30.0
FULL_PAUSE_S = 2.0

_log = logging.getLogger("fieldfare.indexer")


class IndexerHeartbeat(Heartbeat):
    """The file ``run/indexer.json``."""

    def __init__(self, folder: DataFolder) -> None:
        super().__init__(folder.heartbeat_of("indexer"))
        self._figures: dict[str, Any] = dict.fromkeys(("revision", "snapshot_revision", "manifest"))

    def figures(self) -> Mapping[str, Any]:
        return self._figures

    def tell(self, writer: IndexWriter) -> None:
        """Say that all is well, and how far the index is."""
        self._figures["revision"] = writer.manifest.revision
        self._figures["snapshot_revision"] = writer.snapshot_revision
        self._figures["manifest"] = writer.manifest.number
        self.beat("running")


def run_indexer(folder: DataFolder, stop: threading.Event, cuts: CutSettings | None = None) -> None:
    """Follow the registry until `stop` is set; what fails is begun anew, from what is on disk.

    Parameters
    ----------
    cuts : CutSettings, optional
        How spaces are to be held. Default: each in one slice.

    Raises
    ------
    FormatError
        The data directory is of another format.
    """
    heartbeat = IndexerHeartbeat(folder)
    heartbeat.beat("starting")
    load_kernels()
    failures = 0
    try:
        while not stop.is_set():
            follower = Follower(folder, heartbeat, cuts or CutSettings())
            try:
                follower.follow(stop)
            except FormatError:
                raise
            except (OSError, StorageError, IndexFileError) as error:
                failures = 1 if follower.worked else failures + 1
                pause_s = min(PAUSE_S * 2.0 ** min(failures - 1, 10), PAUSE_MAX_S)
                _pause(stop, FULL_PAUSE_S if _is_full(error) else pause_s, str(error), heartbeat)
    except BaseException as error:
        heartbeat.beat("failed", error=str(error))
        raise
    heartbeat.beat("stopped")


def load_kernels() -> None:
    """Index a few filters, in vain: what is loaded for that, the first subscriber need not wait for."""
    texts = ["a = 'x' AND b > 3", "a < b", "s LIKE '%x%'", "a BETWEEN 1 AND 2 OR b = 3"]
    texts += [f"s LIKE '%word{i}%'" for i in range(100)]
    build_part(
        IndexEntry(number, number, 0, OPEN_END, compile_filter(text).compiled, text, "sql")
        for number, text in enumerate(texts)
    )
    # What is loaded stays: the collector need not look at it again, for which everybody would wait.
    gc.collect()
    gc.freeze()


def _pause(stop: threading.Event, pause_s: float, why: str, heartbeat: Heartbeat) -> None:
    _log.error("the index cannot be kept up to date: %s; it is tried again", why)
    heartbeat.beat("recovering", error=why)
    until_s = time.monotonic() + pause_s
    while not stop.wait(STOP_LOOK_S) and time.monotonic() < until_s:
        heartbeat.alive()


def _is_full(error: BaseException) -> bool:
    causes = (error, error.__cause__)
    return isinstance(error, DiskFullError) or any(getattr(cause, "errno", 0) in FULL for cause in causes)


class Follower:
    """Keeps the index up to date, from opening its files to the first thing that goes wrong.

    Attributes
    ----------
    worked : bool
        Whether it has got as far as to cover the registry.
    """

    def __init__(self, folder: DataFolder, heartbeat: IndexerHeartbeat, cuts: CutSettings) -> None:
        self.worked = False
        self._cuts = cuts
        self._cut: tuple[float, int] | None = None
        self._folder = folder
        self._heartbeat = heartbeat
        # Since when which manifest is the newest; of those that it finds it knows nothing.
        self._kept = deque([(0.0, 0)])
        self._troubled = False

    def follow(self, stop: threading.Event) -> None:
        """Work until `stop` is set."""
        folder = self._folder
        with ExitStack() as opened:
            # The log first: one of an older format is upgraded with what the registry beside it knows.
            log = opened.enter_context(closing(open_event_log(folder.log_url)))
            registry = opened.enter_context(closing(open_registry(folder.registry_url)))
            watch = opened.enter_context(closing(SqliteWatch(folder.registry_path)))
            store = open_index_store(folder.index_url, folder.index_copy)
            match_log = open_match_log(folder.matches_url)
            writer = IndexWriter(
                folder,
                registry,
                store,
                lambda: floor(folder, log, match_log),
                alive=self._heartbeat.alive,
                cuts=self._cuts,
            )
            opened.enter_context(closing(writer))
            revision, due_s, tended_s = writer.manifest.revision, 0.0, 0.0
            _log.info("ready, at revision %d", revision)
            self._heartbeat.tell(writer)
            self.worked = True
            while not stop.is_set():
                if watch.changed():
                    revision = registry.revision()
                covered = writer.manifest.revision
                # What nobody can want, as the registry has not got there, is of another registry, or rubbish.
                if revision > covered and (
                    time.monotonic() >= due_s or covered < wanted(folder.wanted) <= revision
                ):
                    begun_s = time.monotonic()
                    writer.catch_up(min(revision, covered + CHANGES_AT_ONCE))
                    now_s = time.monotonic()
                    due_s = now_s + min(PACE_S, REST * (now_s - begun_s))
                elif writer.is_building:
                    writer.catch_up(covered)
                if time.monotonic() >= tended_s:
                    self._tend(writer)
                    tended_s = time.monotonic() + TEND_S
                time.sleep(LOOK_S)

    def _tend(self, writer: IndexWriter) -> None:
        """Look after the index, and tell how it is."""
        # Nobody knows yet what makes a pipeline fail: it may be what the index's files hold.
        troubled = read_beat(self._folder.heartbeat).get("state") in ("recovering", "failed")
        writer.check(every_byte=troubled and not self._troubled)
        self._troubled = troubled
        measured = read_beat(self._folder.slices)
        writer.look_at_cuts(searching_of(measured))
        writer.catch_up(writer.manifest.revision)  # a snapshot that could not be built may be due again
        self._heartbeat.tell(writer)
        now_s, number = time.monotonic(), writer.manifest.number
        if number != self._kept[-1][1]:
            self._kept.append((now_s, number))
        keep_from, cut_number = self._kept[0][1], self._cut_in_use(writer, measured, now_s)
        while len(self._kept) > 1 and self._kept[1][0] <= now_s - KEPT_S:
            if cut_number is not None and self._kept[1][1] >= cut_number:
                break
            self._kept.popleft()
        if self._kept[0][1] != keep_from:
            writer.collect(self._kept[0][1])

    def _cut_in_use(self, writer: IndexWriter, measured: Mapping[str, Any], now_s: float) -> int | None:
        """From which manifest on a space is cut anew, while tasks may still go by how it was cut before."""
        if self._cut is None or self._cut[1] < writer.cut_number:
            self._cut = now_s, writer.cut_number
        since_s, number = self._cut
        used = measured.get("manifest")
        is_over = isinstance(used, int) and used >= number
        return None if not number or is_over or now_s > since_s + CUT_KEPT_S else number


def searching_of(measured: Mapping[str, Any]) -> dict[str, Searching]:
    """What the pipeline has measured of spaces that are cut, as far as it can be understood."""
    found = {}
    spaces = measured.get("spaces")
    for name, each in spaces.items() if isinstance(spaces, dict) else ():
        with suppress(KeyError, TypeError, ValueError):
            found[name] = Searching(int(each["cut"]), int(each["number"]), float(each["share"]))
    return found


def floor(folder: DataFolder, log: EventReader, match_log: MatchLog) -> int:
    """The lowest stamp of the records that may be matched yet, and of those to come.

    Those are the records behind what the pipeline tells as matched, which is on disk for good, and behind
    the end of a match log that somebody has put an older copy of.
    """
    partitions = log.partitions
    # First: what is appended meanwhile is waiting.
    lowest = min(partition.last_stamp() for partition in partitions)
    said = read_beat(folder.heartbeat).get("matched")
    told = said if isinstance(said, list) else []
    for partition in partitions:
        number, start = partition.number, partition.start()
        known = number < len(told) and isinstance(told[number], int)
        end = min(told[number], match_log.partition(number).end(start)) if known else start
        waiting = partition.lowest_stamp(end)
        lowest = lowest if waiting is None else min(lowest, waiting)
    return lowest
