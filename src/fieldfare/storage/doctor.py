"""A check of a complete data directory: reads everything and reports what is damaged, where, and what to do.

It can run beside a running service. It changes nothing, except that reading corrupt rows writes notes and
repairs what a start would repair at once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from fieldfare.matching.files import IndexFileError
from fieldfare.matching.part import Part
from fieldfare.matching.versions import Closings
from fieldfare.model import Position
from fieldfare.storage import open_event_log, open_index_store, open_keys, open_match_log, open_registry
from fieldfare.storage.corruption import note_paths, read_note
from fieldfare.storage.errors import CorruptBlockError, IndexStoreError, StorageError
from fieldfare.storage.event_log import starts_of
from fieldfare.storage.files.match_folder import blocks_from
from fieldfare.storage.files.match_log import PARTITION, FileMatchLog
from fieldfare.storage.folder import DataFolder
from fieldfare.storage.quarantine import UNKNOWN, Quarantine
from fieldfare.storage.sql import tables
from fieldfare.storage.sqlite import delayed, schema
from fieldfare.storage.sqlite.pairing import find_foreign_wal
from fieldfare.storage.sqlite.wal import wal_path, wrong_frame

PAGE_ERRORS_MAX = 20
"""Maximum damaged pages reported per file; further ones are not reported."""

_RESTORE = (
    "stop the service and restore the file from a backup; or leave it, and only its readable part is served"
)
_BEFORE_START = "restore it from a backup before the next start, which would begin without this content"


class Finding(NamedTuple):
    """One finding: the damaged file, what is wrong with it, and what to do."""

    file: Path
    what: str
    to_do: str


def examine(folder: DataFolder, *, is_running: bool) -> Iterator[Finding]:
    """Read all files of a data directory and yield the damage found.

    Parameters
    ----------
    folder
        The directory.
    is_running
        Whether a service runs on it, which writes to the WALs.
    """
    odd = dict.fromkeys((path for path in folder.databases if path.exists() and not path.is_file()), "")
    for path in odd:
        yield Finding(path, "it is no file", "move it away, and restore the file from a backup")
    databases = [path for path in folder.databases if path not in odd]
    # SQLite would delete the part of a WAL that lies behind a damaged frame, which a start can repair.
    wrong = {} if is_running else {path: what for path in databases if (what := wrong_frame(path))}
    for path, what in wrong.items():
        yield Finding(
            wal_path(path), what, "start the service: it repairs the WAL first; then run this again"
        )
    foreign = {} if is_running else {path: what for path in databases if (what := find_foreign_wal(path))}
    for path, what in foreign.items():
        yield Finding(wal_path(path), what, "restore both from the same backup, or move the WAL away")
    wrong |= foreign | odd
    empty = [] if is_running else [path for path in databases if _is_empty(path)]
    for path in empty:
        yield Finding(path, "the file is empty: all that it held is lost", _BEFORE_START)
    for path in _missing(folder):
        yield Finding(path, "the file is missing: all that it held is lost", _BEFORE_START)
    wrong |= dict.fromkeys(empty, "")
    for path in folder.databases:
        if path.exists() and path not in wrong:
            yield from _pages(path)
    for path, read in (
        (folder.log_path, _read_log),
        (folder.registry_path, _read_registry),
        (folder.delayed_path, _read_delayed),
    ):
        if path.exists() and path not in wrong:
            yield from _rows(folder, path, read)
    yield from _blocks(folder.matches)
    for replay in sorted(folder.replays.glob("*")) if folder.replays.is_dir() else ():
        yield from _blocks(replay, "nothing: the service matches it again")
    yield from _index(folder)
    for partition, offset in Quarantine(folder.quarantine).places():
        found = Quarantine(folder.quarantine).get(partition, offset)
        if found is not None and found.error.startswith(UNKNOWN):
            yield Finding(
                folder.quarantine,
                f"the file about the quarantined record {partition}-{offset}: {found.error}",
                "delete it",
            )
    for path in note_paths(folder.root):
        note = read_note(path)
        if note is None:
            yield Finding(path, "the note cannot be read", "delete it")
        else:
            yield Finding(folder.root / note.file, note.what, f"do what the note says, then delete {path}")


def _missing(folder: DataFolder) -> list[Path]:
    """Return the databases that are missing although the directory has files that a service wrote later."""
    needed = [folder.registry_path] if folder.log else [folder.log_path, folder.registry_path]
    lost = [path for path in needed if not path.exists()]
    # Not the registry alone: a relay has one, for its keys, and no event log.
    is_site = lost and (
        folder.delayed_path.exists()
        or any(folder.index.glob("*/*"))
        or any(True for _ in blocks_from(folder.matches))
    )
    return lost if is_site else []


def _is_empty(path: Path) -> bool:
    """Return whether a database has lost its content, as after a power failure, and its WAL has none."""
    sizes = [each.stat().st_size for each in (path, wal_path(path)) if each.is_file()]
    return path.is_file() and not any(sizes)


def _pages(path: Path) -> Iterator[Finding]:
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as connection:
            for (said,) in connection.execute(f"PRAGMA integrity_check({PAGE_ERRORS_MAX})"):
                if said != "ok":
                    yield Finding(path, said, _RESTORE)
    except sqlite3.Error as error:
        yield Finding(path, f"it cannot be read: {error}", _RESTORE)


def _rows(
    folder: DataFolder, path: Path, read: Callable[[DataFolder], Iterator[Finding]]
) -> Iterator[Finding]:
    try:
        yield from read(folder)
    except (StorageError, sqlite3.Error, ValueError) as error:
        yield Finding(path, f"not all of it can be read: {error}", _RESTORE)


def _read_log(folder: DataFolder) -> Iterator[Finding]:
    with closing(sqlite3.connect(f"file:{quote(str(folder.log_path))}?mode=ro", uri=True)) as connection:
        if not schema.is_current(connection):
            yield _older(folder.log_path)
            return
    log = open_event_log(f"sqlite:///{folder.log_path}")
    with closing(log):
        for partition, start in zip(log.partitions, starts_of(log), strict=True):
            for _ in partition.read(start, partition.end()):
                pass  # Reading writes a note about each corrupt record.


def _read_registry(folder: DataFolder) -> Iterator[Finding]:
    path = folder.registry_path
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as connection:
        made = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        is_relays = bool(made) and tables.counters.name not in made  # It has only keys.
        if not is_relays:
            found = connection.execute("SELECT value FROM counters WHERE name = 'format'").fetchone()
            if found != (tables.FORMAT,):
                yield _older(path)
                return
    if not is_relays:
        yield from _read_subscriptions(folder)
    with closing(open_keys(folder.registry_url)) as keys:
        keys.keys()
        keys.ended_spaces()


def _read_subscriptions(folder: DataFolder) -> Iterator[Finding]:
    path = folder.registry_path
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as connection:
        purged = connection.execute("SELECT value FROM counters WHERE name = 'purged'").fetchone()[0]
        numbers = [row[0] for row in connection.execute("SELECT DISTINCT number FROM cursors")]
        dead = [row[0] for row in connection.execute("SELECT DISTINCT number FROM letters")]
        spaces = [row[0] for row in connection.execute("SELECT DISTINCT space FROM subscriptions")]
    with closing(open_registry(folder.registry_url)) as registry:
        for _ in registry.changes(purged, registry.revision()):
            pass
        for space in spaces:
            after: str | None = None
            while page := registry.list(space, after, 1_000):
                after = page[-1].id
        registry.load_cursors(numbers)
        registry.replays()
        registry.stored_spaces()
        for number in dead:
            place: Position | None = None
            while letters := registry.letters(number, place, 1_000):
                place = letters[-1].position
        if registry.has_vanished():
            what = "rows have vanished or changed: a subscription, a version of a filter, or a space"
            yield Finding(
                path, what, "start the service: it repairs what can be repaired, and names the rest"
            )


def _read_delayed(folder: DataFolder) -> Iterator[Finding]:
    path = folder.delayed_path
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)) as connection:
        if connection.execute("PRAGMA user_version").fetchone() != (delayed.FORMAT,):
            yield _older(path)
            return
        for id, space in delayed.changed_rows(connection):
            what = f"the delayed events with id {id} of the space {space} have changed on the disk"
            yield Finding(path, what, "they are dropped at the next start: publish them again")


def _blocks(
    folder: Path, to_do: str = "it is set aside when it is read; its matches are lost"
) -> Iterator[Finding]:
    log = open_match_log(folder.absolute().as_uri())
    for each in (folder, *sorted(folder.glob(f"{PARTITION}*"))):
        number = int(each.name.removeprefix(PARTITION)) if each != folder else 0
        partition = log.partition(number)
        for block in blocks_from(each):
            try:
                trouble = partition.trouble(block)
            except StorageError as error:
                trouble = None if isinstance(error, CorruptBlockError) else str(error)
            if trouble is not None:
                yield Finding(block.path(each), trouble, to_do)
    if isinstance(log, FileMatchLog):
        for lost in log.lost():
            what = f"the matches of records {lost.start} to {lost.end - 1} are lost: the block is set aside"
            yield Finding(
                Path(lost.kept), what, "tell the owners of the space's subscriptions, then delete the file"
            )


def _index(folder: DataFolder) -> Iterator[Finding]:
    to_do = "nothing: the indexer rebuilds it at the next start, or as soon as matching fails"
    store = open_index_store(folder.index_url)
    try:
        newest = store.newest()
    except IndexStoreError as error:
        yield Finding(folder.index, str(error), to_do)
        return
    for space in newest.spaces.values() if newest else ():
        closings = {part.closings for part in space.slices}
        for name in sorted(space.files()):
            try:
                (Closings if name in closings else Part).open(store.path(name), verify=True)
            except (IndexFileError, OSError) as error:
                yield Finding(store.path(name), str(error), to_do)


def _older(path: Path) -> Finding:
    what = "it has an older format: its rows have no checksums, and were not checked"
    return Finding(path, what, "start the service once: it brings the file up to date")
