"""Rebuild, before a start, a SQLite file whose structure is damaged: copy its rows into a new file.

A corrupt page that SQLite needs would make the start, or every write, fail. The readable rows (see `pages`)
are copied into the new file; the damaged file stays beside it. The rows' contents are checked later, when
they are read, as always.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from fieldfare.files import remove_abandoned, sync_file, sync_folder, temporary_path
from fieldfare.storage.corruption import FOLDER, forget_note, has_note, note_corruption
from fieldfare.storage.errors import DiskFullError, StorageError
from fieldfare.storage.sqlite.connections import disk_full, is_damage, is_disk_full
from fieldfare.storage.sqlite.first_page import SUFFIX, mend_first_page, save_first_page
from fieldfare.storage.sqlite.pages import PageFile, Row, Tree
from fieldfare.storage.sqlite.pairing import find_foreign_wal
from fieldfare.storage.sqlite.wal import WalState, mend_wal, real_path, shm_path, wal_path

STRUCTURE = "structure"
"""Name of the corruption note that makes the next start check the complete file."""
_LARGE = "records"
"""The table of which a start checks only the first and last pages, because it is large."""


class _StoredTable(NamedTuple):
    name: str
    root: int
    columns: Sequence[str]
    """Column names in stored order."""
    number: int | None
    """Index of the column that is the rowid; None if no column is."""
    has_numbers: bool


def note_structure(path: Path, error: object) -> None:
    """Write the note that damage ended a request; the next start checks the complete file and rebuilds it."""
    note_corruption(
        path,
        STRUCTURE,
        f"a required page has changed on the disk ({error}); restart the service: it copies the readable data"
        " into a new file",
    )


@contextmanager
def explained(path: Path, kind: type[StorageError]) -> Iterator[None]:
    """Raise errors of the storage in place of SQLite's: DiskFullError, or one of a kind; note damage."""
    try:
        yield
    except sqlite3.Error as error:
        if is_disk_full(error, path):
            raise DiskFullError(disk_full(path)) from error
        if is_damage(error, path):
            note_structure(path, error)
        raise kind(f"{path}: {error}") from error


def mend_databases(paths: Iterable[Path], say: Callable[[str], None]) -> None:
    """Repair damaged files that no process has open; report each repair with `say`.

    Raises
    ------
    StorageError
        A file can neither be used as it is nor be copied.
    """
    for path in paths:
        try:
            for folder in {path.parent, path.parent / FOLDER, real_path(path).parent}:
                remove_abandoned(folder)
            if path.exists() or wal_path(path).exists():
                _mend_database(path, say)
        except OSError as error:
            if is_disk_full(error, path):
                raise DiskFullError(disk_full(path)) from error
            raise StorageError(f"{path} cannot be checked before the start: {error}") from error


def _mend_database(path: Path, say: Callable[[str], None]) -> None:
    wal = mend_wal(path)
    if (foreign := find_foreign_wal(path)) is not None:
        raise StorageError(
            f"{wal_path(path)}: {foreign}. Restore both from the same backup, or move the WAL away: then what"
            " only the WAL holds is lost"
        )
    if not path.exists():
        return
    if wal is not WalState.RIGHT:
        say(f"{path}: its WAL had changed on the disk; a note in {FOLDER} says what is lost")
    if mend_first_page(path):
        say(f"{path}: its first page had changed on the disk and was restored")
    is_suspect = wal is WalState.DAMAGED
    why = _damage_of(path, is_suspect or has_note(path, STRUCTURE))
    if why is None:
        save_first_page(path)  # A service that is always killed, never stopped, gets its copy here.
    else:
        say(_rebuild(path, why))


def _damage_of(path: Path, is_suspect: bool) -> str | None:
    """Return what is wrong with a file's structure; None if nothing would block a start or writes."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
            names = [
                row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            ]
            if _LARGE not in names or is_suspect:
                return _first_wrong(connection, "")
            for name in names:
                if name != _LARGE and (why := _first_wrong(connection, f"('{name}')")) is not None:
                    return why
            _try_ends(connection)
    except sqlite3.DatabaseError as error:
        if is_disk_full(error, path):
            raise DiskFullError(disk_full(path)) from error
        if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR):
            return str(error)
        return None  # Not a database, or it cannot be opened: the code that opens it reports that.
    except UnicodeDecodeError:
        return "malformed database schema"  # SQLite's message quotes a name that is not UTF-8 any more.
    return None


def _first_wrong(connection: sqlite3.Connection, of: str) -> str | None:
    found: str = connection.execute(f"PRAGMA integrity_check{of or '(1)'}").fetchone()[0]
    return None if found == "ok" else found


def _try_ends(connection: sqlite3.Connection) -> None:
    """Insert a record, delete the first one and roll back: appends and retention need these pages."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({_LARGE})") if row[5] == 0]
        values = ", ".join("x''" if name == "payload" else "0" for name in columns)
        connection.execute(f"INSERT INTO {_LARGE} ({', '.join(columns)}) VALUES ({values})")
        connection.execute(f"DELETE FROM {_LARGE} WHERE rowid = (SELECT min(rowid) FROM {_LARGE})")
    finally:
        connection.execute("ROLLBACK")


def _rebuild(path: Path, why: str) -> str:
    wal = wal_path(path)
    if wal.exists() and wal.stat().st_size:  # Its rows would be lost: only the file itself is copied.
        raise StorageError(
            f"{path} is damaged ({why}), and cannot be copied into a new file while another process has it"
            " open: end that process, then start again"
        )
    kept = next(each for n in count(1) if not (each := path.with_name(f"{path.name}.damaged-{n}")).exists())
    target = real_path(path)  # A symbolic link stays one.
    temporary = temporary_path(target)
    try:
        lost = _copy(path, temporary)
        sync_file(temporary)
        # The copied first page is obsolete: the new file's tables are on other pages.
        path.with_name(path.name + SUFFIX).unlink(missing_ok=True)
        try:
            os.link(target, kept)
        except OSError:
            shutil.copy2(path, kept)
        what = f"some rows of {', '.join(lost)} may be lost" if lost else "no row is known to be lost"
        said = (
            f"its structure was damaged ({why}): the readable data was copied into a new file, and {what};"
            f" the damaged file is {kept.name}"
        )
        note_corruption(path, kept.suffix[1:], said)  # First: after a kill, nothing else would tell.
        os.rename(temporary, target)
    except (sqlite3.Error, OSError, ValueError) as error:
        if is_disk_full(error, path):
            raise DiskFullError(
                f"{path} is damaged ({why}) and must be copied into a new file. {disk_full(path)}"
            ) from error
        raise StorageError(
            f"{path} is damaged ({why}), and its data cannot be copied into a new file: {error}. Restore the"
            " file from a backup, or move it away"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    for beside in (wal_path(path), shm_path(path)):
        beside.unlink(missing_ok=True)
    for folder in (target.parent, kept.parent):
        sync_folder(folder)
    save_first_page(path)
    forget_note(path, STRUCTURE)
    return f"{path}: {said}"


def _copy(path: Path, to: Path) -> list[str]:
    """Copy all readable rows; return the names of the tables with damage."""
    with (
        closing(sqlite3.connect(path)) as old,
        closing(sqlite3.connect(to, isolation_level=None)) as new,
        closing(PageFile(path)) as pages,
    ):
        for name in ("page_size", "application_id", "user_version", "encoding"):
            value = old.execute(f"PRAGMA {name}").fetchone()[0]
            new.execute(f"PRAGMA {name} = {value!r}")
        for name in ("journal_mode", "synchronous"):
            new.execute(f"PRAGMA {name} = OFF").close()
        schema = old.execute("SELECT type, name, rootpage, sql FROM sqlite_schema").fetchall()
        new.execute("BEGIN")
        _run(
            new, (sql for kind, name, _, sql in schema if kind == "table" and not name.startswith("sqlite_"))
        )
        tables = [_table(new, name, root) for kind, name, root, _ in schema if kind == "table"]
        trees = {table.name: Tree() for table in tables}
        for table in tables:
            _insert(
                new, table, pages.rows(table.root, trees[table.name], has_numbers=table.has_numbers), trees
            )
        if any(tree.damaged for tree in trees.values()):
            indexes = [Tree() for _ in schema]
            for (kind, _, root, _), tree in zip(schema, indexes, strict=True):
                for _ in pages.rows(root, tree, has_numbers=False) if kind == "index" else ():
                    pass
            _adopt(new, pages, tables, trees, set[int]().union(*(tree.pages for tree in indexes)))
        _run(new, (sql for kind, _, _, sql in schema if kind == "index" and sql))
        new.execute("COMMIT")
    return [name for name, tree in trees.items() if tree.damaged]


def _run(connection: sqlite3.Connection, statements: Iterable[str]) -> None:
    for statement in statements:
        connection.execute(statement)


def _table(connection: sqlite3.Connection, name: str, root: int) -> _StoredTable:
    columns = connection.execute(f"PRAGMA table_info({name})").fetchall()
    keys = [row[1] for row in connection.execute(f"PRAGMA index_list({name})") if row[3] == "pk"]
    names = [row[1] for row in columns]
    try:
        connection.execute(f"SELECT rowid FROM {name} LIMIT 0")
    except sqlite3.OperationalError:
        stored = [row[2] for row in connection.execute(f"PRAGMA index_xinfo({keys[0]})")]
        return _StoredTable(name, root, stored, None, has_numbers=False)
    number = next((at for at, row in enumerate(columns) if row[5] and row[2] == "INTEGER" and not keys), None)
    return _StoredTable(name, root, names, number, has_numbers=True)


def _insert(
    connection: sqlite3.Connection, table: _StoredTable, rows: Iterator[Row], trees: dict[str, Tree]
) -> None:
    tree = trees[table.name]
    for number, values in rows:
        if table.number is not None and table.number < len(values):
            values[table.number] = number
        names = table.columns[: len(values)]
        if not 0 < len(values) <= len(table.columns):
            tree.damaged += 1
        elif table.name == "sqlite_sequence":
            with suppress(sqlite3.Error):
                connection.execute("DELETE FROM sqlite_sequence WHERE name = ?", values[:1])
                connection.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", values)
        else:
            marks = ", ".join("?" * len(values))
            quoted = ", ".join(f'"{name}"' for name in names)
            said = f"INSERT OR IGNORE INTO {table.name} ({quoted}) VALUES ({marks})"
            tree.damaged += 1 - connection.execute(said, values).rowcount


def _adopt(
    connection: sqlite3.Connection,
    pages: PageFile,
    tables: Sequence[_StoredTable],
    trees: dict[str, Tree],
    known: set[int],
) -> None:
    """Insert the rows of pages that no tree refers to, if they fit exactly one damaged table."""
    unused = pages.unused()
    if unused is None:
        return  # Without the free list, deleted rows might be restored.
    known = known.union(unused, *(tree.pages for tree in trees.values()))
    for number in set(range(2, pages.count + 1)) - known:
        tree = Tree(set(known))
        has_numbers, rows = pages.leaf_rows(number, tree)
        widths = {len(values) for _, values in rows}
        fitting = [
            table
            for table in tables
            if trees[table.name].damaged
            and table.has_numbers == has_numbers
            and widths == {len(table.columns)}
        ]
        if len(fitting) == 1:
            _insert(connection, fitting[0], iter(rows), trees)
