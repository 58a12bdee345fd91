"""Files by name at an address, in HDFS or a pyarrow file system: complete or missing, and immutable."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from fieldfare.files import write_file
from fieldfare.storage.errors import IndexStoreError
from fieldfare.storage.shared.address import SharedAddress

_BLOCK_BYTES = 8 << 20
_UNFINISHED = ".unfinished"


class SharedFiles:
    """The files at an address, in folders of one level; opened on first use, and again after a fork."""

    def __init__(self, address: SharedAddress) -> None:
        self.address = address
        self._opened: tuple[int, Any, str] | None = None

    def put(self, name: str, path: Path) -> None:
        """Upload a local file; it is complete on return. IndexStoreError if that fails."""
        with self._explained(name), path.open("rb") as file:
            self._write(name, file)

    def put_bytes(self, name: str, data: bytes) -> None:
        """Upload bytes as a file; it is complete on return. IndexStoreError if that fails."""
        with self._explained(name):
            self._write(name, pa.BufferReader(data))

    def get_bytes(self, name: str) -> bytes:
        """Return the content of a file; IndexStoreError if it is missing or cannot be read."""
        with self._explained(name):
            filesystem, base = self._open()
            with filesystem.open_input_stream(f"{base}/{name}") as stream:
                return bytes(stream.read())

    def fetch(self, name: str, path: Path) -> None:
        """Copy a file to a new file on this machine's disk."""
        with self._explained(name):
            filesystem, base = self._open()
            with filesystem.open_input_stream(f"{base}/{name}") as stream, path.open("xb") as file:
                shutil.copyfileobj(stream, file, _BLOCK_BYTES)

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder; none if the folder does not exist."""
        with self._explained(folder):
            filesystem, base = self._open()
            wanted = fs.FileSelector(f"{base}/{folder}", allow_not_found=True)
            found = (each.base_name for each in filesystem.get_file_info(wanted) if each.is_file)
            return [name for name in found if not name.startswith(".")]

    def remove(self, name: str) -> None:
        """Remove a file; do nothing if it does not exist."""
        with self._explained(name):
            filesystem, base = self._open()
            try:
                filesystem.delete_file(f"{base}/{name}")
            except FileNotFoundError:
                pass

    def _write(self, name: str, source: Any) -> None:
        filesystem, base = self._open()
        path = f"{base}/{name}"
        if filesystem.type_name == "local":
            # Synced, so that the copy survives a power failure like the data directory's own files.
            write_file(Path(path), lambda file: shutil.copyfileobj(source, file, _BLOCK_BYTES))
            return
        if filesystem.type_name in ("s3", "gcs"):
            self._stream(filesystem, path, source)  # An object is visible only when it is complete.
            return
        folder, _, last = path.rpartition("/")
        filesystem.create_dir(folder, recursive=True)
        unfinished = f"{folder}/.{last}.{uuid.uuid4().hex[:8]}{_UNFINISHED}"
        self._stream(filesystem, unfinished, source)
        filesystem.move(unfinished, path)

    def _stream(self, filesystem: Any, path: str, source: Any) -> None:
        with filesystem.open_output_stream(path) as stream:
            shutil.copyfileobj(source, stream, _BLOCK_BYTES)

    def _open(self) -> tuple[Any, str]:
        if self._opened is None or self._opened[0] != os.getpid():
            filesystem, base = _file_system(self.address.opened)
            self._opened = os.getpid(), filesystem, base.rstrip("/")
        return self._opened[1:]

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError, ValueError, pa.ArrowException) as error:
            raise IndexStoreError(f"{self.address.place}/{name}: {error}") from error

    def __reduce__(self) -> tuple[type[SharedFiles], tuple[SharedAddress]]:
        return SharedFiles, (self.address,)


def _file_system(url: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path in it."""
    parts = urlsplit(url)
    if parts.scheme in ("hdfs", "viewfs"):
        if find_spec("hdfs_native") is None:
            raise OSError("for HDFS this machine needs more: pip install 'fieldfare[hdfs]'")
        from fieldfare.storage.shared.hdfs import Hdfs

        return Hdfs(url), parts.path
    return fs.FileSystem.from_uri(url)  # type: ignore[no-any-return]
