"""The indexer's main loop: it follows the registry and reports its progress.

    a change is committed ─▶ seen within 10 ms ─▶ delta, then manifest ─▶ batches may be matched with it

A process that needs a manifest for a stamp announces it in ``run/wanted`` and waits. A manifest is written
for each waiting batch, and others take at most a quarter of the indexer's time. Old manifests are removed
after a while. A task that was planned with a removed one uses the newest instead, with the same result: that
too has every version that is valid for records which may still be matched.

Every second it writes ``run/indexer.json``::

    {"pid": 4711, "state": "running", "time_ms": 1763718000000, "revision": 9, "snapshot_revision": 7,
     "manifest": 12, "error": null}

`state` is starting, running, recovering, failed or stopped; `error` is the reason for recovering or failed.
The manifest covers revisions of the registry up to `revision`. No change up to `snapshot_revision` is read
again, not even after a crash.
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
from fieldfare.free_memory import release_free_memory
from fieldfare.matching.files import IndexFileError
from fieldfare.matching.part import build_part
from fieldfare.matching.versions import IndexEntry
from fieldfare.model import OPEN_END
from fieldfare.planning.cuts import CutSettings, Searching
from fieldfare.runtimes.indexer.index_writer import CHANGES_BATCH_SIZE, IndexWriter
from fieldfare.runtimes.process.heartbeat import FULL, Heartbeat, read_beat
from fieldfare.runtimes.process.wanted import requested_revision
from fieldfare.storage import (
    EventReader,
    MatchLog,
    open_event_log,
    open_index_store,
    open_links,
    open_match_log,
    open_registry,
)
from fieldfare.storage.errors import DiskFullError, FormatError, StorageError
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.sqlite.watch import SqliteWatch

LOOK_S = 0.002
"""Polling interval, in seconds, while changes wait for the next manifest, which a batch may want sooner."""
BUILDING_LOOK_S = 0.02
QUIET_LOOK_S = 0.2
"""Maximum seconds to wait for a change of the registry, whose commits wake this process, and for the end of
a snapshot's build."""
RELEASE_S = 5.0
"""Seconds without a new manifest after which the process gives freed memory back."""
PACE_S = 0.2
REST = 3
"""Pause after a manifest, as a multiple of its writing time, if no batch waits; at most ``PACE_S`` seconds.

Manifests cost disk syncs, which delay publishers, and time that batches would use. With few subscriptions one
is written before a batch waits for it.
"""
KEPT_S = 10.0
"""Seconds that a manifest is kept after a newer one: far longer than a batch needs to open it."""
TEND_S = 1.0
CUT_KEPT_S = 120.0
"""Maximum seconds that manifests with a space's previous cut are kept, until a batch used the new one.

A task works only with slices of the cut by which its events were sent.
"""
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

    def write(self, writer: IndexWriter) -> None:
        """Write a heartbeat in the state "running", with the index's progress."""
        self._figures["revision"] = writer.manifest.revision
        self._figures["snapshot_revision"] = writer.manifest.snapshot_revision
        self._figures["manifest"] = writer.manifest.number
        self.beat("running")


def run_indexer(folder: DataFolder, stop: threading.Event, cuts: CutSettings) -> None:
    """Follow the registry until `stop` is set; after a failure, restart from the files on disk.

    Parameters
    ----------
    cuts : CutSettings
        How spaces are to be cut.

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
            follower = Follower(folder, heartbeat, cuts)
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
    """Index a few filters and discard the result, so that the first subscriber need not wait for loading."""
    texts = ["a = 'x' AND b > 3", "a < b", "s LIKE '%x%'", "a BETWEEN 1 AND 2 OR b = 3"]
    texts += [f"s LIKE '%word{i}%'" for i in range(100)]
    build_part(
        IndexEntry(number, number, 0, OPEN_END, compile_filter(text).compiled, text, "sql")
        for number, text in enumerate(texts)
    )
    # Loaded objects stay: the collector need not scan them again, which would delay everything.
    gc.collect()
    gc.freeze()


def _pause(stop: threading.Event, pause_s: float, why: str, heartbeat: Heartbeat) -> None:
    _log.error("the index cannot be kept up to date: %s; retrying", why)
    heartbeat.beat("recovering", error=why)
    until_s = time.monotonic() + pause_s
    while not stop.wait(STOP_LOOK_S) and time.monotonic() < until_s:
        heartbeat.alive()


def _is_full(error: BaseException) -> bool:
    causes = (error, error.__cause__)
    return isinstance(error, DiskFullError) or any(getattr(cause, "errno", 0) in FULL for cause in causes)


class Follower:
    """Keeps the index up to date, from opening its files to the first failure.

    Attributes
    ----------
    worked : bool
        Whether it has once covered the registry.
    """

    def __init__(self, folder: DataFolder, heartbeat: IndexerHeartbeat, cuts: CutSettings) -> None:
        self.worked = False
        self._cuts = cuts
        self._cut: tuple[float, int] | None = None
        self._folder = folder
        self._heartbeat = heartbeat
        # Pairs (time, manifest number): since when a manifest is the newest; unknown for the first.
        self._kept = deque([(0.0, 0)])
        self._has_released = False
        self._troubled = False

    def follow(self, stop: threading.Event) -> None:
        """Work until `stop` is set."""
        folder = self._folder
        with ExitStack() as opened:
            # The log first: a log of an older format is upgraded with the help of the registry beside it.
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
            self._heartbeat.write(writer)
            self.worked = True
            while not stop.is_set():
                if watch.changed():
                    revision = registry.revision()
                covered = writer.manifest.revision
                # A wanted revision that the registry has not reached is of another registry, or garbage.
                if revision > covered and (
                    time.monotonic() >= due_s or covered < requested_revision(folder.wanted) <= revision
                ):
                    begun_s = time.monotonic()
                    writer.catch_up(min(revision, covered + CHANGES_BATCH_SIZE))
                    now_s = time.monotonic()
                    due_s = now_s + min(PACE_S, REST * (now_s - begun_s))
                elif writer.is_building:
                    writer.catch_up(covered)
                if time.monotonic() >= tended_s:
                    self._tend(writer)
                    tended_s = time.monotonic() + TEND_S
                if revision > writer.manifest.revision:
                    time.sleep(LOOK_S)
                else:
                    watch.wait(BUILDING_LOOK_S if writer.is_building else QUIET_LOOK_S)

    def _tend(self, writer: IndexWriter) -> None:
        """Maintain the index, and write the heartbeat."""
        # The cause of a pipeline's failure is unknown: it may be the content of the index files.
        troubled = read_beat(self._folder.heartbeat).get("state") in ("recovering", "failed")
        writer.check(every_byte=troubled and not self._troubled)
        self._troubled = troubled
        measured = read_beat(self._folder.slices)
        writer.review_partitioning(searching_of(measured))
        writer.catch_up(writer.manifest.revision)  # retries a snapshot whose build failed
        self._heartbeat.write(writer)
        now_s, number = time.monotonic(), writer.manifest.number
        if number != self._kept[-1][1]:
            self._kept.append((now_s, number))
            self._has_released = False
        elif not self._has_released and now_s - self._kept[-1][0] > RELEASE_S:
            self._has_released = True
            release_free_memory()
        keep_from, cut_number = self._kept[0][1], self._cut_in_use(writer, measured, now_s)
        while len(self._kept) > 1 and self._kept[1][0] <= now_s - KEPT_S:
            if cut_number is not None and self._kept[1][1] >= cut_number:
                break
            self._kept.popleft()
        if self._kept[0][1] != keep_from:
            writer.collect(self._kept[0][1])

    def _cut_in_use(self, writer: IndexWriter, measured: Mapping[str, Any], now_s: float) -> int | None:
        """Return the first manifest with a new cut while tasks may use the previous one, else None."""
        if self._cut is None or self._cut[1] < writer.cut_number:
            self._cut = now_s, writer.cut_number
        since_s, number = self._cut
        used = measured.get("manifest")
        is_over = isinstance(used, int) and used >= number
        return None if not number or is_over or now_s > since_s + CUT_KEPT_S else number


def searching_of(measured: Mapping[str, Any]) -> dict[str, Searching]:
    """Return the pipeline's measurements of spaces with several slices; unreadable ones are skipped."""
    found = {}
    spaces = measured.get("spaces")
    for name, each in spaces.items() if isinstance(spaces, dict) else ():
        with suppress(KeyError, TypeError, ValueError):
            found[name] = Searching(int(each["cut"]), int(each["number"]), float(each["share"]))
    return found


def floor(folder: DataFolder, log: EventReader, match_log: MatchLog) -> int:
    """Return the lowest stamp of the records that may still be matched, and of future records, also those
    that other brokers may still send.

    Those are the records behind what the pipeline reports as matched and durable, and behind the match log's
    end, which is lower if an older copy of it was restored.
    """
    partitions = log.partitions
    # Read first: records appended meanwhile are among those to be matched.
    lowest = min(partition.last_stamp() for partition in partitions)
    if folder.links_path.exists():
        with closing(open_links(folder.links_url)) as links:
            of_brokers = links.floor()
        lowest = lowest if of_brokers is None else min(lowest, of_brokers)
    said = read_beat(folder.heartbeat).get("matched")
    told = said if isinstance(said, list) else []
    for partition in partitions:
        number, start = partition.number, partition.start()
        known = number < len(told) and isinstance(told[number], int)
        end = min(told[number], match_log.partition(number).end(start)) if known else start
        waiting = partition.lowest_stamp(end)
        lowest = lowest if waiting is None else min(lowest, waiting)
    return lowest
