"""A SQL database: one writing transaction at a time, concurrent readers, errors as `StorageError`."""

from __future__ import annotations

import os
import sqlite3
import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from fieldfare.storage.bell import bell_of
from fieldfare.storage.errors import DiskFullError, FormatError, RegistryError
from fieldfare.storage.sql.rows import Unusable
from fieldfare.storage.sqlite.connections import (
    BUSY_TIMEOUT_S,
    disk_full,
    execute_when_free,
    is_damage,
    is_disk_full,
)
from fieldfare.storage.sqlite.rebuild import note_structure


class SqlDatabase:
    """The connections of one process to a database; a pickle contains only the URL.

    Parameters
    ----------
    url
        ``sqlite:///PATH`` with the literal, unquoted path; or the URL of another database for SQLAlchemy.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._unusable = Unusable(self._path)
        self._bell = bell_of(self._path) if url.startswith("sqlite:///") else None
        self._process = 0
        self._reading: sa.Engine
        self._writing: sa.Engine
        self._write_lock: threading.Lock
        with self._explained():
            self._prepare()

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return type(self), (self._url,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._url!r})"

    @property
    def url(self) -> str:
        return self._url

    @property
    def _path(self) -> Path:
        """The database file, which errors and notes name."""
        return Path(str(self._url.partition(":///")[2]))

    def close(self) -> None:
        if self._process == os.getpid():
            if self._reading.dialect.name == "sqlite":
                # In a WAL, one corrupt frame makes all later frames unreadable: leave nothing in it.
                # The cursor is the driver's own, and so are its errors.
                with suppress(SQLAlchemyError, sqlite3.Error), self._reading.connect() as connection:
                    connection.connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
            self._reading.dispose()
        self._process = 0

    @abstractmethod
    def _prepare(self) -> None:
        """Create or upgrade the tables if needed."""

    def _create_missing(self, metadata: sa.MetaData) -> None:
        with self._read() as connection:
            present = sa.inspect(connection).get_table_names()
        if not metadata.tables.keys() <= set(present):
            with self._write() as connection:
                metadata.create_all(connection)

    @contextmanager
    def _read(self) -> Iterator[sa.Connection]:
        with self._explained():
            self._connect()
            with self._reading.begin() as connection:
                yield connection

    @contextmanager
    def _write(self) -> Iterator[sa.Connection]:
        with self._explained():
            self._connect()
            with self._write_lock, self._writing.begin() as connection:
                yield connection
        if self._bell is not None:
            self._bell.ring()

    def _connect(self) -> None:
        """Create this process's engine if needed: one inherited by a fork must not be used or closed."""
        if self._process == os.getpid():
            return
        if self._process:
            self._reading.dispose(close=False)
        self._reading = _create_engine(self._url)
        self._writing = self._reading.execution_options(fieldfare_writes=True)
        # SQLite's writers also wait for each other, but by polling, in no order: one of them could starve.
        self._write_lock = threading.Lock()
        self._process = os.getpid()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            if is_disk_full(cause, self._path):
                raise DiskFullError(disk_full(self._path)) from error
            kind: type[RegistryError] = RegistryError
            if getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
                kind = FormatError
            elif isinstance(cause, sqlite3.DatabaseError) and is_damage(cause, self._path):
                note_structure(self._path, cause)
            raise kind(f"{self._url}: {cause}") from error


def _text(stored: bytes) -> str | bytes:
    """Decode a text that SQLite has stored; return invalid UTF-8 as bytes instead of failing the query."""
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


def _create_engine(url: str) -> sa.Engine:
    scheme, _, path = url.partition(":///")
    if scheme != "sqlite":
        return sa.create_engine(url)
    # Create the URL from its parts: in a string, "?" would end the path, and "%41" would be read as "A".
    engine = sa.create_engine(
        sa.URL.create("sqlite", database=path), connect_args={"timeout": BUSY_TIMEOUT_S}
    )

    @sa.event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _record: Any) -> None:
        # SQLAlchemy begins transactions (below), not the driver.
        connection.isolation_level = None
        connection.text_factory = _text
        execute_when_free(connection, "PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # A writer takes the lock immediately: after a read, it could not wait for another writer.
        writes = connection.get_execution_options().get("fieldfare_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine
