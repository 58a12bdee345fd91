"""A SQL database as storage uses it: one transaction at a time writes, others read; errors in our words."""

from __future__ import annotations

import os
import sqlite3
import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from fieldfare.storage.errors import DiskFullError, FormatError, RegistryError
from fieldfare.storage.sqlite.connections import BUSY_TIMEOUT_S, execute_when_free, is_disk_full


class SqlDatabase:
    """The connections of one process to a database; in a pickle only its address travels.

    Parameters
    ----------
    url
        The database as SQLAlchemy writes it, e.g. ``sqlite:///path``.
    """

    def __init__(self, url: str) -> None:
        self._url = url
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

    def close(self) -> None:
        if self._process == os.getpid():
            self._reading.dispose()
        self._process = 0

    @abstractmethod
    def _prepare(self) -> None:
        """Create or upgrade the tables unless they are as they should be."""

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

    def _connect(self) -> None:
        """Make sure of an engine of this process: one inherited by fork must not be used or closed."""
        if self._process == os.getpid():
            return
        if self._process:
            self._reading.dispose(close=False)
        self._reading = _create_engine(self._url)
        self._writing = self._reading.execution_options(fieldfare_writes=True)
        # SQLite lets its writers wait for each other too, but with naps, and in no order: one could starve.
        self._write_lock = threading.Lock()
        self._process = os.getpid()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            kind: type[RegistryError] = DiskFullError if is_disk_full(cause) else RegistryError
            if getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
                kind = FormatError
            raise kind(f"{self._url}: {cause}") from error


def _create_engine(url: str) -> sa.Engine:
    if sa.make_url(url).get_backend_name() != "sqlite":
        return sa.create_engine(url)
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})

    @sa.event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _record: Any) -> None:
        # SQLAlchemy says where transactions begin (below), not the driver.
        connection.isolation_level = None
        execute_when_free(connection, "PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # A writer takes the lock at once: one that read first could not wait for another writer.
        writes = connection.get_execution_options().get("fieldfare_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine
